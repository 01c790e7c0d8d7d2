//! The OpenAPI document: every route, and what is really answered.

use crate::support::{CALM, Home};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    the_openapi_document_has_every_route,
    the_document_describes_registry_answers,
}

fn the_openapi_document_has_every_route() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let document = daemon.get("/openapi.json").body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let registry = |operation: &str| format!("/v1/registry/{{name}}/{operation}");
    let mut routes: Vec<(String, &str)> = [
        "start",
        "beat",
        "beat_many",
        "register",
        "register_many",
        "unregister",
        "unregister_many",
        "lookup_many",
        "retire",
    ]
    .map(|operation| (registry(operation), "post"))
    .to_vec();
    routes.extend(
        ["lookup/{key}", "owners", "owners/{owner}", "entries/{owner}"]
            .map(|operation| (registry(operation), "get")),
    );
    let sessions = |operation: &str| format!("/v1/sessions/{{name}}/{operation}");
    routes.extend(
        [
            "activate",
            "connect",
            "connect_many",
            "disconnect",
            "disconnect_many",
            "resume",
            "get_many",
            "update",
            "delete",
            "start",
            "beat",
            "beat_many",
            "retire",
        ]
        .map(|operation| (sessions(operation), "post")),
    );
    routes.extend(
        [
            "get/{session}",
            "orphans",
            "disconnected_count",
            "broadcaster/{id}",
            "owners",
            "owners/{owner}",
            "sessions/{owner}",
        ]
        .map(|operation| (sessions(operation), "get")),
    );
    let inflight = |operation: &str| format!("/v1/inflight/{{name}}/{operation}");
    routes.extend(
        [
            "start",
            "beat",
            "beat_many",
            "retire",
            "enqueue",
            "enqueue_many",
            "take",
            "register",
            "register_many",
            "complete",
            "complete_many",
            "fail",
            "fail_many",
            "give_back",
            "give_back_many",
            "dead/put_back",
            "dead/delete",
        ]
        .map(|operation| (inflight(operation), "post")),
    );
    routes.extend(
        [
            "owners",
            "owners/{owner}",
            "jobs/{id}",
            "in_flight/{owner}",
            "counts",
            "queues",
            "dead",
            "dead/{id}",
        ]
        .map(|operation| (inflight(operation), "get")),
    );
    let leases = |operation: &str| format!("/v1/leases/{{name}}/{operation}");
    routes.extend(
        [
            "acquire",
            "acquire_many",
            "renew",
            "renew_many",
            "release",
            "release_many",
            "stage",
            "unstage",
            "decide",
        ]
        .map(|operation| (leases(operation), "post")),
    );
    routes.extend(
        ["describe/{namespace}/{key}", "list/{namespace}", "namespaces", "decision/{txn}"]
            .map(|operation| (leases(operation), "get")),
    );
    routes.extend(["get", "put", "delete"].map(|way| (leases("state/{namespace}/{key}"), way)));
    let availability = |operation: &str| format!("/v1/availability/{{name}}/{operation}");
    routes.extend(
        [
            "providers/{id}/online",
            "providers/{id}/offline",
            "providers/{id}/activate",
            "providers/{id}/deactivate",
            "providers/{id}/heartbeat",
            "heartbeats",
            "sessions/{id}/accept",
            "sessions/{id}/extend",
            "sessions/{id}/resume",
            "sessions/{id}/end",
            "sessions/{id}/expire",
            "sessions/{id}/cancel",
            "sessions/{id}/reroute",
        ]
        .map(|operation| (availability(operation), "post")),
    );
    routes.extend(
        [
            "providers",
            "providers/{id}",
            "providers/{id}/status",
            "providers/{id}/reachable",
            "available",
            "count",
            "beacon",
            "online/count",
            "sessions/{id}",
            "config",
        ]
        .map(|operation| (availability(operation), "get")),
    );
    routes.push((availability("providers/{id}"), "put"));
    routes.push((availability("config"), "patch"));
    routes.extend([
        ("/v1/reconcile/{kind}/{name}".to_owned(), "get"),
        ("/v1/reconcile/{kind}/{name}".to_owned(), "post"),
        ("/v1/sweeps".to_owned(), "get"),
        ("/v1/sweeps/{kind}/{name}".to_owned(), "get"),
        ("/v1/sweeps/{kind}/{name}".to_owned(), "post"),
        ("/v1/explain/{kind}/{name}/{key}".to_owned(), "get"),
        ("/v1/history".to_owned(), "get"),
        ("/v1/history/{kind}/{name}".to_owned(), "get"),
        ("/v1/stores".to_owned(), "get"),
        ("/v1/receipts".to_owned(), "get"),
        ("/v1/receipts/{id}".to_owned(), "get"),
        ("/v1/receipts/{id}/restore".to_owned(), "post"),
        ("/v1/adopt/{kind}/{name}".to_owned(), "get"),
        ("/v1/adopt/{kind}/{name}".to_owned(), "post"),
        ("/v1/brakes/{kind}/{name}".to_owned(), "get"),
        ("/v1/brakes/{kind}/{name}".to_owned(), "put"),
        ("/v1/events".to_owned(), "get"),
        ("/v1/webhooks".to_owned(), "get"),
        ("/v1/webhooks/{name}/dead".to_owned(), "get"),
        ("/v1/webhooks/{name}/dead/put_back".to_owned(), "post"),
        ("/v1/webhooks/{name}/dead/delete".to_owned(), "post"),
        ("/v1/webhooks/{name}/test".to_owned(), "post"),
        ("/v1/whoami".to_owned(), "get"),
        ("/v1/audit".to_owned(), "get"),
        ("/metrics".to_owned(), "get"),
        ("/healthz".to_owned(), "get"),
        ("/readyz".to_owned(), "get"),
        ("/readyz/{kind}/{name}".to_owned(), "get"),
        ("/".to_owned(), "get"),
    ]);
    let mut ids = std::collections::BTreeSet::new();
    for (path, method) in &routes {
        let operation = &document["paths"][path][method];
        assert!(ids.insert(operation["operationId"].to_string()), "twice: {operation}");
        for response in operation["responses"].as_object().unwrap().values() {
            assert!(response["description"].is_string(), "{method} {path}: {response}");
        }
        assert!(operation["responses"].is_object(), "{method} {path}");
        assert!(operation["tags"][0].is_string(), "{method} {path}");
        let open = ["/", "/healthz", "/readyz", "/readyz/{kind}/{name}"].contains(&path.as_str());
        let scope = &operation["security"][0]["token"][0];
        let known = ["read", "write", "act"].map(Value::from).contains(scope);
        assert!(open != known, "{method} {path} needs a scope, or is for everybody: {scope}");
        let names: Vec<&str> = path.split(['{', '}']).skip(1).step_by(2).collect();
        let given = operation["parameters"].as_array().cloned().unwrap_or_default();
        for name in names {
            let there = given.iter().any(|p| p["name"] == name && p["in"] == "path");
            assert!(there, "{method} {path} does not describe {name}: {given:?}");
        }
    }
    let described: usize =
        document["paths"].as_object().unwrap().values().map(|p| p.as_object().unwrap().len()).sum();
    assert_eq!(described, routes.len(), "a route that this test does not know");
    assert!(references(&document).iter().all(|at| document.pointer(at).is_some()));
}

/// Everything that the document points to.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value) {
                ("$ref", Value::String(to)) => vec![to.trim_start_matches('#').to_owned()],
                _ => references(value),
            })
            .collect(),
        Value::Array(all) => all.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// The document's shapes of the library's own types are what is really answered.
fn the_document_describes_registry_answers() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    daemon.until_overdue(1);
    let report = daemon.post("/v1/sweeps/registry/devices", json!({ "list": 10 })).body;
    let document = daemon.get("/openapi.json").body;
    let receipt = daemon.get("/v1/receipts/registry-devices-1").body;
    let status = daemon.status();
    let explanation = daemon.get("/v1/explain/registry/devices/k").body;
    let history = daemon.get("/v1/history/registry/devices").body;
    let stores = daemon.get("/v1/stores").body;
    let owner = daemon.get("/v1/registry/devices/owners/a").body;
    for (schema, value) in [
        ("PassReport", &report),
        ("Listed", &report["entries"][0]),
        ("Receipt", &receipt),
        ("Evidence", &receipt["evidence"]),
        ("Census", &status["census"]),
        ("StoreInfo", &status["store"]),
        ("SystemStatus", &status),
        ("BrakeStatus", &status["brake"]),
        ("Explanation", &explanation),
        ("History", &history),
        ("Sample", &history["samples"][0]),
        ("StoreHealth", &stores["stores"][0]),
        ("OwnerInfo", &owner),
    ] {
        fits(&document, schema, value);
    }
}

/// It has all that its shape requires, and nothing that the shape does not know.
#[track_caller]
fn fits(document: &Value, schema: &str, value: &Value) {
    let shape = &document["components"]["schemas"][schema];
    let told = |key: &String| shape["properties"][key].is_object();
    let value = value.as_object().unwrap_or_else(|| panic!("{schema}: {value}"));
    assert!(value.keys().all(told), "{schema}: {value:?} against {shape}");
    for required in shape["required"].as_array().unwrap() {
        assert!(value.contains_key(required.as_str().unwrap()), "{schema}: {required}");
    }
}

#[test]
fn the_document_describes_jobs_in_every_place() {
    let home = Home::inflight("10m", CALM);
    let daemon = home.serve();
    let document = daemon.get("/openapi.json").body;
    let queued = daemon.jobs("enqueue", json!({ "queue": "q", "id": "j", "payload": "p" }));
    fits(&document, "EnqueueAnswer", &queued);
    fits(&document, "Job", &daemon.job("j"));
    let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q" }));
    fits(&document, "ClaimedJob", &taken["jobs"][0]);
    fits(&document, "Job", &daemon.job("j"));
    let token = &taken["jobs"][0]["token"];
    let failed = daemon.jobs("fail", json!({ "id": "j", "token": token, "error": "no" }));
    fits(&document, "FinishAnswer", &failed);
    fits(&document, "Job", &daemon.job("j"));
    fits(&document, "Counts", &daemon.counts());
    fits(&document, "SystemStatus", &daemon.get("/v1/sweeps/inflight/jobs").body);
}

#[test]
fn the_document_describes_providers_and_their_sessions() {
    let home = Home::providers(crate::availability_fixture::CALM);
    let daemon = home.serve();
    let document = daemon.get("/openapi.json").body;
    let put = daemon.do_mitras("PUT", "providers/a", json!({ "display_name": "A" }));
    fits(&document, "ProviderChanged", &put.body);
    daemon.online("a");
    let beat = daemon.do_mitras("POST", "providers/a/heartbeat", Value::Null);
    fits(&document, "HeartbeatAnswer", &beat.body);
    let beats = daemon.do_mitras("POST", "heartbeats", json!({ "providers": ["a"] }));
    fits(&document, "HeartbeatsAnswer", &beats.body);
    fits(&document, "HeartbeatResult", &beats.body["results"][0]);
    fits(&document, "SessionChanged", &daemon.accept("s", "a").body);
    for (schema, path) in [
        ("Provider", "providers/a"),
        ("Providers", "providers"),
        ("ProviderStatus", "providers/a/status"),
        ("Reachable", "providers/a/reachable"),
        ("AvailablePage", "available"),
        ("CountAnswer", "count"),
        ("CountAnswer", "online/count"),
        ("Beacon", "beacon"),
        ("ProviderSession", "sessions/s"),
        ("Config", "config"),
    ] {
        fits(&document, schema, &daemon.mitras(path).body);
    }
    let found = daemon.mitras("available").body;
    fits(&document, "AvailableProvider", &found["available"][0]);
    let status = daemon.get("/v1/sweeps/availability/mitras").body;
    fits(&document, "SystemStatus", &status);
    fits(&document, "AvailabilityStatus", &status["availability"]);
    fits(&document, "AvailabilitySettings", &status["availability"]["settings"]);
}

#[test]
fn the_document_describes_leases_and_decisions() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let document = daemon.get("/openapi.json").body;
    let grant = daemon.leases("acquire", json!({ "key": "k", "owner": "o", "request": "r" }));
    fits(&document, "Grant", &grant);
    let staged = json!({ "key": "k", "token": 1, "txn": "t", "state": { "json": [1] } });
    fits(&document, "StageAnswer", &daemon.leases("stage", staged));
    let found = daemon.get("/v1/leases/locks/describe/default/k").body;
    fits(&document, "Described", &found);
    fits(&document, "Lease", &found["lease"]);
    fits(&document, "Staged", &found["staged"]);
    fits(&document, "LeasesPage", &daemon.get("/v1/leases/locks/list/default").body);
    fits(&document, "StateAnswer", &daemon.get("/v1/leases/locks/state/default/k").body);
    fits(&document, "Released", &daemon.leases("release", json!({ "key": "k", "token": 1 })));
    let decided = daemon.leases("decide", json!({ "txn": "x", "decision": "commit" }));
    fits(&document, "Decided", &decided);
    fits(&document, "SystemStatus", &daemon.get("/v1/sweeps/leases/locks").body);
}
