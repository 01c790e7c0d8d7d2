//! Mistakes in the configuration of availability: each is found before anything is opened, and named.

use crate::support::{Answer, run_with};

const STORES: &str = "[store.db]\nurl = \"postgres://me:s3cret@127.0.0.1:1/app\"\n\
                      [store.cache]\nurl = \"redis://127.0.0.1:1/0\"\n\
                      [store.folder]\nurl = \"embedded:DATA\"\n";

fn check(text: &str, env: &[(&str, &str)]) -> Answer {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let file = dir.path().join("lapsed.toml");
    std::fs::write(&file, text.replace("DATA", &data)).unwrap();
    run_with(&["check", "-c", &file.display().to_string()], env)
}

#[track_caller]
fn refused(text: &str, env: &[(&str, &str)], says: &[&str]) {
    let answer = check(text, env);
    assert_eq!(answer.code, 2, "{text}\n{answer:?}");
    assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
    for word in says {
        assert!(answer.err.contains(word), "{word:?} is missing for\n{text}\n{}", answer.err);
    }
}

fn mitras(lines: &str) -> String {
    format!("{STORES}[[system]]\nkind = \"availability\"\nname = \"mitras\"\n{lines}\n")
}

#[test]
fn truth_and_mirror_are_required_and_must_differ() {
    for (lines, says) in [
        ("store = \"folder\"\nmirror = \"cache\"", "this process's memory; leave it out"),
        ("store = \"cache\"\nmirror = \"cache\"", "Redis is its `mirror`"),
        ("store = \"db\"\nmirror = \"folder\"", "`folder` is not on Redis"),
        ("store = \"db\"\nmirror = \"cahce\"", "the nearest valid one is `cache`"),
        ("store = \"dbb\"", "the nearest valid one is `db`"),
        ("mirror = \"cache\"", "is missing; name one of"),
        ("store = \"folder\"\nprefix = \"x:\"", "neither tables nor keys"),
        ("store = \"folder\"\n[system.tables.providers]\ntable = \"x\"", "neither tables nor keys"),
    ] {
        refused(&mitras(lines), &[], &["mitras", says]);
    }
    let alone = "[store.db]\nurl = \"postgres://me@127.0.0.1:1/app\"\n[[system]]\nkind = \"availability\"\n";
    refused(alone, &[], &["`system[0].mirror`", "name a store on Redis or Valkey"]);
    let registry = format!("{STORES}[[system]]\nkind = \"registry\"\nstore = \"db\"\n");
    refused(&registry, &[], &["Postgres keeps availability only"]);
}

#[test]
fn every_availability_key_is_validated() {
    let on = |lines: &str| mitras(&format!("store = \"db\"\nmirror = \"cache\"\n{lines}"));
    for (lines, says) in [
        ("prefx = \"x:\"", "the nearest valid one is `prefix`"),
        ("heartbeat_key = \"beat\"", "must contain `{provider}`"),
        ("capacity_key = \"mitra:heartbeat:{provider}\"", "the same key"),
        ("online_key = \"\"", "must not be empty"),
        ("heartbeat_mirror_every = \"0s\"", "longer than 0"),
        ("mirror_timeout = \"250\"", "needs a unit"),
        ("breaker = { failures = 0 }", "must be above 0"),
        ("breaker = { failure = 3 }", "the nearest valid one is `failures`"),
        ("instant = \"yes\"", "invalid type"),
        ("snapshot_ttl = \"soon\"", "not a duration"),
        ("[system.tables]\nprovider = { table = \"x\" }", "the nearest valid one is `providers`"),
        ("[system.tables.status]\nis_onlin = \"x\"", "the nearest valid one is `is_online`"),
        ("[system.tables.status]\ntable = \"\"", "`system[mitras].tables.status.table`"),
    ] {
        refused(&on(lines), &[], &["mitras", says]);
    }
    for name in [
        "MITRA_AUTO_OFFLINE_SWEEP_SECONDS",
        "HEARTBEAT_MIRROR_INTERVAL_SECONDS",
        "VALKEY_ONLINE_MIRROR_SWEEP_SECONDS",
    ] {
        for value in ["0", "-1", "30s", "", "99999999999999"] {
            refused(&on(""), &[(name, value)], &[name, "number of seconds"]);
        }
    }
}

#[test]
fn a_postgres_url_is_validated_and_its_password_hidden() {
    let store = |lines: &str| format!("[store.db]\n{lines}\n[[system]]\nkind = \"availability\"\n");
    for (lines, says) in [
        ("url = \"postgres://me:s3cret@h:x/app\"", "store.db.url"),
        ("url = \"postgres://me:s3cret@h/app?sslmode=maybe\"", "sslmode must be one of"),
        ("url = \"postgres://me:s3cret@h/app\"\nconnections = 0", "must be 1 to 1000"),
        ("url = \"embedded:DATA\"\nconnections = 3", "is for Postgres"),
        ("url = \"redis://h/0\"\ntable_prefix = \"x_\"", "is for Postgres"),
    ] {
        refused(&store(lines), &[], &[says]);
    }
    let away = check(&mitras("store = \"db\"\nmirror = \"cache\""), &[]);
    assert_eq!(away.code, 1, "nobody is there: {away:?}");
    assert!(!format!("{away:?}").contains("s3cret"), "{away:?}");
}

#[test]
fn check_prints_the_availability_plan() {
    let usual = check(&mitras("store = \"folder\""), &[]);
    assert_eq!(usual.code, 0, "{usual:?}");
    for word in [
        "availability/mitras on store folder",
        "in this process's memory",
        "every daemon checks every 30s",
        "beats are written down every 1m; mirror and truth are compared every 5m",
        "the beacon's snapshot lasts 10s",
        "failed 3 times in a row is left alone for 1s",
    ] {
        assert!(usual.out.contains(word), "{word}: {usual:?}");
    }
    let other = "store = \"folder\"\nsnapshot_ttl = \"5s\"\nsweep = { mode = \"leader\" }\n\
                 reconcile = { every = \"off\" }";
    let other = check(&mitras(other), &[]);
    for word in ["the leader checks every", "compared only by command", "snapshot_ttl = 5s"] {
        assert!(other.out.contains(word), "{word}: {other:?}");
    }
}
