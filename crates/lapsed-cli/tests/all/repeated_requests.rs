//! What a repetition does, as `docs/idempotency.md` says: operations that need no key are sent twice, and
//! the second time changes nothing; operations with a key are repeated after their answer was lost.

use crate::support::{CALM, Daemon, Home, JSON, Reply};
use lapsed_testbed::{Engine, Proxy, RedisServer};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_repeated_registration_changes_nothing,
    a_repeated_change_of_a_session_changes_nothing,
    a_repeated_change_of_a_job_changes_nothing,
    a_repeated_change_of_a_lease_changes_nothing,
    a_repeated_change_of_a_provider_changes_nothing,
    changes_with_a_key_are_made_once_though_redis_lost_the_answer,
    changes_with_a_key_are_made_once_on_the_embedded_store,
}

/// Sends a request twice. The second answer has `status`, and what is read at `probe` is the same after
/// both.
#[track_caller]
fn twice(daemon: &Daemon, request: (&str, &str, Value), status: u16, probe: (&str, &str)) -> Reply {
    let (method, path, body) = request;
    let send = || {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        daemon.call(method, &format!("/v1/{path}"), Some(body), &[JSON])
    };
    let read = || {
        let reply = daemon.get(&format!("/v1/{}", probe.0));
        (reply.status, reply.body.pointer(probe.1).cloned())
    };
    let first = send();
    assert!((200..300).contains(&first.status), "{path}: {first:?}");
    let after_first = read();
    let second = send();
    assert_eq!(second.status, status, "{path}: {second:?}");
    assert_eq!(read(), after_first, "{path}");
    first
}

fn a_repeated_registration_changes_nothing() {
    let home = Home::new("10m", CALM);
    let daemon = home.serve();
    let at = |operation: &str| format!("registry/devices/{operation}");
    let (owner, key) = (json!({ "owner": "i" }), json!({ "owner": "i", "key": "k" }));
    let post = |operation: &str, body: &Value, status, probe: (&str, &str)| {
        twice(&daemon, ("POST", &at(operation), body.clone()), status, probe)
    };
    post("beat", &owner, 200, (&at("owners/i"), "/incarnation"));
    post("register", &key, 200, (&at("lookup/k"), "/incarnation"));
    post("unregister", &key, 200, (&at("lookup/k"), "/status"));
    post("register", &key, 200, (&at("owners/i"), "/held"));
    post("retire", &owner, 409, (&at("lookup/k"), "/status"));
}

fn a_repeated_change_of_a_session_changes_nothing() {
    let home = Home::sessions("10m", CALM);
    let daemon = home.serve();
    let at = |operation: &str| format!("sessions/chat/{operation}");
    let session = json!({ "session": "s" });
    let written = json!({ "session": "s", "value": "v" });
    let post = |operation: &str, body: &Value, status, pointer| {
        twice(&daemon, ("POST", &at(operation), body.clone()), status, (&at("get/s"), pointer))
    };
    assert_eq!(post("activate", &written, 200, "/references").status, 201);
    post("update", &written, 200, "/value");
    post("resume", &session, 200, "/references");
    post("delete", &session, 404, "/status");
}

fn a_repeated_change_of_a_job_changes_nothing() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    for home in [Home::inflight("10m", CALM), on_redis(&server.url())] {
        let daemon = home.serve();
        let at = |operation: &str| format!("inflight/jobs/{operation}");
        let counts = at("counts");
        let post = |operation: &str, body: &Value, status, pointer| {
            twice(&daemon, ("POST", &at(operation), body.clone()), status, (&counts, pointer)).body
        };
        let job = |id: &str| json!({ "queue": "q", "id": id, "payload": "p" });
        let ticket = |job: &Value| json!({ "id": job["id"], "token": job["token"] });
        for id in ["a", "b", "c"] {
            post("enqueue", &job(id), 200, "/entered");
        }
        let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q", "limit": 3 }));
        post("complete", &ticket(&taken["jobs"][0]), 409, "/completed");
        post("give_back", &ticket(&taken["jobs"][1]), 409, "/queued");
        post("fail", &ticket(&taken["jobs"][2]), 409, "/dead");
        post("dead/put_back", &json!({ "id": "c" }), 404, "/queued");
        let mut popped = job("d");
        popped["owner"] = json!("w");
        post("register", &popped, 200, "/in_flight");
        let first = daemon.job("d")["token"].clone();
        assert_eq!(daemon.jobs("register", popped)["token"], first, "the same claim");
        daemon.jobs("fail", json!({ "id": "d", "token": first }));
        post("dead/delete", &json!({ "id": "d" }), 404, "/dropped");
        post("retire", &json!({ "owner": "w" }), 409, "/queued");
    }
}

fn a_repeated_change_of_a_lease_changes_nothing() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let at = |operation: &str| format!("leases/locks/{operation}");
    let lease = json!({ "key": "k", "owner": "a" });
    let grant = daemon.leases("acquire", lease);
    let ticket = json!({ "key": "k", "token": grant["token"] });
    let described = at("describe/default/k");
    let send = |method: &str, operation: &str, body: &Value, status| {
        twice(&daemon, (method, &at(operation), body.clone()), status, (&described, "/token"));
    };
    let with = |more: Value| {
        let mut body = ticket.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let state = json!({ "token": grant["token"], "state": { "json": { "a": 1 } } });
    send("POST", "renew", &ticket, 200);
    send("PUT", "state/default/k", &state, 200);
    send("DELETE", &format!("state/default/k?token={}", grant["token"]), &Value::Null, 200);
    send("POST", "stage", &with(json!({ "txn": "t", "state": { "json": { "a": 1 } } })), 200);
    send("POST", "unstage", &ticket, 200);
    send("POST", "decide", &json!({ "txn": "t", "decision": "commit" }), 200);
    send("POST", "release", &ticket, 409);
    // By the header, as by the member `request` of the body.
    let body = json!({ "key": "k", "owner": "a" });
    let keyed = |key: &str| {
        let headers = [JSON, ("idempotency-key", key)];
        daemon.call("POST", "/v1/leases/locks/acquire", Some(body.to_string()), &headers)
    };
    let (first, second) = (keyed("r"), keyed("r"));
    assert_eq!((first.status, second.status), (200, 200), "{second:?}");
    assert_eq!(second.body["token"], first.body["token"], "{second:?}");
    keyed("another").is_problem(409, "held");
}

fn a_repeated_change_of_a_provider_changes_nothing() {
    let home = Home::providers(crate::availability_fixture::CALM);
    let daemon = home.serve();
    let at = |operation: &str| format!("availability/mitras/{operation}");
    let (provider, session) = (at("providers/sari"), at("sessions/s"));
    let provides = |method: &str, step: &str, body: Value, pointer| {
        let path = format!("{provider}{step}");
        twice(&daemon, (method, &path, body), 200, (&provider, pointer))
    };
    provides("PUT", "", json!({ "display_name": "Sari" }), "/display_name");
    provides("POST", "/online", Value::Null, "/version");
    provides("POST", "/heartbeat", Value::Null, "/version");
    let other = at("providers/budi");
    daemon.do_mitras("PUT", "providers/budi", json!({ "display_name": "Budi" }));
    daemon.do_mitras("POST", "providers/budi/online", Value::Null);
    let sits = |step: &str, body: Value, probe: &str| {
        twice(&daemon, ("POST", &format!("{session}/{step}"), body), 200, (probe, "/version"));
    };
    sits("accept", json!({ "provider": "sari" }), &provider);
    sits("extend", Value::Null, &provider);
    sits("resume", Value::Null, &provider);
    sits("reroute", json!({ "to": "budi" }), &other);
    sits("end", Value::Null, &other);
    sits("cancel", Value::Null, &other);
    sits("expire", Value::Null, &other);
    provides("POST", "/offline", Value::Null, "/version");
    provides("POST", "/deactivate", Value::Null, "/version");
    provides("POST", "/activate", Value::Null, "/version");
}

/// Jobs, sessions and a registry on the Redis at `url`.
fn on_redis(url: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    std::fs::write(home.config(), config(url)).unwrap();
    home
}

fn config(url: &str) -> String {
    let mut text =
        format!("[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"{url}\"\n\n");
    for (kind, name) in [("inflight", "jobs"), ("sessions", "chat"), ("registry", "devices")] {
        text += &format!("[[system]]\nkind = \"{kind}\"\nname = \"{name}\"\n{CALM}\n\n");
    }
    text
}

/// Sends a request with a key twice; before the first time, `lose` makes its answer get lost.
#[track_caller]
fn repeated(daemon: &Daemon, key: &str, path: &str, body: &Value, lose: &dyn Fn()) -> Value {
    let headers = [JSON, ("idempotency-key", key)];
    let send = || daemon.call("POST", &format!("/v1/{path}"), Some(body.to_string()), &headers);
    lose();
    send();
    let (second, third) = (send(), send());
    assert!((200..300).contains(&second.status), "{path}: {second:?}");
    assert_eq!((third.status, &third.body), (second.status, &second.body), "{path}");
    second.body
}

fn make_each_change_once(daemon: &Daemon, lose: &dyn Fn(&str)) {
    let again = |key: &str, path: &str, body: Value, part: &str| {
        repeated(daemon, key, path, &body, &|| lose(part))
    };
    // Redis must know the scripts: the first answer to each is that it does not.
    let headers = [JSON, ("idempotency-key", "first")];
    for (path, body) in [
        ("inflight/jobs/enqueue_many", json!({ "jobs": [] })),
        ("sessions/chat/connect", json!({ "session": "none", "owner": "own-er" })),
        ("inflight/jobs/start", json!({ "owner": "other", "ttl_ms": 600_000 })),
    ] {
        daemon.call("POST", &format!("/v1/{path}"), Some(body.to_string()), &headers);
    }
    for kind in ["inflight/jobs", "sessions/chat", "registry/devices"] {
        let owners_before = daemon.get(&format!("/v1/{kind}/owners")).body;
        let owners_before = owners_before["owners"].as_array().unwrap().len();
        let body = json!({ "owner": "own-er", "ttl_ms": 600_000 });
        let started = again("start", &format!("{kind}/start"), body, "own-er");
        let owners = daemon.get(&format!("/v1/{kind}/owners")).body;
        let owners = owners["owners"].as_array().unwrap();
        assert_eq!(owners.len(), owners_before + 1, "{kind}: {owners:?}");
        assert_eq!(owners[owners_before]["incarnation"], started["incarnation"], "{kind}");
    }
    let made =
        again("e1", "inflight/jobs/enqueue", json!({ "queue": "q", "payload": "pay-1" }), "pay-1");
    assert_eq!(made["outcome"], "queued", "{made}");
    assert_eq!(daemon.counts()["entered"], 1, "one job, though its id was made up");
    let taken = daemon.jobs("take", json!({ "owner": "own-er", "queue": "q" }));
    assert_eq!(taken["jobs"][0]["id"], made["id"], "{taken}");
    let many =
        json!({ "jobs": [{ "queue": "q", "payload": "pay-2" }, { "queue": "q", "payload": "x" }] });
    let made = again("e2", "inflight/jobs/enqueue_many", many, "pay-2");
    assert_ne!(made["results"][0]["id"], made["results"][1]["id"], "{made}");
    assert_eq!(daemon.counts()["entered"], 3);
    for id in ["s-1", "s-2"] {
        assert_eq!(daemon.chat("activate", json!({ "session": id })).status, 201);
    }
    let reference = json!({ "session": "s-1", "owner": "own-er" });
    let references =
        |id: &str| daemon.get(&format!("/v1/sessions/chat/get/{id}")).body["references"].clone();
    again("c", "sessions/chat/connect", reference.clone(), "s-1");
    assert_eq!(references("s-1"), 1);
    let both = json!({ "sessions": ["s-1", "s-2"], "owner": "own-er" });
    again("cm", "sessions/chat/connect_many", both.clone(), "s-2");
    assert_eq!((references("s-1"), references("s-2")), (json!(2), json!(1)));
    again("d", "sessions/chat/disconnect", reference, "s-1");
    assert_eq!(references("s-1"), 1);
    again("dm", "sessions/chat/disconnect_many", both, "s-2");
    assert_eq!((references("s-1"), references("s-2")), (json!(0), json!(0)));
}

fn changes_with_a_key_are_made_once_though_redis_lost_the_answer() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let home = on_redis(&proxy.url());
        let daemon = home.serve();
        make_each_change_once(&daemon, &|part| proxy.drop_answers_matching(part));
        assert_eq!(proxy.dropped(), 9, "each change lost its first answer");
    }
}

fn changes_with_a_key_are_made_once_on_the_embedded_store() {
    let home = Home::new("10m", CALM);
    std::fs::write(home.config(), config(&format!("embedded:{}", home.data().display()))).unwrap();
    let daemon = home.serve();
    make_each_change_once(&daemon, &|_| {});
}
