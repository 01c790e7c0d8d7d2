//! `lapsed reconcile` from outside: what it says where there is nothing to reconcile, and its knobs.

use crate::support::{CALM, Home};
use serde_json::json;

#[test]
fn reconcile_without_an_index_fails_with_a_reason() {
    let home = Home::new("1m", CALM);
    let straight = home.run(&["reconcile", "devices", "--dry-run", "--verbose"]);
    assert_eq!(straight.code, 1, "{straight:?}");
    assert!(straight.err.contains("keeps no index besides its truth"), "{straight:?}");
    let daemon = home.serve();
    let asked = daemon.run(&["reconcile", "registry/devices", "--compare", "--json"]);
    assert_eq!((asked.code, asked.out.as_str()), (1, ""), "{asked:?}");
    assert!(asked.err.contains("keeps no index besides its truth"), "{asked:?}");
    let path = "/v1/reconcile/registry/devices";
    daemon.post(path, json!({ "dry_run": true })).is_problem(501, "unsupported");
    daemon.post(path, json!({ "dry": true })).is_problem(422, "invalid");
    daemon.post("/v1/reconcile/registry/none", json!({})).is_problem(404, "not_found");
    assert_eq!(daemon.run(&["reconcile", "none"]).code, 2);
    assert!(!daemon.get("/metrics").text.contains("lapsed_drift{"), "no index, no drift");
}

#[test]
fn the_interval_is_a_duration_or_off() {
    for (every, shown) in [("off", "off"), ("12h", "12h")] {
        let home = Home::new("1m", &format!("{CALM}\nreconcile = {{ every = \"{every}\" }}"));
        let plan = home.run(&["check", "--json"]).json();
        let settings = plan["systems"][0]["settings"].as_array().unwrap().clone();
        let found = settings.iter().find(|s| s["key"] == "reconcile.every").unwrap();
        assert_eq!(found["value"], shown, "{found}");
    }
    let home = Home::new("1m", &format!("{CALM}\nreconcile = {{ every = \"never\" }}"));
    let wrong = home.run(&["check"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("reconcile.every") && wrong.err.contains("`off`"), "{wrong:?}");
}
