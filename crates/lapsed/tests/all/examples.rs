//! Each example tells its story to the end.

use std::path::Path;
use std::process::Command;

/// What an example prints. `cargo test` builds them, but not when it is given the name of a test.
fn told(name: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let built = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    let fresh = built(&example) >= built(&source);
    assert!(fresh, "{name} is not built: `cargo build -p lapsed --examples`");
    let output = Command::new(example).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&err));
    out
}

#[test]
fn an_owner_sends_heartbeats_while_the_program_is_busy() {
    let expected = "\
i-1 holds imei-1 as incarnation 1
still alive after twice its TTL: true
left, 1 entry taken back
";
    assert_eq!(told("owner"), expected);
}

#[test]
fn the_job_of_a_dead_worker_is_done_by_another() {
    let told = told("worker");
    for line in [
        "worker-1 takes m-1 and dies\n",
        "a mail to ada@example\n",
        "a mail to nobody\n",
        "worker-1 is too late: true\n",
    ] {
        assert!(told.contains(line), "{line} is missing:\n{told}");
    }
}

#[test]
fn the_connection_of_a_dead_instance_is_reclaimed_and_restored() {
    let expected = "\
gateway-1 holds imei-1, gateway-2 holds imei-2
reclaimed: imei-1 of gateway-1, because owner_dead
found: imei-1 false, imei-2 true
imei-1 is back, held by gateway-1
gateway-1 leaves: 1 released
";
    assert_eq!(told("registry"), expected);
}

#[test]
fn the_session_of_a_dead_server_is_deleted_after_its_grace() {
    let expected = "\
s-1 has 1 reference, by chat-1
s-1 was deleted, because it was orphaned
s-1 is back, with its value 42
";
    assert_eq!(told("sessions"), expected);
}

#[test]
fn a_lease_that_is_not_renewed_goes_to_the_next() {
    let expected = "\
the first holder has token 1
free for another: false
the second holder has token 2
released: true
commit? It is commit
rollback? It is commit
";
    assert_eq!(told("leases"), expected);
}

#[test]
fn only_providers_that_are_online_are_available() {
    let told = told("availability");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "available: budi, sari");
    assert_eq!(lines[1], "the heartbeat of sari is noted: true");
    assert_eq!(lines[2], "the heartbeat of budi is noted: false");
    assert_eq!(lines[3], "available: sari, 1 in all");
}

#[test]
fn every_example_has_at_most_40_lines() {
    for name in ["availability", "leases", "owner", "registry", "sessions", "worker"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
        let lines = std::fs::read_to_string(source).unwrap().lines().count();
        assert!(lines <= 40, "{name} has {lines} lines");
    }
}
