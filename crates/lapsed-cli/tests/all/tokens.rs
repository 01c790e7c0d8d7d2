//! Tokens: names, scopes and expiry, and that no request bypasses them.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{self, CALM, Daemon, Home, JSON, Reply, lapsed, run};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    every_token_may_do_exactly_what_its_scopes_allow,
    whoami_says_what_a_token_may_do,
    an_expired_token_is_refused_and_an_expiring_one_is_warned_of,
    encoded_and_malformed_paths_do_not_bypass_token_checks,
    a_key_named_like_an_operation_is_treated_as_a_key,
    no_token_is_ever_logged,
    http_2_is_refused,
}

/// Where HTTP/2 is spoken, who is slow or reads nothing is not found by looking at the connection.
fn http_2_is_refused() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let mut stream = TcpStream::connect(daemon.url.trim_start_matches("http://")).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer:?}");
}

#[test]
fn token_new_prints_a_token_that_matches_its_hash() {
    let made =
        run(&["token", "new", "--name", "ci", "--scopes", "write", "--for", "90d", "--json"]);
    assert_eq!(made.code, 0, "{made:?}");
    let made = made.json();
    assert_eq!((&made["name"], &made["scopes"]), (&json!("ci"), &json!(["read", "write"])));
    let token = made["token"].as_str().unwrap();
    assert!(token.starts_with("lapsed_") && token.len() > 60, "{token}");
    assert_eq!(hash(token), made["hash"].as_str().unwrap());
    let other = run(&["token", "new", "--json"]).json();
    assert_ne!(other["token"], made["token"]);
    let shown = run(&["token", "new", "--name", "ci", "--scopes", "read,act", "--for", "90d"]);
    let section = shown.out.split_once("[[server.tokens]]").unwrap().1.to_owned();
    let home = Home::with("1m", CALM, &format!("[[server.tokens]]{section}"));
    let told = home.run(&["check", "--json"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(told.json()["server"]["tokens"][0]["scopes"], json!(["read", "act"]));
    for bad in [&["token", "new", "--name", "a b"][..], &["token", "new", "--name", "local"]] {
        assert_eq!(run(bad).code, 2, "{bad:?}");
    }
}

/// What `lapsed token hash` makes of it.
fn hash(token: &str) -> String {
    let mut command = lapsed();
    command.args(["token", "hash"]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{token}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn invalid_tokens_are_refused_with_their_key() {
    let entry = |lines: &str| format!("[[server.tokens]]\n{lines}\n");
    let ops = "name = \"ops\"\ntoken = \"s3cret-word\"\nscopes = [\"read\"]";
    for (lines, says) in [
        (entry("name = \"ops\"\nscopes = [\"read\"]"), "give `hash` or `token`"),
        (entry(&format!("{ops}\nhash = \"sha256:00\"")), "one of them"),
        (entry("name = \"ops\"\nhash = \"md5:00\"\nscopes = [\"read\"]"), "64 hexadecimal digits"),
        (entry("name = \"ops\"\ntoken = \"s3cret-word\"\nscopes = []"), "`scopes` is empty"),
        (entry(&ops.replace("\"read\"", "\"reed\"")), "nearest valid one is `read`"),
        (entry(&format!("{ops}\nexpire = 1")), "nearest valid one is `expires`"),
        (entry(&format!("{ops}\nexpires = \"soon\"")), "2027-01-01T00:00:00Z"),
        (entry(&format!("{ops}\nexpires = 12")), "2027-01-01T00:00:00Z"),
        (entry(&ops.replace("ops", "o p s")), "is no name"),
        (entry(&ops.replace("ops", "token")), "taken by lapsed itself"),
        (entry(&ops.replace("s3cret-word", "s3cret-w\\u00f6rd")), "visible ASCII"),
        (entry("name = \"ops\"\ntoken = 123456789\nscopes = [\"read\"]"), "write it in quotes"),
        (entry(ops) + &entry(ops), "two tokens `ops`"),
        (entry(ops) + &entry(&ops.replace("ops", "dev")), "are the same token"),
        ("token = \"s3cret-word\"\n".to_owned() + &entry(ops), "are the same token"),
    ] {
        let home = Home::with("1m", CALM, &lines);
        let told = home.run(&["check"]);
        assert_eq!(told.code, 2, "{lines}: {told:?}");
        assert!(told.err.contains(says), "{lines}: {told:?}");
        assert!(!told.err.contains("s3cret") && !told.err.contains("123456789"), "{told:?}");
    }
}

const TOKENS: &str = r#"token = "all-of-it"
read_token = "only-looking"
[[server.tokens]]
name = "shop"
token = "${SHOP_TOKEN}"
scopes = ["write"]
[[server.tokens]]
name = "ops"
hash = "sha256:c6cc31eefdf1cb8a3c1f7b5f5bed0f1a8a1b6b7a4b6b9b1a2f0ec22a5a4e1a11"
scopes = ["read", "act"]
expires = 2099-01-01T00:00:00Z
"#;

const SHOP: &str = "shop-token";
const OPS: &str = "ops-token";

/// A daemon with four tokens: `all-of-it`, `only-looking`, that of the shop and that of operations.
fn guarded(home: &Home) -> Daemon {
    home.serve_with(&[("SHOP_TOKEN", SHOP)])
}

fn home() -> Home {
    let known =
        TOKENS.lines().find_map(|l| l.strip_prefix("hash = \"")?.strip_suffix('"')).unwrap();
    Home::with("1m", CALM, &TOKENS.replace(known, &hash(OPS)))
}

fn ask(daemon: &Daemon, token: &str, method: &str, path: &str, body: Option<Value>) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = body.map(|body| body.to_string());
    daemon.call(method, path, body, &[JSON, ("authorization", &bearer)])
}

fn every_token_may_do_exactly_what_its_scopes_allow() {
    let home = home();
    let daemon = guarded(&home);
    let sweep = "/v1/sweeps/registry/devices";
    let brake = "/v1/brakes/registry/devices";
    let deeds: [(&str, &str, Option<Value>, &str); 9] = [
        ("GET", "/v1/sweeps", None, "read"),
        ("GET", brake, None, "read"),
        ("POST", "/v1/registry/devices/lookup_many", Some(json!({ "keys": ["k"] })), "read"),
        ("POST", sweep, Some(json!({ "dry_run": true })), "read"),
        ("POST", &format!("{sweep}?dry_run=true"), Some(json!({})), "read"),
        ("POST", "/v1/registry/devices/beat", Some(json!({ "owner": "a" })), "write"),
        ("POST", sweep, Some(json!({})), "act"),
        ("POST", &format!("{sweep}?dry_run=true"), Some(json!({ "dry_run": false })), "act"),
        ("PUT", brake, Some(json!({ "setting": "auto" })), "act"),
    ];
    for (token, scopes) in [
        ("all-of-it", &["read", "write", "act"][..]),
        ("only-looking", &["read"]),
        (SHOP, &["read", "write"]),
        (OPS, &["read", "act"]),
    ] {
        for (method, path, body, scope) in &deeds {
            let reply = ask(&daemon, token, method, path, body.clone());
            if scopes.contains(scope) {
                assert_eq!(reply.status, 200, "{token} {method} {path}: {reply:?}");
                continue;
            }
            reply.is_problem(403, "forbidden");
            assert_eq!(reply.body["scope"], *scope, "{token} {method} {path}: {reply:?}");
            assert!(reply.body["detail"].as_str().unwrap().contains(&format!("`{scope}`")));
        }
        let restore = ask(&daemon, token, "POST", "/v1/receipts/registry-devices-1/restore", None);
        assert_eq!(restore.status, if scopes.contains(&"act") { 404 } else { 403 }, "{token}");
    }
    let env = [("LAPSED_TOKEN", SHOP), ("LAPSED_URL", &daemon.url)];
    let told = support::run_with(&["brake", "devices", "hold"], &env);
    assert!(told.code == 1 && told.err.contains("`act`"), "{told:?}");
    assert_eq!(support::run_with(&["sweep", "devices", "--dry-run"], &env).code, 0);
}

fn whoami_says_what_a_token_may_do() {
    let open = Home::new("1m", CALM);
    let daemon = open.serve();
    let all = json!(["read", "write", "act"]);
    let who = daemon.get("/v1/whoami");
    assert_eq!(who.body, json!({ "name": null, "scopes": all, "expires_ms": null, "open": true }));
    let home = home();
    let daemon = guarded(&home);
    daemon.get("/v1/whoami").is_problem(401, "unauthorized");
    let who = |token| ask(&daemon, token, "GET", "/v1/whoami", None).body;
    let ends = 4_070_908_800_000_u64;
    for (token, name, scopes, expires) in [
        ("all-of-it", "token", all, Value::Null),
        ("only-looking", "read_token", json!(["read"]), Value::Null),
        (SHOP, "shop", json!(["read", "write"]), Value::Null),
        (OPS, "ops", json!(["read", "act"]), json!(ends)),
    ] {
        let wanted =
            json!({ "name": name, "scopes": scopes, "expires_ms": expires, "open": false });
        assert_eq!(who(token), wanted, "{token}");
    }
}

fn an_expired_token_is_refused_and_an_expiring_one_is_warned_of() {
    let in_a_day = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    let tokens = format!(
        "[[server.tokens]]\nname = \"old\"\ntoken = \"was-good\"\nscopes = [\"act\"]\n\
         expires = \"2020-01-01\"\n[[server.tokens]]\nname = \"last\"\ntoken = \"nearly\"\n\
         scopes = [\"read\"]\nexpires = \"{in_a_day}\"\n"
    );
    let home = Home::with("1m", CALM, &tokens);
    let daemon = home.serve();
    let reply = ask(&daemon, "was-good", "GET", "/v1/sweeps", None);
    reply.is_problem(401, "unauthorized");
    let detail = reply.body["detail"].as_str().unwrap();
    assert!(detail.contains("`old` expired on 2020-01-01"), "{detail}");
    assert!(reply.header("www-authenticate").contains("invalid_token"), "{reply:?}");
    assert_eq!(ask(&daemon, "nearly", "GET", "/v1/sweeps", None).status, 200);
    let log = daemon.log();
    assert!(log.contains("`old` has expired") && log.contains("`last` expires in"), "{log}");
    let told = home.run(&["check"]);
    assert!(told.out.contains("warning: the token `old` has expired"), "{told:?}");
    assert!(told.out.contains("token last: read, until"), "{told:?}");
}

/// Sends bytes as they are, and tells the status.
fn raw(daemon: &Daemon, request: &[u8]) -> u16 {
    let address = daemon.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let line = String::from_utf8_lossy(&answer);
    line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn encoded_and_malformed_paths_do_not_bypass_token_checks() {
    let home = home();
    let daemon = guarded(&home);
    let request = |line: &str, headers: &str| {
        let head = format!("{line}\r\nHost: h\r\nConnection: close\r\n{headers}\r\n");
        raw(&daemon, head.as_bytes())
    };
    let good = "Authorization: Bearer all-of-it\r\n";
    assert_eq!(request("GET /v1/sweeps HTTP/1.1", good), 200);
    for path in [
        "/v1/sweeps",
        "/v1//sweeps",
        "/v1/./sweeps",
        "/v1/brakes/..",
        "/v1/%73weeps",
        "/v1/sweeps?token=all-of-it",
        "/v1/",
        "/metrics",
        "/metrics?x",
        "http://elsewhere/v1/sweeps",
    ] {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            assert_eq!(request(&format!("{method} {path} HTTP/1.1"), ""), 401, "{method} {path}");
        }
    }
    for path in
        ["//v1/sweeps", "/V1/sweeps", "/%76%31/sweeps", "/v1", "/x/../v1/sweeps", "/v1;/sweeps"]
    {
        assert_eq!(request(&format!("GET {path} HTTP/1.1"), ""), 404, "{path}");
    }
    for headers in [
        format!("{good}Authorization: Bearer only-looking\r\n"),
        format!("Authorization: Bearer nonsense\r\n{good}"),
        format!("{good}{good}"),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        "Authorization: Bearer all-of-it all-of-it\r\n".to_owned(),
        "Authorization: Bearer all-of-it,only-looking\r\n".to_owned(),
        "Authorization: all-of-it\r\n".to_owned(),
        "Authorization: Bearer ALL-OF-IT\r\n".to_owned(),
        "Authorization: Basic YWxsLW9mLWl0\r\n".to_owned(),
        "Proxy-Authorization: Bearer all-of-it\r\n".to_owned(),
        "Cookie: token=all-of-it\r\n".to_owned(),
        format!("Authorization: Bearer {}\r\n", "x".repeat(20_000)),
    ] {
        assert_eq!(request("GET /v1/sweeps HTTP/1.1", &headers), 401, "{headers:.60}");
    }
    let mut bytes = b"GET /v1/sweeps HTTP/1.1\r\nHost: h\r\nConnection: close\r\n".to_vec();
    bytes.extend(b"Authorization: Bearer all-of-it\xff\xfe\r\n\r\n");
    assert_eq!(raw(&daemon, &bytes), 401);
    let read = "Authorization: Bearer only-looking\r\n";
    let dodge = format!("{read}X-HTTP-Method-Override: PUT\r\nContent-Length: 0\r\n");
    assert_eq!(request("GET /v1/brakes/registry/devices HTTP/1.1", &dodge), 200);
    assert_eq!(request("POST /v1/brakes/registry/devices HTTP/1.1", &dodge), 403);
    let brake = ask(&daemon, "only-looking", "GET", "/v1/brakes/registry/devices", None);
    assert_eq!(brake.body["setting"], "auto", "{brake:?}");
}

fn a_key_named_like_an_operation_is_treated_as_a_key() {
    let home = Home::leases("");
    let text = std::fs::read_to_string(home.config()).unwrap();
    let tokens = "[server]\ntoken = \"all-of-it\"\nread_token = \"only-looking\"";
    std::fs::write(home.config(), text.replace("[server]", tokens)).unwrap();
    let daemon = home.serve();
    for key in ["lookup_many", "get_many"] {
        let path = format!("/v1/leases/locks/state/ns/{key}");
        let reply = ask(&daemon, "only-looking", "PUT", &path, Some(json!({ "state": 1 })));
        reply.is_problem(403, "forbidden");
    }
}

/// No token appears in the log or in the metrics, whatever the request and the error are.
fn no_token_is_ever_logged() {
    let home = home();
    let env = [("SHOP_TOKEN", SHOP), ("RUST_LOG", "trace")];
    let daemon = home.serve_with(&env);
    for token in ["all-of-it", "only-looking", SHOP, OPS, "guessed-token"] {
        ask(&daemon, token, "GET", "/v1/sweeps", None);
        ask(&daemon, token, "POST", "/v1/registry/devices/beat", Some(json!({ "owner": "a" })));
        ask(&daemon, token, "POST", "/v1/registry/devices/beat", Some(json!({ "owner": 3 })));
        ask(&daemon, token, "PUT", "/v1/brakes/registry/devices", Some(json!({ "setting": "x" })));
        ask(&daemon, token, "GET", "/nowhere", None);
    }
    let metrics = ask(&daemon, "all-of-it", "GET", "/metrics", None).text;
    let log = daemon.log();
    assert!(log.len() > 1_000 && metrics.contains("lapsed_"), "there is something to look at");
    for secret in ["all-of-it", "only-looking", SHOP, OPS, "guessed-token", &hash(OPS)[7..]] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        assert!(!metrics.contains(secret), "{secret} is among the metrics");
    }
}
