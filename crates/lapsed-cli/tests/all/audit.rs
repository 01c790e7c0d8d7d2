//! The audit log: every manual action is recorded with its author before it is done, and with its
//! outcome afterwards.

use crate::support::{self, CALM, Daemon, Home, JSON, Reply, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    audit_names_the_token_that_overrode_a_brake_and_keeps_the_reason,
    every_manual_action_is_audited_with_its_outcome,
    a_direct_store_command_audits_the_local_user,
    audit_pages_have_no_gaps,
    an_action_cut_off_by_a_crash_has_no_outcome,
}

const OPS: &str = "[[server.tokens]]\nname = \"ops\"\ntoken = \"ops-token\"\nscopes = [\"act\"]";
const BRAKE: &str = "/v1/brakes/registry/devices";

fn audit(daemon: &Daemon, headers: &[(&str, &str)]) -> Vec<Value> {
    let reply = daemon.call("GET", "/v1/audit", None, headers);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.body["entries"].as_array().unwrap().clone()
}

fn put_brake(daemon: &Daemon, setting: &str, headers: &[(&str, &str)]) -> Reply {
    let mut body = json!({ "setting": setting });
    if setting == "override" {
        body["reason"] = json!("we scaled down");
    }
    let body = body.to_string();
    daemon.call("PUT", BRAKE, Some(body), &[&[JSON][..], headers].concat())
}

fn audit_names_the_token_that_overrode_a_brake_and_keeps_the_reason() {
    let home = Home::with("1m", CALM, OPS);
    let daemon = home.serve();
    let auth = ("authorization", "Bearer ops-token");
    let released = put_brake(&daemon, "override", &[auth, ("x-request-id", "req-7")]);
    assert_eq!(released.status, 200, "{released:?}");
    let entries = audit(&daemon, &[auth]);
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    for (field, value) in [
        ("who", "ops"),
        ("what", "brake override"),
        ("target", "registry/devices"),
        ("request", "req-7"),
        ("kind", "registry"),
        ("system", "devices"),
    ] {
        assert_eq!(entry[field], value, "{entry}");
    }
    assert!(entry["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{entry}");
    assert!(entry["outcome"].as_str().unwrap().contains("we scaled down"), "{entry}");
    assert!(entry["at_ms"].as_u64().unwrap() > 1_600_000_000_000, "{entry}");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("done by hand")).expect("it is in the log");
    assert!(line.contains("ops") && line.contains("brake override"), "{line}");
    // A request that may not, or cannot, leaves nothing.
    assert_eq!(put_brake(&daemon, "nonsense", &[auth]).status, 422);
    assert_eq!(put_brake(&daemon, "hold", &[]).status, 401);
    assert_eq!(audit(&daemon, &[auth]).len(), 1);
}

fn every_manual_action_is_audited_with_its_outcome() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    daemon.until_overdue(1);
    daemon.post("/v1/sweeps/registry/devices", json!({ "dry_run": true }));
    assert_eq!(audit(&daemon, &[]).len(), 0, "reading is not audited");
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    let receipt = daemon.receipts()[0]["id"].as_str().unwrap().to_owned();
    let restored = daemon.call("POST", &format!("/v1/receipts/{receipt}/restore"), None, &[]);
    assert_eq!(restored.status, 409, "its owner has gone: {restored:?}");
    put_brake(&daemon, "hold", &[]);
    let entries = audit(&daemon, &[]);
    let seen: Vec<(&str, &str)> = entries
        .iter()
        .map(|e| (e["what"].as_str().unwrap(), e["target"].as_str().unwrap()))
        .collect();
    let system = "registry/devices";
    assert_eq!(seen, [("brake hold", system), ("restore", &receipt), ("sweep", system)]);
    let outcome = |place: usize| entries[place]["outcome"].as_str().unwrap();
    assert_eq!(outcome(0), "held");
    assert!(outcome(1).starts_with("refused: "), "{entries:?}");
    assert_eq!(outcome(2), "done, 1 reclaimed");
    assert!(entries.iter().all(|entry| entry["who"] == "local"), "{entries:?}");
}

fn a_direct_store_command_audits_the_local_user() {
    let home = Home::inflight("1m", CALM);
    let config = home.config().display().to_string();
    let env = [("USER", "ada")];
    let args = ["dead", "delete", "nothing", "-c", &config];
    assert_ne!(support::run_with(&args, &env).code, 0);
    let args = ["brake", "jobs", "hold", "-c", &config];
    assert_eq!(support::run_with(&args, &env).code, 0);
    let told = home.run(&["audit", "--json"]);
    let entries = told.lines();
    assert_eq!(entries.len(), 2, "{told:?}");
    assert_eq!(
        (&entries[0]["what"], &entries[0]["outcome"]),
        (&json!("brake hold"), &json!("held"))
    );
    assert_eq!(
        (&entries[1]["what"], &entries[1]["target"]),
        (&json!("dead delete"), &json!("nothing"))
    );
    assert!(entries.iter().all(|e| e["who"].as_str().unwrap().starts_with("cli:ada@")), "{told:?}");
    let told = home.run(&["audit", "jobs", "-n", "1"]);
    assert!(told.out.contains("brake hold") && !told.out.contains("dead delete"), "{told:?}");
    let daemon = home.serve();
    let told = daemon.run(&["audit", "--json"]);
    assert_eq!(told.lines(), entries, "the daemon tells the same");
}

fn audit_pages_have_no_gaps() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    (0..7).for_each(|_| drop(put_brake(&daemon, "auto", &[])));
    let whole = audit(&daemon, &[]);
    assert_eq!(whole.len(), 7);
    let (mut paged, mut path) = (Vec::new(), "/v1/audit?limit=3".to_owned());
    loop {
        let page = daemon.get(&path).body;
        paged.extend(page["entries"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/audit?limit=3&before={next}"),
            None => break,
        }
    }
    assert_eq!(paged, whole);
    for bad in ["limit=0", "limt=1", "before=x"] {
        assert!([400, 422].contains(&daemon.get(&format!("/v1/audit?{bad}")).status), "{bad}");
    }
    assert_eq!(daemon.get("/v1/audit?system=nothing").status, 404);
}

/// The daemon dies in the middle of a pass: that it was begun is there, and that it was not ended.
fn an_action_cut_off_by_a_crash_has_no_outcome() {
    let home = Home::new("300ms", "sweep = { every = \"1d\", batch = 1, op_delay = \"200ms\" }");
    let daemon = home.serve();
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    daemon.hold("a", &keys.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.until_overdue(1);
    let url = daemon.url.clone();
    let asking = std::thread::spawn(move || {
        let _ = support::agent().post(format!("{url}/v1/sweeps/registry/devices")).send_empty();
    });
    until("the pass to have begun", || (!daemon.receipts().is_empty()).then_some(()));
    daemon.kill();
    asking.join().unwrap();
    let daemon = home.serve();
    let entries = audit(&daemon, &[]);
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((&entry["what"], &entry["outcome"]), (&json!("sweep"), &Value::Null), "{entry}");
    let told = daemon.run(&["audit"]);
    assert!(told.out.contains("not known"), "{told:?}");
}
