//! Jobs in flight on Redis and Valkey through the binary: lapsed's own queues, Sidekiq's queues, and
//! jobs that an application registers itself in the layout of the original.

use crate::support::{Home, until};
use lapsed_testbed::{Engine, RedisServer};
use serde_json::json;

lapsed_testbed::steady_tests! {
    jobs_are_taken_and_put_back_on_native_queues,
    a_sidekiq_job_is_put_back_unchanged,
    orphans_of_the_original_layout_go_back_to_sidekiq,
    check_reports_what_the_server_cannot_do,
}

fn home(server: &RedisServer, lines: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"{}\"\n\n\
         [[system]]\nkind = \"inflight\"\nname = \"jobs\"\nsweep = {{ every = \"1d\" }}\n{lines}\n",
        server.url()
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

fn jobs_are_taken_and_put_back_on_native_queues() {
    for engine in Engine::ALL {
        let server = server(engine);
        let home = home(&server, "heartbeat_ttl = \"1s\"");
        let check = home.run(&["check"]);
        assert_eq!(check.code, 0, "{check:?}");
        let daemon = home.serve();
        daemon.jobs("enqueue", json!({ "queue": "q", "id": "j", "payload": "p" }));
        daemon.start_without_beats("w1");
        let first = daemon.jobs("take", json!({ "owner": "w1", "queue": "q" }));
        assert_eq!(first["jobs"][0]["id"], "j", "{first}");
        daemon.until_recovered();
        let token = &first["jobs"][0]["token"];
        daemon.try_jobs("complete", json!({ "id": "j", "token": token })).is_problem(409, "lost");
        daemon.start_long_lived("w2");
        let waits = json!({ "owner": "w2", "queue": "q", "wait_ms": 5_000 });
        let second = daemon.jobs("take", waits);
        let job = &second["jobs"][0];
        assert_eq!((&job["payload"], &job["crashes"]), (&json!("p"), &json!(1)), "{second}");
        let failed = json!({ "id": "j", "token": job["token"], "error": "no" });
        daemon.jobs("fail", failed);
        assert_eq!(home.run(&["dead", "list", "--json"]).lines().len(), 1);
        assert_eq!(daemon.run(&["dead", "delete", "j"]).code, 0);
        let counts = daemon.counts();
        assert_eq!((&counts["entered"], &counts["dropped"]), (&json!(1), &json!(1)), "{counts}");
        assert_eq!(daemon.stop(), Some(0));
    }
}

const PAYLOAD: &str =
    r#"{"class":"Mail","args":[1.0,[]],"jid":"b4a577edbccf1d805744efa9","queue":"mails"}"#;

fn a_sidekiq_job_is_put_back_unchanged() {
    let server = server(Engine::Redis);
    let home = home(&server, "heartbeat_ttl = \"1s\"\nqueues = \"sidekiq\"");
    server.command(&["LPUSH", "queue:mails", PAYLOAD]).unwrap();
    let daemon = home.serve();
    daemon.start_without_beats("w1");
    let taken = daemon.jobs("take", json!({ "owner": "w1", "queue": "mails" }));
    let job = &taken["jobs"][0];
    assert_eq!(
        (&job["id"], &job["payload"]),
        (&json!("b4a577edbccf1d805744efa9"), &json!(PAYLOAD))
    );
    assert_eq!(server.command(&["EXISTS", "queue:mails"]).unwrap(), "0");
    daemon.until_recovered();
    assert_eq!(server.command(&["LRANGE", "queue:mails", "0", "-1"]).unwrap(), PAYLOAD);
    assert_eq!(server.command(&["SMEMBERS", "queues"]).unwrap(), "mails");
}

/// As the seed has it: an index by last heartbeat, a hash of job JSON; one fresh, one ten minutes old.
fn orphans_of_the_original_layout_go_back_to_sidekiq() {
    for engine in Engine::ALL {
        let server = server(engine);
        let home = home(
            &server,
            "mode = \"adopt\"\npreset = \"sidekiq-async-http\"\norphan_threshold = \"2s\"\n\
             heartbeat_interval = \"1s\"",
        );
        let (index, jobs) =
            ("sidekiq:async_http:inflight_index", "sidekiq:async_http:inflight_jobs");
        let now: u64 = server.command(&["TIME"]).unwrap().lines().next().unwrap().parse().unwrap();
        let (old, fresh) = (((now - 600) * 1000).to_string(), (now * 1000).to_string());
        for (id, score) in [("old", &old), ("fresh", &fresh)] {
            server.command(&["ZADD", index, score, id]).unwrap();
            server.command(&["HSET", jobs, id, PAYLOAD]).unwrap();
        }
        let beat = || {
            let now: u64 =
                server.command(&["TIME"]).unwrap().lines().next().unwrap().parse().unwrap();
            server.command(&["ZADD", index, &((now + 1) * 1000).to_string(), "fresh"]).unwrap();
        };
        let check = home.run(&["check"]);
        assert_eq!(check.code, 0, "{check:?}");
        for word in [
            "beats for its jobs every 1s",
            "is an orphan",
            "Sidekiq's, `queue:{queue}`",
            "dead letters are in Sidekiq's own dead set",
            index,
        ] {
            assert!(check.out.contains(word), "{word}: {check:?}");
        }
        beat();
        let dry = home.run(&["sweep", "jobs", "--dry-run"]);
        assert!(dry.out.contains("1 of 1 suspect would be recovered"), "{dry:?}");
        let report = until("the orphan to be put back", || {
            beat();
            let report = home.run(&["sweep", "jobs", "--json"]).json();
            (report["reclaimed"] == 1).then_some(report)
        });
        assert_eq!(report["entries"][0]["key"], "old", "{report}");
        assert_eq!(server.command(&["LRANGE", "queue:mails", "0", "-1"]).unwrap(), PAYLOAD);
        assert_eq!(server.command(&["ZRANGE", index, "0", "-1"]).unwrap(), "fresh");
        assert_eq!(server.command(&["HKEYS", jobs]).unwrap(), "fresh");
        let daemon = home.serve();
        let take = daemon.try_jobs("take", json!({ "owner": "w", "queue": "mails" }));
        take.is_problem(501, "unsupported");
        let status = daemon.run(&["status", "jobs"]).out;
        assert!(status.contains("in flight"), "{status}");
        assert_eq!(daemon.get("/metrics").status, 200);
        let receipts = daemon.run(&["receipts", "jobs"]).out;
        assert!(receipts.contains("put back"), "{receipts}");
    }
}

fn check_reports_what_the_server_cannot_do() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    for (lines, says) in [
        ("queues = \"sidekiq\"\nqueue_key = \"jobs:{queue}\"", "queue:{queue}"),
        ("queues = \"list\"\nwebhook = \"http://h/\"", "lapsed's own queues"),
        ("mode = \"adopt\"\nwebhook = \"http://h/\"", "lapsed's own queues"),
        ("mode = \"adopt\"\nqueues = \"lapsed\"", "\"sidekiq\", \"list\" or \"stream\""),
        (
            "mode = \"adopt\"\nqueues = \"list\"\ndead_letter = \"sidekiq\"",
            "only Sidekiq has a set of dead jobs",
        ),
        ("dead_letter = \"lapsed\"", "mode = \"adopt\""),
    ] {
        let wrong = home(&server, lines).run(&["check"]);
        assert_eq!(wrong.code, 2, "{lines}: {wrong:?}");
        assert!(wrong.err.contains(says), "{says}: {wrong:?}");
    }
}
