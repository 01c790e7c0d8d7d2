//! The binary against a Redis that other programs write: redis-cli and a Node client. What the README
//! shows, on both systems; and two daemons at once on the same keys.

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::{Answer, Daemon, Home, lapsed, until};
use lapsed_testbed::{Cluster, Engine, RedisServer, paths};
use serde_json::Value;

lapsed_testbed::steady_tests! {
    entries_written_by_a_node_service_are_swept,
    sessions_written_by_redis_cli_are_swept,
    two_daemons_together_count_each_reclaim_once,
    native_mode_also_writes_the_adopted_keys,
    a_freshly_started_server_holds_the_brake,
    check_reports_unusable_redis_settings,
    a_daemon_survives_a_redis_outage,
}

/// A configuration with both systems on the seeds' own keys.
fn home(url: &str, mode: &str, every: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"{url}\"\n\n\
         [[system]]\nkind = \"registry\"\nname = \"devices\"\nmode = \"{mode}\"\nheartbeat_ttl = \"1s\"\n\
         sweep = {{ every = \"{every}\", batch = 50 }}\n\n\
         [[system]]\nkind = \"sessions\"\nname = \"chat\"\nmode = \"{mode}\"\ngrace = \"1s\"\n\
         heartbeat_ttl = \"1s\"\nsweep = {{ every = \"{every}\", batch = 50 }}\n"
    );
    std::fs::write(home.config(), text).unwrap();
    home
}

/// A server that has been there for longer than the thresholds used here.
fn server(engine: Engine) -> RedisServer {
    let server = RedisServer::start(engine).unwrap();
    until("the server to have been there for a while", || {
        (server.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap() >= 3).then_some(())
    });
    server
}

/// Runs `redis-cli` against the server.
fn redis_cli(server: &RedisServer, args: &[&str]) {
    let port = server.port().to_string();
    let status = Command::new("redis-cli").args(["-p", &port]).args(args).output().unwrap();
    assert!(status.status.success(), "{args:?}: {status:?}");
}

/// As an application would: Node, with ioredis.
fn node(server: &RedisServer, script: &str) {
    let text = format!(
        "const Redis = require('ioredis'); const redis = new Redis({}); \
         (async () => {{ {script}; redis.disconnect(); }})().catch((e) => {{ console.error(e); process.exit(1); }});",
        server.port()
    );
    let output = Command::new(paths::node().unwrap())
        .env("NODE_PATH", paths::node_modules().unwrap())
        .args(["-e", &text])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn fine(answer: Answer) -> Answer {
    assert_eq!(answer.code, 0, "{answer:?}");
    answer
}

fn swept(home: &Home, system: &str) -> Value {
    fine(home.run(&["sweep", system, "--json"])).json()
}

/// Three entries of an instance that is gone, two of one that lives.
fn entries_written_by_a_node_service_are_swept() {
    for engine in Engine::ALL {
        let server = server(engine);
        let home = home(&server.url(), "adopt", "1d");
        node(
            &server,
            "for (const i of [1, 2, 3]) await redis.hset('connections:registry', 'imei-' + i, 'i-gone'); \
             for (const i of [1, 2]) await redis.hset('connections:registry', 'live-' + i, 'i-live'); \
             for (const i of ['live', 'gone']) await redis.set('instance:heartbeat:i-' + i, '1', 'EX', 900)",
        );
        // It is seen alive, and then it dies.
        assert_eq!(swept(&home, "devices")["reclaimed"], 0);
        redis_cli(&server, &["DEL", "instance:heartbeat:i-gone"]);
        let check = fine(home.run(&["check"]));
        assert!(check.out.contains("answers, up for"), "{check:?}");
        let dry = fine(home.run(&["sweep", "devices", "--dry-run", "--json"])).json();
        assert_eq!((&dry["reclaimed"], &dry["examined"]), (&3.into(), &5.into()), "{dry}");
        assert_eq!(server.command(&["HLEN", "connections:registry"]).unwrap(), "5");
        let explained = fine(home.run(&["explain", "devices", "imei-1"]));
        assert!(explained.out.contains("i-gone"), "{explained:?}");
        let real = swept(&home, "devices");
        assert_eq!((&real["reclaimed"], &real["stopped"]), (&3.into(), &"done".into()), "{real}");
        assert_eq!(server.command(&["HLEN", "connections:registry"]).unwrap(), "2");
        let receipts = fine(home.run(&["receipts", "devices", "--json"])).lines();
        assert_eq!(receipts.len(), 3);
        let receipt = receipts[0]["id"].as_str().unwrap();
        assert_eq!(home.run(&["restore", receipt]).code, 1, "its owner is not alive");
        redis_cli(&server, &["SET", "instance:heartbeat:i-gone", "1", "EX", "900"]);
        fine(home.run(&["restore", receipt]));
        assert_eq!(server.command(&["HLEN", "connections:registry"]).unwrap(), "3");
        assert_eq!(swept(&home, "devices")["reclaimed"], 0);
    }
}

/// An orphan, a session with a connected client, and one that is missing in the index.
fn sessions_written_by_redis_cli_are_swept() {
    for engine in Engine::ALL {
        let server = server(engine);
        let home = home(&server.url(), "adopt", "1d");
        let now: u64 = server.command(&["TIME"]).unwrap().lines().next().unwrap().parse().unwrap();
        for (id, broadcaster, references) in [("a", "b1", "0"), ("b", "b2", "1"), ("c", "b3", "0")]
        {
            let (session, count) = (format!("session:{id}"), format!("ref_count:{id}"));
            let gone = (now - 600).to_string();
            let fields = ["HSET", &session, "value", "0.5", "broadcaster_user_id", broadcaster];
            let rest = ["config_json", "{}", "last_disconnect", &gone, "last_update", "1"];
            redis_cli(&server, &[&fields[..], &rest[..]].concat());
            redis_cli(&server, &["SET", &count, references]);
            redis_cli(&server, &["SET", &format!("broadcaster:{broadcaster}"), id]);
            if id != "c" {
                redis_cli(&server, &["ZADD", "disconnected_sessions", &gone, id]);
            }
        }
        fine(home.run(&["check"]));
        let explained = fine(home.run(&["explain", "chat", "a", "--json"])).json();
        assert_eq!(explained["verdict"], "orphan", "{explained}");
        let dry = fine(home.run(&["sweep", "chat", "--dry-run", "--json"])).json();
        assert_eq!(dry["reclaimed"], 1, "{dry}");
        let real = swept(&home, "chat");
        assert_eq!(
            (&real["reclaimed"], &real["skipped"]["active"]),
            (&1.into(), &1.into()),
            "{real}"
        );
        assert_eq!(
            server.command(&["EXISTS", "session:a", "ref_count:a", "broadcaster:b1"]).unwrap(),
            "0"
        );
        assert_eq!(server.command(&["EXISTS", "session:b", "broadcaster:b2"]).unwrap(), "2");
        let dry = fine(home.run(&["reconcile", "chat", "--dry-run", "--verbose"]));
        assert!(dry.out.contains('c'), "{dry:?}");
        assert_eq!(home.run(&["reconcile", "chat", "--compare"]).code, 1, "they do not agree yet");
        let healed = fine(home.run(&["reconcile", "chat", "--json"])).json();
        assert_eq!(healed["added"], 1, "{healed}");
        fine(home.run(&["reconcile", "chat", "--compare"]));
        assert_eq!(swept(&home, "chat")["reclaimed"], 1);
        let receipts = fine(home.run(&["receipts", "chat", "--key", "a", "--json"])).lines();
        fine(home.run(&["restore", receipts[0]["id"].as_str().unwrap()]));
        assert_eq!(server.command(&["HGET", "session:a", "value"]).unwrap(), "0.5");
        assert_eq!(server.command(&["GET", "broadcaster:b1"]).unwrap(), "a");
    }
}

/// A counter of one daemon, summed over its labels.
fn counter(daemon: &Daemon, name: &str) -> u64 {
    let text = daemon.get("/metrics").text;
    let values = text.lines().filter(|line| line.starts_with(name));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

/// Each counts only what the server says it did.
fn two_daemons_together_count_each_reclaim_once() {
    let server = server(Engine::Redis);
    let home = home(&server.url(), "adopt", "100ms");
    let one = home.serve();
    let mut command = lapsed();
    command.arg("serve").arg("-c").arg(home.config());
    let two = Daemon::spawn(command, home.dir.path()).unwrap();
    let script = "const dead = 600; \
        for (let i = 0; i < 5; i++) await redis.set('instance:heartbeat:i-' + i, '1', 'EX', 900); \
        for (let i = 0; i < dead; i++) await redis.hset('connections:registry', 'imei-' + i, 'i-' + (i % 5)); \
        for (let i = 0; i < 50; i++) await redis.hset('connections:registry', 'live-' + i, 'i-live'); \
        const now = Math.floor(Date.now() / 1000) - 600; \
        for (let i = 0; i < 400; i++) { \
          await redis.hset('session:s' + i, 'value', '1', 'broadcaster_user_id', 'b' + i, 'last_disconnect', now); \
          await redis.zadd('disconnected_sessions', now, 's' + i); }";
    node(
        &server,
        &format!("await redis.set('instance:heartbeat:i-live', '1', 'EX', 900); {script}"),
    );
    let seen = "return redis.call('HLEN', redis.call('KEYS', 'lapsed:*:observed:*')[1] or 'none')";
    until("all to have been seen alive", || {
        (server.command(&["EVAL", seen, "0"]).unwrap() == "6").then_some(())
    });
    for owner in 0..5 {
        redis_cli(&server, &["DEL", &format!("instance:heartbeat:i-{owner}")]);
    }
    let gone = |name: &str| counter(&one, name) + counter(&two, name);
    let left = |command: &[&str]| server.command(command).unwrap();
    until("the dead to be gone", || {
        let entries = left(&["HLEN", "connections:registry"]) == "50";
        (entries && left(&["ZCARD", "disconnected_sessions"]) == "0").then_some(())
    });
    until("both to have counted", || {
        let registry = gone("teltonika_registry_janitor_evicted_total{");
        (registry == 600 && gone("orphan_sessions_deleted_total") == 400).then_some(())
    });
    assert_eq!(gone("lapsed_reclaimed_total{"), 1_000);
    let mut by_key: BTreeMap<String, u64> = BTreeMap::new();
    for system in ["devices", "chat"] {
        let receipts = fine(home.run(&["receipts", system, "-n", "2000", "--json"])).lines();
        for receipt in receipts {
            *by_key.entry(format!("{system} {}", receipt["key"])).or_default() += 1;
        }
    }
    assert_eq!(by_key.len(), 1_000);
    assert!(by_key.values().all(|count| *count == 1), "one receipt each");
    assert_eq!((one.stop(), two.stop()), (Some(0), Some(0)));
}

/// Entries are written through lapsed over HTTP; readers of the adopted keys still find them.
fn native_mode_also_writes_the_adopted_keys() {
    let server = server(Engine::Redis);
    let home = home(&server.url(), "native", "100ms");
    let daemon = home.serve();
    daemon.hold("i-1", &["imei-1", "imei-2"]);
    assert_eq!(server.command(&["HGET", "connections:registry", "imei-1"]).unwrap(), "i-1");
    assert_eq!(server.command(&["EXISTS", "instance:heartbeat:i-1"]).unwrap(), "1");
    let made =
        daemon.chat("activate", serde_json::json!({ "session": "s", "broadcaster_user_id": "b" }));
    assert_eq!(made.status, 201, "{made:?}");
    let held = daemon.chat("connect", serde_json::json!({ "session": "s", "owner": "chat-1" }));
    assert_eq!(held.status, 200, "{held:?}");
    assert_eq!(server.command(&["GET", "ref_count:s"]).unwrap(), "1");
    assert_eq!(server.command(&["GET", "broadcaster:b"]).unwrap(), "s");
    until("the dead to be reclaimed", || {
        let gone = server.command(&["HLEN", "connections:registry"]).unwrap() == "0";
        (gone && server.command(&["EXISTS", "session:s"]).unwrap() == "0").then_some(())
    });
    let told = daemon.registry("beat", serde_json::json!({ "owner": "i-1" }));
    assert_eq!((told.status, &told.body["type"]), (409, &"lost".into()), "{told:?}");
}

/// A server that was started a moment ago may have been away: nothing is taken yet.
fn a_freshly_started_server_holds_the_brake() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let home = home(&server.url(), "adopt", "1d");
    let text = std::fs::read_to_string(home.config()).unwrap().replace("\"1s\"", "\"60s\"");
    std::fs::write(home.config(), text).unwrap();
    redis_cli(&server, &["HSET", "connections:registry", "imei-1", "i-gone"]);
    redis_cli(&server, &["SET", "instance:heartbeat:i-gone", "1", "EX", "900"]);
    fine(home.run(&["sweep", "devices"]));
    redis_cli(&server, &["DEL", "instance:heartbeat:i-gone"]);
    let held = home.run(&["sweep", "devices", "--json"]);
    assert_eq!((held.code, &held.json()["stopped"]), (3, &"brake".into()), "{held:?}");
    fine(home.run(&["brake", "devices", "override", "--reason", "it is gone", "--yes"]));
    assert_eq!(swept(&home, "devices")["reclaimed"], 1);
}

fn check_reports_unusable_redis_settings() {
    let cluster = Cluster::start(Engine::Redis, 3).unwrap();
    let refused = home(&cluster.url(), "adopt", "1d").run(&["check"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("one slot") && refused.err.contains("native"), "{refused:?}");
    fine(home(&cluster.url(), "native", "1d").run(&["check"]));
    let server = RedisServer::start(Engine::Redis).unwrap();
    redis_cli(&server, &["SET", "connections:registry", "not a hash"]);
    let wrong = home(&server.url(), "adopt", "1d").run(&["check"]);
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(wrong.err.contains("another type"), "{wrong:?}");
    let nobody = home("redis://:secret@127.0.0.1:1/0", "adopt", "1d").run(&["check"]);
    assert_eq!(nobody.code, 1, "{nobody:?}");
    assert!(!nobody.err.contains("secret") && !nobody.out.contains("secret"), "{nobody:?}");
}

/// While Redis is down the daemon answers that its store is unavailable; it recovers without a
/// restart.
fn a_daemon_survives_a_redis_outage() {
    let server = server(Engine::Redis);
    let home = home(&server.url(), "native", "100ms");
    let daemon = home.serve();
    daemon.hold("i-1", &["imei-1"]);
    server.kill().unwrap();
    let told = daemon.registry("beat", serde_json::json!({ "owner": "i-1" }));
    assert_eq!(told.status, 503, "{told:?}");
    server.restart().unwrap();
    until("the daemon to go on", || {
        let reply = daemon.registry("start", serde_json::json!({ "owner": "i-2" }));
        (reply.status == 201).then_some(())
    });
}
