//! The data folder: one process at a time, nothing lost on leaving, nothing touched when damaged.

use crate::support::{CALM, Daemon, Home, lapsed, until};
use serde_json::json;

lapsed_testbed::steady_tests! {
    sigterm_drains_and_keeps_everything,
    sigterm_lets_a_pass_finish_its_batch,
    a_leader_resigns_when_it_leaves,
    a_second_daemon_is_refused_with_the_pid_of_the_first,
    a_corrupt_folder_is_refused_and_nothing_is_touched,
    after_a_restart_nobody_is_reclaimed_before_a_whole_ttl,
    serve_without_a_configuration_uses_the_given_folder,
}

fn sigterm_drains_and_keeps_everything() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    let held = daemon.hold("a", &["k1", "k2"]);
    assert_eq!(daemon.stop(), Some(0));
    let daemon = home.serve();
    for key in ["k1", "k2"] {
        let found = daemon.get(&format!("/v1/registry/devices/lookup/{key}"));
        assert_eq!((found.status, &found.body["owner"]), (200, &json!("a")), "{found:?}");
        assert_eq!(found.body["incarnation"], held["incarnation"]);
    }
    assert!(daemon.log().contains("stopped"), "{}", daemon.log());
}

fn sigterm_lets_a_pass_finish_its_batch() {
    let home = Home::new("300ms", "sweep = { every = \"1d\", batch = 10, op_delay = \"50ms\" }");
    let daemon = home.serve();
    let keys: Vec<String> = (0..500).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    daemon.hold("a", &keys);
    daemon.until_overdue(1);
    let url = daemon.url.clone();
    let sweep = std::thread::spawn(move || {
        crate::support::run(&["sweep", "devices", "--json", "--url", &url])
    });
    until("the pass to begin", || (!daemon.receipts().is_empty()).then_some(()));
    assert_eq!(daemon.stop(), Some(0));
    let report = sweep.join().unwrap().json();
    assert_eq!(report["stopped"], "runtime", "{report}");
    let reclaimed = report["reclaimed"].as_u64().unwrap() as usize;
    assert!((10..500).contains(&reclaimed), "{reclaimed}");
    let daemon = home.serve();
    assert_eq!(daemon.receipts().len(), reclaimed, "what it said is what happened");
    assert_eq!(daemon.status()["census"]["population"], 500 - reclaimed);
}

fn a_leader_resigns_when_it_leaves() {
    let home = Home::new("1m", "sweep = { every = \"1d\", mode = \"leader\" }");
    let daemon = home.serve();
    let leads = |daemon: &Daemon| (daemon.status()["leads"] == true).then_some(());
    until("it to lead", || leads(&daemon));
    assert_eq!(daemon.stop(), Some(0));
    let direct = home.run(&["sweep", "devices", "--json"]);
    assert_eq!((direct.code, &direct.json()["stopped"]), (0, &json!("done")), "{direct:?}");
    let daemon = home.serve();
    let began = std::time::Instant::now();
    until("the next to lead", || leads(&daemon));
    assert!(began.elapsed().as_secs() < 10, "without waiting for the term of 15 s to lapse");
}

fn a_second_daemon_is_refused_with_the_pid_of_the_first() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    let second = home.run(&["serve"]);
    assert_eq!(second.code, 1, "{second:?}");
    assert!(second.err.contains(&format!("pid {}", daemon.pid())), "{second:?}");
    assert!(!second.out.contains("listening"));
    assert_eq!(daemon.get("/v1/registry/devices/lookup/k").status, 200, "the first is unharmed");
}

fn a_corrupt_folder_is_refused_and_nothing_is_touched() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    daemon.stop();
    let file = home.data().join("lapsed.redb");
    let sound = std::fs::read(&file).unwrap();
    let mut damaged = sound.clone();
    damaged.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31).wrapping_add(7));
    for garbage in [damaged, b"this is not a database".to_vec()] {
        std::fs::write(&file, &garbage).unwrap();
        for command in ["serve", "status", "check"] {
            let answer = home.run(&[command]);
            assert_eq!(answer.code, 1, "{command}: {answer:?}");
            assert!(answer.err.contains("cannot be read"), "{command}: {answer:?}");
            assert!(answer.err.contains("Nothing was changed"), "{command}: {answer:?}");
        }
        assert!(std::fs::read(&file).unwrap() == garbage, "the file was touched");
    }
    std::fs::write(&file, sound).unwrap();
    let daemon = home.serve();
    assert_eq!(daemon.get("/v1/registry/devices/lookup/k").status, 200);
}

fn after_a_restart_nobody_is_reclaimed_before_a_whole_ttl() {
    let home = Home::new("3s", "sweep = { every = \"20ms\" }");
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    daemon.kill();
    let daemon = home.serve();
    let back = daemon.status()["store"]["back_ms"].as_u64().unwrap();
    assert_eq!(daemon.get("/v1/registry/devices/lookup/k").status, 200);
    until("it to be reclaimed after all", || (daemon.receipts().len() == 1).then_some(()));
    let receipt = &daemon.receipts()[0];
    let judged = receipt["evidence"]["judged_ms"].as_u64().unwrap();
    assert!(judged >= back + 3_000, "{receipt}: back at {back}");
}

fn serve_without_a_configuration_uses_the_given_folder() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(dir.path());
    let daemon = Daemon::spawn(command, dir.path()).unwrap();
    let body = json!({ "owner": "a", "key": "k" });
    assert_eq!(daemon.post("/v1/registry/default/register", body).status, 200);
    assert!(dir.path().join("lapsed-data").is_dir());
    assert_eq!(daemon.get("/readyz").status, 200);
    assert_eq!(daemon.stop(), Some(0));
    let mut command = lapsed();
    command.arg("serve").env("LAPSED_LISTEN", "127.0.0.1:0");
    command.env("LAPSED_DATA", dir.path().join("lapsed-data"));
    let daemon = Daemon::spawn(command, dir.path()).unwrap();
    assert_eq!(daemon.get("/v1/registry/default/lookup/k").status, 200);
}
