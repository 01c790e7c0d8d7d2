//! The log for programs: with `--log json` every line of the daemon is one JSON object, to the last.

use serde_json::{Value, json};

use crate::support::{CALM, Home, JSON, lapsed, run_with, until};

lapsed_testbed::steady_tests! {
    every_json_log_line_is_an_object,
    a_startup_error_is_logged_as_json,
    the_default_log_is_plain_text,
    every_reclaim_of_a_pass_has_a_line_up_to_a_limit,
}

fn lines(log: &str) -> Vec<Value> {
    let read = |line: &str| -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    };
    log.lines().map(read).collect()
}

fn said<'a>(lines: &'a [Value], message: &str) -> &'a Value {
    let found = lines.iter().find(|line| line["fields"]["message"] == message);
    found.unwrap_or_else(|| panic!("nothing says {message:?}: {lines:#?}"))
}

fn every_json_log_line_is_an_object() {
    let home = Home::new("1s", CALM);
    let daemon = home.serve_with(&[("LAPSED_LOG", "json"), ("RUST_LOG", "debug")]);
    daemon.hold("start_without_beats", &["a", "b"]);
    daemon.until_overdue(1);
    let asked = [JSON, ("x-request-id", "the-caller's-own")];
    let path = "/v1/sweeps/registry/devices";
    let reply = daemon.call("POST", path, Some(json!({}).to_string()), &asked);
    assert_eq!(reply.header("x-request-id"), "the-caller's-own");
    assert_eq!(daemon.get("/v1/sweeps/registry/nobody").status, 404);
    let order = ["brake", "devices", "override", "--reason", "they are gone", "--yes"];
    assert_eq!(daemon.run(&order).code, 0);
    let log = home.dir.path().join("log");
    assert_eq!(daemon.stop(), Some(0));

    let lines = lines(&std::fs::read_to_string(log).unwrap());
    for line in &lines {
        for key in ["timestamp", "level", "target"] {
            assert!(line[key].is_string(), "{line}");
        }
        assert!(line["fields"].is_object(), "{line}");
    }
    let pass = &said(&lines, "pass")["fields"];
    assert_eq!((&pass["system"], &pass["kind"]), (&json!("devices"), &json!("registry")), "{pass}");
    assert_eq!((&pass["reclaimed"], &pass["stopped"]), (&json!(2), &json!("done")), "{pass}");
    let brake = &said(&lines, "brake set by the operator")["fields"];
    assert_eq!(brake["setting"], "override", "{brake}");
    assert_eq!(brake["reason"], "they are gone", "{brake}");
    let requests = lines.iter().filter(|line| line["fields"]["message"] == "request");
    let ids: Vec<&Value> = requests.map(|line| &line["fields"]["request_id"]).collect();
    assert!(ids.contains(&&json!("the-caller's-own")), "{ids:?}");
    assert!(ids.iter().all(|id| id.as_str().is_some_and(|id| !id.is_empty())), "{ids:?}");
    said(&lines, "stopped");
}

fn a_startup_error_is_logged_as_json() {
    let home = Home::new("1s", "nonsense = 1");
    let config = home.config().display().to_string();
    let answer = run_with(&["serve", "-c", &config, "--log", "json"], &[]);
    assert_eq!(answer.code, 2, "{answer:?}");
    let lines = lines(&answer.err);
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR");
    assert!(last["fields"]["message"].as_str().unwrap().contains("nonsense"), "{last}");
}

fn the_default_log_is_plain_text() {
    let home = Home::new("1s", CALM);
    let daemon = home.serve();
    until("it to say where it listens", || daemon.log().contains("listening on").then_some(()));
    assert!(daemon.log().contains("INFO"), "{}", daemon.log());
    drop(daemon);
    let mut wrong = lapsed();
    let output = wrong.args(["serve", "-c", "/nonexistent.toml"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{output:?}");
}

fn every_reclaim_of_a_pass_has_a_line_up_to_a_limit() {
    let home = Home::new("1s", CALM);
    let daemon = home.serve_with(&[("LAPSED_LOG", "json")]);
    let keys: Vec<String> = (0..103).map(|n| format!("imei-{n}")).collect();
    daemon.hold("ingest-1", &keys.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.until_overdue(1);
    assert_eq!(daemon.post("/v1/sweeps/registry/devices", json!({})).body["reclaimed"], 103);
    let log = home.dir.path().join("log");
    assert_eq!(daemon.stop(), Some(0));
    let lines = lines(&std::fs::read_to_string(log).unwrap());
    let told: Vec<&Value> =
        lines.iter().filter(|line| line["fields"]["message"] == "reclaimed").collect();
    assert_eq!(told.len(), 100, "{told:?}");
    let first = &told[0]["fields"];
    assert_eq!(
        (&told[0]["level"], &first["owner"]),
        (&json!("INFO"), &json!("ingest-1")),
        "{first}"
    );
    assert!(keys.iter().any(|key| first["key"] == key.as_str()), "{first}");
    assert!(first["receipt"].as_str().unwrap().starts_with("registry-devices-"), "{first}");
    let rest: Vec<&Value> = lines.iter().filter(|line| line["fields"]["more"] == 3).collect();
    assert_eq!(rest.len(), 1, "{rest:?}");
}
