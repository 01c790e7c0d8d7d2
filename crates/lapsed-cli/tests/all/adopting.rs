//! Adopting begins by observing, through the binary. Five live instances write `instance:hb:*`, and the file says
//! `instance:heartbeat:{owner}`: without observing, everybody would be evicted at once.

use std::time::{Duration, Instant};

use crate::support::{Answer, Daemon, Home, until};
use lapsed_testbed::{Engine, RedisServer};
use serde_json::Value;

lapsed_testbed::steady_tests! {
    a_daemon_with_a_wrong_heartbeat_key_evicts_nobody_until_lapsed_adopt,
    commands_from_a_crontab_with_a_wrong_heartbeat_key_evict_nobody_until_lapsed_adopt,
    a_healthy_fleet_is_swept_without_a_confirmation,
    adopt_now_in_the_file_confirms_and_is_in_the_audit,
    adopt_is_refused_where_nothing_observes,
    explain_says_whether_a_heartbeat_is_gone_or_never_came,
    explain_of_an_owner_says_the_same_as_of_its_entries,
    explain_names_a_heartbeat_that_never_expires,
    an_override_is_refused_while_lapsed_only_observes,
}

pub fn home(server: &RedisServer, lines: &str) -> Home {
    home_at(&server.url(), lines)
}

pub fn home_at(url: &str, lines: &str) -> Home {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n\n[store.main]\nurl = \"{url}\"\n\n\
         [[system]]\nkind = \"registry\"\nname = \"devices\"\nmode = \"adopt\"\nheartbeat_ttl = \"1s\"\n{lines}\n"
    );
    std::fs::write(home.config(), text).unwrap();
    home
}

/// A server that has been there for longer than the thresholds used here.
pub fn server(engine: Engine) -> RedisServer {
    let server = RedisServer::start(engine).unwrap();
    until("the server to have been there for a while", || {
        (server.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap() >= 3).then_some(())
    });
    server
}

/// Five instances that live, with five entries each. Their heartbeats are called `prefix` and their name.
pub fn fleet(server: &RedisServer, prefix: &str) {
    for owner in 1..=5 {
        server.command(&["SET", &format!("{prefix}i-{owner}"), "1", "EX", "900"]).unwrap();
        for entry in 1..=5 {
            let key = format!("imei-{owner}-{entry}");
            server.command(&["HSET", "connections:registry", &key, &format!("i-{owner}")]).unwrap();
        }
    }
}

pub fn entries(server: &RedisServer) -> String {
    server.command(&["HLEN", "connections:registry"]).unwrap()
}

pub fn fine(answer: Answer) -> Answer {
    assert_eq!(answer.code, 0, "{answer:?}");
    answer
}

/// Several TTLs, in which nobody may be evicted.
fn nobody_is_evicted(server: &RedisServer, mut meanwhile: impl FnMut()) {
    let began = Instant::now();
    until("three TTLs to pass", || {
        meanwhile();
        assert_eq!(entries(server), "25");
        (began.elapsed() > Duration::from_secs(3)).then_some(())
    });
}

pub fn passes(daemon: &Daemon) -> Value {
    daemon.run(&["status", "devices", "--json"]).json()
}

fn a_daemon_with_a_wrong_heartbeat_key_evicts_nobody_until_lapsed_adopt() {
    for engine in Engine::ALL {
        let server = server(engine);
        fleet(&server, "instance:hb:");
        let home = home(&server, "sweep = { every = \"100ms\" }");
        let check = fine(home.run(&["check"]));
        for words in
            ["0 of 5 owners have a heartbeat", "`instance:heartbeat:{owner}`", "lapsed adopt"]
        {
            assert!(check.out.contains(words), "{words}: {check:?}");
        }
        let daemon = home.serve();
        nobody_is_evicted(&server, || {});
        let log = daemon.log();
        assert!(log.contains("0 of 5 owners have a heartbeat"), "{log}");
        assert!(log.contains("lapsed adopt registry/devices"), "{log}");
        let status = daemon.run(&["status", "devices"]).out;
        assert!(status.contains("only observes"), "{status}");
        assert!(status.contains("0 of 5 owners have a heartbeat"), "{status}");
        let brake = &passes(&daemon)["brake"];
        assert_eq!((&brake["state"], &brake["held_by"]), (&"held".into(), &"observing".into()));
        let dry = daemon.run(&["sweep", "devices", "--dry-run", "--json"]);
        assert_eq!(dry.code, 3, "{dry:?}");
        let report = dry.json();
        assert_eq!(
            (&report["skipped"]["brake"], &report["stopped"]),
            (&25.into(), &"brake".into())
        );
        assert_eq!(report["entries"].as_array().unwrap().len(), 25, "{report}");
        assert_eq!(entries(&server), "25", "it was a dry run");
        let shown = daemon.get("/v1/adopt/registry/devices");
        assert_eq!((shown.status, &shown.body["observing"]), (200, &true.into()), "{shown:?}");
        let adopted = fine(daemon.run(&["adopt", "devices"]));
        assert!(adopted.out.contains("confirmed"), "{adopted:?}");
        until("the eviction of all", || (entries(&server) == "0").then_some(()));
        let audit = fine(daemon.run(&["audit"])).out;
        assert!(audit.contains("adopt") && audit.contains("confirmed"), "{audit}");
        assert_eq!(daemon.stop(), Some(0));
    }
}

fn commands_from_a_crontab_with_a_wrong_heartbeat_key_evict_nobody_until_lapsed_adopt() {
    let server = server(Engine::Valkey);
    fleet(&server, "instance:hb:");
    let home = home(&server, "sweep = { every = \"1d\" }");
    nobody_is_evicted(&server, || {
        let swept = home.run(&["sweep", "devices", "--json"]);
        assert_eq!((swept.code, &swept.json()["stopped"]), (3, &"brake".into()), "{swept:?}");
    });
    let told = home.run(&["sweep", "devices"]);
    assert!(told.out.contains("lapsed adopt registry/devices -c "), "{told:?}");
    fine(home.run(&["adopt", "devices"]));
    // Before the sweeps, of which there may be more than the newest entries that are listed.
    let audit = fine(home.run(&["audit", "--json"])).lines();
    assert!(audit.iter().any(|entry| entry["what"] == "adopt"), "{audit:?}");
    // All are silent at once, so that the brake now holds for a mass death, and opens by itself.
    let mut reclaimed = 0;
    until("the eviction of all", || {
        let swept = home.run(&["sweep", "devices", "--json"]).json();
        reclaimed += swept["reclaimed"].as_u64().unwrap();
        (entries(&server) == "0").then_some(())
    });
    assert_eq!(reclaimed, 25);
}

fn a_healthy_fleet_is_swept_without_a_confirmation() {
    for engine in Engine::ALL {
        let server = server(engine);
        fleet(&server, "instance:heartbeat:");
        let home = home(&server, "sweep = { every = \"1d\" }");
        let check = fine(home.run(&["check"]));
        assert!(check.out.contains("5 of 5 owners have a heartbeat"), "{check:?}");
        let first = fine(home.run(&["sweep", "devices", "--json"])).json();
        assert_eq!((&first["reclaimed"], &first["stopped"]), (&0.into(), &"done".into()));
        for owner in ["i-1", "i-2"] {
            server.command(&["DEL", &format!("instance:heartbeat:{owner}")]).unwrap();
        }
        let swept = fine(home.run(&["sweep", "devices", "--json"])).json();
        assert_eq!((&swept["reclaimed"], &swept["stopped"]), (&10.into(), &"done".into()));
        assert_eq!(entries(&server), "15");
    }
}

fn adopt_now_in_the_file_confirms_and_is_in_the_audit() {
    let server = server(Engine::Redis);
    fleet(&server, "instance:hb:");
    let home = home(&server, "adopt = \"now\"\nsweep = { every = \"100ms\" }");
    let daemon = home.serve();
    until("the eviction of all", || (entries(&server) == "0").then_some(()));
    let audit = fine(daemon.run(&["audit", "--json"])).lines();
    let adopted: Vec<_> = audit.iter().filter(|entry| entry["what"] == "adopt").collect();
    assert_eq!(adopted.len(), 1, "{audit:?}");
    assert_eq!(adopted[0]["who"], "configuration");
}

fn adopt_is_refused_where_nothing_observes() {
    let home = Home::new("1s", "sweep = { every = \"1d\" }");
    let refused = home.run(&["adopt", "devices"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("nothing to confirm"), "{refused:?}");
    let daemon = home.serve();
    let refused = daemon.run(&["adopt", "devices"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("nothing to confirm"), "{refused:?}");
    let home = Home::new("1s", "adopt = \"now\"");
    let wrong = home.run(&["check"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("mode = \"adopt\" only"), "{wrong:?}");
}

fn explain_says_whether_a_heartbeat_is_gone_or_never_came() {
    let server = server(Engine::Redis);
    fleet(&server, "instance:heartbeat:");
    server.command(&["HSET", "connections:registry", "imei-new", "i-new"]).unwrap();
    let home = home(&server, "sweep = { every = \"1d\" }");
    fine(home.run(&["sweep", "devices"]));
    let explained = |key: &str| fine(home.run(&["explain", "devices", key, "--json"])).json();
    let young = explained("imei-new");
    assert_eq!(
        (&young["verdict"], &young["facts"]["life"]["state"]),
        (&"spared".into(), &"newcomer".into())
    );
    let mute = until("the end of its TTL", || {
        Some(explained("imei-new")).filter(|told| told["facts"]["life"]["state"] != "newcomer")
    });
    assert!(mute["because"].to_string().contains("never seen with a heartbeat"), "{mute}");
    assert_eq!(mute["verdict"], "overdue", "{mute}");
    assert!(!mute["because"].to_string().contains("ran out"), "it never had one: {mute}");
    assert!(mute["because"].to_string().contains("a pass every 1d"), "{mute}");
    server.command(&["DEL", "instance:heartbeat:i-1"]).unwrap();
    let gone = explained("imei-1-1");
    assert!(gone["because"].to_string().contains("was seen and is gone"), "{gone}");
}

fn explain_of_an_owner_says_the_same_as_of_its_entries() {
    let server = server(Engine::Redis);
    fleet(&server, "instance:heartbeat:");
    server.command(&["HSET", "connections:registry", "imei-new", "i-new"]).unwrap();
    let daemon = home(&server, "sweep = { every = \"1d\" }").serve();
    fine(daemon.run(&["sweep", "devices"]));
    let explained = |key: &str| fine(daemon.run(&["explain", "devices", key, "--json"])).json();
    for key in ["imei-new", "i-new"] {
        let young = explained(key);
        let said = (&young["verdict"], &young["facts"]["life"]["state"]);
        assert_eq!(said, (&"spared".into(), &"newcomer".into()), "{young}");
    }
    let living = explained("i-1");
    assert_eq!(living["verdict"], "live", "{living}");
    until("the end of its TTL", || {
        (explained("i-new")["facts"]["life"]["state"] != "newcomer").then_some(())
    });
    for key in ["imei-new", "i-new"] {
        let mute = explained(key);
        assert_eq!(mute["verdict"], "overdue", "{mute}");
        let because = mute["because"].to_string();
        assert!(because.contains("never seen with a heartbeat"), "{mute}");
        assert!(!because.contains("ran out"), "it never had one: {mute}");
    }
}

fn explain_names_a_heartbeat_that_never_expires() {
    let server = server(Engine::Redis);
    fleet(&server, "instance:heartbeat:");
    server.command(&["PERSIST", "instance:heartbeat:i-1"]).unwrap();
    let home = home(&server, "sweep = { every = \"1d\" }");
    let told = fine(home.run(&["explain", "devices", "imei-1-1"])).out;
    assert!(told.contains("its heartbeat never expires (its key has no TTL)"), "{told}");
    let told = fine(home.run(&["explain", "devices", "imei-2-1"])).out;
    assert!(told.contains("its heartbeat is valid for another"), "{told}");
}

/// Stored, it would wait until the adoption is confirmed, and then let everything through unasked.
fn an_override_is_refused_while_lapsed_only_observes() {
    let server = server(Engine::Redis);
    fleet(&server, "instance:hb:");
    let home = home(&server, "sweep = { every = \"1d\" }");
    let order = ["brake", "devices", "override", "--reason", "they are gone", "--yes"];
    let refused = home.run(&order);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("lapsed adopt registry/devices"), "{refused:?}");
    fine(home.run(&["adopt", "devices"]));
    let brake = fine(home.run(&["brake", "devices", "--json"])).json();
    assert_eq!(brake["setting"], "auto", "{brake}");
    fine(home.run(&order));
}
