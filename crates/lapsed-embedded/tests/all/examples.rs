//! Each example tells its story to the end: most of them word by word, since their clock is moved by hand and
//! nothing varies.

use std::path::Path;
use std::process::Command;

/// What an example prints. `cargo test` builds them, but not when it is given the name of a test.
fn told(name: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let built = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    let fresh = built(&example) >= built(&source);
    assert!(fresh, "{name} is not built: `cargo build -p lapsed-embedded --examples`");
    let output = Command::new(example).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{out}\n{}", String::from_utf8_lossy(&err));
    out
}

lapsed_testbed::steady_tests! {
    an_owner_sends_heartbeats_in_the_background,
}

fn an_owner_sends_heartbeats_in_the_background() {
    let told = told("owner");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "i-1 holds imei-356307042441013 as incarnation 1");
    assert!(lines[1].starts_with("still mine for "), "{told}");
    assert_eq!(lines[2..], ["left, 1 entry taken back"]);
}

#[test]
fn the_worker_example_loses_no_job() {
    let told = told("worker");
    for line in
        ["m-1: a mail to ada@example\n", "m-3: a mail to grace@example\n", "a dead letter: m-2 "]
    {
        assert!(told.contains(line), "{line} is missing:\n{told}");
    }
}

#[test]
fn a_registry() {
    let told = told("registry");
    let expected = "\
gateway-1 holds imei-1, gateway-2 holds imei-2
... 60 s later
only gateway-2 beats
... 60 s later
found: imei-1 false, imei-2 true
1 reclaimed: imei-1 of gateway-1, 30 s late
gateway-1 is told: owner `gateway-1` (incarnation 1) was declared dead and lost what it held (1 in all); start a new \
incarnation, then register again what it still holds
it starts anew, as incarnation 3
imei-1 is back, held by gateway-1 (3)
";
    assert_eq!(told, expected);
}

#[test]
fn sessions() {
    let expected = "\
s-1 has 1 reference, by chat-1
chat-1 crashes: nobody disconnects
... 91 s later
a pass: 1 released, 0 deleted; the grace begins
s-1 has 0 references, and is kept for 30 s
... 31 s later
a pass: 1 deleted; s-1 is there: false
s-1 is back, with its value 42
";
    assert_eq!(told("sessions"), expected);
}

#[test]
fn leases() {
    let expected = "\
host-1 has token 1
host-2 is told: held by host-1 for 30 s
host-1 falls silent
... 30 s later
host-2 has token 2: nobody had to sweep
host-1 is told: superseded (the lease ran out or was released, and `host-2` holds it by token 2; discard what was done)
free again; token 2 and state {\"json\":{\"page\":7}} stay
commit? It is commit, first: true
rollback? It is commit, first: false
... 31 s later
a pass tidies up what nobody touches any more: 1
";
    assert_eq!(told("leases"), expected);
}

#[test]
fn availability() {
    let expected = "\
available, says the mirror: budi (0), sari (0)
sari takes a session
available, says the mirror: budi (0), sari (1)
... 60 s later
only sari beats
... 60 s later
available, says the mirror: sari (1)
a pass: 1 set offline: budi
budi beats too late, and is told: offline
";
    assert_eq!(told("availability"), expected);
}
