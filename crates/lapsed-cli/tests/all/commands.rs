//! The commands on a real daemon and straight on the store: what they print, and their exit codes.

use std::collections::BTreeSet;

use crate::support::{CALM, Daemon, Home, lapsed, run, until};
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    wrong_usage_exits_2_and_lists_the_choices,
    a_missing_daemon_exits_1_and_says_how_to_start_one,
    help_names_every_command_and_its_purpose,
    a_dry_run_names_what_the_real_pass_then_reclaims,
    trap_a2_two_sweeps_at_once_count_each_entry_once,
    a_held_brake_exits_3_until_it_is_overridden,
    an_override_needs_a_reason_and_a_confirmation_and_release_is_refused,
    a_dry_run_under_hold_lists_the_suspects,
    explain_receipts_and_restore_agree,
    receipt_pages_have_no_gaps_and_no_duplicates,
    direct_store_sweep_respects_the_grace_until_overridden,
    a_locked_store_is_reached_through_its_daemon,
    status_has_all_documented_fields,
}

const PASS_KEYS: [&str; 10] = [
    "system",
    "kind",
    "dry_run",
    "examined",
    "suspects",
    "reclaimed",
    "skipped",
    "errors",
    "stopped",
    "took_ms",
];

/// Which entries a pass names.
fn set(report: &Value) -> BTreeSet<(String, u64)> {
    let entries = report["entries"].as_array().unwrap();
    let one =
        |e: &Value| (e["key"].as_str().unwrap().to_owned(), e["incarnation"].as_u64().unwrap());
    entries.iter().map(one).collect()
}

fn wrong_usage_exits_2_and_lists_the_choices() {
    assert_eq!(run(&[]).code, 2);
    assert_eq!(run(&["nonsense"]).code, 2);
    assert_eq!(run(&["sweep"]).code, 2);
    assert_eq!(run(&["brake", "x", "loosen"]).code, 2);
    assert_eq!(run(&["restore", "nonsense"]).code, 2);
    let home = Home::new("1s", CALM);
    for answer in [home.run(&["sweep", "nope"]), home.run(&["status", "nope"])] {
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.err.contains("registry/devices"), "{answer:?}");
        assert_eq!(answer.out, "");
    }
    assert_eq!(home.run(&["brake", "devices", "hold", "--for", "5m"]).code, 2);
    assert_eq!(home.run(&["receipts", "--follow"]).code, 2);
}

fn a_missing_daemon_exits_1_and_says_how_to_start_one() {
    let answer = run(&["status", "--url", "http://127.0.0.1:9"]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("lapsed serve"), "{answer:?}");
    assert_eq!(run(&["status", "--url", "ftp://x"]).code, 2);
}

fn help_names_every_command_and_its_purpose() {
    let answer = run(&["--help"]);
    assert_eq!(answer.code, 0);
    for word in [
        "serve",
        "check",
        "status",
        "sweep",
        "reconcile",
        "explain",
        "receipts",
        "restore",
        "brake",
    ] {
        assert!(answer.out.contains(word), "{word}");
        assert_eq!(run(&[word, "--help"]).code, 0);
    }
}

fn a_dry_run_names_what_the_real_pass_then_reclaims() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("dead", &["a", "b", "c"]);
    daemon.hold("also-dead", &["d"]);
    daemon.registry("start", json!({ "owner": "alive", "ttl_ms": 600_000 }));
    daemon.hold("alive", &["e"]);
    daemon.registry("start", json!({ "owner": "alive-too", "ttl_ms": 600_000 }));
    daemon.until_overdue(2);

    let dry = daemon.run(&["sweep", "devices", "--dry-run", "--json"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    let dry = dry.json();
    assert_eq!(dry["dry_run"], true);
    assert!(daemon.receipts().is_empty(), "a dry run leaves no trace");

    let people = daemon.run(&["sweep", "devices", "--dry-run"]);
    for word in ["4 of 4 suspects would be reclaimed", "dead", "deadline was", "lapsed sweep"] {
        assert!(people.out.contains(word), "{word}: {people:?}");
    }

    let real = daemon.run(&["sweep", "devices", "--json"]);
    assert_eq!(real.code, 0, "{real:?}");
    let real = real.json();
    for key in PASS_KEYS {
        assert!(real.get(key).is_some() && dry.get(key).is_some(), "{key}: {real}");
    }
    assert_eq!((&real["stopped"], &real["kind"]), (&json!("done"), &json!("registry")));
    assert_eq!(set(&dry), set(&real));
    assert_eq!(set(&real).len(), 4);
    assert_eq!(daemon.receipts().len(), 4);
    assert_eq!(daemon.get("/v1/registry/devices/lookup/e").status, 200);
    let again = daemon.run(&["sweep", "registry", "--json"]).json();
    assert_eq!((&again["reclaimed"], &again["entries"]), (&json!(0), &json!([])));
}

fn trap_a2_two_sweeps_at_once_count_each_entry_once() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    let keys: Vec<String> = (0..2_000).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    daemon.hold("dead", &keys);
    daemon.until_overdue(1);
    let sweep = || {
        let mut command = lapsed();
        command.args(["sweep", "devices", "--json", "--url", &daemon.url]);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let both = [sweep(), sweep()].map(|child| {
        let out = child.wait_with_output().unwrap().stdout;
        serde_json::from_slice::<Value>(&out).unwrap()
    });
    let total: u64 = both.iter().map(|r| r["reclaimed"].as_u64().unwrap()).sum();
    assert_eq!(total, 2_000, "{}", both[0]["skipped"]);
    assert!(set(&both[0]).is_disjoint(&set(&both[1])));
    assert_eq!(daemon.receipts().len(), 2_000);
    let metrics = daemon.get("/metrics").text;
    let line =
        "lapsed_reclaimed_total{system=\"devices\",reason=\"owner_dead\",kind=\"registry\"} 2000\n";
    assert!(metrics.contains(line), "{metrics}");
}

fn a_held_brake_exits_3_until_it_is_overridden() {
    let home = Home::new("5s", CALM);
    let daemon = home.serve();
    (0..12).for_each(|n| drop(daemon.hold(&format!("o{n}"), &[&format!("k{n}")])));
    daemon.until_overdue(12);

    let held = daemon.run(&["sweep", "devices", "--json"]);
    assert_eq!(held.code, 3, "{held:?}");
    let held = held.json();
    assert_eq!((&held["stopped"], &held["reclaimed"]), (&json!("brake"), &json!(0)));
    assert!(held["detail"].as_str().unwrap().contains("lapsed brake registry/devices override"));
    assert_eq!(held["held_by"], "mass_death", "{held}");
    assert_eq!(daemon.run(&["sweep", "devices", "--dry-run"]).code, 3);
    let told = daemon.run(&["explain", "devices", "k1"]).out;
    assert!(told.contains("a pass every") && !told.contains("no pass has seen this"), "{told}");
    daemon.run(&["brake", "devices", "hold"]);
    let told = daemon.run(&["sweep", "devices"]);
    assert!(told.out.contains("An operator holds the brake"), "{told:?}");
    assert!(!told.out.contains("--reason"), "nobody is told to override a person: {told:?}");
    daemon.run(&["brake", "devices", "auto"]);
    let status = daemon.run(&["status", "devices", "--json"]).json();
    assert_eq!(status["brake"]["held_by"], "mass_death", "{status}");
    assert!(
        daemon
            .get("/metrics")
            .text
            .contains("lapsed_brake{system=\"devices\",kind=\"registry\"} 1.0")
    );
    for (cause, held) in [("mass_death", 1), ("store_away", 0), ("observing", 0), ("operator", 0)] {
        let series = format!(
            "lapsed_brake_held{{system=\"devices\",cause=\"{cause}\",kind=\"registry\"}} {held}"
        );
        let shown = daemon.get("/metrics").text;
        assert!(shown.contains(&series), "{series}");
    }
    assert_eq!(daemon.get("/v1/registry/devices/lookup/k1").status, 200, "spared, so still found");

    let begun = "too many owners, or their entries, would be dead at once";
    until("the log to say that it holds", || warned(&daemon, begun).then_some(()));

    let reason = ["--reason", "we scaled down"];
    let overriding = ["brake", "devices", "override"];
    let told = daemon.run(&[&overriding[..], &reason, &["--yes", "--json"]].concat());
    let count = "would declare 12 owners dead and reclaim 12 entries of 12";
    assert!(told.err.contains(count), "also where nobody is asked: {told:?}");
    let told = told.json();
    assert_eq!((&told["setting"], &told["state"]), (&json!("override"), &json!("open")));
    assert_eq!(told["reason"], "we scaled down");
    assert!(daemon.run(&["status", "devices"]).out.contains("we scaled down"));
    let swept = daemon.run(&["sweep", "devices", "--json"]);
    assert_eq!((swept.code, &swept.json()["reclaimed"]), (0, &json!(12)), "{swept:?}");
    for says in ["the brake holds no longer", "this pass runs under the operator's override"] {
        until(says, || warned(&daemon, says).then_some(()));
    }

    assert_eq!(daemon.run(&["brake", "devices", "hold"]).code, 0);
    daemon.registry("start", json!({ "owner": "late" }));
    daemon.hold("late", &["x"]);
    daemon.until_overdue(1);
    let held = daemon.run(&["sweep", "devices"]);
    assert_eq!(held.code, 3);
    assert!(held.out.contains("operator"), "{held:?}");
    assert_eq!(daemon.run(&["brake", "devices", "auto"]).code, 0);
    assert!(daemon.run(&["brake", "devices"]).out.contains("decides by itself"));
}

/// A warning that says so is in the daemon's log.
fn warned(daemon: &Daemon, says: &str) -> bool {
    daemon.log().lines().any(|line| line.contains("WARN") && line.contains(says))
}

fn an_override_needs_a_reason_and_a_confirmation_and_release_is_refused() {
    let home = Home::new("1m", CALM);
    let daemon = home.serve();
    for (args, says) in [
        (&["override"][..], "--reason"),
        (&["override", "--reason", " "], "--reason"),
        (&["override", "--reason", "they are gone"], "--yes"),
        (&["hold", "--yes"], "`override` only"),
        (&["release"], "`auto`"),
        (&["release"], "`override --reason TEXT`"),
    ] {
        let told = daemon.run(&[&["brake", "devices"], args].concat());
        assert_eq!(told.code, 2, "{args:?}: {told:?}");
        assert!(told.err.contains(says), "{args:?}: {told:?}");
    }
    assert_eq!(daemon.get("/v1/brakes/registry/devices").body["setting"], "auto");
}

fn a_dry_run_under_hold_lists_the_suspects() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("i-1", &["imei-1"]);
    daemon.until_overdue(1);
    assert_eq!(daemon.run(&["brake", "devices", "hold"]).code, 0);
    let dry = daemon.run(&["sweep", "devices", "--dry-run"]);
    assert_eq!(dry.code, 3, "{dry:?}");
    assert!(dry.out.contains("imei-1") && dry.out.contains("held by the operator"), "{dry:?}");
}

fn explain_receipts_and_restore_agree() {
    let home = Home::new("3s", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    let live = daemon.run(&["explain", "devices", "k", "--json"]).json();
    assert_eq!(live["verdict"], "live", "{live}");
    daemon.until_overdue(1);
    assert_eq!(daemon.run(&["explain", "devices", "k", "--json"]).json()["verdict"], "overdue");
    daemon.run(&["sweep", "devices"]);
    let gone = daemon.run(&["explain", "devices", "k"]);
    assert!(gone.out.contains("reclaimed") && gone.out.contains("registry-devices-1"), "{gone:?}");

    let list = daemon.run(&["receipts", "--json"]).lines();
    assert_eq!(list.len(), 1);
    assert_eq!((&list[0]["id"], &list[0]["key"]), (&json!("registry-devices-1"), &json!("k")));
    assert_eq!(list[0]["reason"], "owner_dead");
    assert!(daemon.run(&["receipts", "devices"]).out.contains("registry-devices-1"));
    assert!(daemon.run(&["receipts", "--key", "other", "--json"]).lines().is_empty());

    let refused = daemon.run(&["restore", "registry-devices-1", "--json"]);
    assert_eq!(refused.code, 1, "its owner is dead: {refused:?}");
    assert_eq!(refused.json()["outcome"], "refused");
    assert_eq!(daemon.run(&["restore", "registry-devices-99"]).code, 1);
    daemon.registry("start", json!({ "owner": "a", "ttl_ms": 60_000 }));
    let back = daemon.run(&["restore", "registry-devices-1", "--json"]);
    assert_eq!(back.code, 0, "{back:?}");
    assert_eq!(back.json()["outcome"], "restored");
    let found = daemon.get("/v1/registry/devices/lookup/k");
    assert_eq!((found.status, &found.body["incarnation"]), (200, &json!(2)), "{found:?}");
}

/// Every receipt's id, page by page.
fn all_pages(daemon: &crate::support::Daemon, filter: &str) -> Vec<String> {
    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = daemon.get(&format!("/v1/receipts?limit=7{filter}{before}"));
        assert_eq!(page.status, 200, "{page:?}");
        let receipts = page.body["receipts"].as_array().unwrap().clone();
        seen.extend(receipts.iter().map(|r| r["id"].as_str().unwrap().to_owned()));
        match page.body["next"].as_str() {
            Some(next) => before = format!("&before={next}"),
            None => return seen,
        }
    }
}

fn receipt_pages_have_no_gaps_and_no_duplicates() {
    let other = "[[system]]\nkind = \"registry\"\nname = \"other\"\nheartbeat_ttl = \"300ms\"";
    let home = Home::new("300ms", &format!("{CALM}\n{other}\n{CALM}"));
    let daemon = home.serve();
    let keys: Vec<String> = (0..25).map(|n| format!("k{n}")).collect();
    for system in ["devices", "other"] {
        let body = json!({ "owner": "dead", "keys": keys });
        daemon.post(&format!("/v1/registry/{system}/register"), body);
    }
    daemon.until_overdue(1);
    for system in ["devices", "registry/other"] {
        crate::support::until("both to be swept", || {
            let name = system.trim_start_matches("registry/");
            daemon.run(&["sweep", system]);
            let of = daemon.get(&format!("/v1/receipts?system={name}&limit=100")).body;
            (of["receipts"].as_array().unwrap().len() == 25).then_some(())
        });
    }
    let ids = |system: &str| -> Vec<String> {
        (1..=25).rev().map(|n| format!("registry-{system}-{n}")).collect()
    };
    for filter in ["&system=devices", "&system=registry/devices&owner=dead"] {
        assert_eq!(all_pages(&daemon, filter), ids("devices"), "{filter}");
    }
    for filter in ["", "&owner=dead"] {
        let seen = all_pages(&daemon, filter);
        assert_eq!(seen.len(), 50, "{filter}: {seen:?}");
        for system in ["devices", "other"] {
            let of: Vec<String> = seen.iter().filter(|id| id.contains(system)).cloned().collect();
            assert_eq!(of, ids(system), "{filter}");
        }
    }
    assert_eq!(all_pages(&daemon, "&key=k3").len(), 2);
    assert_eq!(daemon.run(&["receipts", "-n", "3", "--json"]).lines().len(), 3);
    assert_eq!(daemon.run(&["sweep", "registry"]).code, 2, "which of the two?");
}

/// P7: after a restart nothing is reclaimed before a whole TTL has passed, unless the operator
/// overrides the brake.
fn direct_store_sweep_respects_the_grace_until_overridden() {
    let home = Home::new("5m", CALM);
    let daemon = home.serve();
    daemon.registry("start", json!({ "owner": "a", "ttl_ms": 200 }));
    daemon.hold("a", &["k1", "k2"]);
    assert_eq!(daemon.stop(), Some(0));
    let first = home.run(&["sweep", "devices", "--json"]).json();
    assert_eq!(first["reclaimed"], 0, "{first}");
    assert!(first["detail"].as_str().unwrap().contains("store was away"), "{first}");
    assert!(home.run(&["sweep", "devices"]).out.contains("lapsed brake registry/devices override"));

    let reason = ["--reason", "a is gone", "--yes"];
    assert_eq!(home.run(&[&["brake", "devices", "override"][..], &reason].concat()).code, 0);
    let dry = crate::support::until("both to be overdue", || {
        let dry = home.run(&["sweep", "devices", "--dry-run", "--json"]).json();
        (dry["reclaimed"] == 2).then_some(dry)
    });
    let real = home.run(&["sweep", "devices", "--json"]).json();
    assert_eq!(real["reclaimed"], 2, "{real}");
    assert_eq!(set(&dry), set(&real));
    assert_eq!(home.run(&["receipts", "--json"]).lines().len(), 2);
    assert_eq!(home.run(&["status", "--json"]).json()["systems"][0]["census"]["population"], 0);
    assert_eq!(home.run(&["explain", "devices", "k1", "--json"]).json()["verdict"], "reclaimed");
}

fn a_locked_store_is_reached_through_its_daemon() {
    let home = Home::with("1m", CALM, "token = \"hush\"");
    let daemon = home.serve();
    // The port stays reserved, so that no other test can take it first.
    let text = std::fs::read_to_string(home.config()).unwrap();
    let address = daemon.url.trim_start_matches("http://");
    std::fs::write(home.config(), text.replace("127.0.0.1:0", address)).unwrap();
    let asked = home.run(&["status", "--json", "-v"]);
    assert_eq!(asked.code, 0, "{asked:?}");
    assert!(asked.err.contains("asking the daemon"), "{asked:?}");
    assert_eq!(asked.json()["systems"][0]["system"], "devices");
    assert_eq!(daemon.run(&["status"]).code, 1, "without the token of the configuration");
}

fn status_has_all_documented_fields() {
    let home = Home::new("300ms", CALM);
    let daemon = home.serve();
    daemon.hold("a", &["k"]);
    daemon.until_overdue(1);
    daemon.run(&["sweep", "devices"]);
    let all = daemon.run(&["status", "--json"]).json();
    let one = &all["systems"][0];
    for key in ["system", "kind", "census", "brake", "last_pass", "lag", "store", "threshold_ms"] {
        assert!(!one[key].is_null(), "{key}: {one}");
    }
    assert_eq!(one["last_pass"]["reclaimed"], 1);
    assert_eq!(one["lag"]["samples"], 1);
    let people = daemon.run(&["status"]).out;
    assert!(people.contains("registry/devices") && people.contains("BRAKE"), "{people}");
    let people = daemon.run(&["status", "registry/devices"]).out;
    assert!(people.contains("reclaim lag") && people.contains("brake"), "{people}");
}
