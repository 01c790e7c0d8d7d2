//! Requests that web pages of other sites can make a browser send, and the security headers of
//! answers.

use crate::support::{CALM, Daemon, Home, JSON, Reply};
use serde_json::json;

lapsed_testbed::steady_tests! {
    requests_from_other_sites_change_nothing,
    form_bodies_are_refused,
    answers_carry_security_headers,
}

const BRAKE: &str = "/v1/brakes/registry/devices";

fn hold(daemon: &Daemon, headers: &[(&str, &str)]) -> Reply {
    let body = json!({ "setting": "hold" }).to_string();
    daemon.call("PUT", BRAKE, Some(body), &[&[JSON][..], headers].concat())
}

fn requests_from_other_sites_change_nothing() {
    for (server, auth) in [("", ""), ("token = \"t0ken\"", "Bearer t0ken")] {
        let home = Home::with("1m", CALM, server);
        let daemon = home.serve();
        let auth = ("authorization", auth);
        for site in ["cross-site", "same-site", "nonsense"] {
            hold(&daemon, &[auth, ("sec-fetch-site", site)]).is_problem(403, "forbidden");
        }
        assert_eq!(daemon.call("GET", BRAKE, None, &[auth]).body["setting"], "auto");
        let look = daemon.call("GET", BRAKE, None, &[auth, ("sec-fetch-site", "cross-site")]);
        assert_eq!(look.status, 200, "{look:?}");
        for site in ["same-origin", "none"] {
            assert_eq!(hold(&daemon, &[auth, ("sec-fetch-site", site)]).status, 200, "{site}");
        }
        // No answer allows requests from another origin.
        let origin = ("origin", "https://evil.example");
        let asked = ("access-control-request-method", "PUT");
        let preflight = daemon.call("OPTIONS", BRAKE, None, &[origin, asked]);
        assert!([401, 403].contains(&preflight.status), "{preflight:?}");
        assert_eq!(preflight.header("access-control-allow-origin"), "");
    }
}

/// A form crosses sites without asking first; so a route that needs no body takes none of a form either.
fn form_bodies_are_refused() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let restore = "/v1/receipts/registry-devices-1/restore";
    for kind in ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"] {
        for path in [restore, "/v1/sweeps/registry/devices", "/v1/registry/devices/beat"] {
            let body = Some("owner=a".to_owned());
            let reply = daemon.call("POST", path, body, &[("content-type", kind)]);
            reply.is_problem(415, "unsupported_media_type");
        }
    }
    assert_eq!(daemon.call("POST", restore, None, &[]).status, 404);
}

fn answers_carry_security_headers() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    for path in ["/", "/v1/sweeps", "/v1/nothing", "/metrics", "/openapi.json", "/healthz"] {
        let reply = daemon.get(path);
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(reply.header("referrer-policy"), "no-referrer", "{path}");
        let policy = reply.header("content-security-policy");
        assert!(policy.contains("default-src 'none'"), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        let secret = path.starts_with("/v1/") || path == "/metrics";
        assert_eq!(reply.header("cache-control") == "no-store", secret, "{path}: {reply:?}");
    }
    let beat = daemon.registry("beat", json!({ "owner": "a" }));
    assert_eq!(beat.header("x-content-type-options"), "nosniff");
}
