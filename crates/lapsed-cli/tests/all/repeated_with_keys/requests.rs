//! What is sent to each kind, what happens before it comes again, and what must not have changed.

use crate::repeated_with_keys::Repeater;
use crate::support::{Daemon, JSON, until};
use serde_json::{Value, json};

pub fn repeat_owners(all: &mut Repeater<'_>, system: &str, owner: &str) {
    let shown = format!("{system}/owners/{owner}");
    let body = json!({ "owner": owner, "ttl_ms": 600_000 });
    all.post(&format!("{system}/start"), body, (&shown, "/incarnation"));
    all.post(&format!("{system}/beat"), json!({ "owner": owner }), (&shown, "/deadline_ms"));
    let beats = json!({ "beats": [{ "owner": owner }] });
    all.post(&format!("{system}/beat_many"), beats, (&shown, "/deadline_ms"));
}

/// Ends the owner, which starts anew before the repetition.
pub fn repeat_retire(all: &mut Repeater<'_>, system: &str, owner: &str) {
    let (shown, body) = (format!("{system}/owners/{owner}"), json!({ "owner": owner }));
    let anew = |daemon: &Daemon| {
        let started = daemon.post(&format!("/v1/{system}/start"), body.clone());
        assert_eq!(started.status, 201, "{started:?}");
    };
    all.twice(("POST", &format!("{system}/retire"), body.clone()), anew, (&shown, "/ending"));
}

pub fn repeat_registry(all: &mut Repeater<'_>) {
    let system = "registry/devices";
    repeat_owners(all, system, "i");
    let (holder, rival) = ((&*format!("{system}/lookup/k"), "/owner"), "rival");
    let rival = |daemon: &Daemon| drop(daemon.hold(rival, &["k"]));
    let one = json!({ "owner": "i", "key": "k" });
    let many = json!({ "owner": "i", "keys": ["k", "l"] });
    all.twice(("POST", &format!("{system}/register"), one.clone()), rival, holder);
    all.twice(("POST", &format!("{system}/register_many"), many.clone()), rival, holder);
    // The same owner has registered the key anew.
    let anew = |daemon: &Daemon| drop(daemon.hold("i", &["k"]));
    anew(all.daemon);
    all.twice(("POST", &format!("{system}/unregister"), one), anew, holder);
    all.twice(("POST", &format!("{system}/unregister_many"), many), anew, holder);
    assert_eq!(all.read(holder).1, Some(json!("i")));
    repeat_retire(all, system, "i");
}

pub fn repeat_sessions(all: &mut Repeater<'_>) {
    let system = "sessions/chat";
    repeat_owners(all, system, "o");
    let shown = format!("{system}/get/s");
    let at = |operation: &str| format!("{system}/{operation}");
    let value = |value: &str| json!({ "session": "s", "value": value });
    let update = |value: Value| move |daemon: &Daemon| drop(daemon.chat("update", value));
    let value_now = (&*shown, "/value");
    all.twice(("POST", &at("activate"), value("v1")), update(value("v2")), value_now);
    all.twice(("POST", &at("update"), value("v3")), update(value("v4")), value_now);
    assert_eq!(all.read(value_now).1, Some(json!("v4")));
    let (one, many) =
        (json!({ "session": "s", "owner": "o" }), json!({ "sessions": ["s"], "owner": "o" }));
    let references = (&*shown, "/references");
    all.post(&at("connect"), one.clone(), references);
    all.post(&at("connect_many"), many.clone(), references);
    assert_eq!(all.read(references).1, Some(json!(2)));
    all.post(&at("disconnect"), one.clone(), references);
    all.post(&at("disconnect_many"), many, references);
    // Somebody has left again before the repetition.
    let left = |daemon: &Daemon| {
        for operation in ["connect", "disconnect"] {
            assert_eq!(daemon.chat(operation, one.clone()).status, 200);
        }
    };
    let session = json!({ "session": "s" });
    all.twice(("POST", &at("resume"), session.clone()), left, (&shown, "/disconnected_ms"));
    let activate = |daemon: &Daemon| assert_eq!(daemon.chat("activate", value("new")).status, 201);
    all.twice(("POST", &at("delete"), session), activate, value_now);
    assert_eq!(all.read(value_now), (200, Some(json!("new"))), "the newer activation is there");
    repeat_retire(all, system, "o");
}

fn job(id: &str) -> Value {
    json!({ "queue": "q", "id": id, "payload": "p" })
}

/// Puts a job on its queue and takes it; the ticket of the claim.
pub fn claim(daemon: &Daemon, id: &str) -> Value {
    daemon.jobs("enqueue", job(id));
    let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q" }));
    assert_eq!(taken["jobs"][0]["id"], *id, "{taken}");
    json!({ "id": id, "token": taken["jobs"][0]["token"] })
}

fn bury(daemon: &Daemon, id: &str) {
    let ticket = claim(daemon, id);
    daemon.jobs("fail", ticket);
}

pub fn repeat_inflight(all: &mut Repeater<'_>) {
    let system = "inflight/jobs";
    repeat_owners(all, system, "w");
    let at = |operation: &str| format!("{system}/{operation}");
    let counts = (&*at("counts"), "");
    all.post(&at("enqueue"), json!({ "queue": "q", "payload": "p" }), counts);
    all.post(&at("enqueue_many"), json!({ "jobs": [{ "queue": "q", "payload": "p" }] }), counts);
    all.post(&at("take"), json!({ "owner": "w", "queue": "q", "limit": 2 }), counts);
    for (operation, id) in [("register", "r1"), ("register_many", "r2")] {
        // It was done meanwhile: a repetition must not register it again.
        let complete = |daemon: &Daemon| {
            let ticket = json!({ "id": id, "token": daemon.job(id)["token"] });
            assert_eq!(daemon.jobs("complete", ticket)["outcome"], "done");
        };
        let mut body = if operation == "register" { job(id) } else { json!({ "jobs": [job(id)] }) };
        body["owner"] = json!("w");
        all.twice(("POST", &at(operation), body), complete, counts);
    }
    for operation in ["complete", "fail", "give_back"] {
        // The same id is in flight again before the repetition, and what was answered is not `lost`.
        let again = |id: &'static str| {
            move |daemon: &Daemon| match operation {
                "complete" => drop(claim(daemon, id)),
                "fail" => drop(daemon.jobs("dead/delete", json!({ "id": id }))),
                _ => drop(daemon.jobs("take", json!({ "owner": "w", "queue": "q" }))),
            }
        };
        let ticket = claim(all.daemon, "one");
        let answer = all.twice(("POST", &at(operation), ticket), again("one"), counts);
        assert_eq!(answer["outcome"], "done", "{operation}");
        if operation != "fail" {
            let ticket = json!({ "id": "one", "token": all.daemon.job("one")["token"] });
            all.daemon.jobs("complete", ticket);
        }
        let tickets = json!({ "jobs": [claim(all.daemon, "many")] });
        let many = at(&format!("{operation}_many"));
        let answer = all.twice(("POST", &many, tickets), again("many"), counts);
        assert_eq!(answer["results"][0]["outcome"], "done", "{operation}");
        if operation != "fail" {
            let ticket = json!({ "id": "many", "token": all.daemon.job("many")["token"] });
            all.daemon.jobs("complete", ticket);
        }
    }
    bury(all.daemon, "l");
    // The job has failed again before the repetition.
    let fail_again = |daemon: &Daemon| {
        let taken = daemon.jobs("take", json!({ "owner": "w", "queue": "q" }));
        let token = &taken["jobs"][0]["token"];
        daemon.jobs("fail", json!({ "id": "l", "token": token }));
    };
    all.twice(("POST", &at("dead/put_back"), json!({ "id": "l" })), fail_again, counts);
    let bury_again = |daemon: &Daemon| bury(daemon, "l");
    all.twice(("POST", &at("dead/delete"), json!({ "id": "l" })), bury_again, counts);
    repeat_retire(all, system, "w");
}

pub fn repeat_leases(all: &mut Repeater<'_>) {
    let at = |operation: &str| format!("leases/locks/{operation}");
    let shown = at("describe/default/k");
    let deadline = (&*shown, "/lease/deadline_ms");
    let granted = all.post(&at("acquire"), json!({ "key": "k", "owner": "a" }), deadline);
    let many = json!({ "leases": [{ "key": "m", "owner": "a" }] });
    let more =
        all.post(&at("acquire_many"), many, (&at("describe/default/m"), "/lease/deadline_ms"));
    let ticket = json!({ "key": "k", "token": granted["token"] });
    let other = json!({ "key": "m", "token": more["results"][0]["token"] });
    all.post(&at("renew"), ticket.clone(), deadline);
    all.post(&at("renew_many"), json!({ "leases": [ticket.clone()] }), deadline);
    let state = |n: u64| json!({ "token": granted["token"], "state": { "json": { "n": n } } });
    let put = |n: u64| {
        let body = state(n).to_string();
        let path = format!("/v1/{}", at("state/default/k"));
        move |daemon: &Daemon| {
            assert_eq!(daemon.call("PUT", &path, Some(body), &[JSON]).status, 200)
        }
    };
    let written = (&*at("state/default/k"), "/state");
    all.twice(("PUT", &at("state/default/k"), state(1)), put(2), written);
    let path = at(&format!("state/default/k?token={}", granted["token"]));
    all.twice(("DELETE", &path, Value::Null), put(3), written);
    let stage = |txn: &str| json!({ "key": "k", "token": granted["token"], "txn": txn, "state": { "json": { "a": 1 } } });
    let staged = (&*shown, "/staged");
    let unstage = |daemon: &Daemon| drop(daemon.leases("unstage", ticket.clone()));
    all.twice(("POST", &at("stage"), stage("t")), unstage, staged);
    all.daemon.leases("stage", stage("t"));
    let stage_again = |daemon: &Daemon| drop(daemon.leases("stage", stage("u")));
    all.twice(("POST", &at("unstage"), ticket.clone()), stage_again, staged);
    let decision = (&*at("decision/t"), "/decided_ms");
    all.post(&at("decide"), json!({ "txn": "t", "decision": "commit" }), decision);
    let acquire = |key: &'static str| {
        move |daemon: &Daemon| drop(daemon.leases("acquire", json!({ "key": key, "owner": "b" })))
    };
    all.twice(("POST", &at("release"), ticket), acquire("k"), (&shown, "/lease"));
    let many = json!({ "leases": [other] });
    all.twice(
        ("POST", &at("release_many"), many),
        acquire("m"),
        (&at("describe/default/m"), "/lease"),
    );
}

pub fn repeat_providers(all: &mut Repeater<'_>) {
    let shown = "availability/mitras/providers/11111111-1111-7222-8333-44445555aaaa";
    let id = shown.rsplit('/').next().unwrap().to_owned();
    let doing = |method: &'static str, step: &str, body: Value| {
        let path = format!("providers/{id}{step}");
        move |daemon: &Daemon| drop(daemon.do_mitras(method, &path, body))
    };
    let rename = doing("PUT", "", json!({ "display_name": "B" }));
    all.twice(("PUT", shown, json!({ "display_name": "A" })), rename, (shown, "/display_name"));
    assert_eq!(all.read((shown, "/display_name")).1, Some(json!("B")));
    let (is_online, is_active) = ((shown, "/is_online"), (shown, "/is_active"));
    let mut toggle = |step: &str, back: &str, probe| {
        let between = doing("POST", back, Value::Null);
        all.twice(("POST", &format!("{shown}{step}"), Value::Null), between, probe);
    };
    toggle("/online", "/offline", is_online);
    toggle("/offline", "/online", is_online);
    toggle("/deactivate", "/activate", is_active);
    toggle("/activate", "/deactivate", is_active);
    all.daemon.do_mitras("POST", &format!("providers/{id}/activate"), Value::Null);
    let beats = (shown, "/last_heartbeat_ms");
    all.post(&format!("{shown}/heartbeat"), Value::Null, beats);
    all.post("availability/mitras/heartbeats", json!({ "providers": [id] }), beats);
    let tune = |daemon: &Daemon| daemon.tune(json!({ "max_customers_per_mitra": 7 }));
    let config = "availability/mitras/config";
    let patch = json!({ "max_customers_per_mitra": 5 });
    all.twice(("PATCH", config, patch), tune, (config, "/max_customers_per_mitra"));
    assert_eq!(all.read((config, "/max_customers_per_mitra")).1, Some(json!(7)));
}

pub fn repeat_provider_sessions(all: &mut Repeater<'_>) {
    let [one, two, x] =
        [1, 2, 3].map(|n| format!("{n}{n}{n}{n}{n}{n}{n}{n}-2222-7222-8333-44445555aaaa"));
    for id in [&one, &two] {
        all.daemon.online(id);
    }
    let change = |step: &'static str, body: Value| {
        let path = format!("sessions/{x}/{step}");
        move |daemon: &Daemon| drop(daemon.do_mitras("POST", &path, body))
    };
    let (session, none) = (&*format!("availability/mitras/sessions/{x}"), Value::Null);
    let to = |id: &str| json!({ "provider": id });
    let state = (session, "");
    let at = |step: &str| format!("{session}/{step}");
    all.twice(("POST", &at("accept"), to(&one)), change("reroute", json!({ "to": two })), state);
    let back = change("reroute", json!({ "to": two }));
    all.twice(("POST", &at("reroute"), json!({ "to": one })), back, state);
    all.post(&at("extend"), none.clone(), state);
    all.post(&at("resume"), none.clone(), state);
    for step in ["end", "cancel", "expire"] {
        all.post(&at(step), none.clone(), state);
    }
}

/// The override is used up by a pass, and then comes again.
pub fn repeat_brake(all: &mut Repeater<'_>) {
    let brake = "brakes/registry/devices";
    let order = json!({ "setting": "override", "reason": "drill" });
    let pass = |daemon: &Daemon| {
        assert_eq!(daemon.post("/v1/sweeps/registry/devices", json!({})).status, 200);
        assert_eq!(daemon.get("/v1/brakes/registry/devices").body["setting"], "auto");
    };
    all.twice(("PUT", brake, order), pass, (brake, "/setting"));
    assert_eq!(
        all.read((brake, "/setting")).1,
        Some(json!("auto")),
        "no second pass is let through"
    );
}

pub fn repeat_operators(all: &mut Repeater<'_>) {
    repeat_brake(all);
    all.daemon.hold("gone", &["g-1"]);
    all.daemon.registry("retire", json!({ "owner": "gone" }));
    all.daemon.registry("start", json!({ "owner": "gone", "ttl_ms": 600_000 }));
    let receipt = all.daemon.receipts().pop().unwrap()["id"].as_str().unwrap().to_owned();
    let path = format!("receipts/{receipt}/restore");
    // It is removed again before the repetition.
    let remove = |daemon: &Daemon| {
        let removed = daemon.registry("unregister", json!({ "owner": "gone", "key": "g-1" }));
        assert_eq!(removed.body["removed"], true, "{removed:?}");
    };
    all.twice(("POST", &path, Value::Null), remove, ("registry/devices/lookup/g-1", "/owner"));
    let audit = ("audit", "/entries/0/seq");
    all.post("sweeps/registry/devices", json!({ "list": 10 }), audit);
    all.post("reconcile/registry/new", json!({}), audit);
    all.post("adopt/registry/old", Value::Null, audit);
}

pub fn repeat_webhooks(all: &mut Repeater<'_>) {
    let audit = ("audit", "/entries/0/seq");
    all.post("webhooks/works/test", Value::Null, ("webhooks", "/webhooks/0/name"));
    for (operation, owner) in [("put_back", "h-1"), ("delete", "h-2")] {
        all.daemon.hold(owner, &[owner]);
        all.daemon.registry("retire", json!({ "owner": owner }));
        let letter = until("a dead letter", || {
            let dead = all.daemon.get("/v1/webhooks/down/dead").body;
            dead["dead"][0]["id"].as_str().map(str::to_owned)
        });
        all.post(&format!("webhooks/down/dead/{operation}"), json!({ "id": letter }), audit);
    }
}
