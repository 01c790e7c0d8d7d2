//! Tokens that are limited to systems, operations and owners, on one system of every kind.

use crate::support::{CALM, Daemon, Home, JSON, Reply};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    every_writing_route_refuses_a_foreign_owner_and_changes_nothing,
    an_owner_may_do_everything_that_is_its_own,
    a_batch_with_one_foreign_owner_is_refused_whole,
    a_token_is_limited_to_its_systems_and_operations,
    the_holder_of_an_entry_is_checked_by_its_token,
    whoami_and_check_say_what_a_token_is_limited_to,
}

const TOKENS: &str = r#"token = "all-of-it-and-long-enough"
[[server.tokens]]
name = "mine"
token = "mine-is-a-long-enough-token"
scopes = ["write"]
owners = ["mine-*"]
[[server.tokens]]
name = "beats"
token = "beats-is-a-long-enough-token"
scopes = ["write"]
systems = ["registry/devices", "inflight/*"]
operations = ["beat", "lookup"]
"#;

const ALL: &str = "all-of-it-and-long-enough";
const MINE: &str = "mine-is-a-long-enough-token";
const BEATS: &str = "beats-is-a-long-enough-token";

/// One system of every kind, which is swept only when asked.
pub fn of_all_kinds(server: &str) -> Home {
    let home = Home::with("10m", CALM, server);
    let mut text = std::fs::read_to_string(home.config()).unwrap();
    for lines in [
        "kind = \"sessions\"\nname = \"chat\"\ngrace = \"10m\"",
        "kind = \"inflight\"\nname = \"jobs\"\nheartbeat_ttl = \"10m\"",
        "kind = \"leases\"\nname = \"locks\"\nttl = \"10m\"",
        "kind = \"availability\"\nname = \"mitras\"",
    ] {
        text.push_str(&format!("\n[[system]]\n{lines}\n{CALM}\n"));
    }
    std::fs::write(home.config(), text).unwrap();
    home
}

/// Sends a request with that token; a body makes it JSON.
pub fn send(daemon: &Daemon, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = (!body.is_null()).then(|| body.to_string());
    daemon.call(method, path, body, &[JSON, ("authorization", &bearer)])
}

fn post(daemon: &Daemon, token: &str, path: &str, body: Value) -> Reply {
    send(daemon, token, "POST", path, &body)
}

#[track_caller]
fn done(reply: Reply) -> Value {
    assert!((200..300).contains(&reply.status), "{reply:?}");
    reply.body
}

/// What `owner` holds: a key, a job, a lease, a session's reference; and the tokens of job and lease.
struct Held {
    job: u64,
    lease: u64,
}

fn hold(daemon: &Daemon, owner: &str) -> Held {
    let all = |path: &str, body: Value| done(post(daemon, ALL, path, body));
    all("/v1/registry/devices/register", json!({ "owner": owner, "key": owner }));
    all("/v1/inflight/jobs/enqueue", json!({ "queue": owner, "id": owner, "payload": "p" }));
    let taken = all("/v1/inflight/jobs/take", json!({ "owner": owner, "queue": owner }));
    let lease = json!({ "owner": owner, "key": owner });
    let lease = all("/v1/leases/locks/acquire", lease);
    all("/v1/sessions/chat/activate", json!({ "session": owner }));
    all("/v1/sessions/chat/connect", json!({ "session": owner, "owner": owner }));
    let path = format!("/v1/availability/mitras/providers/{owner}");
    done(send(daemon, ALL, "PUT", &path, &Value::Null));
    done(send(daemon, ALL, "POST", &format!("{path}/online"), &Value::Null));
    Held {
        job: taken["jobs"][0]["token"].as_u64().unwrap(),
        lease: lease["token"].as_u64().unwrap(),
    }
}

/// Everything that can be read about the five systems, without times.
fn picture(daemon: &Daemon) -> Vec<Value> {
    let paths = [
        "/v1/registry/devices/owners",
        "/v1/registry/devices/entries/theirs",
        "/v1/registry/devices/lookup/theirs",
        "/v1/sessions/chat/get/theirs",
        "/v1/sessions/chat/owners",
        "/v1/inflight/jobs/jobs/theirs",
        "/v1/inflight/jobs/owners",
        "/v1/inflight/jobs/counts",
        "/v1/leases/locks/list/default",
        "/v1/availability/mitras/providers",
        "/v1/availability/mitras/providers/theirs/status",
        "/v1/availability/mitras/sessions/theirs",
    ];
    paths
        .iter()
        .map(|path| without_times(send(daemon, ALL, "GET", path, &Value::Null).body))
        .collect()
}

fn without_times(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(key, _)| {
                !key.ends_with("_ms") && !key.ends_with("_seconds") && !key.ends_with("_at")
            })
            .map(|(key, value)| (key, without_times(value)))
            .collect(),
        Value::Array(list) => list.into_iter().map(without_times).collect(),
        other => other,
    }
}

/// The routes of kinds that change something, from the document that the daemon serves.
fn writing_routes(daemon: &Daemon) -> Vec<(String, String)> {
    let document = daemon.get("/openapi.json").body;
    let kinds = ["registry", "sessions", "inflight", "leases", "availability"];
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let kind = path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next());
        if kinds.contains(&kind.unwrap_or_default()) {
            let methods = item.as_object().unwrap().keys().filter(|method| *method != "get");
            found.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
        }
    }
    assert!(found.len() > 45, "{found:?}");
    found
}

fn system_of(path: &str) -> &'static str {
    let systems = [
        ("/v1/registry/", "devices"),
        ("/v1/sessions/", "chat"),
        ("/v1/inflight/", "jobs"),
        ("/v1/leases/", "locks"),
        ("/v1/availability/", "mitras"),
    ];
    systems.iter().find(|(start, _)| path.starts_with(start)).unwrap().1
}

/// `path` with the parameters filled in: everything is called `theirs`.
fn filled(path: &str) -> String {
    let path = path.replacen("{name}", system_of(path), 1).replace("{namespace}", "default");
    let segments = path.split('/').map(|s| if s.starts_with('{') { "theirs" } else { s });
    segments.collect::<Vec<_>>().join("/")
}

fn every_writing_route_refuses_a_foreign_owner_and_changes_nothing() {
    let home = of_all_kinds(TOKENS);
    let daemon = home.serve();
    let (mine, theirs) = (hold(&daemon, "mine-1"), hold(&daemon, "theirs"));
    let before = picture(&daemon);
    // What is not about an owner: jobs without a worker, and reading with a body.
    let free = ["enqueue", "enqueue_many", "lookup_many", "get_many"];
    for (method, path) in writing_routes(&daemon) {
        let (mine, theirs) = match path.starts_with("/v1/leases/") {
            true => (mine.lease, theirs.lease),
            false => (mine.job, theirs.job),
        };
        let body = json!({
            "owner": "theirs", "provider": "theirs", "providers": ["mine-1", "theirs"],
            "beats": [{ "owner": "mine-1" }, { "owner": "theirs" }],
            "leases": [{ "owner": "mine-1", "key": "mine-1", "token": mine },
                { "owner": "theirs", "key": "theirs", "token": theirs }],
            "jobs": [{ "id": "mine-1", "token": mine }, { "id": "theirs", "token": theirs }],
            "id": "theirs", "key": "theirs", "token": theirs, "session": "theirs", "to": "mine-1",
        });
        // A request names one thing or many, never both.
        let batch = if path.ends_with("_many") { &["owner"][..] } else { &["leases", "jobs"] };
        let mut body = body;
        batch.iter().for_each(|member| drop(body.as_object_mut().unwrap().remove(*member)));
        if path.ends_with("register_many") || path.ends_with("connect_many") {
            body["owner"] = json!("theirs");
        }
        let target = format!("{}?token={theirs}", filled(&path));
        let reply = send(&daemon, MINE, &method, &target, &body);
        if free.iter().any(|name| path.ends_with(&format!("/{name}"))) {
            assert_ne!(reply.status, 403, "{method} {path}: {reply:?}");
            continue;
        }
        reply.is_problem(403, "forbidden");
        assert_eq!(picture(&daemon), before, "{method} {path}");
    }
}

fn an_owner_may_do_everything_that_is_its_own() {
    let home = of_all_kinds(TOKENS);
    let daemon = home.serve();
    let held = hold(&daemon, "mine-1");
    let mine = |path: &str, body: Value| done(post(&daemon, MINE, path, body));
    for path in ["/v1/registry/devices/", "/v1/sessions/chat/", "/v1/inflight/jobs/"] {
        mine(&format!("{path}start"), json!({ "owner": "mine-2" }));
        mine(&format!("{path}beat"), json!({ "owner": "mine-1" }));
        let beats = json!({ "beats": [{ "owner": "mine-1" }, { "owner": "mine-2" }] });
        mine(&format!("{path}beat_many"), beats);
    }
    mine("/v1/registry/devices/register", json!({ "owner": "mine-1", "key": "k" }));
    mine("/v1/registry/devices/lookup_many", json!({ "keys": ["k"] }));
    mine("/v1/registry/devices/unregister", json!({ "owner": "mine-1", "key": "k" }));
    mine("/v1/registry/devices/retire", json!({ "owner": "mine-1" }));
    mine("/v1/sessions/chat/disconnect", json!({ "session": "mine-1", "owner": "mine-1" }));
    mine("/v1/inflight/jobs/complete", json!({ "id": "mine-1", "token": held.job }));
    let lease = json!({ "key": "mine-1", "token": held.lease });
    mine("/v1/leases/locks/renew", lease.clone());
    mine("/v1/leases/locks/renew_many", json!({ "leases": [lease.clone()] }));
    let path = "/v1/leases/locks/state/default/mine-1";
    let state = json!({ "token": held.lease, "state": { "json": 1 } });
    done(send(&daemon, MINE, "PUT", path, &state));
    done(send(&daemon, MINE, "DELETE", &format!("{path}?token={}", held.lease), &Value::Null));
    mine("/v1/leases/locks/release", lease);
    let provider = "/v1/availability/mitras/providers/mine-1";
    done(send(&daemon, MINE, "POST", &format!("{provider}/heartbeat"), &Value::Null));
    mine("/v1/availability/mitras/heartbeats", json!({ "providers": ["mine-1"] }));
    done(send(&daemon, MINE, "POST", &format!("{provider}/offline"), &Value::Null));
    // An encoded name is the same name.
    let encoded = "/v1/availability/mitras/providers/%6dine-1/online";
    done(send(&daemon, MINE, "POST", encoded, &Value::Null));
    let foreign = "/v1/availability/mitras/providers/%6dine/online";
    send(&daemon, MINE, "POST", foreign, &Value::Null).is_problem(403, "forbidden");
}

fn a_batch_with_one_foreign_owner_is_refused_whole() {
    let home = of_all_kinds(TOKENS);
    let daemon = home.serve();
    hold(&daemon, "mine-1");
    hold(&daemon, "theirs");
    let before = picture(&daemon);
    let beats = json!({ "beats": [{ "owner": "mine-9" }, { "owner": "theirs" }] });
    let refused = post(&daemon, MINE, "/v1/registry/devices/beat_many", beats);
    refused.is_problem(403, "forbidden");
    assert_eq!(refused.body["owner"], "theirs");
    let leases =
        json!({ "leases": [{ "key": "new", "owner": "mine-1" }, { "key": "n2", "owner": "x" }] });
    post(&daemon, MINE, "/v1/leases/locks/acquire_many", leases).is_problem(403, "forbidden");
    let gone = send(&daemon, ALL, "GET", "/v1/leases/locks/describe/default/new", &Value::Null);
    assert_eq!(gone.status, 404, "{gone:?}");
    // Members that occur twice, lists and missing names are not taken for anything.
    for body in [
        r#"{"owner": "mine-1", "owner": "theirs"}"#,
        r#"{"owner": "theirs", "owner": "mine-1"}"#,
        r#"{"owner": ["mine-1"]}"#,
        r#"{"Owner": "mine-1"}"#,
        r#"["mine-1"]"#,
        "\"mine-1\"",
        "{",
        "",
    ] {
        let bearer = format!("Bearer {MINE}");
        let headers = [JSON, ("authorization", bearer.as_str())];
        let path = "/v1/registry/devices/beat";
        let reply = daemon.call("POST", path, Some(body.to_owned()), &headers);
        assert!([400, 403].contains(&reply.status), "{body}: {reply:?}");
    }
    assert_eq!(picture(&daemon), before);
}

fn a_token_is_limited_to_its_systems_and_operations() {
    let home = of_all_kinds(TOKENS);
    let daemon = home.serve();
    hold(&daemon, "a");
    let beat = json!({ "owner": "a" });
    let beats = json!({ "beats": [beat] });
    for (method, path, body, status) in [
        ("POST", "/v1/registry/devices/beat", &beat, 200),
        ("POST", "/v1/registry/devices/beat_many", &beats, 200),
        ("POST", "/v1/inflight/jobs/beat", &beat, 200),
        ("POST", "/v1/inflight/jobs/beat_many", &beats, 200),
        ("GET", "/v1/registry/devices/lookup/a", &Value::Null, 200),
        ("HEAD", "/v1/registry/devices/lookup/a", &Value::Null, 200),
        ("POST", "/v1/registry/devices/lookup_many", &json!({ "keys": ["a"] }), 200),
        ("GET", "/v1/whoami", &Value::Null, 200),
        ("POST", "/v1/sessions/chat/beat", &beat, 403),
        ("POST", "/v1/sessions/chat/beat_many", &beats, 403),
        ("POST", "/v1/registry/other/beat", &beat, 403),
        ("POST", "/v1/registry/devices/start", &beat, 403),
        ("POST", "/v1/registry/devices/retire", &beat, 403),
        ("POST", "/v1/registry/devices/register", &json!({ "owner": "a", "key": "b" }), 403),
        ("GET", "/v1/registry/devices/owners", &Value::Null, 403),
        ("GET", "/v1/inflight/jobs/jobs/a", &Value::Null, 403),
        ("GET", "/v1/receipts", &Value::Null, 403),
        ("GET", "/v1/sweeps", &Value::Null, 403),
        ("GET", "/v1/sweeps/registry/devices", &Value::Null, 403),
        ("GET", "/v1/explain/registry/devices/a", &Value::Null, 403),
        ("GET", "/v1/events", &Value::Null, 403),
        ("GET", "/v1/audit", &Value::Null, 403),
        ("GET", "/metrics", &Value::Null, 403),
        ("POST", "/v1/registry/devices/nothing", &beat, 403),
        ("POST", "/v1/registry/devices/beat/", &beat, 403),
        ("POST", "/v1/registry//devices/beat", &beat, 403),
        ("POST", "/v1/registry/%64evices/beat", &beat, 200),
        ("POST", "/v1/registry/devices/%62eat", &beat, 403),
    ] {
        let reply = send(&daemon, BEATS, method, path, body);
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
    }
}

fn the_holder_of_an_entry_is_checked_by_its_token() {
    let home = of_all_kinds(TOKENS);
    let daemon = home.serve();
    let (mine, theirs) = (hold(&daemon, "mine-1"), hold(&daemon, "theirs"));
    let mine_lease = |token: u64| json!({ "key": "mine-1", "token": token });
    let renew = |body: Value| post(&daemon, MINE, "/v1/leases/locks/renew", body);
    renew(json!({ "key": "theirs", "token": theirs.lease })).is_problem(403, "forbidden");
    renew(mine_lease(mine.lease + 1)).is_problem(409, "lost");
    renew(json!({ "key": "nobody", "token": 1 })).is_problem(409, "lost");
    renew(json!({ "key": "mine-1" })).is_problem(422, "invalid");
    // The token in the query counts for the removal of a state, and not one in a body.
    let path = format!("/v1/leases/locks/state/default/theirs?token={}", theirs.lease);
    let body = json!({ "token": 0 });
    send(&daemon, MINE, "DELETE", &path, &body).is_problem(403, "forbidden");
    // An older token is answered by the store itself: it is lost.
    done(renew(mine_lease(mine.lease)));
    done(post(&daemon, ALL, "/v1/leases/locks/release", mine_lease(mine.lease)));
    let again = json!({ "key": "mine-1", "owner": "mine-1" });
    let again = done(post(&daemon, MINE, "/v1/leases/locks/acquire", again));
    assert!(again["token"].as_u64() > Some(mine.lease), "{again}");
    renew(mine_lease(mine.lease)).is_problem(409, "lost");

    let complete = |id: &str, token: u64| {
        post(&daemon, MINE, "/v1/inflight/jobs/complete", json!({ "id": id, "token": token }))
    };
    complete("theirs", theirs.job).is_problem(403, "forbidden");
    complete("mine-1", mine.job + 100).is_problem(409, "lost");
    complete("nobody", 1).is_problem(409, "lost");
    let many = json!({ "jobs": [{ "id": "mine-1", "token": mine.job },
        { "id": "theirs", "token": theirs.job }] });
    post(&daemon, MINE, "/v1/inflight/jobs/complete_many", many).is_problem(403, "forbidden");
    let job = send(&daemon, ALL, "GET", "/v1/inflight/jobs/jobs/mine-1", &Value::Null).body;
    assert_eq!(job["state"], "in_flight", "{job}");
    // Its repetition with a key gets the first answer, although nobody holds the job any more.
    let (path, body) = ("/v1/inflight/jobs/complete", json!({ "id": "mine-1", "token": mine.job }));
    let keyed = || {
        let bearer = format!("Bearer {MINE}");
        let headers = [JSON, ("authorization", &*bearer), ("idempotency-key", "done")];
        daemon.call("POST", path, Some(body.to_string()), &headers)
    };
    let (first, second) = (done(keyed()), done(keyed()));
    assert_eq!(second, first);
    complete("mine-1", mine.job).is_problem(409, "lost");
}

fn whoami_and_check_say_what_a_token_is_limited_to() {
    let home = of_all_kinds(TOKENS);
    let daemon = home.serve();
    let who = send(&daemon, BEATS, "GET", "/v1/whoami", &Value::Null).body;
    assert_eq!(who["systems"], json!(["registry/devices", "inflight/*"]), "{who}");
    assert_eq!(who["operations"], json!(["beat", "lookup"]), "{who}");
    let who = send(&daemon, MINE, "GET", "/v1/whoami", &Value::Null).body;
    assert_eq!(who["owners"], json!(["mine-*"]), "{who}");
    assert_eq!(daemon.stop(), Some(0));
    let told = home.run(&["check"]);
    assert!(told.out.contains("token mine: read, write, as mine-*"), "{told:?}");
    assert!(told.out.contains("in registry/devices inflight/*, only beat lookup"), "{told:?}");
}

#[test]
fn unknown_names_in_limits_are_errors_with_the_nearest_valid_one() {
    let with = |line: &str| of_all_kinds(&TOKENS.replace("owners = [\"mine-*\"]", line));
    for (line, says) in [
        ("systems = [\"registry/device\"]", "nearest valid one is `registry/devices`"),
        ("systems = [\"devices\"]", "unknown system `devices`"),
        ("systems = [\"registri/*\"]", "unknown system `registri/*`"),
        ("operations = [\"beet\"]", "nearest valid one is `beat`"),
        ("operations = [\"beat_many\"]", "nearest valid one is `beat`"),
        ("operations = []", "`operations` is empty"),
        ("owners = []", "`owners` is empty"),
        ("owners = [\"\"]", "empty pattern"),
        ("owner = [\"a\"]", "nearest valid one is `owners`"),
    ] {
        let told = with(line).run(&["check"]);
        assert_eq!(told.code, 2, "{line}: {told:?}");
        assert!(told.err.contains(says), "{line}: {told:?}");
    }
    let act = TOKENS.replacen("scopes = [\"write\"]", "scopes = [\"write\", \"act\"]", 1);
    let told = of_all_kinds(&act).run(&["check"]);
    assert!(told.code == 2 && told.err.contains("exclude each other"), "{told:?}");
}
