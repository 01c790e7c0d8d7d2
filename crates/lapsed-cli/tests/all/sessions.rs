//! Sessions over HTTP and by the commands, on the embedded store.

use crate::support::{CALM, Daemon, Home, lapsed, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_session_goes_from_activation_to_deletion,
    trap_b6_whatever_names_a_missing_session_is_404_and_makes_nothing,
    batched_calls_have_one_answer_each,
    an_orphan_is_explained_swept_and_restored,
    trap_b5_the_references_of_a_dead_owner_go_with_it,
    session_metrics_keep_the_names_of_the_original,
    session_variables_of_the_original_override_the_file,
    systems_of_the_same_name_have_distinct_metric_series,
    sessions_survive_a_restart_and_keep_their_whole_grace,
}

fn session(daemon: &Daemon, id: &str) -> Value {
    let reply = daemon.get(&format!("/v1/sessions/chat/get/{id}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.body
}

fn connect(daemon: &Daemon, owner: &str, id: &str) -> Value {
    let reply = daemon.chat("connect", json!({ "session": id, "owner": owner }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.body
}

fn disconnect(daemon: &Daemon, owner: &str, id: &str) -> Value {
    let reply = daemon.chat("disconnect", json!({ "session": id, "owner": owner }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.body
}

/// Makes it, connects once, and disconnects again.
fn leave(daemon: &Daemon, id: &str) {
    daemon.chat("activate", json!({ "session": id }));
    connect(daemon, "server", id);
    disconnect(daemon, "server", id);
}

fn a_session_goes_from_activation_to_deletion() {
    let home = Home::sessions("10m", CALM);
    let daemon = home.serve();
    let body = json!({ "session": "s1", "value": "v", "broadcaster_user_id": "b1" });
    let made = daemon.chat("activate", body);
    assert_eq!((made.status, &made.body["created"]), (201, &json!(true)), "{made:?}");
    assert_eq!(made.body["references"], 0);
    assert!(made.body["due_ms"].is_u64(), "its grace runs until somebody connects: {made:?}");
    assert_eq!(daemon.get("/v1/sessions/chat/broadcaster/b1").body["session"], "s1");

    let first = connect(&daemon, "server-1", "s1");
    assert_eq!((&first["references"], &first["yours"]), (&json!(1), &json!(1)), "{first}");
    assert_eq!((&first["started"], &first["changed"]), (&json!(true), &json!(true)), "{first}");
    assert!(first["incarnation"].is_u64() && first["deadline_ms"].is_u64(), "{first}");
    let second = connect(&daemon, "server-2", "s1");
    assert_eq!((&second["references"], &second["yours"]), (&json!(2), &json!(1)), "{second}");
    assert_eq!(session(&daemon, "s1")["due_ms"], Value::Null);
    let held = daemon.get("/v1/sessions/chat/sessions/server-1").body;
    assert_eq!(held, json!({ "sessions": ["s1"], "next": null }));

    let active = daemon.chat("delete", json!({ "session": "s1" }));
    active.is_problem(409, "active");
    assert_eq!(active.body["references"], 2);

    let update = json!({ "session": "s1", "config_json": "{}" });
    let updated = daemon.chat("update", update).body;
    assert_eq!((&updated["value"], &updated["config_json"]), (&json!("v"), &json!("{}")));

    let retired = daemon.chat("retire", json!({ "owner": "server-2" })).body;
    assert_eq!((&retired["owner"], &retired["released"]), (&json!("server-2"), &json!(1)));
    let last = disconnect(&daemon, "server-1", "s1");
    assert_eq!(last["references"], 0, "{last}");
    assert!(last["disconnected_ms"].is_u64(), "{last}");
    let again = disconnect(&daemon, "server-1", "s1");
    assert_eq!((&again["changed"], &again["references"]), (&json!(false), &json!(0)), "{again}");
    let count = daemon.get("/v1/sessions/chat/disconnected_count").body;
    assert_eq!(count, json!({ "disconnected_count": 1 }));
    let resumed = daemon.chat("resume", json!({ "session": "s1" })).body;
    assert_eq!(resumed["disconnected_ms"], Value::Null, "{resumed}");

    let again = daemon.chat("activate", json!({ "session": "s1" }));
    assert_eq!((again.status, &again.body["created"]), (200, &json!(false)), "{again:?}");
    let gone = daemon.chat("delete", json!({ "session": "s1" }));
    assert_eq!(gone.body, json!({ "session": "s1", "outcome": "deleted" }), "{gone:?}");
    daemon.get("/v1/sessions/chat/broadcaster/b1").is_problem(404, "not_found");
}

fn trap_b6_whatever_names_a_missing_session_is_404_and_makes_nothing() {
    let home = Home::sessions("10m", CALM);
    let daemon = home.serve();
    daemon.chat("start", json!({ "owner": "server" }));
    for operation in ["connect", "disconnect"] {
        let body = json!({ "session": "none", "owner": "server" });
        daemon.chat(operation, body).is_problem(404, "not_found");
    }
    for operation in ["resume", "update", "delete"] {
        daemon.chat(operation, json!({ "session": "none" })).is_problem(404, "not_found");
    }
    daemon.get("/v1/sessions/chat/get/none").is_problem(404, "not_found");
    daemon.get("/v1/sessions/chat/broadcaster/none").is_problem(404, "not_found");
    daemon.get("/v1/sessions/nothing/get/none").is_problem(404, "not_found");
    let status = daemon.get("/v1/sweeps/sessions/chat").body;
    assert_eq!(status["census"]["population"], 0, "{status}");
    for bad in ["", "a\nb", &"x".repeat(513)] {
        daemon.chat("activate", json!({ "session": bad })).is_problem(422, "invalid");
    }
    daemon.chat("activate", json!({ "session": "s", "valu": "v" })).is_problem(422, "invalid");
    let body = json!({ "session": "s", "incarnation": 3 });
    daemon.chat("connect", body).is_problem(422, "invalid");
    daemon.get("/v1/sessions/chat/orphans?limit=0").is_problem(400, "malformed");
}

fn batched_calls_have_one_answer_each() {
    let home = Home::sessions("10m", CALM);
    let daemon = home.serve();
    let ids: Vec<String> = (0..600).map(|n| format!("s{n}")).collect();
    ids[1..].iter().for_each(|id| drop(daemon.chat("activate", json!({ "session": id }))));
    let all = json!({ "sessions": ids, "owner": "server" });
    let many = daemon.chat("connect_many", all.clone()).body;
    let results = many["results"].as_array().unwrap();
    assert_eq!(results.len(), 600);
    assert_eq!((&results[0]["ok"], &results[0]["type"]), (&json!(false), &json!("not_found")));
    assert_eq!(results[0]["session"], "s0");
    assert!(results[1..].iter().all(|r| r["ok"] == true && r["references"] == 1), "{many}");
    let found = daemon.chat("get_many", json!({ "sessions": ["s0", "s7"] })).body;
    assert_eq!(found["results"][0], Value::Null);
    assert_eq!(
        (&found["results"][1]["session"], &found["results"][1]["references"]),
        (&json!("s7"), &json!(1))
    );
    let beats =
        json!({ "beats": [{ "owner": "server" }, { "owner": "server", "incarnation": 99 }] });
    let beats = daemon.chat("beat_many", beats).body;
    assert_eq!(
        (&beats["results"][0]["ok"], &beats["results"][1]["type"]),
        (&json!(true), &json!("lost"))
    );
    let left = daemon.chat("disconnect_many", all.clone()).body;
    assert!(left["results"][599]["disconnected_ms"].is_u64(), "{left}");
    assert_eq!(daemon.get("/v1/sessions/chat/disconnected_count").body["disconnected_count"], 599);

    daemon.chat("retire", json!({ "owner": "server" }));
    let lost = daemon.chat("connect_many", all).body;
    let lost = lost["results"].as_array().unwrap();
    assert!(lost.iter().all(|r| r["ok"] == false && r["type"] == "lost"), "{:?}", lost[0]);
    assert_eq!(lost.len(), 600);
}

fn an_orphan_is_explained_swept_and_restored() {
    let home = Home::sessions("300ms", CALM);
    let daemon = home.serve();
    leave(&daemon, "s1");
    daemon.chat("activate", json!({ "session": "s2", "broadcaster_user_id": "b2", "value": "v" }));
    daemon.chat("activate", json!({ "session": "s3" }));
    connect(&daemon, "server", "s3");
    daemon.until_orphans(2);
    let explained = daemon.run(&["explain", "chat", "s1", "--json"]).json();
    assert_eq!(explained["verdict"], "orphan", "{explained}");
    assert_eq!(daemon.run(&["explain", "chat", "s3", "--json"]).json()["verdict"], "active");

    let dry = daemon.run(&["sweep", "chat", "--dry-run"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    for word in
        ["2 of 2 suspects would be reclaimed", "SESSION", "no client connected since 20", "b2"]
    {
        assert!(dry.out.contains(word), "{word}: {}", dry.out);
    }
    assert!(!dry.out.contains("INCARNATION"), "{}", dry.out);
    let real = daemon.run(&["sweep", "chat", "--json"]).json();
    assert_eq!((&real["reclaimed"], &real["stopped"]), (&json!(2), &json!("done")), "{real}");
    daemon.get("/v1/sessions/chat/get/s1").is_problem(404, "not_found");
    daemon.get("/v1/sessions/chat/broadcaster/b2").is_problem(404, "not_found");
    assert_eq!(session(&daemon, "s3")["references"], 1);

    let receipts = daemon.run(&["receipts", "chat", "--json"]).lines();
    let reason = |key: &str| receipts.iter().find(|r| r["key"] == key).unwrap()["reason"].clone();
    assert_eq!((reason("s1"), reason("s2")), (json!("orphaned"), json!("never_connected")));
    assert!(daemon.run(&["receipts", "chat"]).out.contains("orphaned"));
    let of_s2 = receipts.iter().find(|r| r["key"] == "s2").unwrap()["id"].as_str().unwrap();
    let restored = daemon.run(&["restore", of_s2]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(restored.out.contains("s2 is back"), "{restored:?}");
    assert_eq!(session(&daemon, "s2")["value"], "v");
    assert_eq!(daemon.get("/v1/sessions/chat/broadcaster/b2").body["session"], "s2");
    assert_eq!(daemon.run(&["restore", of_s2]).code, 1, "its place is taken");

    assert_eq!(daemon.run(&["brake", "chat", "hold"]).code, 0);
    let status = daemon.run(&["status", "sessions/chat"]).out;
    for word in ["sessions ", "held", "no client was connected for 300ms"] {
        assert!(status.contains(word), "{word}: {status}");
    }
}

/// A server dies with its references; its sessions get a whole grace to be connected to again.
fn trap_b5_the_references_of_a_dead_owner_go_with_it() {
    let home = Home::sessions("400ms", &format!("heartbeat_ttl = \"300ms\"\n{CALM}"));
    let daemon = home.serve();
    daemon.chat("activate", json!({ "session": "s1" }));
    connect(&daemon, "server", "s1");
    let report = until("its references to be let go", || {
        let report = daemon.run(&["sweep", "chat", "--json"]).json();
        (report["released"] == 1).then_some(report)
    });
    assert_eq!(report["reclaimed"], 0, "{report}");
    assert!(session(&daemon, "s1")["disconnected_ms"].is_u64());
    let last = daemon.run(&["status", "chat"]).out;
    assert!(last.contains("1 released from dead owners"), "{last}");
    let lost =
        daemon.chat("connect", json!({ "session": "s1", "owner": "server", "incarnation": 1 }));
    lost.is_problem(409, "lost");
    until("the orphan to be deleted", || {
        let report = daemon.run(&["sweep", "chat", "--json"]).json();
        (report["reclaimed"] == 1).then_some(())
    });
}

fn session_metrics_keep_the_names_of_the_original() {
    let home = Home::sessions("300ms", CALM);
    let daemon = home.serve();
    leave(&daemon, "s1");
    leave(&daemon, "s2");
    let before = daemon.get("/metrics").text;
    assert!(before.contains("disconnected_sessions_count 2\n"), "{before}");
    daemon.until_orphans(2);
    daemon.post("/v1/sweeps/sessions/chat", json!({ "dry_run": true }));
    daemon.post("/v1/sweeps/sessions/chat", json!({}));
    let text = daemon.get("/metrics").text;
    for line in [
        "disconnected_sessions_count 0",
        "orphan_cleanup_duration_seconds_count 1",
        "orphan_sessions_deleted_total 2",
        "orphan_sessions_skipped_total{reason=\"active\"} 0",
        "orphan_cleanup_keys_scanned_total 0",
        "lapsed_reclaimed_total{system=\"chat\",reason=\"orphaned\",kind=\"sessions\"} 2",
        "lapsed_reclaim_lag_seconds_count{system=\"chat\",kind=\"sessions\"} 2",
        "lapsed_pass_total{system=\"chat\",stopped=\"done\",kind=\"sessions\"} 1",
        "lapsed_population{system=\"chat\",kind=\"sessions\"} 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is missing:\n{text}");
    }
    assert!(text.contains("orphan_cleanup_duration_seconds_bucket{le=\"0.001\"}"), "{text}");
    assert!(!text.contains("teltonika_registry_janitor_evicted_total{"), "{text}");
}

fn session_variables_of_the_original_override_the_file() {
    // Whoever was away waits for the longer of grace and TTL.
    let home = Home::sessions("10m", "sweep = { every = \"1d\" }\nheartbeat_ttl = \"1s\"");
    let daemon = home.serve_with(&[("CLEANUP_INTERVAL", "50ms"), ("ORPHAN_MAX_AGE", "0.2s")]);
    leave(&daemon, "s1");
    until("the orphan to be deleted", || {
        (daemon.get("/v1/sessions/chat/get/s1").status == 404).then_some(())
    });
    let status = daemon.get("/v1/sweeps/sessions/chat").body;
    assert_eq!((&status["every_ms"], &status["grace_ms"]), (&json!(50), &json!(200)), "{status}");
    assert_eq!(daemon.stop(), Some(0));

    let config = home.config().display().to_string();
    let check = |env: &[(&str, &str)]| crate::support::run_with(&["check", "-c", &config], env);
    let told = check(&[("CLEANUP_INTERVAL", "1m30s"), ("ORPHAN_MAX_AGE", "45")]).out;
    for word in ["grace = 45s", "ORPHAN_MAX_AGE, over line 10", "CLEANUP_INTERVAL, over line 11"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    for garbage in ["", "soon", "0", "-5s"] {
        let wrong = check(&[("ORPHAN_MAX_AGE", garbage)]);
        assert_eq!(wrong.code, 2, "{wrong:?}");
        assert!(wrong.err.contains("ORPHAN_MAX_AGE"), "{wrong:?}");
    }
}

/// Without a configuration there is one of every system, all of one name.
fn systems_of_the_same_name_have_distinct_metric_series() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.path().join("data"));
    let daemon = Daemon::spawn(command, dir.path()).unwrap();
    let body = json!({ "owner": "a", "key": "k" });
    assert_eq!(daemon.post("/v1/registry/default/register", body).status, 200);
    assert_eq!(daemon.post("/v1/sessions/default/activate", json!({ "session": "s" })).status, 201);
    for system in ["registry/default", "sessions/default", "inflight/default"] {
        assert_eq!(daemon.post(&format!("/v1/sweeps/{system}"), json!({})).status, 200);
    }
    let text = daemon.get("/metrics").text;
    let mut series: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    series.iter_mut().for_each(|line| *line = line.rsplit_once(' ').unwrap().0);
    let count = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), count, "{text}");
    for kind in ["registry", "sessions"] {
        let line = format!("lapsed_population{{system=\"default\",kind=\"{kind}\"}} 1\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    let which = daemon.run(&["sweep", "default"]);
    assert_eq!(which.code, 2, "{which:?}");
    let all = "registry/default, sessions/default, inflight/default";
    assert!(which.err.contains(all), "{which:?}");
    assert_eq!(daemon.run(&["sweep", "sessions"]).code, 0);
    let status = daemon.run(&["status"]).out;
    assert!(status.contains("registry/default") && status.contains("sessions/default"), "{status}");
}

/// After a restart every acknowledged session is there, and none is deleted before a whole grace
/// has passed.
fn sessions_survive_a_restart_and_keep_their_whole_grace() {
    let home = Home::sessions("10m", CALM);
    let daemon = home.serve();
    daemon.chat("activate", json!({ "session": "s1", "value": "v" }));
    connect(&daemon, "server", "s1");
    leave(&daemon, "s2");
    assert_eq!(daemon.stop(), Some(0));
    let status = home.run(&["status", "chat", "--json"]).json();
    assert_eq!(status["census"]["population"], 2, "{status}");
    assert_eq!(status["grace_ms"], 600_000, "{status}");
    let verdict =
        |key: &str| home.run(&["explain", "chat", key, "--json"]).json()["verdict"].clone();
    assert_eq!((verdict("s1"), verdict("s2")), (json!("active"), json!("grace")));
    let sweep = home.run(&["sweep", "chat", "--json"]);
    assert_eq!(sweep.json()["reclaimed"], 0, "{sweep:?}");
    assert_eq!(home.run(&["receipts", "chat", "--json"]).lines().len(), 0);
    let daemon = home.serve();
    assert_eq!(session(&daemon, "s1")["value"], "v");
    assert_eq!(session(&daemon, "s1")["references"], 1);
}
