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
[[operations]]
include-path = "/v1/availability/{name}/heartbeats"
checks.negative_data_rejection.enabled = false

# `reason` goes with `override`, and only with it.
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

/// A schema cannot say that an idempotency key belongs to one request, so every request that must be accepted gets a key
/// of its own, of a length that the schema allows. Requests that must be refused are sent as they were generated:
/// Schemathesis takes a changed header for a repaired request, and sends the `Authorization` that it had left out.
const HOOKS: &str = r#"
import itertools
import schemathesis

numbers = itertools.count()

@schemathesis.hook
def before_call(context, case, kwargs):
    key = (case.headers or {}).get("Idempotency-Key")
    must_be_refused = case.meta is not None and case.meta.generation.mode.is_negative
    if isinstance(key, str) and key and not must_be_refused:
        number = f"-{next(numbers)}"
        case.headers["Idempotency-Key"] = key[: 255 - len(number)] + number
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
    std::fs::write(dir.path().join("hooks.py"), HOOKS).unwrap();
    let longer = setting("LAPSED_SCHEMA_SECONDS");
    let seed = setting("LAPSED_SCHEMA_SEED").unwrap_or(SEED);
    // With `--max-time` Schemathesis makes up requests until that time is over, however few examples are asked for.
    let amount = match longer {
        Some(seconds) => ["--max-time".to_owned(), seconds.to_string()],
        None => ["--max-examples".to_owned(), EXAMPLES.to_owned()],
    };
    println!("seed {seed}, {}", amount.join(" "));
    let output = Command::new(lapsed_testbed::paths::checks_python().unwrap())
        .args(["-m", "schemathesis.cli", "run", &format!("{}/openapi.json", daemon.url)])
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(amount)
        .args(["--seed", &seed.to_string()])
        // A stream of events does not end.
        .args(["--exclude-path", "/v1/events", "--request-timeout", "35"])
        .args(["--continue-on-failure", "--no-color", "--suppress-health-check", "all"])
        .args(["--generation-database", "none", "--output-truncate", "false"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", dir.path())
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
