//! A client that stood still is not a server that was away.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::adopting::{entries, fine, fleet, home, home_at, passes, server};
use crate::support::{lapsed, until};
use lapsed_testbed::{Engine, Proxy};
use rustix::process::{Pid, Signal, kill_process};

lapsed_testbed::steady_tests! {
    a_command_that_was_frozen_makes_nobody_hold,
}

/// `lapsed sweep` is stopped for longer than the gap in the middle of its work, again and again. The daemon beside it
/// is healthy, and so is the server: neither it nor a later command has a reason to hold.
fn a_command_that_was_frozen_makes_nobody_hold() {
    let server = server(Engine::Redis);
    fleet(&server, "instance:heartbeat:");
    let home = home(&server, "sweep = { every = \"100ms\" }");
    let daemon = home.serve();
    let meta = "lapsed:{connections:registry}:registry/devices:meta";
    let back = || server.command(&["HGET", meta, "back"]).unwrap();
    until("the server to be known", || back().parse::<u64>().ok());
    let before = back();
    // Slow answers, so that most of the stops fall between a question and its answer.
    let proxy = Proxy::start(server.port()).unwrap();
    proxy.delay(Duration::from_millis(150));
    let slow = home_at(&proxy.url(), "sweep = { every = \"1d\" }");
    for pause_ms in [250, 310, 370, 430, 490, 550, 610, 670] {
        let mut command: Command = lapsed();
        command.args(["sweep", "devices", "-c"]).arg(slow.config());
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        std::thread::sleep(Duration::from_millis(pause_ms));
        kill_process(pid, Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(750));
        kill_process(pid, Signal::CONT).unwrap();
        child.wait().unwrap();
        assert_eq!(back(), before, "stopped after {pause_ms} ms");
        let later = fine(home.run(&["sweep", "devices", "--json"])).json();
        assert_eq!(later["stopped"], "done", "{later}");
    }
    assert_eq!(passes(&daemon)["brake"]["state"], "open");
    server.command(&["DEL", "instance:heartbeat:i-1"]).unwrap();
    until("an eviction that nothing held", || (entries(&server) == "20").then_some(()));
}
