//! Leases that ran out: swept, restored, counted, on the embedded store.

use crate::leases::{acquire, is_lost, until_expired};
use crate::support::{Daemon, Home, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_pass_clears_expired_leases_and_restore_brings_them_back,
    the_daemon_sweeps_leases_once_the_system_is_idle,
    a_sweep_command_does_not_wait_for_an_idle_system,
    a_cleared_lease_is_counted_once_by_operation_or_pass,
    without_a_configuration_there_is_a_leases_system,
}

fn a_pass_clears_expired_leases_and_restore_brings_them_back() {
    let home = Home::leases("sweep = { every = \"1d\", idle_grace = \"1ms\" }");
    let daemon = home.serve();
    acquire(&daemon, "gone", "a", 1_000);
    acquire(&daemon, "kept", "b", 600_000);
    until_expired(&daemon, "gone");
    let explained = daemon.run(&["explain", "locks", "default/gone"]).out;
    assert!(explained.starts_with("default/gone: overdue"), "{explained}");
    let dry = until("a dry run to see it", || {
        let dry = daemon.run(&["sweep", "locks", "--dry-run"]);
        dry.out.contains("1 of 1 suspect would be cleared").then_some(dry.out)
    });
    for word in ["TOKEN", "default/gone", "lease_expired", "not renewed until"] {
        assert!(dry.contains(word), "{word}: {dry}");
    }
    let done = until("a pass to clear it", || {
        let done = daemon.run(&["sweep", "locks"]);
        done.out.contains("1 of 1 suspect cleared").then_some(done.out)
    });
    assert!(done.contains("leases-locks-1"), "{done}");
    let explained = daemon.run(&["explain", "locks", "default/gone"]).out;
    assert!(explained.starts_with("default/gone: free"), "{explained}");
    let status = daemon.run(&["status", "locks"]).out;
    for word in ["leases", "1, of them 0 suspects", "once it was unused for", "30.0s from each"] {
        assert!(status.contains(word), "{word}: {status}");
    }
    assert!(!status.contains("owners"), "{status}");
    let back = daemon.run(&["restore", "leases-locks-1"]);
    assert!(back.code == 0 && back.out.contains("the new token 2"), "{back:?}");
    let zombie = daemon.try_leases("renew", json!({ "key": "gone", "token": 1 }));
    zombie.is_problem(409, "lost");
    assert_eq!((&zombie.body["why"], &zombie.body["token"]), (&json!("superseded"), &json!(2)));
    let reconciled = daemon.run(&["reconcile", "locks"]);
    assert!(reconciled.code == 1 && reconciled.err.contains("no index"), "{reconciled:?}");
}

/// The idle sweeper: it does not sweep while the system is in use, and does so afterwards.
fn the_daemon_sweeps_leases_once_the_system_is_idle() {
    let home = Home::leases("idle_grace = \"1500ms\"\nsweep = { every = \"100ms\" }");
    let daemon = home.serve();
    acquire(&daemon, "k", "a", 1_000);
    let pass = |stopped: &str| {
        let status = daemon.get("/v1/sweeps/leases/locks").body;
        (status["last_pass"]["stopped"] == stopped).then_some(status)
    };
    until("a pass that sees that it is in use", || {
        daemon.get("/v1/leases/locks/describe/default/other");
        pass("activity")
    });
    // Looking at the status and the receipts is not using it.
    let receipts = until("a pass to clear it", || {
        let page = daemon.get("/v1/receipts?system=locks").body;
        page["receipts"].get(0).cloned()
    });
    assert_eq!(receipts["key"], "default/k");
    let text = daemon.get("/metrics").text;
    let line = "lapsed_leases_cleared_total{system=\"locks\",by=\"sweep\",kind=\"leases\"} 1\n";
    assert!(text.contains(line), "{text}");
    let aborts = "lapsed_pass_total{system=\"locks\",stopped=\"activity\",kind=\"leases\"} 0\n";
    assert!(text.contains(aborts), "a pass that never began was counted: {text}");
}

/// A sweep command does not wait for idleness: the operator has chosen the time, and a new process
/// has not been idle for long.
fn a_sweep_command_does_not_wait_for_an_idle_system() {
    let home = Home::leases("idle_grace = \"1h\"");
    for args in [&["sweep", "locks", "--json"][..], &["sweep", "locks", "--json", "--dry-run"]] {
        let swept = home.run(args);
        assert_eq!((swept.code, &swept.json()["stopped"]), (0, &json!("done")), "{swept:?}");
    }
    // A daemon knows who uses it, and gives way.
    let daemon = home.serve();
    acquire(&daemon, "k", "a", 600_000);
    assert_eq!(daemon.run(&["sweep", "locks", "--json"]).json()["stopped"], "activity");
}

fn a_cleared_lease_is_counted_once_by_operation_or_pass() {
    let home = Home::leases("sweep = { every = \"1d\", idle_grace = \"1ms\" }");
    let daemon = home.serve();
    acquire(&daemon, "met", "a", 1_000);
    acquire(&daemon, "swept", "a", 1_000);
    daemon.leases("decide", json!({ "txn": "met", "decision": "commit", "ttl_ms": 1_000 }));
    daemon.leases("decide", json!({ "txn": "swept", "decision": "commit", "ttl_ms": 1_000 }));
    until_expired(&daemon, "met");
    until_expired(&daemon, "swept");
    until("both to be cleared by who meets them", || {
        let met = daemon.get("/v1/leases/locks/describe/default/met").body;
        let gone = daemon.get("/v1/leases/locks/decision/met").status == 404;
        (met["lease"].is_null() && gone).then_some(())
    });
    is_lost(
        &daemon.try_leases("renew", json!({ "key": "met", "token": 1 })),
        "ended",
        1,
        Value::Null,
    );
    until("the others to be swept", || {
        daemon.post("/v1/sweeps/leases/locks", json!({}));
        let page = daemon.get("/v1/receipts?system=locks").body;
        (page["receipts"].as_array().unwrap().len() == 4).then_some(())
    });
    daemon.post("/v1/sweeps/leases/locks", json!({}));
    let text = daemon.get("/metrics").text;
    for line in [
        "lapsed_leases_cleared_total{system=\"locks\",by=\"operation\",kind=\"leases\"} 1",
        "lapsed_leases_cleared_total{system=\"locks\",by=\"sweep\",kind=\"leases\"} 1",
        "lapsed_decisions_deleted_total{system=\"locks\",by=\"operation\",kind=\"leases\"} 1",
        "lapsed_decisions_deleted_total{system=\"locks\",by=\"sweep\",kind=\"leases\"} 1",
        "lapsed_reclaimed_total{system=\"locks\",reason=\"lease_expired\",kind=\"leases\"} 2",
        "lapsed_reclaimed_total{system=\"locks\",reason=\"decision_expired\",kind=\"leases\"} 2",
        "lapsed_reclaim_lag_seconds_count{system=\"locks\",kind=\"leases\"} 4",
        "lapsed_zombie_rejected_total{system=\"locks\",kind=\"leases\"} 1",
        "lapsed_population{system=\"locks\",kind=\"leases\"} 0",
        "lapsed_suspects{system=\"locks\",kind=\"leases\"} 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is missing:\n{text}");
    }
}

fn without_a_configuration_there_is_a_leases_system() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = crate::support::lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.path().join("data"));
    let daemon = Daemon::spawn(command, dir.path()).unwrap();
    let grant = daemon.post("/v1/leases/default/acquire", json!({ "key": "k", "owner": "o" }));
    assert_eq!((grant.status, &grant.body["token"]), (200, &json!(1)), "{grant:?}");
    let status = daemon.run(&["status"]).out;
    assert!(status.contains("leases/default"), "{status}");
}
