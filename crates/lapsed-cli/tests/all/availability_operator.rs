//! One provider that is wrong does not harm the others: a heartbeat from a clock that is ahead, a flip that the
//! database refuses, an id among many that cannot be judged.

use crate::availability_fixture::{CALM, World, id};
use crate::support::until;
use serde_json::{Value, json};

lapsed_testbed::steady_tests! {
    a_heartbeat_of_the_future_counts_for_one_threshold,
    a_flip_that_always_fails_does_not_stop_the_others,
    each_heartbeat_of_a_batch_is_answered_by_itself,
}

/// Settings as short as seconds allow.
fn quick() -> Value {
    json!({ "stale_after_seconds": 2, "heartbeat_cadence_seconds": 1 })
}

fn a_heartbeat_of_the_future_counts_for_one_threshold() {
    let world = World::new(CALM);
    let daemon = world.home.serve();
    daemon.tune(quick());
    let (a, b) = (id(1), id(2));
    daemon.online(&a);
    daemon.online(&b);
    // The application dates by a clock that is days ahead: `a` in both stores, `b` only in its tables.
    let heartbeat = format!("mitra:heartbeat:{a}");
    world.redis(&["SET", &heartbeat, "2099-01-01T00:00:00.000Z", "EX", "1000"]);
    world.sql("UPDATE mitra_online_status SET last_heartbeat_at = now() + interval '3 days'");
    let dry = daemon.post("/v1/sweeps/availability/mitras", json!({ "dry_run": true })).body;
    assert_eq!(dry["reclaimed"], 0, "{dry}");
    assert!(world.redis(&["GET", &heartbeat]).starts_with("2099"), "a dry run changes nothing");
    let mut offline = 0;
    until("both to be set offline", || {
        let report = daemon.post("/v1/sweeps/availability/mitras", json!({})).body;
        offline += report["reclaimed"].as_u64().unwrap_or(0);
        (offline == 2).then_some(())
    });
    assert_eq!((world.logged(&a, "offline"), world.logged(&b, "offline")), (1, 1));
    let ahead = "SELECT count(*) FROM mitra_online_status WHERE last_heartbeat_at > now()";
    assert_eq!(world.sql(ahead), "0");
}

fn a_flip_that_always_fails_does_not_stop_the_others() {
    let world = World::new(CALM);
    let daemon = world.home.serve();
    daemon.tune(quick());
    let (good, bad) = (id(1), id(2));
    daemon.online(&good);
    daemon.online(&bad);
    world.sql(&format!(
        "ALTER TABLE mitra_online_logs ADD CONSTRAINT never CHECK (NOT (mitra_id = '{bad}' AND status = 'offline'))"
    ));
    // Both are due before the first pass that acts, so that one batch has them both.
    until("both to be due", || {
        let dry = daemon.post("/v1/sweeps/availability/mitras", json!({ "dry_run": true })).body;
        (dry["suspects"] == 2).then_some(())
    });
    let sweep = || daemon.post("/v1/sweeps/availability/mitras", json!({})).body;
    for (pass, reclaimed) in [(1, 1), (2, 0)] {
        let report = sweep();
        let seen = (&report["reclaimed"], &report["skipped"]["not_taken"], &report["stopped"]);
        assert_eq!(seen, (&json!(reclaimed), &json!(1), &json!("done")), "pass {pass}: {report}");
        assert_eq!(world.logged(&good, "offline"), 1, "pass {pass}: {report}");
    }
    let log = std::fs::read_to_string(world.home.dir.path().join("log")).unwrap();
    let told = log.lines().find(|line| line.contains("cannot be set offline")).unwrap();
    assert!(told.contains("ERROR") && told.contains(&bad) && told.contains("never"), "{told}");
    world.sql("ALTER TABLE mitra_online_logs DROP CONSTRAINT never");
    daemon.until_offline(1);
    assert_eq!((world.logged(&good, "offline"), world.logged(&bad, "offline")), (1, 1));
}

fn each_heartbeat_of_a_batch_is_answered_by_itself() {
    let world = World::new(CALM);
    let daemon = world.home.serve();
    let (a, b) = (id(1), id(2));
    daemon.online(&a);
    daemon.online(&b);
    // `a` is pending offline, so that only the truth can say, and the truth fails.
    world.redis(&["SREM", "mitras:online", &a]);
    world.redis(&["HSET", "lapsed:{mitras:online}:availability/mitras:doomed", &a, "1:1:1"]);
    world.sql("ALTER TABLE mitra_online_status RENAME TO elsewhere");
    let beat = |ids: &[&str]| daemon.try_mitras("POST", "heartbeats", json!({ "providers": ids }));
    let mixed = beat(&[&a, "line\nfeed", &b]);
    assert_eq!(mixed.status, 200, "{mixed:?}");
    let outcomes: Vec<&str> = mixed.body["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(
        (outcomes, &mixed.body["noted"]),
        (vec!["unavailable", "invalid", "noted"], &json!(1))
    );
    let alone = daemon.try_mitras("POST", &format!("providers/{a}/heartbeat"), Value::Null);
    assert!(alone.status >= 500, "nobody else is answered: {alone:?}");
    world.sql("ALTER TABLE elsewhere RENAME TO mitra_online_status");
    assert_eq!(beat(&[&a, &b]).body["noted"], 2, "the truth voids the decision");
}
