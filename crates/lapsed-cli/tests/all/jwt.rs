//! Bearer JWTs against a real daemon: one owner for each bearer, keys that are replaced while it runs,
//! and tokens that are refused. The checks of a single token are tested beside the code.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::limited_tokens::{of_all_kinds, send};
use crate::support::{Daemon, Home, JSON, Reply, until};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_provider_sends_its_own_heartbeats_and_nobody_elses,
    a_replaced_key_counts_and_the_old_one_no_longer,
    a_key_set_that_is_replaced_counts,
    jwts_that_are_wrong_are_refused_and_never_logged,
    the_rate_of_each_subject_is_limited_by_its_name,
}

/// An issuer with a key on P-256.
struct Issuer {
    pair: KeyPair,
}

impl Issuer {
    fn new() -> Issuer {
        Issuer { pair: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap() }
    }

    fn publish(&self, file: &Path) {
        std::fs::write(file, self.pair.public_key_pem()).unwrap();
    }

    fn jwk(&self, id: &str) -> Value {
        let point = self.pair.der_bytes();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": id,
            "x": part(&point[1..33]), "y": part(&point[33..65]) })
    }

    /// A token that is good for one minute.
    fn token(&self, owner: &str) -> String {
        self.sealed(json!({ "alg": "ES256" }), json!({ "sub": owner, "exp": now() + 60 }))
    }

    fn sealed(&self, header: Value, claims: Value) -> String {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::from_pkcs8(kind, &self.pair.serialize_der(), &random).unwrap();
        let signature = key.sign(&random, message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

const ALL: &str = "all-of-it-and-long-enough";

/// One system of every kind; bearers of JWTs may write in all of them.
fn home(key: &str, lines: &str) -> Home {
    of_all_kinds(&format!(
        "token = \"{ALL}\"\n[server.jwt]\nalgorithm = \"ES256\"\n{key}\nscopes = [\"write\"]\n{lines}\n"
    ))
}

fn beat(daemon: &Daemon, token: &str, owner: &str) -> Reply {
    send(daemon, token, "POST", "/v1/registry/devices/beat", &json!({ "owner": owner }))
}

/// Starts owners with the token that may do everything.
fn start(daemon: &Daemon, owners: &[&str]) {
    for owner in owners {
        let body = json!({ "owner": owner });
        let started = send(daemon, ALL, "POST", "/v1/registry/devices/start", &body);
        assert_eq!(started.status, 201, "{started:?}");
    }
}

fn a_provider_sends_its_own_heartbeats_and_nobody_elses() {
    let (issuer, dir) = (Issuer::new(), tempfile::tempdir().unwrap());
    let file = dir.path().join("key.pem");
    issuer.publish(&file);
    let lines =
        "systems = [\"availability/*\"]\noperations = [\"heartbeat\", \"online\", \"offline\"]";
    let home = home(&format!("key = {file:?}"), lines);
    let daemon = home.serve();
    for id in ["budi", "sari"] {
        let path = format!("/v1/availability/mitras/providers/{id}");
        assert_eq!(send(&daemon, ALL, "PUT", &path, &Value::Null).status, 200);
    }
    let budi = issuer.token("budi");
    let ask = |method: &str, path: &str, body: &Value| send(&daemon, &budi, method, path, body);
    let of = |id: &str, what: &str| format!("/v1/availability/mitras/providers/{id}/{what}");
    for what in ["online", "heartbeat", "offline", "online"] {
        let reply = ask("POST", &of("budi", what), &Value::Null);
        assert_eq!(reply.status, 200, "{what}: {reply:?}");
        let foreign = ask("POST", &of("sari", what), &Value::Null);
        foreign.is_problem(403, "forbidden");
        assert_eq!(foreign.body["owner"], "sari");
    }
    let batch = "/v1/availability/mitras/heartbeats";
    assert_eq!(ask("POST", batch, &json!({ "providers": ["budi"] })).status, 200);
    ask("POST", batch, &json!({ "providers": ["budi", "sari"] })).is_problem(403, "forbidden");
    for (method, path) in [
        ("POST", of("budi", "activate")),
        ("PUT", "/v1/availability/mitras/providers/budi".to_owned()),
        ("GET", "/v1/availability/mitras/providers".to_owned()),
        ("GET", "/v1/receipts".to_owned()),
        ("POST", "/v1/registry/devices/beat".to_owned()),
        ("PUT", "/v1/brakes/registry/devices".to_owned()),
    ] {
        ask(method, &path, &json!({})).is_problem(403, "forbidden");
    }
    let who = ask("GET", "/v1/whoami", &Value::Null).body;
    assert_eq!((&who["name"], &who["owners"]), (&json!("jwt:budi"), &json!(["budi"])), "{who}");
    assert_eq!(who["scopes"], json!(["read", "write"]));
    assert!(who["expires_ms"].as_u64() > Some(now() * 1_000), "{who}");
}

fn a_replaced_key_counts_and_the_old_one_no_longer() {
    let (old, new, dir) = (Issuer::new(), Issuer::new(), tempfile::tempdir().unwrap());
    let file = dir.path().join("key.pem");
    old.publish(&file);
    let home = home(&format!("key = {file:?}"), "");
    let daemon = home.serve();
    start(&daemon, &["gw-1"]);
    assert_eq!(beat(&daemon, &old.token("gw-1"), "gw-1").status, 200);
    beat(&daemon, &new.token("gw-1"), "gw-1").is_problem(401, "unauthorized");
    // A file that cannot be used changes nothing.
    std::fs::write(&file, "no key").unwrap();
    until("the log to name the file", || daemon.log().contains("stay as they are").then_some(()));
    assert_eq!(beat(&daemon, &old.token("gw-1"), "gw-1").status, 200);
    new.publish(&file);
    until("the new key to count", || {
        (beat(&daemon, &new.token("gw-1"), "gw-1").status == 200).then_some(())
    });
    // Too many wrong tokens while the file was awaited: then none is looked at for a moment.
    let refused = until("the old token to be looked at", || {
        Some(beat(&daemon, &old.token("gw-1"), "gw-1")).filter(|reply| reply.status != 429)
    });
    refused.is_problem(401, "unauthorized");
}

fn a_key_set_that_is_replaced_counts() {
    let (old, new, dir) = (Issuer::new(), Issuer::new(), tempfile::tempdir().unwrap());
    let file = dir.path().join("jwks.json");
    let publish = |keys: Value| std::fs::write(&file, json!({ "keys": keys }).to_string()).unwrap();
    publish(json!([old.jwk("2026-10")]));
    let home = home(&format!("jwks = {file:?}"), "");
    let daemon = home.serve();
    start(&daemon, &["gw-1"]);
    let token = |issuer: &Issuer, id: &str| {
        let claims = json!({ "sub": "gw-1", "exp": now() + 60 });
        issuer.sealed(json!({ "alg": "ES256", "kid": id }), claims)
    };
    assert_eq!(beat(&daemon, &token(&old, "2026-10"), "gw-1").status, 200);
    beat(&daemon, &token(&old, "unknown"), "gw-1").is_problem(401, "unauthorized");
    publish(json!([old.jwk("2026-10"), new.jwk("2026-11")]));
    until("the new key to count", || {
        (beat(&daemon, &token(&new, "2026-11"), "gw-1").status == 200).then_some(())
    });
    assert_eq!(beat(&daemon, &token(&old, "2026-10"), "gw-1").status, 200, "both count meanwhile");
    publish(json!([new.jwk("2026-11")]));
    until("the old key to count no longer", || {
        (beat(&daemon, &token(&old, "2026-10"), "gw-1").status == 401).then_some(())
    });
}

fn jwts_that_are_wrong_are_refused_and_never_logged() {
    let (issuer, dir) = (Issuer::new(), tempfile::tempdir().unwrap());
    let file = dir.path().join("key.pem");
    issuer.publish(&file);
    let lines = "audience = \"lapsed\"\nissuer = \"https://id.example\"\nleeway = \"1s\"";
    let home = home(&format!("key = {file:?}"), lines);
    let daemon = home.serve();
    start(&daemon, &["gw-1"]);
    let claims = |change: Value| {
        let mut claims = json!({ "sub": "gw-1", "exp": now() + 60, "nbf": now(), "aud": "lapsed",
            "iss": "https://id.example" });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    };
    let header = json!({ "alg": "ES256" });
    let good = issuer.sealed(header.clone(), claims(json!({})));
    assert_eq!(beat(&daemon, &good, "gw-1").status, 200);
    let mut shown = vec![good.clone()];
    for (change, says) in [
        (json!({ "exp": now() - 60 }), "has expired"),
        (json!({ "exp": null }), "no number"),
        (json!({ "nbf": now() + 60 }), "not valid yet"),
        (json!({ "aud": "other" }), "another audience"),
        (json!({ "iss": "https://other" }), "another issuer"),
        (json!({ "sub": null }), "does not name an owner"),
    ] {
        let token = issuer.sealed(header.clone(), claims(change));
        let reply = beat(&daemon, &token, "gw-1");
        reply.is_problem(401, "unauthorized");
        assert!(reply.body["detail"].as_str().unwrap().contains(says), "{says}: {reply:?}");
        shown.push(token);
    }
    for alg in ["none", "HS256", "RS256"] {
        let token = issuer.sealed(json!({ "alg": alg }), claims(json!({})));
        beat(&daemon, &token, "gw-1").is_problem(401, "unauthorized");
        let unsigned = format!("{}.", token.rsplit_once('.').unwrap().0);
        beat(&daemon, &unsigned, "gw-1").is_problem(401, "unauthorized");
        shown.push(token);
    }
    let foreign = Issuer::new().sealed(header, claims(json!({})));
    beat(&daemon, &foreign, "gw-1").is_problem(401, "unauthorized");
    // The head of a request is bounded before a token is looked at.
    let huge = format!("{}.{}.A", "A".repeat(1 << 20), "A".repeat(10));
    let sent = std::panic::catch_unwind(|| beat(&daemon, &huge, "gw-1").status);
    assert!(sent.is_err() || [400, 401, 431].contains(&sent.unwrap()), "1 MB");
    assert_eq!(beat(&daemon, &good, "gw-1").status, 200, "it still works from this address");
    let metrics = send(&daemon, ALL, "GET", "/metrics", &Value::Null).text;
    let log = daemon.log();
    for token in shown {
        let (_, secret) = token.rsplit_once('.').unwrap();
        assert!(!log.contains(secret) && !metrics.contains(secret), "a token is quoted");
    }
}

fn the_rate_of_each_subject_is_limited_by_its_name() {
    let (issuer, dir) = (Issuer::new(), tempfile::tempdir().unwrap());
    let file = dir.path().join("key.pem");
    issuer.publish(&file);
    let lines = "rate_limit = { per_second = 1, burst = 3 }";
    let home = home(&format!("key = {file:?}"), lines);
    let daemon = home.serve();
    start(&daemon, &["gw-1", "gw-2"]);
    let often = until("the limit", || {
        // Each token is another one: the subject counts, not the token.
        let reply = beat(&daemon, &issuer.token("gw-1"), "gw-1");
        (reply.status == 429).then_some(reply)
    });
    often.is_problem(429, "throttled");
    assert!(often.body["detail"].as_str().unwrap().contains("`jwt:gw-1`"), "{often:?}");
    assert_eq!(beat(&daemon, &issuer.token("gw-2"), "gw-2").status, 200);
}

#[test]
fn wrong_settings_of_jwts_are_refused_with_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key.pem");
    Issuer::new().publish(&file);
    let key = format!("key = {file:?}");
    let scopes = "scopes = [\"write\"]";
    for (lines, says) in [
        (format!("algorithm = \"none\"\n{key}\n{scopes}"), "`none`"),
        (format!("algorithm = \"es256\"\n{key}\n{scopes}"), "ES256"),
        (format!("{key}\n{scopes}"), "algorithm"),
        (format!("algorithm = \"ES256\"\n{scopes}"), "`key` (a public key in PEM) or `jwks`"),
        (format!("algorithm = \"ES256\"\n{key}\njwks = {file:?}\n{scopes}"), "one of them"),
        (format!("algorithm = \"HS256\"\n{key}\n{scopes}"), "HS256 needs `secret"),
        (format!("algorithm = \"HS256\"\nsecret = \"s3cret\"\n{scopes}"), "at least 32 bytes"),
        (format!("algorithm = \"RS256\"\n{key}\n{scopes}"), "no public key for RS256"),
        (format!("algorithm = \"ES256\"\njwks = {file:?}\n{scopes}"), "no JSON Web Key Set"),
        (format!("algorithm = \"ES256\"\nkey = \"/nowhere/key.pem\"\n{scopes}"), "cannot be read"),
        (format!("algorithm = \"ES256\"\n{key}\nscopes = [\"act\"]"), "good for one owner"),
        (format!("algorithm = \"ES256\"\n{key}\nscopes = []"), "`scopes` is empty"),
        (format!("algorithm = \"ES256\"\n{key}\n{scopes}\nleeway = \"1h\""), "at most 5m"),
        (format!("algorithm = \"ES256\"\n{key}\n{scopes}\nowners = [\"a\"]"), "unknown"),
        (format!("algorithm = \"ES256\"\n{key}\n{scopes}\noperations = [\"beet\"]"), "`beat`"),
        (format!("algorithm = \"ES256\"\n{key}\n{scopes}\nsystems = [\"a/b\"]"), "unknown system"),
    ] {
        let home = of_all_kinds(&format!("[server.jwt]\n{lines}"));
        let told = home.run(&["check"]);
        assert_eq!(told.code, 2, "{lines}: {told:?}");
        assert!(told.err.contains(says), "{lines}: {told:?}");
        assert!(!told.err.contains("s3cret"), "{told:?}");
    }
    let home = of_all_kinds(&format!("[server.jwt]\nalgorithm = \"ES256\"\n{key}\n{scopes}"));
    let told = home.run(&["check"]);
    assert_eq!(told.code, 0, "{told:?}");
    for word in ["JWTs by ES256", "as the owner in `sub`", "warning: bearers of JWTs may read"] {
        assert!(told.out.contains(word), "{word}: {told:?}");
    }
    assert!(!told.out.contains("for this machine only"), "{told:?}");
    let daemon = home.serve();
    daemon.get("/v1/sweeps").is_problem(401, "unauthorized");
    let plain = [JSON, ("authorization", "Bearer anything")];
    daemon.call("GET", "/v1/sweeps", None, &plain).is_problem(401, "unauthorized");
}
