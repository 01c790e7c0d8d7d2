//! Recent activity and store state in `status`, and the search for receipts.

use crate::support::{CALM, Daemon, Home, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    status_reports_the_last_hour,
    status_reports_the_state_of_each_store,
    receipts_are_searched_on_the_server,
    a_search_resumes_where_it_stopped,
}

/// Retires an owner with `count` keys, which writes `count` receipts.
fn retire(daemon: &Daemon, owner: &str, count: usize) {
    for first in (0..count).step_by(1_000) {
        let keys: Vec<String> =
            (first..count.min(first + 1_000)).map(|n| format!("{owner}/{n}")).collect();
        let held = daemon.registry("register_many", json!({ "owner": owner, "keys": keys }));
        assert_eq!(held.status, 200, "{held:?}");
    }
    let retired = daemon.registry("retire", json!({ "owner": owner })).body;
    assert_eq!(retired["reclaimed"], count, "{retired}");
}

fn ids(page: &Value) -> Vec<&str> {
    page["receipts"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap()).collect()
}

fn status_reports_the_last_hour() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k1", "k2"]);
    daemon.until_overdue(1);
    let dry = daemon.post("/v1/sweeps/registry/devices", json!({ "dry_run": true })).body;
    assert_eq!(dry["reclaimed"], 2, "{dry}");
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    let history = daemon.get("/v1/history/registry/devices").body;
    let sample = history["samples"].as_array().unwrap().last().unwrap();
    assert_eq!(sample["reclaimed"], 2, "{history}");
    assert!(sample["lag_p99_ms"].as_u64() >= sample["lag_p50_ms"].as_u64(), "{history}");
    assert!(sample["lag_p50_ms"].is_u64(), "{history}");
    let passes = history["passes"].as_array().unwrap();
    assert!((passes.len() >= 2) && passes[0]["stopped"] == "done", "{history}");
    assert!(passes[0]["repeated"].as_u64() >= Some(1), "two in a row found nothing: {history}");
    assert_eq!(passes[1]["reclaimed"], 2, "no dry run among them: {history}");
    assert_eq!(daemon.get("/v1/history").body["systems"][0]["passes"], history["passes"]);
    daemon.get("/v1/history/registry/nobody").is_problem(404, "not_found");
}

fn status_reports_the_state_of_each_store() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let stores = daemon.get("/v1/stores").body;
    let store = &stores["stores"][0];
    assert_eq!((&store["name"], &store["engine"]), (&json!("main"), &json!("embedded")));
    assert_eq!((&store["answers"], &store["error"]), (&json!(true), &Value::Null), "{stores}");
    assert_eq!(store["systems"], json!(["registry/devices"]));
    assert!(store["place"].as_str().unwrap().starts_with("embedded:"), "{stores}");
    assert!(store["clock_offset_ms"].as_i64().unwrap().abs() < 1_000, "{stores}");
    assert!(store["latency_us"].as_u64().unwrap() < 2_000_000, "{stores}");
    let asked_ms = store["checked_ms"].as_u64().unwrap();
    until("it to be asked again", || {
        let store = &daemon.get("/v1/stores").body["stores"][0];
        (store["checked_ms"].as_u64().unwrap() >= asked_ms + 1_000).then_some(())
    });
}

fn receipts_are_searched_on_the_server() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    retire(&daemon, "web-1", 30);
    daemon.hold("Worker", &["web-1/again", "other"]);
    daemon.until_overdue(1);
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    let find = |query: &str| daemon.get(&format!("/v1/receipts?{query}")).body;
    let dead = find("reason=owner_dead");
    assert_eq!(ids(&dead).len(), 2, "{dead}");
    assert_eq!((&dead["examined"], &dead["next"]), (&json!(32), &Value::Null));
    assert_eq!(ids(&find("search=WORKER")).len(), 2, "by owner, in whatever case");
    assert_eq!(ids(&find("search=web-1%2F&limit=100")).len(), 31, "by key");
    let both = find("search=web-1&reason=owner_dead");
    assert_eq!(both["receipts"][0]["key"], "web-1/again", "{both}");
    assert_eq!(ids(&both).len(), 1, "{both}");
    let at_ms = both["receipts"][0]["at_ms"].as_u64().unwrap();
    assert_eq!(ids(&find(&format!("since_ms={at_ms}"))).len(), 2);
    assert_eq!(ids(&find(&format!("until_ms={at_ms}&limit=100"))).len(), 30);
    daemon.get("/v1/receipts?reason=boredom").is_problem(400, "malformed");
}

/// One request looks at no more than it may, and the next continues there: nothing is left out.
fn a_search_resumes_where_it_stopped() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    retire(&daemon, "needle", 3);
    retire(&daemon, "hay", 20_500);
    let first = daemon.get("/v1/receipts?search=needle").body;
    assert_eq!((ids(&first).len(), &first["examined"]), (0, &json!(20_000)), "{first}");
    let next = first["next"].as_str().unwrap();
    let rest = daemon.get(&format!("/v1/receipts?search=needle&before={next}")).body;
    assert_eq!(ids(&rest), ["registry-devices-3", "registry-devices-2", "registry-devices-1"]);
    assert_eq!(rest["next"], Value::Null, "{rest}");
}
