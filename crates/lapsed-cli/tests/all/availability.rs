//! Providers over HTTP and by command, on the embedded store.

use crate::availability_fixture::CALM;
use crate::support::{Home, JSON, lapsed, run, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_provider_goes_through_its_whole_lifecycle,
    batched_beats_have_one_answer_each,
    sessions_occupy_and_free_capacity,
    a_silent_provider_is_set_offline_once,
    settings_that_would_set_live_providers_offline_are_refused,
    commands_work_on_a_folder_without_a_daemon,
    without_a_configuration_there_is_a_system_called_default,
    beats_survive_a_graceful_stop_of_the_daemon,
}

fn a_provider_goes_through_its_whole_lifecycle() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    assert_eq!(daemon.mitras("beacon").body, json!({ "available": false, "count": 0 }));
    daemon.try_mitras("POST", "providers/sari/online", Value::Null).is_problem(404, "not_found");
    let made = daemon.do_mitras("PUT", "providers/sari", json!({ "display_name": "Sari" })).body;
    assert_eq!((&made["is_online"], &made["is_active"]), (&json!(false), &json!(true)));
    daemon
        .try_mitras("POST", "providers/sari/heartbeat", Value::Null)
        .is_problem(409, "not_online");
    let online = daemon.do_mitras("POST", "providers/sari/online", Value::Null);
    assert_eq!((&online.body["changed"], online.header("lapsed-mirror")), (&json!(true), ""));
    let again = daemon.do_mitras("POST", "providers/sari/online", Value::Null).body;
    assert_eq!(again["changed"], false);
    let beat = daemon.do_mitras("POST", "providers/sari/heartbeat", Value::Null);
    assert_eq!((&beat.body["outcome"], beat.header("lapsed-source")), (&json!("noted"), "mirror"));

    let found = daemon.mitras("available");
    let one = json!([{ "id": "sari", "active_session_count": 0 }]);
    assert_eq!((&found.body["available"], &found.body["next"]), (&one, &Value::Null));
    for (path, source) in [
        ("available", "mirror"),
        ("count", "mirror"),
        ("beacon", "mirror"),
        ("online/count", "mirror"),
        ("providers/sari/reachable", "mirror"),
        ("providers/sari/status", "mirror"),
        ("providers/sari", "truth"),
        ("providers", "truth"),
        ("config", "truth"),
    ] {
        let reply = daemon.mitras(path);
        assert_eq!((reply.status, reply.header("lapsed-source")), (200, source), "{path}");
    }
    let status = daemon.mitras("providers/sari/status").body;
    assert_eq!(
        (&status["display_name"], &status["reachable"], &status["available"]),
        (&json!("Sari"), &json!(true), &json!(true)),
        "{status}"
    );
    assert!(status["heartbeat_age_ms"].is_u64() && status["last_online_ms"].is_u64(), "{status}");

    let gone = daemon.do_mitras("POST", "providers/sari/deactivate", Value::Null).body;
    assert_eq!((&gone["is_active"], &gone["changed"]), (&json!(false), &json!(true)));
    let refused = daemon.try_mitras("POST", "providers/sari/heartbeat", Value::Null);
    refused.is_problem(403, "deactivated");
    assert!(refused.body["detail"].as_str().unwrap().contains("activate"), "{refused:?}");
    assert_eq!(daemon.mitras("online/count").body["count"], 0, "C7");
    assert_eq!(daemon.mitras("providers/sari/reachable").body["reachable"], false, "C7");
    assert!(daemon.available().is_empty());
    assert_eq!(daemon.explained("sari")["verdict"], "deactivated");
    daemon.do_mitras("POST", "providers/sari/activate", Value::Null);
    assert_eq!(daemon.available(), ["sari"]);
    daemon.do_mitras("POST", "providers/sari/offline", Value::Null);
    assert!(daemon.available().is_empty());
    assert_eq!(daemon.explained("sari")["verdict"], "offline");
    let listed = daemon.mitras("providers").body;
    assert_eq!(listed["providers"][0]["is_online"], false, "{listed}");
    daemon.mitras("providers/nobody").is_problem(404, "not_found");
    daemon.mitras("providers/nobody/status").is_problem(404, "not_found");
    assert_eq!(daemon.mitras("providers/nobody/reachable").body["reachable"], false);
    daemon.get("/v1/availability/nothing/beacon").is_problem(404, "not_found");
}

fn batched_beats_have_one_answer_each() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    for number in 0..30 {
        daemon.online(&format!("p-{number:02}"));
    }
    daemon.do_mitras("POST", "providers/p-07/deactivate", Value::Null);
    let beats = daemon.do_mitras(
        "POST",
        "heartbeats",
        json!({ "providers": ["p-03", "nobody", "p-07", "p-29"] }),
    );
    let outcomes: Vec<&str> = beats.body["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["noted", "offline", "deactivated", "noted"], "{beats:?}");
    assert_eq!((&beats.body["noted"], beats.header("lapsed-source")), (&json!(2), "mirror"));
    let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    daemon
        .try_mitras("POST", "heartbeats", json!({ "providers": many }))
        .is_problem(422, "invalid");

    assert_eq!(daemon.available().len(), 29);
    assert_eq!(daemon.mitras("count").body["count"], 29);
    let page = daemon.mitras("providers?limit=10&after=p-09&online=true").body;
    let ids: Vec<&str> = page["providers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["provider"].as_str().unwrap())
        .collect();
    assert_eq!((ids.len(), ids[0], &page["next"]), (10, "p-10", &json!("p-19")), "{page}");
    daemon.mitras("providers?limit=0").is_problem(400, "malformed");
    daemon.mitras("available?after=nonsense").is_problem(422, "invalid");
    let metrics = daemon.get("/metrics").text;
    for series in [
        "lapsed_availability_heartbeats_total{system=\"mitras\",outcome=\"noted\",kind=\"availability\"} 2",
        "lapsed_availability_heartbeats_total{system=\"mitras\",outcome=\"deactivated\",kind=\"availability\"} 1",
        "lapsed_availability_mirror_up{system=\"mitras\",kind=\"availability\"} 1",
        "lapsed_availability_mirror_seeded{system=\"mitras\",kind=\"availability\"} 1",
        "lapsed_availability_breaker_state{system=\"mitras\",kind=\"availability\"} 0",
        "lapsed_availability_available{system=\"mitras\",kind=\"availability\"} 29",
    ] {
        assert!(metrics.contains(series), "{series}: {metrics}");
    }
}

fn sessions_occupy_and_free_capacity() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    daemon.online("a");
    daemon.online("b");
    daemon.tune(json!({ "max_customers_per_mitra": 2 }));
    let count = |id: &str| {
        daemon.mitras(&format!("providers/{id}")).body["active_session_count"].as_u64().unwrap()
    };
    assert_eq!(daemon.accept("s1", "a").body["changed"], true);
    assert_eq!(daemon.accept("s1", "a").body["changed"], false, "repeating is safe");
    daemon.accept("s2", "a");
    assert_eq!(daemon.available(), ["b"], "a is full");
    assert_eq!(daemon.explained("a")["verdict"], "full");
    let session = |id: &str, what: &str, body: Value| {
        daemon.try_mitras("POST", &format!("sessions/{id}/{what}"), body)
    };
    let full = session("s3", "accept", json!({ "provider": "a" }));
    full.is_problem(409, "full");
    assert_eq!((&full.body["sessions"], &full.body["max"]), (&json!(2), &json!(2)));
    session("s1", "accept", json!({ "provider": "b" })).is_problem(409, "taken");
    session("s1", "accept", json!({ "provider": "nobody" })).is_problem(409, "taken");
    session("s9", "accept", json!({ "provider": "nobody" })).is_problem(404, "not_found");
    session("s9", "extend", Value::Null).is_problem(404, "not_found");

    assert_eq!(session("s1", "extend", Value::Null).body["status"], "pending_payment");
    assert_eq!(count("a"), 2, "its provider stays occupied");
    assert_eq!(session("s1", "resume", Value::Null).body["status"], "active");
    let moved = session("s1", "reroute", json!({ "to": "b" })).body;
    assert_eq!((&moved["provider"], count("a"), count("b")), (&json!("b"), 1, 1), "{moved}");
    assert_eq!(session("s1", "end", Value::Null).body["status"], "ended");
    assert_eq!(session("s1", "cancel", Value::Null).body["status"], "ended", "as it first ended");
    session("s1", "resume", Value::Null).is_problem(409, "over");
    assert_eq!(session("s2", "expire", Value::Null).body["status"], "expired");
    assert_eq!((count("a"), count("b")), (0, 0));
    assert_eq!(daemon.available(), ["a", "b"]);
    assert_eq!(daemon.mitras("sessions/s2").body["status"], "expired");
    daemon.do_mitras("POST", "providers/b/deactivate", Value::Null);
    session("s4", "accept", json!({ "provider": "b" })).is_problem(409, "deactivated");
    daemon.mitras("sessions/s4").is_problem(404, "not_found");
}

fn a_silent_provider_is_set_offline_once() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    daemon.tune(json!({ "heartbeat_cadence_seconds": 1, "stale_after_seconds": 1 }));
    daemon.online("quiet");
    daemon.online("loud");
    let stopper = std::sync::atomic::AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stopper.load(std::sync::atomic::Ordering::Relaxed) {
                daemon.try_mitras("POST", "providers/loud/heartbeat", Value::Null);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let report = daemon.until_offline(1);
        stopper.store(true, std::sync::atomic::Ordering::Relaxed);
        report
    });
    assert_eq!(report["entries"][0]["key"], "quiet", "{report}");
    assert_eq!(report["entries"][0]["reason"], "heartbeat_stale", "{report}");
    let receipt = report["entries"][0]["receipt"].as_str().unwrap();
    daemon
        .try_mitras("POST", "providers/quiet/heartbeat", Value::Null)
        .is_problem(409, "not_online");
    assert_eq!(daemon.mitras("providers/quiet").body["is_online"], false);
    let explained = daemon.run(&["explain", "mitras", "quiet"]);
    assert!(explained.out.contains("offline") && explained.out.contains(receipt), "{explained:?}");
    let receipts = daemon.run(&["receipts", "mitras", "--json"]).lines();
    assert_eq!((receipts.len(), &receipts[0]["key"]), (1, &json!("quiet")), "{receipts:?}");
    let restored = daemon.run(&["restore", receipt]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(daemon.mitras("providers/quiet").body["is_online"], true);
    assert_eq!(daemon.run(&["restore", receipt]).code, 1, "once");
    let text = daemon.get("/metrics").text;
    let counted = "lapsed_reclaimed_total{system=\"mitras\",reason=\"heartbeat_stale\",kind=\"availability\"} 1";
    assert!(text.contains(counted), "{text}");
}

fn settings_that_would_set_live_providers_offline_are_refused() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    let config = daemon.mitras("config").body;
    assert_eq!(config["stale_after_seconds"], 90);
    for (body, says) in [
        (json!({ "stale_after_seconds": 29 }), "heartbeat_cadence_seconds"),
        (json!({ "heartbeat_cadence_seconds": 91 }), "stale_after_seconds"),
        (json!({ "heartbeat_cadence_seconds": 0 }), "at least 1"),
        (json!({ "stale_after_seconds": 86_401 }), "day"),
        (json!({ "stale_after": 10 }), "unknown field"),
    ] {
        let reply = daemon.try_mitras("PATCH", "config", body);
        reply.is_problem(422, "invalid");
        assert!(reply.body["detail"].as_str().unwrap().contains(says), "{reply:?}");
    }
    assert_eq!(daemon.mitras("config").body, config, "nothing was changed");
    daemon.online("a");
    assert_eq!(daemon.mitras("beacon").body["available"], true);
    daemon.tune(json!({ "max_customers_per_mitra": 0 }));
    assert_eq!(daemon.mitras("beacon").body["available"], false, "the snapshot was dropped");
    daemon.tune(json!({ "max_customers_per_mitra": 1, "require_ping": false }));
    assert_eq!(daemon.mitras("beacon").body["count"], 1);
}

fn commands_work_on_a_folder_without_a_daemon() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    daemon.online("a");
    daemon.accept("s1", "a");
    assert_eq!(daemon.stop(), Some(0));
    let status = home.run(&["status", "mitras", "--json"]);
    assert_eq!(status.code, 0, "{status:?}");
    let status = status.json();
    let of = &status["availability"];
    assert_eq!(
        (&of["online"], &of["mirror_seeded"], &of["breaker"]),
        (&json!(1), &json!(true), &json!("closed")),
        "{status}"
    );
    let text = home.run(&["status", "mitras"]).out;
    for word in ["available", "memory answers, seeded", "breaker", "silent after 90 s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let explained = home.run(&["explain", "availability", "a"]);
    assert!(explained.out.contains("online and has 1 session"), "{explained:?}");
    let compared = home.run(&["reconcile", "mitras", "--dry-run"]);
    assert!(compared.code == 0 && compared.out.contains("agree"), "{compared:?}");
    let swept = home.run(&["sweep", "mitras"]);
    assert!(swept.out.contains("set offline"), "{swept:?}");
    let unknown = home.run(&["schema", "apply"]);
    assert!(unknown.code == 2 && unknown.err.contains("Postgres"), "{unknown:?}");
}

fn without_a_configuration_there_is_a_system_called_default() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.path().join("data"));
    let daemon = crate::support::Daemon::spawn(command, dir.path()).unwrap();
    let put = daemon.call("PUT", "/v1/availability/default/providers/a", None, &[JSON]);
    assert_eq!(put.status, 200, "{put:?}");
    assert_eq!(daemon.get("/v1/availability/default/beacon").body["count"], 0);
    let printed = run(&["schema", "print", "--triggers"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    for word in ["mitra_online_status", "lapsed_availability", "CREATE OR REPLACE TRIGGER"] {
        assert!(printed.out.contains(word), "{word}");
    }
}

fn beats_survive_a_graceful_stop_of_the_daemon() {
    let home = Home::providers(CALM);
    let daemon = home.serve();
    daemon.online("a");
    let seen = daemon.mitras("providers/a").body["last_heartbeat_ms"].as_u64().unwrap();
    // A beat that is no more than a second newer than the last is not worth writing down.
    until("a beat that is newer by more than a second", || {
        daemon.do_mitras("POST", "providers/a/heartbeat", Value::Null);
        let status = daemon.mitras("providers/a/status").body;
        let age = status["heartbeat_age_ms"].as_u64().unwrap();
        let now = daemon.get("/v1/sweeps/availability/mitras").body["store"]["now_ms"].clone();
        (now.as_u64().unwrap() > seen + age + 1_500).then_some(())
    });
    assert_eq!(daemon.stop(), Some(0));
    let daemon = home.serve();
    let noted = daemon.mitras("providers/a").body["last_heartbeat_ms"].as_u64().unwrap();
    assert!(noted > seen, "{noted} is not after {seen}");
    assert_eq!(daemon.available(), ["a"], "seeded with it");
}
