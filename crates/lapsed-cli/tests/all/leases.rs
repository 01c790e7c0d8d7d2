//! Leases over HTTP, on the embedded store.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{CALM, Daemon, Home, JSON, Reply, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_lease_goes_from_grant_to_release,
    a_lease_key_may_contain_any_character,
    batched_calls_have_one_answer_each,
    invalid_requests_are_refused_with_a_reason,
    trap_d5_a_token_outlives_its_lease_and_a_zombie_is_told,
    only_the_holder_may_write_the_state_of_a_key,
    trap_d9_staged_work_follows_the_decision,
    a_transaction_is_decided_once,
    a_waiting_acquire_is_granted_or_times_out,
    a_lease_granted_to_a_disconnected_client_is_released,
    a_stopping_daemon_answers_waiting_clients,
}

#[track_caller]
pub fn acquire(daemon: &Daemon, key: &str, owner: &str, ttl_ms: u64) -> Value {
    daemon.leases("acquire", json!({ "key": key, "owner": owner, "ttl_ms": ttl_ms }))
}

fn ticket(grant: &Value) -> Value {
    json!({ "namespace": grant["namespace"], "key": grant["key"], "token": grant["token"] })
}

/// Waits until the lease on `key` has run out, without touching it.
pub fn until_expired(daemon: &Daemon, key: &str) {
    until("the lease to run out", || {
        let page = daemon.get("/v1/leases/locks/list/default").body;
        let all = page["leases"].as_array().unwrap();
        all.iter().any(|one| one["key"] == key && one["expired"] == true).then_some(())
    });
}

#[track_caller]
pub fn is_lost(reply: &Reply, why: &str, token: u64, holder: Value) {
    reply.is_problem(409, "lost");
    assert_eq!(
        (&reply.body["why"], &reply.body["token"], &reply.body["holder"]),
        (&json!(why), &json!(token), &holder),
        "{reply:?}"
    );
}

fn a_lease_goes_from_grant_to_release() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let first = acquire(&daemon, "k", "a", 600_000);
    assert_eq!(
        (&first["namespace"], &first["owner"], &first["token"], &first["ttl_ms"]),
        (&json!("default"), &json!("a"), &json!(1), &json!(600_000))
    );
    let left = first["deadline_ms"].as_u64().unwrap() - first["now_ms"].as_u64().unwrap();
    assert_eq!(left, 600_000);

    let held = daemon.try_leases("acquire", json!({ "key": "k", "owner": "b" }));
    held.is_problem(409, "held");
    assert_eq!((&held.body["holder"], &held.body["token"]), (&json!("a"), &json!(1)), "{held:?}");
    let left = held.body["left_ms"].as_u64().unwrap();
    assert!((1..=600_000).contains(&left), "{held:?}");

    let renewed = daemon.leases("renew", json!({ "key": "k", "token": 1, "ttl_ms": 900_000 }));
    assert_eq!((&renewed["token"], &renewed["ttl_ms"]), (&json!(1), &json!(900_000)));
    let found = daemon.get("/v1/leases/locks/describe/default/k").body;
    assert_eq!((&found["lease"]["owner"], &found["expired"]), (&json!("a"), &json!(false)));
    let released = daemon.leases("release", ticket(&first));
    assert_eq!(released["outcome"], "released", "{released}");
    is_lost(&daemon.try_leases("release", ticket(&first)), "ended", 1, Value::Null);
    let found = daemon.get("/v1/leases/locks/describe/default/k").body;
    assert_eq!((&found["lease"], &found["token"]), (&Value::Null, &json!(1)), "it lives on");

    // Repeated by its name, a request has one answer.
    let body = json!({ "key": "k", "owner": "b", "request": "r-1" });
    let second = daemon.leases("acquire", body.clone());
    assert_eq!((&second["token"], &second["ttl_ms"]), (&json!(2), &json!(30_000)));
    assert_eq!(daemon.leases("acquire", body)["token"], 2);
    let namespaces = daemon.get("/v1/leases/locks/namespaces").body;
    assert_eq!(namespaces, json!({ "namespaces": ["default"], "next": null }));
    daemon.get("/v1/leases/locks/describe/default/none").is_problem(404, "not_found");
    daemon.get("/v1/leases/nothing/namespaces").is_problem(404, "not_found");
}

fn a_lease_key_may_contain_any_character() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    for key in ["a/b/c", "..", "naïve ключ 🔑", "100%", "a?b#c&d=e", "acquire", " ", "\\"] {
        let grant = acquire(&daemon, key, "o", 600_000);
        assert_eq!(grant["key"], key);
        let name = escaped(key);
        let found = daemon.get(&format!("/v1/leases/locks/describe/default/{name}"));
        assert_eq!((found.status, &found.body["key"]), (200, &json!(key)), "{found:?}");
        let state = json!({ "token": grant["token"], "state": { "json": key } }).to_string();
        let path = format!("/v1/leases/locks/state/default/{name}");
        assert_eq!(daemon.call("PUT", &path, Some(state), &[JSON]).status, 200, "{key}");
        assert_eq!(daemon.get(&path).body["state"]["json"], key);
        let described = daemon.run(&["lease", "describe", key, "--namespace", "default", "--json"]);
        assert_eq!(described.json()["state"]["json"], key, "{described:?}");
        let explained = daemon.run(&["explain", "locks", &format!("default/{key}")]);
        assert!(explained.out.contains("live"), "{explained:?}");
    }
    let all = daemon.run(&["lease", "list", "--json"]).lines();
    assert_eq!(all.len(), 8, "{all:?}");
}

fn escaped(key: &str) -> String {
    key.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn batched_calls_have_one_answer_each() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    acquire(&daemon, "k007", "other", 600_000);
    let wanted: Vec<Value> = (0..300)
        .map(|n| json!({ "key": format!("k{n:03}"), "owner": "o", "ttl_ms": 600_000 }))
        .collect();
    let got = daemon.leases("acquire_many", json!({ "leases": wanted }));
    let got = got["results"].as_array().unwrap();
    assert_eq!((got.len(), &got[6]["ok"], &got[6]["key"]), (300, &json!(true), &json!("k006")));
    assert_eq!((&got[7]["ok"], &got[7]["type"]), (&json!(false), &json!("held")), "{}", got[7]);
    assert_eq!(got[7]["holder"], "other");
    let tickets: Vec<Value> = got.iter().map(ticket).collect();
    let renewed = daemon.leases("renew_many", json!({ "leases": tickets }));
    let renewed = renewed["results"].as_array().unwrap();
    assert_eq!((&renewed[8]["ok"], &renewed[8]["token"]), (&json!(true), &json!(1)));
    assert_eq!(renewed[7]["ok"], true, "the token that it was told is the holder's");
    let wrong = json!({ "leases": [{ "key": "k001", "token": 9 }, { "key": "k002", "token": 1 }] });
    let ended = daemon.leases("release_many", wrong);
    let ended = &ended["results"];
    assert_eq!((&ended[0]["type"], &ended[0]["why"]), (&json!("lost"), &json!("unknown")));
    assert_eq!((&ended[0]["key"], &ended[1]["outcome"]), (&json!("k001"), &json!("released")));
    let page = daemon.get("/v1/leases/locks/list/default?limit=200").body;
    let rest = daemon.get("/v1/leases/locks/list/default?after=k199").body;
    assert_eq!((page["leases"].as_array().unwrap().len(), &page["next"]), (200, &json!("k199")));
    assert_eq!((rest["leases"].as_array().unwrap().len(), &rest["next"]), (100, &Value::Null));
    let listed = daemon.run(&["lease", "list", "default", "-n", "250", "--json"]).lines();
    assert_eq!(listed.len(), 250);
}

fn invalid_requests_are_refused_with_a_reason() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let long = "k".repeat(257);
    for (operation, body) in [
        ("acquire", json!({ "key": "", "owner": "o" })),
        ("acquire", json!({ "key": long, "owner": "o" })),
        ("acquire", json!({ "key": "a\nb", "owner": "o" })),
        ("acquire", json!({ "key": "k" })),
        ("acquire", json!({ "key": "k", "owner": "o", "namespace": ".hidden" })),
        ("acquire", json!({ "key": "k", "owner": "o", "namespace": "a/b" })),
        ("acquire", json!({ "key": "k", "owner": "o", "ttl_ms": 999 })),
        ("acquire", json!({ "key": "k", "owner": "o", "wait_ms": 60_001 })),
        ("acquire", json!({ "key": "k", "owner": "o", "ttl": "30s" })),
        ("renew", json!({ "key": "k" })),
        ("renew", json!({ "key": "k", "token": 1, "tll_ms": 5 })),
        ("stage", json!({ "key": "k", "token": 1, "txn": "", "state": { "json": 1 } })),
        ("stage", json!({ "key": "k", "token": 1, "txn": "t", "state": { "text": "x" } })),
        ("stage", json!({ "key": "k", "token": 1, "txn": "t", "state": { "bytes": "%" } })),
        ("decide", json!({ "txn": "t", "decision": "maybe" })),
        ("decide", json!({ "txn": "t", "decision": "commit", "ttl_ms": 0 })),
    ] {
        daemon.try_leases(operation, body).is_problem(422, "invalid");
    }
    let one = json!({ "leases": [{ "key": "k", "owner": "o", "wait_ms": 5 }] });
    assert_eq!(daemon.leases("acquire_many", one)["results"][0]["type"], "invalid");
    let large = json!({ "token": 1, "state": { "json": "x".repeat(65 << 10) } }).to_string();
    let path = "/v1/leases/locks/state/default/k";
    daemon.call("PUT", path, Some(large), &[JSON]).is_problem(422, "invalid");
    daemon.get("/v1/leases/locks/decision/t").is_problem(404, "not_found");
    assert_eq!(daemon.get("/v1/leases/locks/namespaces").body["namespaces"], json!([]));
}

/// A holder stalls past its TTL, another one gets the key, and then the first one wakes up.
fn trap_d5_a_token_outlives_its_lease_and_a_zombie_is_told() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let first = acquire(&daemon, "k", "a", 1_000);
    let second = until("the lease to be free", || {
        let reply = daemon.try_leases("acquire", json!({ "key": "k", "owner": "b" }));
        (reply.status == 200).then_some(reply.body)
    });
    assert_eq!(second["token"], 2);
    is_lost(&daemon.try_leases("renew", ticket(&first)), "superseded", 2, json!("b"));
    is_lost(&daemon.try_leases("release", ticket(&first)), "superseded", 2, json!("b"));
    let late = json!({ "token": 1, "state": { "json": "late" } }).to_string();
    let late = daemon.call("PUT", "/v1/leases/locks/state/default/k", Some(late), &[JSON]);
    is_lost(&late, "superseded", 2, json!("b"));
    let found = daemon.get("/v1/leases/locks/describe/default/k").body;
    assert_eq!((&found["lease"]["owner"], &found["state"]), (&json!("b"), &Value::Null));

    let receipt = daemon.get("/v1/receipts?system=locks").body["receipts"][0].clone();
    assert_eq!(
        (&receipt["key"], &receipt["owner"], &receipt["incarnation"], &receipt["reason"]),
        (&json!("default/k"), &json!("a"), &json!(1), &json!("lease_expired"))
    );
    let listed = daemon.run(&["receipts", "locks"]);
    for word in ["default/k", "lease_expired", receipt["id"].as_str().unwrap()] {
        assert!(listed.out.contains(word), "{word}: {}", listed.out);
    }
    let refused = daemon.run(&["restore", receipt["id"].as_str().unwrap()]);
    assert_eq!(refused.code, 1, "somebody holds it: {refused:?}");
}

fn only_the_holder_may_write_the_state_of_a_key() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let path = "/v1/leases/locks/state/default/k";
    daemon.get(path).is_problem(404, "not_found");
    let grant = acquire(&daemon, "k", "a", 600_000);
    let put = |token: u64, state: Value| {
        let body = json!({ "token": token, "state": state }).to_string();
        daemon.call("PUT", path, Some(body), &[JSON])
    };
    assert_eq!(put(1, json!({ "json": { "at": 7 } })).status, 200);
    is_lost(&put(2, json!({ "json": "x" })), "unknown", 1, json!("a"));
    daemon.leases("release", ticket(&grant));
    is_lost(&put(1, json!({ "json": "x" })), "ended", 1, Value::Null);
    let kept = daemon.get(path).body;
    assert_eq!(kept["state"], json!({ "json": { "at": 7 } }), "it outlives the lease");
    acquire(&daemon, "k", "b", 600_000);
    assert_eq!(put(2, json!({ "bytes": "AAEC" })).body["state"]["bytes"], "AAEC");
    assert_eq!(daemon.get(path).body["state"]["bytes"], "AAEC");
    let wrong = daemon.call("DELETE", &format!("{path}?token=1"), None, &[]);
    is_lost(&wrong, "superseded", 2, json!("b"));
    let gone = daemon.call("DELETE", &format!("{path}?token=2"), None, &[]);
    assert_eq!((gone.status, &gone.body["state"]), (200, &Value::Null), "{gone:?}");
    assert_eq!(daemon.get(path).body["state"], Value::Null);
}

fn trap_d9_staged_work_follows_the_decision() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let stage = |key: &str, ttl_ms: u64, txn: &str| {
        let grant = acquire(&daemon, key, "a", ttl_ms);
        let body = json!({ "key": key, "token": grant["token"], "txn": txn,
            "state": { "json": format!("by {txn}") } });
        assert_eq!(daemon.leases("stage", body)["txn"], txn);
        grant
    };
    let state = |key: &str| {
        daemon.get(&format!("/v1/leases/locks/state/default/{key}")).body["state"].clone()
    };
    // Decided before the lease runs out.
    stage("a", 1_000, "t1");
    daemon.leases("decide", json!({ "txn": "t1", "decision": "commit" }));
    until_expired(&daemon, "a");
    assert_eq!(state("a"), json!({ "json": "by t1" }));
    // Without a decision it is rolled back, and a late commit is answered so.
    stage("b", 1_000, "t2");
    until_expired(&daemon, "b");
    assert_eq!(state("b"), Value::Null);
    let late = daemon.leases("decide", json!({ "txn": "t2", "decision": "commit" }));
    assert_eq!((&late["decision"], &late["first"]), (&json!("rollback"), &json!(false)));
    // Taken back.
    let grant = stage("c", 600_000, "t3");
    assert_eq!(daemon.leases("unstage", ticket(&grant))["txn"], Value::Null);
    daemon.leases("release", ticket(&grant));
    daemon.get("/v1/leases/locks/decision/t3").is_problem(404, "not_found");
    let receipts = daemon.run(&["receipts", "locks"]).out;
    assert!(receipts.contains("lease_expired, t1: commit"), "{receipts}");
    assert!(receipts.contains("lease_expired, t2: rollback"), "{receipts}");
}

fn a_transaction_is_decided_once() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let first = daemon.leases("decide", json!({ "txn": "order/1", "decision": "rollback" }));
    assert_eq!((&first["decision"], &first["first"]), (&json!("rollback"), &json!(true)));
    assert_eq!(
        first["deadline_ms"].as_u64(),
        first["decided_ms"].as_u64().map(|at| at + 86_400_000)
    );
    let second = daemon.leases("decide", json!({ "txn": "order/1", "decision": "commit" }));
    assert_eq!((&second["decision"], &second["first"]), (&json!("rollback"), &json!(false)));
    assert_eq!(daemon.get("/v1/leases/locks/decision/order%2F1").body["decision"], "rollback");
    let short = json!({ "txn": "t", "decision": "commit", "ttl_ms": 1_000 });
    daemon.leases("decide", short);
    until("the decision to be forgotten", || {
        (daemon.get("/v1/leases/locks/decision/t").status == 404).then_some(())
    });
    let receipt = daemon.get("/v1/receipts?system=locks").body["receipts"][0].clone();
    let wanted = (json!(".txn-decisions/t"), json!("commit"), json!("decision_expired"));
    assert_eq!(
        (&receipt["key"], &receipt["owner"], &receipt["reason"]),
        (&wanted.0, &wanted.1, &wanted.2)
    );
    let back = daemon.run(&["restore", receipt["id"].as_str().unwrap()]);
    assert!(back.code == 0 && back.out.contains("is decided again: commit"), "{back:?}");
    assert_eq!(daemon.get("/v1/leases/locks/decision/t").body["decision"], "commit");
}

fn a_waiting_acquire_is_granted_or_times_out() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let first = acquire(&daemon, "k", "a", 600_000);
    let began = Instant::now();
    let body = json!({ "key": "k", "owner": "b", "wait_ms": 1_200 });
    daemon.try_leases("acquire", body).is_problem(409, "held");
    assert!(began.elapsed() >= Duration::from_millis(1_200), "{:?}", began.elapsed());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            daemon.leases("acquire", json!({ "key": "k", "owner": "b", "wait_ms": 60_000 }))
        });
        daemon.leases("release", ticket(&first));
        let got = waiting.join().unwrap();
        assert_eq!((&got["owner"], &got["token"]), (&json!("b"), &json!(2)), "{got}");
    });
}

/// A client waits for a lease and disconnects: the lease is released at once, not after its TTL.
fn a_lease_granted_to_a_disconnected_client_is_released() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let address = daemon.url.strip_prefix("http://").unwrap();
    let body = json!({ "key": "k", "owner": "ghost", "wait_ms": 60_000, "ttl_ms": 86_400_000 });
    let body = body.to_string();
    for _ in 0..5 {
        let first = acquire(&daemon, "k", "a", 86_400_000);
        let mut client = TcpStream::connect(address).unwrap();
        let request = format!(
            "POST /v1/leases/locks/acquire HTTP/1.1\r\nhost: {address}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write_all(request.as_bytes()).unwrap();
        until("somebody to wait", || (daemon.waiting() > 0).then_some(()));
        drop(client);
        daemon.leases("release", ticket(&first));
        let next = until("the key to be free again", || {
            let reply = daemon.try_leases("acquire", json!({ "key": "k", "owner": "b" }));
            (reply.status == 200).then_some(reply.body)
        });
        daemon.leases("release", ticket(&next));
    }
    assert_eq!(daemon.stop(), Some(0));
}

/// A client that waits for a lease does not delay the stop of the daemon.
fn a_stopping_daemon_answers_waiting_clients() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    acquire(&daemon, "k", "a", 600_000);
    let url = daemon.url.clone();
    let waiting = std::thread::spawn(move || {
        let body = json!({ "key": "k", "owner": "b", "wait_ms": 60_000 });
        let answer =
            crate::support::agent().post(format!("{url}/v1/leases/locks/acquire")).send_json(body);
        answer.unwrap().body_mut().read_json::<Value>().unwrap()
    });
    until("somebody to wait", || (daemon.waiting() > 0).then_some(()));
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(waiting.join().unwrap()["type"], "held");
}
