//! `lapsed init`: what it writes, `lapsed check` accepts; and it never writes over a file.

use std::path::Path;

use lapsed_testbed::{Engine, ObjectEngine, ObjectServer, PostgresServer, RedisServer};
use serde_json::Value;

use crate::support::{Answer, run};

const EMBEDDED: [&str; 5] = ["registry", "chatpulse", "mitra", "leases", "sidekiq-async-http"];

fn init(dir: &Path, args: &[&str]) -> Answer {
    let file = dir.join("lapsed.toml").display().to_string();
    run(&[&["init", "-o", &file], args].concat())
}

/// `lapsed check` of what was written.
fn check(dir: &Path) -> Answer {
    run(&["check", "-c", &dir.join("lapsed.toml").display().to_string()])
}

#[test]
fn every_preset_is_accepted_by_check_on_a_folder() {
    for preset in EMBEDDED {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", dir.path().join("data").display());
        let told = init(dir.path(), &["--preset", preset, "--store", &store]);
        assert_eq!(told.code, 0, "{told:?}");
        assert!(told.out.contains("lapsed check -c") && told.out.contains("lapsed serve -c"));
        let checked = check(dir.path());
        assert_eq!(checked.code, 0, "{preset}: {checked:?}");
    }
}

#[test]
fn presets_on_redis_are_accepted_by_check_on_a_server() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    for preset in ["registry", "chatpulse", "sidekiq-async-http"] {
        let dir = tempfile::tempdir().unwrap();
        let told = init(dir.path(), &["--preset", preset, "--store", &server.url()]);
        assert_eq!(told.code, 0, "{told:?}");
        let checked = check(dir.path());
        assert_eq!(checked.code, 0, "{preset}: {checked:?}");
    }
}

#[test]
fn mitra_is_accepted_by_check_on_postgres_and_valkey_once_its_tables_are_made() {
    let (postgres, valkey) =
        (PostgresServer::start().unwrap(), RedisServer::start(Engine::Valkey).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (truth, mirror) = (postgres.url("postgres"), valkey.url());
    let told = init(dir.path(), &["--preset", "mitra", "--store", &truth, "--mirror", &mirror]);
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.out.contains("lapsed schema apply -c"), "{told:?}");
    let file = dir.path().join("lapsed.toml").display().to_string();
    let applied = run(&["schema", "apply", "-c", &file]);
    assert_eq!(applied.code, 0, "{applied:?}");
    let checked = check(dir.path());
    assert_eq!(checked.code, 0, "{checked:?}");
}

/// Adds the endpoint and the credentials of the server, as a user would.
#[test]
fn leases_are_accepted_by_check_on_a_bucket() {
    let server = ObjectServer::shared(ObjectEngine::Seaweed);
    let dir = tempfile::tempdir().unwrap();
    let url = format!("{}/init", server.engine().url());
    let told = init(dir.path(), &["--preset", "leases", "--store", &url]);
    assert_eq!(told.code, 0, "{told:?}");
    let file = dir.path().join("lapsed.toml");
    let (id, secret) = server.engine().credentials();
    let place = format!(
        "endpoint = \"{}\"\nallow_http = true\nregion = \"us-east-1\"\naccess_key_id = \"{id}\"\n\
         secret_access_key = \"{secret}\"\nrequests_per_hour",
        server.engine().endpoint_by(server.port())
    );
    let text = std::fs::read_to_string(&file).unwrap().replacen("requests_per_hour", &place, 1);
    std::fs::write(&file, text).unwrap();
    let checked = check(dir.path());
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.out.contains("records are in lapsed's own format: lockd"), "{checked:?}");
}

/// The preset writes no file that lockd could read, so it does not have lockd's name.
#[test]
fn the_former_name_of_a_preset_is_refused_with_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let told = init(dir.path(), &["--preset", "lockd", "--store", "s3://my-bucket/locks"]);
    assert_eq!(told.code, 2, "{told:?}");
    for words in ["`--preset leases`", "neither program can read the other's records"] {
        assert!(told.err.contains(words), "{words}: {told:?}");
    }
    assert!(!dir.path().join("lapsed.toml").exists());
}

#[test]
fn init_overwrites_a_file_only_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lapsed.toml");
    std::fs::write(&file, "mine").unwrap();
    let told = init(dir.path(), &["--preset", "registry"]);
    assert_eq!(told.code, 2, "{told:?}");
    assert!(told.err.contains("--force"), "{told:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(init(dir.path(), &["--preset", "registry", "--force"]).code, 0);
    assert_ne!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn without_a_terminal_init_lists_the_presets() {
    let dir = tempfile::tempdir().unwrap();
    let told = init(dir.path(), &[]);
    assert_eq!(told.code, 2, "{told:?}");
    assert!(told.err.contains("--preset") && told.err.contains("--list"), "{told:?}");
    let listed = run(&["init", "--list"]);
    assert!(EMBEDDED.iter().all(|preset| listed.out.contains(preset)), "{listed:?}");
    let rows: Vec<Value> = run(&["init", "--list", "--json"])
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), EMBEDDED.len());
}
