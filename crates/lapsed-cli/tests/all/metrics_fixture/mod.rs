//! A daemon with every kind of system in which something of every kind has happened; alert rules
//! and dashboards are checked against its metrics.
//!
//! The registry lies in Valkey (it has an index there, and is in leader mode), leases lie in a bucket, the
//! rest in a folder.

pub mod query;

use crate::support::{Daemon, Home, until};
use lapsed_testbed::{Engine, ObjectEngine, ObjectServer, RedisServer};
use serde_json::{Value, json};

/// The daemon and what it stands on.
pub struct MetricsFixture {
    pub daemon: Daemon,
    _home: Home,
    _valkey: RedisServer,
}

impl MetricsFixture {
    /// Started, and something has happened.
    pub fn start() -> MetricsFixture {
        let valkey = RedisServer::start(Engine::Valkey).unwrap();
        let home = Home { dir: tempfile::tempdir().unwrap() };
        std::fs::write(home.config(), configuration(&home, &valkey)).unwrap();
        let daemon = home.serve();
        let watched = MetricsFixture { daemon, _home: home, _valkey: valkey };
        watched.live_and_die();
        watched
    }

    pub fn metrics(&self) -> String {
        let reply = self.daemon.get("/metrics");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.text
    }

    /// Creates a live and a dead owner in every system that has owners.
    fn live_and_die(&self) {
        let daemon = &self.daemon;
        daemon.hold("gone", &["imei-1"]);
        daemon.chat("activate", json!({ "session": "left", "broadcaster_user_id": "b" }));
        daemon.jobs("enqueue", json!({ "queue": "mails", "id": "job", "payload": "hello" }));
        // On a slow machine it may be dead before it has taken anything.
        until("a job to be taken", || {
            daemon.start_without_beats("worker");
            let take = json!({ "owner": "worker", "queue": "mails" });
            (daemon.try_jobs("take", take).status == 200).then_some(())
        });
        daemon.leases("acquire", json!({ "namespace": "n", "key": "k", "owner": "h" }));
        let provider = crate::availability_fixture::id(1);
        daemon.online(&provider);
        daemon.do_mitras("POST", &format!("providers/{provider}/heartbeat"), Value::Null);
        daemon.mitras("count");
        for system in ["registry/devices", "sessions/chat", "inflight/jobs"] {
            until("something to be reclaimed", || {
                let receipts = daemon.get(&format!("/v1/receipts?system={system}")).body;
                receipts["receipts"].as_array().is_some_and(|all| !all.is_empty()).then_some(())
            });
        }
    }
}

fn configuration(home: &Home, valkey: &RedisServer) -> String {
    let data = home.data().display().to_string();
    let redis = format!("redis://127.0.0.1:{}/0", valkey.port());
    let bucket = ObjectServer::shared(ObjectEngine::Seaweed);
    let (id, secret) = bucket.engine().credentials();
    let place = home.dir.path().file_name().unwrap().to_string_lossy().replace('.', "x");
    let url = format!("{}/watched/{place}", bucket.engine().url());
    let endpoint = bucket.engine().endpoint_by(bucket.port());
    format!(
        r#"
[server]
listen = "127.0.0.1:0"

[store.folder]
url = "embedded:{data}"

[store.cache]
url = "{redis}"

[store.bucket]
url = "{url}"
endpoint = "{endpoint}"
allow_http = true
region = "us-east-1"
access_key_id = "{id}"
secret_access_key = "{secret}"

[[system]]
kind = "registry"
name = "devices"
store = "cache"
heartbeat_ttl = "300ms"
sweep = {{ every = "200ms", mode = "leader" }}

[[system]]
kind = "sessions"
name = "chat"
store = "folder"
grace = "300ms"
sweep = {{ every = "200ms" }}

[[system]]
kind = "inflight"
name = "jobs"
store = "folder"
heartbeat_ttl = "300ms"
sweep = {{ every = "200ms" }}

[[system]]
kind = "leases"
name = "locks"
store = "bucket"

[[system]]
kind = "availability"
name = "mitras"
store = "folder"
"#
    )
}
