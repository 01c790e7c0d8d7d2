//! The API against its own description: Schemathesis makes up requests from `/openapi.json`, good ones and
//! bad ones, and holds every answer against the document.
//!
//! No server errors (501 is an answer: a store that cannot do something says so), no status, header or body
//! that the document does not have, nothing good refused, nothing bad taken. The seed is fixed and printed;
//! `make schema SECONDS=600 SEED=7` runs others for longer.

use std::path::Path;
use std::process::Command;

use crate::support::{Daemon, lapsed};

lapsed_testbed::steady_tests! {
    generated_requests_are_answered_as_the_openapi_document_says,
}

/// How many requests are made up for each operation, unless for how long is said: the same ones on every machine.
const EXAMPLES: &str = "6";
const TOKEN: &str = "a-token-for-made-up-requests";
const SECONDS: u64 = 120;
const SEED: u64 = 20_261;

/// What a schema cannot say is left out, operation by operation.
const SETTINGS: &str = r#"
[parameters]
"path.name" = "default"

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "501"]

# `after` or `before`, not both; and a bare number goes only with `system`.
[[operations]]
include-path = "/v1/receipts"
checks.positive_data_acceptance.enabled = false
[[operations]]
include-path = "/v1/audit"
checks.positive_data_acceptance.enabled = false

# What a key looks like depends on the kind.
[[operations]]
include-path = "/v1/explain/{kind}/{name}/{key}"
checks.positive_data_acceptance.enabled = false

# One bad one among many is answered for itself.
[[operations]]
include-path-regex = "_many$"
checks.negative_data_rejection.enabled = false

# `for_ms` goes with `release` only.
[[operations]]
include-path = "/v1/brakes/{kind}/{name}"
include-method = "PUT"
checks.positive_data_acceptance.enabled = false

# It waits for work for as long as it is told, up to half a minute.
[[operations]]
include-path = "/v1/inflight/{name}/take"
phases.fuzzing.enabled = false
phases.stateful.enabled = false

# How the two settings of beats go together.
[[operations]]
include-path = "/v1/availability/{name}/config"
checks.positive_data_acceptance.enabled = false
"#;

fn setting(name: &str) -> Option<u64> {
    let given = std::env::var(name).ok().filter(|text| !text.is_empty());
    given.map(|text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// One of every system, on the embedded store, behind a token.
fn daemon(dir: &Path) -> Daemon {
    let mut command = lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0", "--token", TOKEN, "--data"]);
    command.arg(dir.join("data"));
    Daemon::spawn(command, dir).unwrap()
}

fn generated_requests_are_answered_as_the_openapi_document_says() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path());
    std::fs::write(dir.path().join("schemathesis.toml"), SETTINGS).unwrap();
    let longer = setting("LAPSED_SCHEMA_SECONDS");
    let (seconds, seed) =
        (longer.unwrap_or(SECONDS), setting("LAPSED_SCHEMA_SEED").unwrap_or(SEED));
    println!("seed {seed}, at most {seconds} s");
    let output = Command::new(lapsed_testbed::paths::checks_python().unwrap())
        .args(["-m", "schemathesis.cli", "run", &format!("{}/openapi.json", daemon.url)])
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--max-time", &seconds.to_string(), "--seed", &seed.to_string()])
        .args(longer.is_none().then_some(["--max-examples", EXAMPLES]).into_iter().flatten())
        // A stream of events does not end.
        .args(["--exclude-path", "/v1/events", "--request-timeout", "35"])
        .args(["--continue-on-failure", "--no-color", "--suppress-health-check", "all"])
        .args(["--generation-database", "none", "--output-truncate", "false"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
    assert!(made(&said) > 20, "few requests were made:\n{said}");
    assert_eq!(daemon.get("/readyz").status, 200, "it is well afterwards");
}

/// How many requests were made up.
fn made(said: &str) -> u64 {
    let line = said.lines().find(|line| line.contains(" generated, ")).unwrap_or_default();
    line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}
