//! The daemon itself is frozen for several TTLs. No owner could send a beat meanwhile, so none is
//! dead.
//!
//! The race: when it wakes, the sweep's timer is due at once, all owners are overdue, and the
//! thread that detects such gaps may not have run yet. So the guard detects the gap itself.

use std::time::{Duration, Instant};

use crate::support::{Home, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

lapsed_testbed::steady_tests! {
    a_frozen_daemon_reclaims_nobody_when_it_wakes,
}

fn a_frozen_daemon_reclaims_nobody_when_it_wakes() {
    let home = Home::new("1s", "sweep = { every = \"20ms\" }");
    let daemon = home.serve();
    let pid = Pid::from_raw(daemon.pid() as i32).unwrap();
    for round in 0..3 {
        let owner = format!("i-{round}");
        let life = daemon.hold(&owner, &["k"])["incarnation"].clone();
        kill_process(pid, Signal::STOP).unwrap();
        let frozen = Instant::now();
        until("three TTLs to pass", || (frozen.elapsed() > Duration::from_secs(3)).then_some(()));
        kill_process(pid, Signal::CONT).unwrap();
        let beat = daemon.registry("beat", json!({ "owner": owner, "incarnation": life }));
        assert_eq!(beat.status, 200, "round {round}: {beat:?}");
        assert_eq!(daemon.get("/v1/registry/devices/lookup/k").status, 200);
        let back = daemon.status()["store"]["back_ms"].as_u64().unwrap();
        let retired = daemon.registry("retire", json!({ "owner": owner, "incarnation": life }));
        assert_eq!(retired.status, 200, "{retired:?}");
        for receipt in daemon.receipts() {
            assert_eq!(receipt["reason"], "owner_retired", "back at {back}: {receipt}");
        }
    }
}
