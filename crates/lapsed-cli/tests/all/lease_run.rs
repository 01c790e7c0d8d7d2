//! `lapsed lease run`: a command that runs only while its lease is held.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Answer, CALM, Daemon, Home, lapsed, run, until};
use serde_json::json;

lapsed_testbed::steady_tests! {
    lease_run_passes_the_token_and_the_exit_code,
    a_command_that_cannot_have_the_lease_is_not_started,
    lease_run_waits_for_the_lease_and_renews_it,
    a_lost_lease_ends_the_command,
    a_frozen_daemon_ends_the_command_before_the_lease_can_be_granted_again,
    lease_run_forwards_signals_to_the_command,
    killing_lease_run_kills_its_command,
    lease_run_without_a_daemon_uses_the_store_directly,
    lease_commands_print_what_they_did,
}

/// One `lease run` under way; its command's words are in a file.
struct Running {
    child: Child,
    dir: tempfile::TempDir,
}

impl Running {
    /// `script` is for `sh`; `$OUT` is where it may write.
    fn start(daemon: &Daemon, options: &[&str], script: &str) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let err = std::fs::File::create(dir.path().join("err")).unwrap();
        let mut command = lapsed();
        command.args(["lease", "run", "k", "--url", &daemon.url]).args(options);
        command.args(["--", "sh", "-c", script]).env("OUT", dir.path().join("out"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(err).spawn();
        Running { child: child.unwrap(), dir }
    }

    fn out(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("out")).unwrap_or_default()
    }

    fn err(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("err")).unwrap()
    }

    fn until_out(&self, word: &str) {
        until(&format!("the command to say {word:?}"), || self.out().contains(word).then_some(()));
    }

    fn signal(&self, name: &str) {
        send(self.child.id(), name);
    }

    fn code(mut self) -> (Option<i32>, String, String) {
        let status = until("it to end", || self.child.try_wait().unwrap());
        (status.code(), self.out(), self.err())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "kill -{name} {pid}");
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim().starts_with('Z'))
}

fn run_sh(daemon: &Daemon, options: &[&str], script: &str) -> Answer {
    let begin = ["lease", "run", "billing/k", "--url", &daemon.url];
    run(&[&begin[..], options, &["--", "sh", "-c", script]].concat())
}

fn holder(daemon: &Daemon) -> serde_json::Value {
    daemon.get("/v1/leases/locks/describe/default/k").body["lease"]["owner"].clone()
}

fn lease_run_passes_the_token_and_the_exit_code() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let told = run_sh(&daemon, &["--owner", "me"], "env | grep ^LAPSED_LEASE_ | sort; exit 7");
    assert_eq!(told.code, 7, "{told:?}");
    let wanted = "LAPSED_LEASE_KEY=k\nLAPSED_LEASE_NAMESPACE=billing\nLAPSED_LEASE_OWNER=me\n\
                  LAPSED_LEASE_SYSTEM=leases/locks\nLAPSED_LEASE_TOKEN=1\n";
    assert_eq!((told.out.as_str(), told.err.as_str()), (wanted, ""));
    let found = daemon.get("/v1/leases/locks/describe/billing/k").body;
    assert_eq!((&found["lease"], &found["token"]), (&json!(null), &json!(1)), "released");
    assert_eq!(run_sh(&daemon, &[], "exit 0").code, 0);
    assert_eq!(run_sh(&daemon, &[], "kill -9 $$").code, 128 + 9);
    // A command renews its own lease by the token in its environment.
    let renewed = run_sh(
        &daemon,
        &[],
        &format!(
            "{} lease renew billing/k --url {} --json",
            env!("CARGO_BIN_EXE_lapsed"),
            daemon.url
        ),
    );
    assert_eq!((renewed.code, &renewed.json()["token"]), (0, &json!(4)), "{renewed:?}");
    let none = run(&["lease", "run", "k", "--url", &daemon.url, "--", "/no/such/program"]);
    assert_eq!(none.code, 127, "{none:?}");
    let none = run(&["lease", "run", "k", "--url", &daemon.url, "--", "/"]);
    assert_eq!(none.code, 126, "{none:?}");
    assert_eq!(run(&["lease", "run", "k", "--url", &daemon.url]).code, 2, "no command");
    let wrong = run(&["lease", "run", "k", "--ttl", "5", "--url", &daemon.url, "--", "true"]);
    assert!(wrong.code == 2 && wrong.err.contains("--ttl"), "{wrong:?}");
}

fn a_command_that_cannot_have_the_lease_is_not_started() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    daemon.leases("acquire", json!({ "key": "k", "owner": "other", "ttl_ms": 600_000 }));
    let running = Running::start(&daemon, &["--wait", "300ms"], "echo started > $OUT");
    let (code, out, err) = running.code();
    assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
    assert!(err.contains("held by other, token 1"), "{err}");
    let url = daemon.url.clone();
    daemon.kill();
    let alone = run(&["lease", "run", "k", "--url", &url, "--", "true"]);
    assert!(alone.code == 75 && alone.err.contains("no daemon answers"), "{alone:?}");
}

fn lease_run_waits_for_the_lease_and_renews_it() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    daemon.leases("acquire", json!({ "key": "k", "owner": "other", "ttl_ms": 600_000 }));
    let script = "echo started >> $OUT; while [ ! -e $OUT.go ]; do sleep 0.1; done";
    let options = ["--wait", "5m", "--ttl", "3s", "--owner", "me"];
    let running = Running::start(&daemon, &options, script);
    until("it to wait", || (daemon.waiting() > 0).then_some(()));
    assert_eq!(running.out(), "");
    daemon.leases("release", json!({ "key": "k", "token": 1 }));
    running.until_out("started");
    // Two TTLs and more: without renewals it would be anybody's.
    let began = Instant::now();
    until("two TTLs to pass", || (began.elapsed() > Duration::from_secs(7)).then_some(()));
    let found = daemon.get("/v1/leases/locks/describe/default/k").body;
    assert_eq!((&found["lease"]["owner"], &found["token"]), (&json!("me"), &json!(2)), "{found}");
    std::fs::write(running.dir.path().join("out.go"), "").unwrap();
    let (code, _, err) = running.code();
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(holder(&daemon), json!(null));
}

const TRAPPED: &str = "trap 'echo told >> $OUT; exit 5' TERM; echo started >> $OUT; \
                       while true; do sleep 0.1; done";

fn a_lost_lease_ends_the_command() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let running = Running::start(&daemon, &["--ttl", "3s"], TRAPPED);
    running.until_out("started");
    daemon.leases("release", json!({ "key": "k", "token": 1 }));
    daemon.leases("acquire", json!({ "key": "k", "owner": "other", "ttl_ms": 600_000 }));
    let (code, out, err) = running.code();
    assert_eq!((code, out.as_str()), (Some(76), "started\ntold\n"), "{err}");
    assert!(err.contains("the lease is lost") && err.contains("other"), "{err}");
    assert_eq!(holder(&daemon), json!("other"), "and it is left alone");
}

/// The daemon is frozen, not ended: renewals are not refused, they have no answer.
fn a_frozen_daemon_ends_the_command_before_the_lease_can_be_granted_again() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let stubborn = "trap 'echo told >> $OUT' TERM; echo started $$ >> $OUT; \
                    while true; do sleep 0.1; done";
    let running = Running::start(&daemon, &["--ttl", "3s"], stubborn);
    running.until_out("started");
    send(daemon.pid(), "STOP");
    let (code, out, err) = running.code();
    send(daemon.pid(), "CONT");
    assert_eq!(code, Some(76), "{err}");
    assert!(out.contains("told"), "TERM came before KILL: {out}");
    assert!(err.contains("no renewal was answered"), "{err}");
    let pid: u32 = out.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(!is_alive(pid), "the command is gone");
}

fn lease_run_forwards_signals_to_the_command() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let script = "trap 'echo hup >> $OUT' HUP; trap 'echo usr1 >> $OUT' USR1; \
                  trap 'echo term >> $OUT; exit 9' TERM; echo started >> $OUT; \
                  while true; do sleep 0.1; done";
    let running = Running::start(&daemon, &[], script);
    running.until_out("started");
    for (name, word) in [("HUP", "hup"), ("USR1", "usr1"), ("TERM", "term")] {
        running.signal(name);
        running.until_out(word);
    }
    let (code, _, err) = running.code();
    assert_eq!((code, err.as_str()), (Some(9), ""));
    assert_eq!(holder(&daemon), json!(null), "released");
    let default = Running::start(&daemon, &[], "echo started >> $OUT; exec sleep 600");
    default.until_out("started");
    default.signal("INT");
    assert_eq!(default.code().0, Some(128 + 2), "ended by the signal");
}

fn killing_lease_run_kills_its_command() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let mut running =
        Running::start(&daemon, &[], "echo $$ > $OUT; while true; do sleep 0.1; done");
    running.until_out("\n");
    let pid: u32 = running.out().trim().parse().unwrap();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    until("the command to be gone", || (!is_alive(pid)).then_some(()));
}

fn lease_run_without_a_daemon_uses_the_store_directly() {
    let home = Home::leases(CALM);
    let config = home.config().display().to_string();
    let told =
        run(&["lease", "run", "k", "-c", &config, "--", "sh", "-c", "echo $LAPSED_LEASE_TOKEN"]);
    assert_eq!((told.code, told.out.as_str()), (0, "1\n"), "{told:?}");
    let again = home.run(&["lease", "acquire", "k", "--owner", "me", "--json"]);
    assert_eq!((&again.json()["outcome"], &again.json()["token"]), (&json!("granted"), &json!(2)));
    let held = home.run(&["lease", "acquire", "k", "--owner", "you", "--json"]);
    assert_eq!((held.code, &held.json()["outcome"]), (75, &json!("held")), "{held:?}");
    assert_eq!(held.json()["owner"], "me");
    // With a daemon on that folder, the same command asks the daemon.
    let listed = home.run(&["lease", "list"]);
    assert!(listed.out.contains("me"), "{listed:?}");
    assert_eq!(home.run(&["decision", "decide", "t", "commit"]).code, 0);
    assert_eq!(home.run(&["decision", "show", "t", "--json"]).json()["decision"], "commit");
}

fn lease_commands_print_what_they_did() {
    let home = Home::leases(CALM);
    let daemon = home.serve();
    let got = daemon.run(&["lease", "acquire", "ns/k", "--owner", "me", "--ttl", "10m"]);
    assert!(got.code == 0 && got.out.contains("ns/k is held by me, token 1, for 10m"), "{got:?}");
    let held = daemon.run(&["lease", "acquire", "ns/k", "--owner", "you"]);
    assert!(held.code == 75 && held.err.contains("ns/k is held by me, token 1"), "{held:?}");
    let renewed = daemon.run(&["lease", "renew", "ns/k", "1", "--ttl", "20m"]);
    assert!(renewed.code == 0 && renewed.out.contains("token 1, for 20m"), "{renewed:?}");
    let listed = daemon.run(&["lease", "list"]).out;
    for word in ["NAMESPACE", "HOLDER", "ns", "me"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    let shown = daemon.run(&["lease", "describe", "ns/k"]).out;
    for word in ["holder  me", "lasts   20m from each renewal", "token   1"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert_eq!(daemon.run(&["lease", "release", "ns/k", "1"]).out, "ns/k is free\n");
    let late = daemon.run(&["lease", "renew", "ns/k", "1"]);
    assert!(late.code == 76 && late.err.contains("ran out or was released"), "{late:?}");
    let late = daemon.run(&["lease", "release", "ns/k", "1", "--json"]);
    assert_eq!((late.code, &late.json()["outcome"]), (76, &json!("lost")), "{late:?}");
    let none = daemon.run(&["lease", "describe", "ns/none"]);
    assert!(none.code == 1 && none.err.contains("never leased"), "{none:?}");

    let decided = daemon.run(&["decision", "decide", "t", "rollback"]);
    assert!(decided.code == 0 && decided.out.contains("t is decided: rollback"), "{decided:?}");
    let second = daemon.run(&["decision", "decide", "t", "commit"]);
    assert!(second.code == 1 && second.out.contains("decided before"), "{second:?}");
    let shown = daemon.run(&["decision", "show", "t"]);
    assert!(shown.out.contains("rollback"), "{shown:?}");
    assert_eq!(daemon.run(&["decision", "show", "none"]).code, 1);
    for help in [&["lease", "--help"][..], &["lease", "run", "--help"], &["decision", "--help"]] {
        assert_eq!(run(help).code, 0);
    }
    let codes = run(&["lease", "run", "--help"]).out;
    assert!(codes.contains("75 the lease was not acquired") && codes.contains("76"), "{codes}");
}
