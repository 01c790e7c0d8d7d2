//! `lapsed demo --serve`: all five systems are active within seconds, and however it ends, every
//! process that it started ends too.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{agent, lapsed, run, until};

const SYSTEMS: [&str; 5] =
    ["registry/devices", "sessions/chat", "inflight/jobs", "leases/locks", "availability/mitras"];

struct DemoProcess {
    child: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl DemoProcess {
    fn start(args: &[&str]) -> DemoProcess {
        let folder = tempfile::tempdir().unwrap();
        let mut command = lapsed();
        command.args(["demo", "--serve"]).args(args).env("TMPDIR", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").expect(&line).to_owned();
        // Read to its end, or the show would wait for its audience.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        DemoProcess { child, url, folder }
    }

    fn get(&self, path: &str) -> Value {
        let mut answer = agent().get(format!("{}{path}", self.url)).call().unwrap();
        answer.body_mut().read_json().unwrap()
    }

    /// The processes that it has started, by pid.
    fn children(&self) -> Vec<u32> {
        let pid = self.child.id();
        let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn signal(&self, word: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([word, &pid]).status().unwrap().success());
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_alive(pid: &u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn until_ended(children: &[u32]) {
    until("every process to end", || (!children.iter().any(is_alive)).then_some(()));
}

#[test]
fn every_demo_system_has_receipts_and_sigterm_ends_all_processes() {
    let mut show = DemoProcess::start(&["--listen", "127.0.0.1:0"]);
    for system in SYSTEMS {
        until("somebody to be there and something to be reclaimed", || {
            let status = show.get(&format!("/v1/sweeps/{system}"));
            let receipts = show.get(&format!("/v1/receipts?system={system}&limit=1"));
            let lives = status["census"]["population"].as_u64() > Some(0);
            (lives && receipts["receipts"].as_array().is_some_and(|r| !r.is_empty())).then_some(())
        });
    }
    let children = show.children();
    assert!(children.len() > 10, "a daemon and its actors: {children:?}");
    show.signal("-TERM");
    let code = until("the show to end", || show.child.try_wait().unwrap()).code();
    assert_eq!(code, Some(0));
    assert!(!children.iter().any(is_alive), "some outlived it: {children:?}");
    assert_eq!(std::fs::read_dir(show.folder.path()).unwrap().count(), 0, "the folder stayed");
}

#[test]
fn a_killed_demo_leaves_no_process_behind() {
    let mut show = DemoProcess::start(&["--listen", "127.0.0.1:0"]);
    let entered = |pid: &u32| {
        let told = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !told.contains("lease-child")
    };
    let children = until("the actors to start", || {
        let children = show.children();
        (children.len() > 10 && children.iter().all(entered)).then_some(children)
    });
    // A frozen one cannot see that its parent is gone: the kernel sees to it.
    let frozen = children.last().unwrap().to_string();
    assert!(Command::new("kill").args(["-STOP", &frozen]).status().unwrap().success());
    show.child.kill().unwrap();
    show.child.wait().unwrap();
    until_ended(&children);
}

#[test]
fn an_occupied_address_is_named_with_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let told = run(&["demo", "--serve", "--listen", &address]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains(&address) && told.err.contains("--listen"), "{told:?}");
    let wrong = run(&["demo", "--listen", &address]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
}
