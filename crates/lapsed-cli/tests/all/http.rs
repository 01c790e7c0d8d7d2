//! The HTTP surface: shapes, problems, tokens, metrics.

use crate::support::{CALM, Daemon, Home, JSON, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    registry_operations_answer_with_their_documented_fields,
    trap_a4_a_zombie_is_told_what_it_held,
    bad_requests_are_answered_as_problems_and_change_nothing,
    tokens_have_scopes,
    without_a_token_requests_from_web_pages_are_refused,
    metrics_have_their_documented_names_and_values,
    a_pass_continues_after_its_client_disconnects,
    a_request_whose_body_never_arrives_times_out,
    the_dashboard_page_loads_nothing_from_elsewhere,
}

const LOOKUP: &str = "/v1/registry/devices/lookup";

fn registry_operations_answer_with_their_documented_fields() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let started = daemon.registry("start", json!({ "owner": "a", "ttl_ms": 30_000 }));
    assert_eq!(started.status, 201, "{started:?}");
    let beat = &started.body;
    assert_eq!((&beat["owner"], &beat["ttl_ms"]), (&json!("a"), &json!(30_000)));
    assert_eq!(beat["started"], true);
    let left = beat["deadline_ms"].as_u64().unwrap() - beat["now_ms"].as_u64().unwrap();
    assert!((20_000..=30_000).contains(&left), "{beat}");
    let life = beat["incarnation"].clone();

    let beat = daemon.registry("beat", json!({ "owner": "a", "incarnation": life }));
    assert_eq!((beat.status, &beat.body["started"]), (200, &json!(false)), "{beat:?}");
    let beats = json!({ "beats": [{ "owner": "a" }, { "owner": "b" }, { "owner": "a", "incarnation": 99 }] });
    let many = daemon.registry("beat_many", beats).body;
    assert_eq!(many["results"][0]["ok"], true, "{many}");
    assert_eq!(many["results"][1]["started"], true, "{many}");
    assert_eq!(
        (&many["results"][2]["ok"], &many["results"][2]["type"]),
        (&json!(false), &json!("lost"))
    );

    let one = daemon.registry("register", json!({ "owner": "a", "key": "k" })).body;
    assert_eq!((&one["outcome"], &one["incarnation"]), (&json!("new"), &life), "{one}");
    let moved = daemon.registry("register", json!({ "owner": "b", "key": "k" })).body;
    assert_eq!((&moved["outcome"], &moved["from"]["owner"]), (&json!("moved"), &json!("a")));
    let taken = json!({ "owner": "a", "keys": ["k", "l"], "if_free": true });
    let taken = daemon.registry("register_many", taken).body;
    assert_eq!(taken["results"][0]["outcome"], "taken", "{taken}");
    assert_eq!(taken["results"][0]["by"]["owner"], "b");
    assert_eq!(taken["results"][1]["outcome"], "new");

    let found = daemon.get(&format!("{LOOKUP}/k"));
    assert_eq!(
        (found.status, &found.body["owner"], &found.body["key"]),
        (200, &json!("b"), &json!("k"))
    );
    assert!(found.body["due_ms"].is_u64() && found.body["registered_ms"].is_u64());
    let many = daemon.registry("lookup_many", json!({ "keys": ["l", "none"] })).body;
    assert_eq!((&many["results"][0]["owner"], &many["results"][1]), (&json!("a"), &Value::Null));

    let owners = daemon.get("/v1/registry/devices/owners?limit=1").body;
    assert_eq!(owners["owners"].as_array().unwrap().len(), 1);
    let next = owners["next"].as_u64().unwrap();
    let rest = daemon.get(&format!("/v1/registry/devices/owners?after={next}")).body;
    assert_eq!((&rest["owners"][0]["owner"], &rest["next"]), (&json!("b"), &Value::Null));
    assert_eq!(daemon.get("/v1/registry/devices/owners/a").body["held"], 1);
    daemon.get("/v1/registry/devices/owners/nobody").is_problem(404, "not_found");
    let keys = daemon.get("/v1/registry/devices/entries/a").body;
    assert_eq!(keys, json!({ "keys": ["l"], "next": null }));

    let removed = daemon.registry("unregister", json!({ "owner": "a", "key": "k" })).body;
    assert_eq!(removed, json!({ "removed": false }), "it is b's now");
    let removed =
        daemon.registry("unregister_many", json!({ "owner": "a", "keys": ["k", "l"] })).body;
    assert_eq!(removed, json!({ "removed": 1, "results": [false, true] }));
    let retired = daemon.registry("retire", json!({ "owner": "b" })).body;
    assert_eq!(retired["reclaimed"], 1, "{retired}");
    daemon.get(&format!("{LOOKUP}/k")).is_problem(404, "not_found");
}

fn trap_a4_a_zombie_is_told_what_it_held() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k1", "k2"]);
    daemon.until_overdue(1);
    daemon.run(&["sweep", "devices"]);
    for operation in ["beat", "register", "retire"] {
        let mut body = json!({ "owner": "a", "incarnation": 1 });
        if operation == "register" {
            body["key"] = json!("k3");
        }
        let lost = daemon.registry(operation, body);
        lost.is_problem(409, "lost");
        assert_eq!((&lost.body["owner"], &lost.body["ending"]), (&json!("a"), &json!("dead")));
        assert_eq!(
            (&lost.body["held"], &lost.body["held_total"]),
            (&json!(["k1", "k2"]), &json!(2))
        );
        assert!(lost.body["ended_ms"].is_u64());
    }
    let metrics = daemon.get("/metrics").text;
    assert!(
        metrics.contains("lapsed_zombie_rejected_total{system=\"devices\",kind=\"registry\"} 3"),
        "{metrics}"
    );
}

fn bad_requests_are_answered_as_problems_and_change_nothing() {
    let home = Home::with("1m", CALM, "body_limit = \"2KiB\"");
    let daemon = home.serve();
    let path = "/v1/registry/devices/register";
    let send = |body: &str, headers| daemon.call("POST", path, Some(body.to_owned()), headers);
    send("{\"owner\":", &[JSON]).is_problem(400, "malformed");
    send("{\"owner\": 3, \"key\": \"k\"}", &[JSON]).is_problem(422, "invalid");
    send("{\"owner\": \"a\"}", &[JSON]).is_problem(422, "invalid");
    send("{\"owner\": \"a\", \"key\": \"k\", \"kez\": 1}", &[JSON]).is_problem(422, "invalid");
    let fine = "{\"owner\": \"a\", \"key\": \"k\"}";
    send(fine, &[("content-type", "text/plain")]).is_problem(415, "unsupported_media_type");
    send(fine, &[]).is_problem(415, "unsupported_media_type");
    let long = format!("{{\"owner\": \"a\", \"key\": \"{}\"}}", "k".repeat(4_000));
    let large = send(&long, &[JSON]);
    large.is_problem(413, "too_large");
    assert!(large.body["detail"].as_str().unwrap().contains("body_limit"));
    for bad in ["", "a\nb", &"x".repeat(513)] {
        daemon.registry("register", json!({ "owner": bad, "key": "k" })).is_problem(422, "invalid");
        daemon.registry("register", json!({ "owner": "a", "key": bad })).is_problem(422, "invalid");
        daemon.registry("beat", json!({ "owner": bad })).is_problem(422, "invalid");
    }
    daemon.registry("start", json!({ "owner": "a", "ttl_ms": 0 })).is_problem(422, "invalid");
    daemon.registry("start", json!({ "owner": "a", "ttl_ms": -1 })).is_problem(422, "invalid");
    daemon
        .registry("start", json!({ "owner": "a", "ttl_ms": u64::MAX }))
        .is_problem(422, "invalid");
    daemon.get(&format!("{LOOKUP}/%ff%fe")).is_problem(400, "malformed");
    daemon.get(&format!("{LOOKUP}/{}", "x".repeat(513))).is_problem(422, "invalid");
    daemon.get("/v1/registry/devices/owners?limit=0").is_problem(400, "malformed");
    daemon.get("/v1/registry/devices/owners?limt=3").is_problem(400, "malformed");
    daemon.get("/v1/registry/nothing/owners").is_problem(404, "not_found");
    daemon.get("/v1/sweeps/registry/nothing").is_problem(404, "not_found");
    daemon.get("/v1/receipts/nonsense").is_problem(422, "invalid");
    daemon.get("/v1/receipts/registry-devices-9").is_problem(404, "not_found");
    daemon.get("/v1/receipts?after=x:y").is_problem(422, "invalid");
    daemon.get("/v1/events?cursor=nonsense").is_problem(422, "invalid");
    daemon.get("/nowhere").is_problem(404, "not_found");
    let wrong = daemon.call("DELETE", "/v1/sweeps", None, &[]);
    wrong.is_problem(405, "method_not_allowed");
    assert_eq!(wrong.header("allow"), "GET,HEAD");
    let put = |body: Value| {
        daemon.call("PUT", "/v1/brakes/registry/devices", Some(body.to_string()), &[JSON])
    };
    put(json!({ "setting": "loose" })).is_problem(422, "invalid");
    let old = put(json!({ "setting": "release" }));
    old.is_problem(422, "invalid");
    let detail = old.body["detail"].as_str().unwrap();
    assert!(detail.contains("auto") && detail.contains("override"), "{detail}");
    put(json!({ "setting": "override" })).is_problem(422, "invalid");
    put(json!({ "setting": "override", "reason": " " })).is_problem(422, "invalid");
    put(json!({ "setting": "override", "reason": "two\nlines" })).is_problem(422, "invalid");
    put(json!({ "setting": "hold", "reason": "why" })).is_problem(422, "invalid");
    assert_eq!(daemon.status()["census"]["owners_live"], 0);
    assert_eq!(daemon.status()["census"]["population"], 0);
}

fn tokens_have_scopes() {
    let tokens = "token = \"write-token\"\nread_token = \"read-token\"";
    let home = Home::with("1m", CALM, tokens);
    let daemon = home.serve();
    let auth = |token: &'static str| ("authorization", token);
    let get = |headers: &[(&str, &str)]| daemon.call("GET", "/v1/sweeps", None, headers);
    let none = get(&[]);
    none.is_problem(401, "unauthorized");
    assert!(none.header("www-authenticate").starts_with("Bearer"));
    get(&[auth("Bearer wrong")]).is_problem(401, "unauthorized");
    get(&[auth("Bearer write-toke")]).is_problem(401, "unauthorized");
    get(&[auth("Basic write-token")]).is_problem(401, "unauthorized");
    assert_eq!(get(&[auth("Bearer read-token")]).status, 200);
    assert_eq!(get(&[auth("bearer write-token")]).status, 200);
    let post = |operation: &str, body: Value, token| {
        let path = format!("/v1/registry/devices/{operation}");
        daemon.call("POST", &path, Some(body.to_string()), &[JSON, auth(token)])
    };
    let beat = json!({ "owner": "a" });
    post("beat", beat.clone(), "Bearer read-token").is_problem(403, "forbidden");
    assert_eq!(post("beat", beat, "Bearer write-token").status, 200);
    assert_eq!(post("lookup_many", json!({ "keys": ["k"] }), "Bearer read-token").status, 200);
    daemon.get("/metrics").is_problem(401, "unauthorized");
    for open in ["/healthz", "/readyz", "/", "/openapi.json"] {
        assert_eq!(daemon.get(open).status, 200, "{open}");
    }
    let url = &daemon.url;
    let env = [("LAPSED_TOKEN", "write-token"), ("LAPSED_URL", url)];
    assert_eq!(crate::support::run_with(&["sweep", "devices"], &env).code, 0);
}

fn without_a_token_requests_from_web_pages_are_refused() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let path = "/v1/sweeps/registry/devices";
    let from = |headers: &[(&str, &str)]| daemon.call("POST", path, None, headers);
    from(&[("origin", "https://evil.example")]).is_problem(403, "forbidden");
    from(&[("host", "evil.example")]).is_problem(403, "forbidden");
    let own = daemon.url.clone();
    assert_eq!(from(&[("origin", &own)]).status, 200);
    assert_eq!(from(&[]).status, 200);
}

fn metrics_have_their_documented_names_and_values() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("ingest-1", &["k1", "k2"]);
    daemon.hold("leaver", &["k3"]);
    daemon.registry("retire", json!({ "owner": "leaver" }));
    daemon.until_overdue(1);
    let before = daemon.get("/metrics").text;
    for line in [
        "teltonika_registry_janitor_evicted_total{instance_id=\"ingest-1\"} 0",
        "lapsed_store_errors_total{system=\"devices\",error=\"invalid\",kind=\"registry\"} 0",
    ] {
        assert!(before.contains(&format!("{line}\n")), "{line} is missing at first:\n{before}");
    }
    assert!(
        before.contains("lapsed_suspects{system=\"devices\",kind=\"registry\"} 2\n"),
        "{before}"
    );
    let series = "lapsed_oldest_suspect_seconds{system=\"devices\",kind=\"registry\"} ";
    let oldest = before.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok());
    assert!(oldest.is_some_and(|seconds| seconds > 0.0), "{before}");
    daemon.post("/v1/sweeps/registry/devices", json!({ "dry_run": true }));
    daemon.post("/v1/sweeps/registry/devices", json!({}));
    let reply = daemon.get("/metrics");
    assert!(reply.header("content-type").starts_with("application/openmetrics-text"));
    let text = reply.text;
    for line in [
        "lapsed_reclaimed_total{system=\"devices\",reason=\"owner_dead\",kind=\"registry\"} 2",
        "lapsed_reclaimed_total{system=\"devices\",reason=\"owner_retired\",kind=\"registry\"} 1",
        "lapsed_suspects{system=\"devices\",kind=\"registry\"} 0",
        "lapsed_oldest_suspect_seconds{system=\"devices\",kind=\"registry\"} 0.0",
        "lapsed_population{system=\"devices\",kind=\"registry\"} 0",
        "lapsed_reclaim_lag_seconds_count{system=\"devices\",kind=\"registry\"} 2",
        "lapsed_pass_duration_seconds_count{system=\"devices\",kind=\"registry\"} 1",
        "lapsed_pass_total{system=\"devices\",stopped=\"done\",kind=\"registry\"} 1",
        "lapsed_brake{system=\"devices\",kind=\"registry\"} 0.0",
        "lapsed_zombie_rejected_total{system=\"devices\",kind=\"registry\"} 0",
        "lapsed_store_errors_total{system=\"devices\",error=\"unavailable\",kind=\"registry\"} 0",
        "lapsed_owners{system=\"devices\",state=\"died_recently\",kind=\"registry\"} 1",
        "teltonika_registry_janitor_evicted_total{instance_id=\"ingest-1\"} 2",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is missing:\n{text}");
    }
    assert!(text.contains("{instance_id=\"leaver\"} 0\n"), "leaving is not an eviction:\n{text}");
    assert!(!text.contains("_total_total"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

fn a_pass_continues_after_its_client_disconnects() {
    let home = Home::new("300ms", "sweep = { every = \"1d\", batch = 5, op_delay = \"20ms\" }");
    let daemon = home.serve();
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    daemon.hold("a", &keys);
    daemon.until_overdue(1);
    ask_and_leave(&daemon);
    until("the pass to end", || (daemon.receipts().len() == 100).then_some(()));
    until("its account", || (daemon.status()["last_pass"]["reclaimed"] == 100).then_some(()));
}

/// Sends a request and hangs up as soon as the pass has begun.
fn ask_and_leave(daemon: &Daemon) {
    use std::io::Write;
    let address = daemon.url.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/sweeps/registry/devices HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    until("the pass to begin", || (!daemon.receipts().is_empty()).then_some(()));
    drop(stream);
}

/// A client that announces a body and never sends it is disconnected; the next client is served.
fn a_request_whose_body_never_arrives_times_out() {
    use std::io::{Read, Write};
    let home = Home::with("1m", CALM, "request_timeout = \"200ms\"");
    let daemon = home.serve();
    let address = daemon.url.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let head = format!(
        "POST /v1/registry/devices/beat HTTP/1.1\r\nHost: {address}\r\n\
         Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert_eq!(daemon.registry("beat", json!({ "owner": "a" })).status, 200);
}

fn the_dashboard_page_loads_nothing_from_elsewhere() {
    let home = Home::with("1m", CALM, "token = \"page-token-0123456789\"");
    let daemon = home.serve();
    let page = daemon.get("/");
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    assert!(!page.header("content-security-policy").contains("unsafe"), "nothing inline");
    assert!(page.text.contains("color-scheme: light dark"));
    let mut wanted = vec!["/page/main.js".to_owned(), "/page/page.css".to_owned()];
    for number in 0.. {
        let Some(path) = wanted.get(number).cloned() else { break };
        let file = daemon.get(&path);
        assert_eq!(file.status, 200, "{path} needs no token");
        assert!(!file.text.contains("http://") || path.ends_with("elements.js"), "{path}");
        assert!(!file.text.contains("https://"), "{path}");
        let kind = file.header("content-type");
        let right = if path.ends_with(".js") { "text/javascript" } else { "text/css" };
        assert!(kind.starts_with(right), "{path}: {kind}");
        let again = daemon.call("GET", &path, None, &[("if-none-match", file.header("etag"))]);
        assert_eq!((again.status, again.text.as_str()), (304, ""), "{path}");
        for import in file.text.split("from \"./").skip(1) {
            let import = format!("/page/{}", import.split('"').next().unwrap());
            if !wanted.contains(&import) {
                wanted.push(import);
            }
        }
    }
    assert!(wanted.len() > 5, "{wanted:?}");
    daemon.get("/page/nothing.js").is_problem(404, "not_found");
}
