//! `lapsed reconcile` from outside: what it says where there is nothing to reconcile, and its knobs.

use crate::support::{CALM, Home, run};
use lapsed_testbed::{Engine, RedisServer};
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

/// Also where there is no configuration file: an entry that the index does not have is found and healed.
#[test]
fn reconcile_works_on_a_redis_without_a_configuration() {
    let redis = RedisServer::start(Engine::Redis).unwrap();
    let url = redis.url();
    redis.command(&["HSET", "connections:registry", "imei-9", "gateway-1"]).unwrap();
    let compare = ["reconcile", "registry", "--redis", &url, "--compare"];
    let differs = run(&compare);
    assert_eq!(differs.code, 1, "{differs:?}");
    assert!(
        differs.out.contains("registry/default") && differs.out.contains("do not agree"),
        "{differs:?}"
    );
    let dry = run(&["reconcile", "registry/default", "--redis", &url, "--dry-run"]);
    assert!(dry.out.contains("lapsed reconcile registry/default --redis URL"), "{dry:?}");
    let healed = run(&["reconcile", "registry", "--redis", &url]);
    assert_eq!(healed.code, 0, "{healed:?}");
    let agrees = run(&compare);
    assert_eq!(agrees.code, 0, "{agrees:?}");
    for kind in ["sessions", "inflight/other"] {
        let answer = run(&["reconcile", kind, "--redis", &url, "--compare"]);
        assert_eq!(answer.code, 0, "{kind}: {answer:?}");
    }
    for (system, says) in
        [("availability", "is its `mirror`"), ("leases", "not"), ("chat", "KIND/NAME")]
    {
        let refused = run(&["reconcile", system, "--redis", &url]);
        assert!(refused.code == 2 && refused.err.contains(says), "{system}: {refused:?}");
    }
    assert_eq!(run(&["reconcile", "registry", "--redis", &url, "-c", "x.toml"]).code, 2);
}
