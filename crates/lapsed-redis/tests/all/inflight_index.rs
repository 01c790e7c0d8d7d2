//! What lies beside the records of jobs is damaged in every way there is; reconciling finds it all, in a dry run
//! changes nothing, and heals it.

use lapsed_core::inflight::{Finish, InflightStore, JobPlace};
use lapsed_core::reconcile::{Healed, IndexChange, Reconcile};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_testbed::{Engine, ServerOptions};

use crate::jobs::{World, id, patient};
use crate::story::{name, on_both_engines};

on_both_engines! {
    whatever_is_damaged_is_found_and_healed,
    a_sound_system_is_left_alone,
}

async fn reconcile(world: &World, act: PassMode, limit: usize) -> Vec<IndexChange> {
    let (mut changes, mut next) = (Vec::new(), Some(Cursor::default()));
    for _ in 0..1_000 {
        let Some(after) = next else { return changes };
        let done = world.jobs.reconcile(after, limit, act).await.unwrap();
        changes.extend(done.changes);
        next = done.next;
    }
    panic!("it does not end");
}

fn key(what: &str) -> String {
    format!("lapsed:{{lapsed:inflight}}:{}:{what}", id())
}

async fn whatever_is_damaged_is_found_and_healed(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", 20).await;
    let (claim, taken) = world.dying_worker("w", 10).await;
    let inc = claim.incarnation.unwrap();
    let fail = Finish::Fail { error: "no".to_owned() };
    world.jobs.finish(&[taken[0].ticket(inc), taken[1].ticket(inc)], &fail).await.unwrap();
    let other = world.start("forgotten").await;
    let lost = world.jobs.take(&other, &name("q"), 1).await.unwrap().jobs.remove(0);
    let app = world.app();
    let held = key(&format!("held:{inc}"));
    let number = |args: &[&str]| app.number(args);
    assert_eq!(number(&["ZREM", &held, taken[5].id.as_str()]), 1);
    assert_eq!(number(&["ZADD", &held, "0", "nobody", "0", "j00015"]), 2);
    assert_eq!(number(&["ZREM", &key("dead"), taken[0].id.as_str()]), 1);
    assert_eq!(number(&["ZADD", &key("dead"), "0", "j00016"]), 1);
    assert_eq!(number(&["LREM", &key("queue:q"), "0", "j00017"]), 1);
    number(&["HINCRBY", &key("meta"), "flying", "7"]);
    number(&["HINCRBY", &key("meta"), "entered", "3"]);
    let forgotten = other.incarnation.unwrap().to_string();
    for what in ["lives", "counts"] {
        number(&["HDEL", &key(what), &forgotten]);
    }
    number(&["HDEL", &key("names"), "forgotten"]);
    number(&["DEL", &key(&format!("held:{forgotten}"))]);
    number(&["ZREM", &key("due"), &forgotten]);

    let dry = reconcile(&world, PassMode::DryRun, 7).await;
    assert_eq!(reconcile(&world, PassMode::DryRun, 7).await.len(), dry.len(), "it changed nothing");
    let healed = reconcile(&world, PassMode::Reclaim, 7).await;
    let keys = |changes: &[IndexChange], what: Healed| {
        let keys = changes.iter().filter(|change| change.what == what);
        let mut keys: Vec<String> = keys.map(|change| change.key.clone()).collect();
        keys.sort();
        keys
    };
    let mut added = [taken[0].id.as_str(), taken[5].id.as_str(), "j00017", lost.id.as_str()];
    added.sort_unstable();
    assert_eq!(keys(&healed, Healed::Added), added);
    assert_eq!(keys(&healed, Healed::Removed), ["j00015", "j00016", "nobody"]);
    assert_eq!(keys(&healed, Healed::Corrected), ["entered", "in_flight"]);
    for what in [Healed::Added, Healed::Removed] {
        assert_eq!(keys(&dry, what), keys(&healed, what), "as the dry run said");
    }
    assert_eq!(reconcile(&world, PassMode::Reclaim, 7).await, [], "nothing is left to heal");
    let counts = world.audit("reconciled").await;
    assert_eq!((counts.entered, counts.in_flight, counts.dead, counts.queued), (20, 9, 2, 9));

    // And it goes on as if nothing had been: what the forgotten life held is put back, too.
    world.sweep_all(Policy::default()).await;
    assert_eq!(world.complete_all().await, 18);
    world.audit("reconciled and completed").await;
}

/// While everything is in use.
async fn a_sound_system_is_left_alone(engine: Engine) {
    let world = World::new(ServerOptions::new(engine), patient());
    world.enqueue("j", 300).await;
    let claim = world.start("w").await;
    let incarnation = claim.incarnation.unwrap();
    let working = async {
        for _ in 0..60 {
            let jobs = world.jobs.take(&claim, &name("q"), 5).await.unwrap().jobs;
            let tickets: Vec<_> = jobs.iter().map(|job| job.ticket(incarnation)).collect();
            lapsed_core::owner::OwnerStore::beat(&world.jobs, &claim).await.unwrap();
            world.jobs.finish(&tickets[..3], &Finish::Complete).await.unwrap();
            let back = Finish::GiveBack(lapsed_core::inflight::rules::QueueEnd::Back);
            world.jobs.finish(&tickets[3..4], &back).await.unwrap();
        }
    };
    let looking = async {
        let mut changes = Vec::new();
        for _ in 0..5 {
            changes.extend(reconcile(&world, PassMode::Reclaim, 50).await);
        }
        changes
    };
    let ((), changes) = tokio::join!(working, looking);
    assert_eq!(changes, [], "it was sound all the time");
    let counts = world.audit("reconciled under load").await;
    assert_eq!((counts.completed, counts.in_flight), (180, 60));
    let held = world.jobs.in_flight(&claim, None, 100).await.unwrap();
    let job = world.jobs.job(&held[0]).await.unwrap().unwrap();
    assert!(matches!(job.place, JobPlace::InFlight { .. }));
}
