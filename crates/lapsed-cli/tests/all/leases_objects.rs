//! Leases in an object store, through the binary: checked, served, swept, straight on the store; and
//! what cannot work is refused in words, with nothing changed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::{Answer, Daemon, lapsed, run, until};
use lapsed_testbed::{BUCKET, ObjectEngine, ObjectServer, http_call};
use serde_json::json;
use tempfile::TempDir;

lapsed_testbed::steady_tests! {
    check_reports_what_was_tried_on_each_kind_of_server,
    a_daemon_serves_leases_from_a_bucket,
    a_pass_clears_expired_leases_once_their_index_bucket_has_ended,
    of_two_daemons_on_one_bucket_only_one_is_granted_a_key,
    without_a_daemon_a_command_holds_a_lease_in_a_bucket,
    unusable_settings_are_refused_and_change_nothing,
    a_server_without_conditional_writes_is_refused,
}

/// A configuration for a place of its own in a bucket.
struct BucketHome {
    dir: TempDir,
    server: &'static ObjectServer,
    prefix: String,
}

/// Nothing waits for an hour to be over here: only operations clear.
const CALM: &str = "sweep = { every = \"1d\" }";

impl BucketHome {
    fn new(engine: ObjectEngine, lines: &str) -> BucketHome {
        let server = ObjectServer::shared(engine);
        let dir = tempfile::tempdir().unwrap();
        let unique = dir.path().file_name().unwrap().to_string_lossy().replace('.', "x");
        let place = BucketHome { dir, server, prefix: format!("cli/{unique}") };
        let url = format!("{}/{}", server.engine().url(), place.prefix);
        place.write(
            &url,
            &server.engine().endpoint_by(server.port()),
            server.engine().credentials(),
            lines,
        );
        place
    }

    fn write(&self, url: &str, endpoint: &str, (id, secret): (&str, &str), lines: &str) {
        let who = match url.starts_with("az") {
            true => format!("account = \"{id}\"\naccount_key = \"{secret}\""),
            false => format!(
                "region = \"us-east-1\"\naccess_key_id = \"{id}\"\nsecret_access_key = \"{secret}\""
            ),
        };
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.bucket]\nurl = \"{url}\"\n\
             endpoint = \"{endpoint}\"\nallow_http = true\n\
             response_timeout = \"20s\"\n{who}\n\n\
             [[system]]\nkind = \"leases\"\nname = \"locks\"\n{lines}\n"
        );
        std::fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("lapsed.toml")
    }

    fn run(&self, args: &[&str]) -> Answer {
        let config = self.config().display().to_string();
        run(&[args, &["-c", &config]].concat())
    }

    fn serve(&self) -> Daemon {
        self.try_serve().unwrap_or_else(|told| panic!("{told}"))
    }

    fn try_serve(&self) -> Result<Daemon, String> {
        let mut command = lapsed();
        command.arg("serve").arg("-c").arg(self.config());
        Daemon::spawn(command, self.dir.path())
    }
}

fn check_reports_what_was_tried_on_each_kind_of_server() {
    for engine in ObjectEngine::GOOD {
        let place = BucketHome::new(engine, CALM);
        let told = place.run(&["check"]);
        assert_eq!(told.code, 0, "{engine:?}: {told:?}");
        for word in [
            "holds: an object is made only if there is none",
            "holds: an object is replaced only if it is still what was read",
            "holds: of racing writers one wins",
            "holds: a listing shows what was just written",
            "holds: answers tell the time",
            "its clock is",
            "give or take",
            "the index has a bucket for every 1h of UTC",
            "rests 100ms for each",
            "forgets unused keys: 30d after",
            "compares index and records: off",
            "a lease is over at its deadline",
        ] {
            assert!(told.out.contains(word), "{engine:?}: {word}: {}", told.out);
        }
        let json = place.run(&["check", "--json"]).json();
        let probe = json["stores"][0]["probe"].as_array().unwrap();
        assert!(
            probe.len() >= 6
                && probe.iter().all(|line| line["ok"] == true || line["needed"] == false)
        );
        let secret = place.server.engine().credentials().1;
        assert!(!told.out.contains(secret) && !json.to_string().contains(secret));
    }
}

fn a_daemon_serves_leases_from_a_bucket() {
    let place = BucketHome::new(ObjectEngine::Seaweed, CALM);
    let daemon = place.serve();
    let grant =
        daemon.leases("acquire", json!({ "key": "a/b ü", "owner": "me", "ttl_ms": 600_000 }));
    assert_eq!(grant["token"], 1);
    daemon.try_leases("acquire", json!({ "key": "a/b ü", "owner": "you" })).is_problem(409, "held");
    daemon.leases("renew", json!({ "key": "a/b ü", "token": 1 }));
    daemon.leases("release", json!({ "key": "a/b ü", "token": 1 }));
    daemon.leases("acquire", json!({ "key": "short", "owner": "me", "ttl_ms": 1_000 }));
    let second = until("the lease to run out", || {
        let reply = daemon.try_leases("acquire", json!({ "key": "short", "owner": "you" }));
        (reply.status == 200).then_some(reply.body)
    });
    assert_eq!(second["token"], 2);
    daemon.leases("decide", json!({ "txn": "t", "decision": "commit" }));
    let listed = daemon.run(&["lease", "list"]).out;
    assert!(listed.contains("a/b ü") && listed.contains("short"), "{listed}");

    let dry = daemon.run(&["reconcile", "locks", "--dry-run"]);
    assert!(dry.code == 0 && dry.err.contains("this takes about"), "{dry:?}");
    assert!(dry.out.contains("index and truth agree"), "{dry:?}");
    let status = daemon.run(&["status", "locks"]).out;
    assert!(status.contains("not counted"), "{status}");
    let swept = daemon.run(&["sweep", "locks"]);
    assert!(swept.out.contains("sweeps only when idle"), "{swept:?}");
    let text = daemon.get("/metrics").text;
    for series in [
        "lapsed_store_requests_total{store=\"bucket\",kind=\"put\"} ",
        "lapsed_store_requests_total{store=\"bucket\",kind=\"get\"} ",
        "lapsed_store_requests_total{store=\"bucket\",kind=\"list\"} ",
        "lapsed_store_throttled_total{store=\"bucket\"} 0",
        "lapsed_store_withheld_total{store=\"bucket\"} 0",
        "lapsed_store_clock_offset_seconds{store=\"bucket\",bound=\"least\"} ",
        "lapsed_index_entries_deleted_total{system=\"locks\",kind=\"leases\"} ",
        "lapsed_leases_cleared_total{system=\"locks\",by=\"operation\",kind=\"leases\"} 1",
        "lapsed_reclaimed_total{system=\"locks\",reason=\"lease_expired\",kind=\"leases\"} 1",
    ] {
        assert!(text.contains(series), "{series}: {text}");
    }
    assert!(
        !text.contains("lapsed_store_requests_total{store=\"bucket\",kind=\"put\"} 0\n"),
        "{text}"
    );
    assert_eq!(daemon.stop(), Some(0));
}

/// A pass only looks at buckets of the index whose time is over: with the narrowest, within a minute.
fn a_pass_clears_expired_leases_once_their_index_bucket_has_ended() {
    let lines =
        "bucket = \"1m\"\nidle_grace = \"1ms\"\nop_delay = \"1ms\"\nsweep = { every = \"1d\" }";
    let place = BucketHome::new(ObjectEngine::Seaweed, lines);
    let daemon = place.serve();
    daemon.leases("acquire", json!({ "key": "gone", "owner": "a", "ttl_ms": 1_000 }));
    daemon.leases("acquire", json!({ "key": "kept", "owner": "b", "ttl_ms": 86_400_000 }));
    daemon.leases("decide", json!({ "txn": "t", "decision": "commit", "ttl_ms": 1_000 }));
    // Cleared by who comes next; the pass that writes its receipt down must not count it again.
    daemon.leases("acquire", json!({ "key": "met", "owner": "a", "ttl_ms": 1_000 }));
    until("the lease to run out", || {
        let body = json!({ "key": "met", "owner": "c", "ttl_ms": 86_400_000 });
        (daemon.try_leases("acquire", body).status == 200).then_some(())
    });
    let deadline = Instant::now() + Duration::from_secs(200);
    let mut cleared = 0;
    while cleared < 2 {
        assert!(Instant::now() < deadline, "{}", daemon.run(&["sweep", "locks"]).out);
        let report = daemon.post("/v1/sweeps/leases/locks", json!({ "list": 10 })).body;
        assert_eq!(report["errors"], 0, "{report}");
        cleared += report["reclaimed"].as_u64().unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    let receipts = daemon.run(&["receipts", "locks"]).out;
    for word in ["default/gone", "default/met", ".txn-decisions/t", "decision_expired"] {
        assert!(receipts.contains(word), "{word}: {receipts}");
    }
    let text = daemon.get("/metrics").text;
    for line in [
        "lapsed_leases_cleared_total{system=\"locks\",by=\"sweep\",kind=\"leases\"} 1",
        "lapsed_leases_cleared_total{system=\"locks\",by=\"operation\",kind=\"leases\"} 1",
        "lapsed_decisions_deleted_total{system=\"locks\",by=\"sweep\",kind=\"leases\"} 1",
        "lapsed_reclaimed_total{system=\"locks\",reason=\"lease_expired\",kind=\"leases\"} 2",
        "lapsed_reclaim_lag_seconds_count{system=\"locks\",kind=\"leases\"} 3",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    let deleted = "lapsed_index_entries_deleted_total{system=\"locks\",kind=\"leases\"} 0\n";
    assert!(!text.contains(deleted), "{text}");
    let kept = daemon.get("/v1/leases/locks/describe/default/kept").body;
    assert_eq!(kept["lease"]["owner"], "b", "{kept}");
}

fn of_two_daemons_on_one_bucket_only_one_is_granted_a_key() {
    let place = BucketHome::new(ObjectEngine::Seaweed, CALM);
    let (one, two) = (place.serve(), place.serve());
    let grant = one.leases("acquire", json!({ "key": "k", "owner": "a", "ttl_ms": 600_000 }));
    two.try_leases("acquire", json!({ "key": "k", "owner": "b" })).is_problem(409, "held");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            two.leases("acquire", json!({ "key": "k", "owner": "b", "wait_ms": 60_000 }))
        });
        until("somebody to wait", || (two.waiting() > 0).then_some(()));
        one.leases("release", json!({ "key": "k", "token": grant["token"] }));
        let got = waiting.join().unwrap();
        assert_eq!((&got["owner"], &got["token"]), (&json!("b"), &json!(2)), "{got}");
    });
    let late = one.try_leases("renew", json!({ "key": "k", "token": 1 }));
    late.is_problem(409, "lost");
    assert_eq!((&late.body["why"], &late.body["holder"]), (&json!("superseded"), &json!("b")));
}

fn without_a_daemon_a_command_holds_a_lease_in_a_bucket() {
    let place = BucketHome::new(ObjectEngine::Seaweed, CALM);
    let config = place.config().display().to_string();
    let script = "echo token $LAPSED_LEASE_TOKEN";
    let told = run(&["lease", "run", "nightly", "-c", &config, "--", "sh", "-c", script]);
    assert_eq!((told.code, told.out.as_str()), (0, "token 1\n"), "{told:?}");
    let acquire = ["lease", "acquire", "nightly", "--owner", "me", "--ttl", "10m", "--json"];
    let held = place.run(&acquire);
    assert_eq!(held.json()["token"], 2, "{held:?}");
    let refused = run(&["lease", "run", "nightly", "-c", &config, "--", "sh", "-c", script]);
    assert_eq!((refused.code, refused.out.as_str()), (75, ""), "{refused:?}");
    assert_eq!(place.run(&["lease", "release", "nightly", "2"]).code, 0);
    let explained = place.run(&["explain", "locks", "default/nightly"]).out;
    assert!(explained.contains("free"), "{explained}");
}

/// Exit code 1 (or 2), an error with those words and without the secret, and the daemon refuses, too.
#[track_caller]
fn is_refused(place: &BucketHome, says: &[&str]) {
    let told = place.run(&["check"]);
    assert!(told.code == 1 || told.code == 2, "{told:?}");
    for word in says {
        assert!(told.err.contains(word), "{word:?} is missing: {told:?}");
    }
    assert!(!told.err.contains("wrong-secret") && !told.err.contains("panicked"), "{told:?}");
    let served = place.try_serve().err().unwrap_or_else(|| panic!("it serves: {told:?}"));
    assert!(says.iter().all(|word| served.contains(word)), "{served}");
    let straight = place.run(&["lease", "acquire", "k", "--owner", "o"]);
    assert!(straight.code == 1 || straight.code == 2, "{straight:?}");
}

fn unusable_settings_are_refused_and_change_nothing() {
    let place = BucketHome::new(ObjectEngine::Seaweed, CALM);
    let server = place.server;
    let endpoint = server.engine().endpoint_by(server.port());
    let good = server.engine().credentials();
    let url = format!("{}/{}", server.engine().url(), place.prefix);
    place.write("s3://no-such-bucket/x", &endpoint, good, CALM);
    is_refused(&place, &["bucket", "no-such-bucket"]);
    place.write(&url, &endpoint, (good.0, "wrong-secret"), CALM);
    is_refused(&place, &["bucket", "credentials are not accepted"]);
    place.write(&url, "http://127.0.0.1:1", good, CALM);
    is_refused(&place, &["bucket", "unavailable"]);
    // With the right settings again: nothing was written there.
    place.write(&url, &endpoint, good, CALM);
    let listed = place.run(&["lease", "list", "--json"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, ""), "{listed:?}");
}

/// s3rver ignores conditions and accepts every write: two holders could both win.
fn a_server_without_conditional_writes_is_refused() {
    let place = BucketHome::new(ObjectEngine::S3rver, CALM);
    is_refused(&place, &["an object is made only if there is none", "ignored"]);
    let told = place.run(&["check"]);
    assert!(told.err.contains("FAILS: an object is made only if there is none"), "{told:?}");
    let left = http_call(
        place.server.port(),
        "GET",
        &format!("/{BUCKET}?list-type=2&prefix={}", place.prefix),
        &[],
        Duration::from_secs(20),
    );
    let left = left.unwrap().body;
    assert!(!left.contains("<Key>"), "the probe leaves nothing behind: {left}");
}
