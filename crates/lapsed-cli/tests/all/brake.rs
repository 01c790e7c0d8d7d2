//! The brake as an operator meets it: what `check` says of it, a hold that stays, a small fleet, and the question before an override.

use crate::support::{Daemon, Home, lapsed, until};
use crate::top::Screen;
use lapsed_testbed::{Engine, RedisServer};

lapsed_testbed::steady_tests! {
    check_describes_the_brake_that_each_kind_and_mode_really_has,
    a_hold_that_stays_waits_for_a_person_through_daemon_and_crontab,
    all_but_one_of_three_owners_silent_at_once_are_held,
    an_override_shows_the_count_and_asks_on_a_terminal,
}

const BY_OWNERS: &str = "more than 55 % of at least 10 owners would be dead at once";

fn check_describes_the_brake_that_each_kind_and_mode_really_has() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let by_entries =
        |what: &str| format!("more than 55 % of at least 10 {what} became due within the");
    let adopted = |lines: &str| format!("mode = \"adopt\"\n{lines}");
    for (kind, lines, says) in [
        ("registry", String::new(), BY_OWNERS.to_owned()),
        ("registry", adopted(""), BY_OWNERS.to_owned()),
        ("sessions", String::new(), BY_OWNERS.to_owned()),
        ("sessions", adopted(""), by_entries("disconnected sessions")),
        (
            "sessions",
            adopted("grace = \"30s\"\nsweep = { every = \"20s\" }"),
            "cannot recognise a mass death, because passes are rarer than twice per grace"
                .to_owned(),
        ),
        ("inflight", String::new(), BY_OWNERS.to_owned()),
        ("inflight", adopted("preset = \"sidekiq-async-http\""), by_entries("jobs in flight")),
        ("inflight", adopted("preset = \"bullmq\""), by_entries("jobs in flight")),
        ("inflight", adopted("preset = \"rq\""), BY_OWNERS.to_owned()),
    ] {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let text = format!(
            "[store.main]\nurl = \"{}\"\n\n[[system]]\nkind = \"{kind}\"\nname = \"one\"\n{lines}\n",
            server.url()
        );
        std::fs::write(home.config(), text).unwrap();
        let checked = home.run(&["check"]);
        assert_eq!(checked.code, 0, "{kind} {lines}: {checked:?}");
        assert!(checked.out.contains(&says), "{kind} {lines}: {says}: {}", checked.out);
    }
}

/// With `brake.stay` the hold outlives its threshold, and commands that run once see it, too.
fn a_hold_that_stays_waits_for_a_person_through_daemon_and_crontab() {
    let home = Home::new("1s", "brake = { stay = true }\nsweep = { every = \"100ms\" }");
    let daemon = home.serve();
    (0..12).for_each(|n| drop(daemon.hold(&format!("o{n}"), &[&format!("k{n}")])));
    let status = || daemon.run(&["status", "devices", "--json"]).json();
    until("the hold", || (status()["brake"]["held_by"] == "mass_death").then_some(()));
    let began = std::time::Instant::now();
    // Without it the first step would be due after one threshold.
    while began.elapsed() < std::time::Duration::from_secs(4) {
        let held = daemon.run(&["sweep", "devices", "--json"]);
        assert_eq!((held.code, &held.json()["reclaimed"]), (3, &0.into()), "{held:?}");
    }
    assert!(status()["brake"]["words"].as_str().unwrap().contains("until a person decides"));
    assert_eq!(daemon.run(&["brake", "devices", "auto"]).code, 0);
    until("all to be reclaimed, in steps", || (daemon.receipts().len() == 12).then_some(()));
}

fn all_but_one_of_three_owners_silent_at_once_are_held() {
    let home = Home::new("2s", "sweep = { every = \"1d\" }");
    let daemon = home.serve();
    daemon.registry("start", serde_json::json!({ "owner": "alive", "ttl_ms": 600_000 }));
    daemon.hold("alive", &["k0"]);
    for n in 1..=2 {
        daemon.hold(&format!("o{n}"), &[&format!("k{n}")]);
    }
    daemon.until_overdue(2);
    let held = daemon.run(&["sweep", "devices", "--json"]);
    assert_eq!((held.code, &held.json()["reclaimed"]), (3, &0.into()), "{held:?}");
    let status = daemon.run(&["status", "devices", "--json"]).json();
    assert_eq!(status["brake"]["held_by"], "mass_death", "{status}");
}

fn an_override_shows_the_count_and_asks_on_a_terminal() {
    let home = Home::new("1s", "sweep = { every = \"1d\" }");
    let daemon = home.serve();
    (0..12).for_each(|n| drop(daemon.hold(&format!("o{n}"), &[&format!("k{n}")])));
    daemon.until_overdue(12);
    let screen = Screen::open(home.dir.path()).expect("tmux is there: `make servers` installs it");
    screen.until_shows("ready>");
    let ask = |answer: &str| {
        let program = lapsed().get_program().to_string_lossy().into_owned();
        let line =
            format!("clear; {program} brake devices override --reason gone --url {}", daemon.url);
        screen.press(&[&line, "Enter"]);
        // The terminal breaks the question in two lines.
        let asked = screen.until_shows("[y/N]");
        let asked: String = asked.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            asked.contains("would declare 12 owners dead and reclaim 12 entries of 12"),
            "{asked}"
        );
        screen.press(&[answer, "Enter"]);
    };
    ask("n");
    screen.until_shows("nothing was changed");
    assert_eq!(setting(&daemon), "auto");
    ask("y");
    until("the override", || (setting(&daemon) == "override").then_some(()));
}

fn setting(daemon: &Daemon) -> String {
    let brake = daemon.get("/v1/brakes/registry/devices");
    brake.body["setting"].as_str().unwrap().to_owned()
}
