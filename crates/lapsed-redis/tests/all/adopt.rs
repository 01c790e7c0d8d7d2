//! The registry of seed 000 as it is: keys that an application writes, which knows nothing of lapsed.
//! lapsed looks, and evicts what the dead left behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::Reason;
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Outcome, PassMode, Refusal, Stopped, Sweep};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Kind, SystemId};
use lapsed_redis::{AdoptedRegistry, Redis, RegistryLayout, Template};
use lapsed_testbed::{Cluster, Engine, Persistence, RedisServer, ServerOptions};

use crate::story::{
    App, Sum, audit, batch, connect, dry, eventually, held_by, id, keys, layout, name,
    on_both_engines, pass, receipts, reclaim, settled, suspects, sweep_until, sweeper,
};

/// What a heartbeat is expected to last: what the store-away grace waits for.
const TTL: Duration = Duration::from_secs(1);

/// Long enough for any test: an owner with this beat lives.
const LONG_MS: u64 = 600_000;

struct World {
    server: RedisServer,
    app: App,
    redis: Redis,
    registry: Arc<AdoptedRegistry>,
    sweep: Arc<dyn Sweep>,
}

impl World {
    async fn new(engine: Engine) -> World {
        let world = World::young(ServerOptions::new(engine));
        settled(&*world.sweep).await;
        world
    }

    /// The server has just been started.
    fn young(options: ServerOptions) -> World {
        let server = options.start().unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        let registry = Arc::new(redis.adopted_registry(id(), layout(TTL)).unwrap());
        World { server, app, redis, sweep: registry.clone(), registry }
    }

    /// Somebody who holds that much, was seen alive, and has beaten for the last time.
    async fn dead(&self, owner: &str, keys: &[String]) {
        self.app.register(owner, keys);
        self.app.beat(owner, LONG_MS);
        self.sweep.survey(PassMode::Reclaim).await.unwrap();
        self.app.beat(owner, 1);
        self.app.dies(owner).await;
    }

    fn living(&self, owner: &str, keys: &[String]) -> Vec<(String, String)> {
        self.app.register(owner, keys);
        self.app.beat(owner, LONG_MS);
        held_by(owner, keys)
    }

    fn sweeper(&self) -> lapsed_core::sweep::Sweeper {
        sweeper(&self.sweep, &self.redis, Policy::default())
    }

    async fn receipts(&self) -> Vec<lapsed_core::receipt::Receipt> {
        receipts(&self.redis, &id()).await
    }
}

on_both_engines! {
    the_dead_are_evicted_and_the_living_kept,
    trap_a1_a_key_that_was_registered_elsewhere_in_between_is_kept,
    a_heartbeat_that_comes_back_in_between_wins,
    trap_a2_two_sweepers_count_what_they_did,
    trap_a6_a_pass_reads_in_pages_and_asks_once_an_owner,
    a_dry_run_lists_what_a_pass_evicts_and_changes_nothing,
    restore_succeeds_once_if_the_entry_is_free_and_the_owner_is_alive,
    a_batch_in_doubt_is_settled_by_its_receipts,
    the_operator_s_brake_holds_everything,
    a_mass_death_is_held_and_opens_in_steps_the_most_overdue_first,
    deaths_one_after_another_are_a_mass_death_too,
    deaths_that_single_passes_find_one_after_another_are_a_mass_death_too,
    an_owner_that_has_come_back_is_no_recent_death,
    entries_that_are_not_text_are_left_alone,
    a_registry_key_of_the_wrong_type_is_reported_and_left_alone,
    a_process_that_makes_no_passes_sees_the_end_of_an_outage,
    p7_after_a_restart_everybody_has_a_whole_threshold_to_beat_again,
    p7_after_flushall_everybody_has_a_whole_threshold_to_beat_again,
    writing_through_lapsed_is_refused_with_the_way_out,
}

lapsed_testbed::steady_async_tests! {
    on_a_cluster_the_layout_must_lie_in_one_slot,
}

async fn the_dead_are_evicted_and_the_living_kept(engine: Engine) {
    let world = World::new(engine).await;
    let living = world.living("i-live", &keys("live", 300));
    world.dead("i-dead", &keys("dead", 700)).await;
    let sweeper = world.sweeper();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 300).await;
    let receipts = world.receipts().await;
    audit(&world.app, &receipts, sum.reclaimed, &keys("dead", 700), &living);
    for receipt in &receipts {
        assert_eq!((receipt.owner.as_str(), receipt.reason), ("i-dead", Reason::OwnerDead));
        assert!(receipt.evidence.judged_ms >= receipt.evidence.deadline_ms);
    }
    let seqs: Vec<u64> = receipts.iter().map(|r| r.id.seq).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
    let last = pass(&sweeper).await;
    assert_eq!((last.reclaimed, last.suspects, last.examined), (0, 0, 300), "{last:?}");
}

/// Seed 000, "race with re-registration": the entry is another one's by the time of the decisive step.
async fn trap_a1_a_key_that_was_registered_elsewhere_in_between_is_kept(engine: Engine) {
    let world = World::new(engine).await;
    world.dead("i-dead", &keys("k", 3)).await;
    world.sweep.survey(PassMode::Reclaim).await.unwrap();
    let found = suspects(&*world.sweep).await;
    assert_eq!(found.len(), 3);
    world.living("i-new", &keys("k", 1));
    world.app.call(&["HDEL", "connections:registry", "k-000002"]);
    let answer = reclaim(&*world.sweep, 1, found).await;
    assert_eq!(answer.outcomes[0], Outcome::Refused(Refusal::Moved));
    assert!(matches!(answer.outcomes[1], Outcome::Reclaimed(Some(_))), "{answer:?}");
    assert_eq!(answer.outcomes[2], Outcome::Gone);
    let left = world.app.registry();
    assert_eq!(left.into_iter().collect::<Vec<_>>(), held_by("i-new", &keys("k", 1)));
    assert_eq!(world.receipts().await.len(), 1);
}

async fn a_heartbeat_that_comes_back_in_between_wins(engine: Engine) {
    let world = World::new(engine).await;
    world.dead("i-1", &keys("k", 5)).await;
    world.sweep.survey(PassMode::Reclaim).await.unwrap();
    let found = suspects(&*world.sweep).await;
    assert_eq!(found.len(), 5);
    world.app.beat("i-1", LONG_MS);
    let answer = reclaim(&*world.sweep, 1, found).await;
    assert_eq!(answer.outcomes, vec![Outcome::Refused(Refusal::Alive); 5]);
    assert_eq!((world.app.registry().len(), world.receipts().await.len()), (5, 0));
    // A heartbeat without an end is one, too.
    world.app.call(&["PERSIST", "instance:heartbeat:i-1"]);
    assert_eq!(pass(&world.sweeper()).await.reclaimed, 0);
}

async fn trap_a2_two_sweepers_count_what_they_did(engine: Engine) {
    let world = World::new(engine).await;
    let living = world.living("i-live", &keys("live", 100));
    let mut dead = Vec::new();
    for owner in ["i-1", "i-2", "i-3"] {
        world.dead(owner, &keys(owner, 700)).await;
        dead.extend(keys(owner, 700));
    }
    let other = connect(&world.server.url());
    let second: Arc<dyn Sweep> = Arc::new(other.adopted_registry(id(), layout(TTL)).unwrap());
    let (one, two) = (world.sweeper(), sweeper(&second, &other, Policy::default()));
    let mut sum = Sum::default();
    sweep_until(&one, &mut sum, || world.app.registry().len() == 100).await;
    // Again with both at once.
    for owner in ["i-4", "i-5", "i-6"] {
        world.dead(owner, &keys(owner, 700)).await;
        dead.extend(keys(owner, 700));
    }
    eventually("everything gone", async || {
        let (a, b) = tokio::join!(pass(&one), pass(&two));
        sum.add(&a);
        sum.add(&b);
        (world.app.registry().len() == 100).then_some(())
    })
    .await;
    audit(&world.app, &world.receipts().await, sum.reclaimed, &dead, &living);
}

/// A large registry: it is read in pages, and no owner is looked up twice.
async fn trap_a6_a_pass_reads_in_pages_and_asks_once_an_owner(engine: Engine) {
    let world = World::new(engine).await;
    let mut all = 0;
    for owner in 0..20 {
        let owner = format!("i-{owner:02}");
        world.living(&owner, &keys(&owner, 1_000));
        all += 1_000;
    }
    world.dead("i-dead", &keys("dead", 50)).await;
    let sweeper = world.sweeper();
    let asked = eventually("a pass that is not held", async || {
        world.app.call(&["CONFIG", "RESETSTAT"]);
        let report = pass(&sweeper).await;
        (report.reclaimed == 50).then(|| world.app.text(&["INFO", "commandstats"]))
    })
    .await;
    let calls = |command: &str| -> u64 {
        let line = asked.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    assert_eq!(calls("pttl"), 21, "{asked}");
    assert!(calls("exists") <= 5, "in the guard, once a batch: {asked}");
    for whole in ["hgetall", "hkeys", "hvals", "keys", "smembers", "scan"] {
        assert!(calls(whole) <= u64::from(whole == "hkeys"), "{whole}: {asked}");
    }
    let pages = calls("hscan");
    assert!((all / 2_000..=all / 250).contains(&pages), "{pages} pages for {all} entries");
    assert!(calls("hdel") <= 4 && calls("hdel") > 0);
}

async fn a_dry_run_lists_what_a_pass_evicts_and_changes_nothing(engine: Engine) {
    let world = World::new(engine).await;
    world.living("i-live", &keys("live", 10));
    world.dead("i-dead", &keys("dead", 60)).await;
    let sweeper = world.sweeper();
    let before = world.app.registry();
    let would = dry(&sweeper).await;
    assert_eq!(
        (would.reclaimed, would.stopped, would.dry_run),
        (60, Stopped::Done, true),
        "{would:?}"
    );
    assert_eq!(world.app.registry(), before);
    assert!(world.receipts().await.is_empty());
    let did = pass(&sweeper).await;
    let listed = |report: &lapsed_core::sweep::PassReport| -> Vec<_> {
        report.entries.iter().map(|e| (e.key.clone(), e.owner.clone(), e.deadline_ms)).collect()
    };
    assert_eq!((did.reclaimed, did.examined), (60, would.examined), "{did:?}");
    let (mut would, mut did) = (listed(&would), listed(&did));
    would.sort();
    did.sort();
    assert_eq!(would, did);
}

async fn restore_succeeds_once_if_the_entry_is_free_and_the_owner_is_alive(engine: Engine) {
    let world = World::new(engine).await;
    world.dead("i-1", &keys("k", 3)).await;
    let mut sum = Sum::default();
    let sweeper = world.sweeper();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    let receipts = world.receipts().await;
    let refused = |answer: Restored| match answer {
        Restored::Refused { why } => why,
        other => panic!("{other:?}"),
    };
    let dead = world.registry.restore(receipts[0].id.seq).await.unwrap();
    assert!(refused(dead).contains("not alive"));
    world.app.beat("i-1", LONG_MS);
    world.living("i-2", &[receipts[1].key.to_string()]);
    let taken = world.registry.restore(receipts[1].id.seq).await.unwrap();
    assert!(refused(taken).contains("i-2"));
    let done = world.registry.restore(receipts[0].id.seq).await.unwrap();
    assert!(matches!(done, Restored::Restored { .. }), "{done:?}");
    assert_eq!(world.app.registry()[receipts[0].key.as_str()], "i-1");
    let again = world.registry.restore(receipts[0].id.seq).await.unwrap();
    assert!(refused(again).contains("before"));
    let nobody = world.registry.restore(7).await.unwrap();
    assert!(refused(nobody).contains("no receipt"));
    let marked = world.receipts().await;
    assert!(marked[0].restored_ms.is_some() && marked[1].restored_ms.is_none());
    assert_eq!(pass(&sweeper).await.reclaimed, 0, "what was put back stays");
}

async fn a_batch_in_doubt_is_settled_by_its_receipts(engine: Engine) {
    let world = World::new(engine).await;
    world.dead("i-1", &keys("k", 4)).await;
    world.sweep.survey(PassMode::Reclaim).await.unwrap();
    let found = suspects(&*world.sweep).await;
    let (first, second) = (batch("s", 1, found[..2].to_vec()), batch("s", 2, found[2..].to_vec()));
    // The answer is lost: its receipts tell.
    world.sweep.reclaim(first.clone()).await.unwrap();
    let told = world.sweep.settle(&first.id).await.unwrap();
    assert_eq!(told, world.receipts().await);
    assert_eq!(told.len(), 2);
    // It arrives a second time: the same receipts, and nothing more.
    let again = world.sweep.reclaim(first).await.unwrap();
    let seqs: Vec<u64> =
        again.outcomes.into_iter().filter_map(|o| o.receipt()).map(|r| r.id.seq).collect();
    assert_eq!(seqs, told.iter().map(|r| r.id.seq).collect::<Vec<_>>());
    // It was not carried out: it never will be.
    assert!(world.sweep.settle(&second.id).await.unwrap().is_empty());
    let late = world.sweep.reclaim(second).await.unwrap();
    assert_eq!(late.outcomes, vec![Outcome::Gone; 2]);
    assert_eq!((world.app.registry().len(), world.receipts().await.len()), (2, 2));
}

async fn the_operator_s_brake_holds_everything(engine: Engine) {
    let world = World::new(engine).await;
    world.dead("i-1", &keys("k", 4)).await;
    world.redis.set_brake(&id(), BrakeSetting::Hold).await.unwrap();
    let sweeper = world.sweeper();
    let held = pass(&sweeper).await;
    assert_eq!((held.reclaimed, held.stopped, world.app.registry().len()), (0, Stopped::Brake, 4));
    assert_eq!(held.skipped.get("brake"), Some(&4), "{held:?}");
    assert!(held.detail.unwrap().contains("operator"));
    world.redis.set_brake(&id(), BrakeSetting::Auto).await.unwrap();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    assert_eq!(sum.reclaimed, 4);
}

/// Eight of twelve: the network, more likely. But it must not be held for ever (X3).
async fn a_mass_death_is_held_and_opens_in_steps_the_most_overdue_first(engine: Engine) {
    let world = World::new(engine).await;
    let mut living = Vec::new();
    for n in 0..4 {
        living.extend(world.living(&format!("live-{n}"), &keys(&format!("live-{n}"), 5)));
    }
    // The last by name is the first to die.
    let (mut dead, mut order) = (Vec::new(), Vec::new());
    for n in (0..8u64).rev() {
        let owner = format!("dead-{n}");
        world.app.register(&owner, &keys(&owner, 5));
        world.app.beat(&owner, 1_500 + 200 * (8 - n));
        dead.extend(keys(&owner, 5));
        order.push(owner);
    }
    let sweeper = world.sweeper();
    let alive = pass(&sweeper).await;
    assert_eq!((alive.reclaimed, alive.suspects), (0, 0), "{alive:?}");
    for owner in &order {
        world.app.dies(owner).await;
    }
    let held = pass(&sweeper).await;
    assert_eq!((held.reclaimed, held.stopped), (0, Stopped::Brake), "{held:?}");
    assert_eq!(world.app.registry().len(), 60);
    let first = eventually("the first step", async || {
        let report = pass(&sweeper).await;
        (report.reclaimed > 0).then_some(report)
    })
    .await;
    let evicted: BTreeSet<String> = first.entries.iter().map(|e| e.owner.to_string()).collect();
    assert_eq!(evicted, order[..2].iter().cloned().collect(), "a tenth of twelve, rounded up");
    let mut sum = Sum::default();
    sum.add(&first);
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == living.len()).await;
    assert!(sum.passes >= 2, "in steps: {sum:?}");
    audit(&world.app, &world.receipts().await, sum.reclaimed, &dead, &living);
}

/// A partition does not kill everybody in the same instant: who was evicted a moment ago counts.
async fn deaths_one_after_another_are_a_mass_death_too(engine: Engine) {
    let ttl = Duration::from_secs(4);
    let world = World::new(engine).await;
    let registry = world.redis.adopted_registry(id(), layout(ttl)).unwrap();
    let sweep: Arc<dyn Sweep> = Arc::new(registry);
    settled(&*sweep).await;
    for n in 0..20 {
        world.living(&format!("i-{n:02}"), &keys(&format!("i-{n:02}"), 3));
    }
    let sweeper = sweeper(&sweep, &world.redis, Policy::default());
    pass(&sweeper).await;
    let mut gone = 0;
    let mut held = false;
    for n in 0..16 {
        world.app.call(&["DEL", &format!("instance:heartbeat:i-{n:02}")]);
        let report = pass(&sweeper).await;
        gone += report.reclaimed / 3;
        held |= report.stopped == Stopped::Brake;
    }
    assert!(held && gone <= 12, "{gone} of 20 owners were evicted within {ttl:?}");
}

/// As from a crontab, or by daemons that take turns: each pass is one of a process that has seen nothing before.
async fn deaths_that_single_passes_find_one_after_another_are_a_mass_death_too(engine: Engine) {
    let ttl = Duration::from_secs(6);
    let world = World::new(engine).await;
    let registry = || world.redis.adopted_registry(id(), layout(ttl)).unwrap();
    settled(&registry()).await;
    for n in 0..20 {
        world.living(&format!("i-{n:02}"), &keys(&format!("i-{n:02}"), 3));
    }
    let single_pass = async || {
        let sweep: Arc<dyn Sweep> = Arc::new(registry());
        pass(&sweeper(&sweep, &world.redis, Policy::default())).await
    };
    single_pass().await;
    let (mut gone, mut held) = (0, false);
    for n in 0..16 {
        world.app.call(&["DEL", &format!("instance:heartbeat:i-{n:02}")]);
        let report = single_pass().await;
        gone += report.reclaimed / 3;
        held |= report.stopped == Stopped::Brake;
    }
    assert!(held && gone <= 11, "{gone} of 20 owners were evicted within {ttl:?}");
}

async fn an_owner_that_has_come_back_is_no_recent_death(engine: Engine) {
    let world = World::new(engine).await;
    world.living("i-live", &keys("live", 3));
    world.dead("i-dead", &keys("dead", 3)).await;
    let recent =
        async || world.sweep.survey(PassMode::Reclaim).await.unwrap().unwrap().owners_died_recently;
    let mut sum = Sum::default();
    sweep_until(&world.sweeper(), &mut sum, || world.app.registry().len() == 3).await;
    assert_eq!(recent().await, 1);
    world.living("i-dead", &keys("dead", 3));
    assert_eq!(recent().await, 0);
    world.app.call(&["HDEL", "connections:registry", "dead-000000", "dead-000001", "dead-000002"]);
    assert_eq!(recent().await, 0, "it was alive when it left");
}

async fn entries_that_are_not_text_are_left_alone(engine: Engine) {
    let world = World::new(engine).await;
    world.dead("i-1", &keys("k", 2)).await;
    for (key, owner) in [(&b"\xff\xfe"[..], &b"i-1"[..]), (b"x", b"\xff"), (b"new\nline", b"i-1")] {
        world.app.bytes(&[b"HSET", b"connections:registry", key, owner]);
    }
    let sweeper = world.sweeper();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 3).await;
    let last = pass(&sweeper).await;
    assert_eq!((last.reclaimed, last.errors), (0, 0), "{last:?}");
    assert_eq!((sum.reclaimed, world.app.registry().len()), (2, 3));
}

async fn a_registry_key_of_the_wrong_type_is_reported_and_left_alone(engine: Engine) {
    let world = World::new(engine).await;
    world.app.call(&["SET", "connections:registry", "mine"]);
    let sweeper = world.sweeper();
    let report = pass(&sweeper).await;
    assert_eq!((report.reclaimed, report.errors, report.stopped), (0, 1, Stopped::Error));
    let detail = report.detail.unwrap();
    assert!(detail.contains("WRONGTYPE") && detail.contains("another type"), "{detail}");
    let error = world.sweep.survey(PassMode::Reclaim).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    let suspect = lapsed_core::sweep::Suspect {
        key: name("k"),
        owner: name("i-1"),
        incarnation: lapsed_core::owner::Incarnation(0),
        deadline_ms: 1,
        reason: Reason::OwnerDead,
    };
    let error = world.sweep.reclaim(batch("s", 1, vec![suspect])).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert_eq!(world.app.text(&["GET", "connections:registry"]), "mine");
    assert!(world.receipts().await.is_empty());
    world.app.call(&["DEL", "connections:registry"]);
    world.dead("i-1", &keys("k", 2)).await;
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    assert_eq!(sum.reclaimed, 2);
}

/// The heartbeats ran out while the server was down; their owners are as alive as ever.
async fn p7_after_a_restart_everybody_has_a_whole_threshold_to_beat_again(engine: Engine) {
    let world = World::young(ServerOptions::new(engine).persistence(Persistence::Aof));
    settled(&*world.sweep).await;
    world.app.register("i-1", &keys("k", 5));
    world.app.register("i-2", &keys("l", 5));
    let sweeper = world.sweeper();
    for ttl_ms in [LONG_MS, 200] {
        for owner in ["i-1", "i-2"] {
            world.app.beat(owner, ttl_ms);
        }
        pass(&sweeper).await;
    }
    world.server.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(250)).await;
    world.server.restart().unwrap();
    let app = App::on(&world.server);
    let began = std::time::Instant::now();
    // One that ran before, and one that has just been started.
    let other = connect(&world.server.url());
    let second: Arc<dyn Sweep> = Arc::new(other.adopted_registry(id(), layout(TTL)).unwrap());
    let fresh = crate::story::sweeper(&second, &other, Policy::default());
    let mut sum = Sum::default();
    while began.elapsed() < TTL / 2 {
        sum.add(&pass(&sweeper).await);
        sum.add(&pass(&fresh).await);
        assert_eq!((sum.reclaimed, app.registry().len()), (0, 10), "{sum:?}");
    }
    app.beat("i-1", LONG_MS);
    sweep_until(&fresh, &mut sum, || app.registry().len() == 5).await;
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 5).await;
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &keys("l", 5), &held_by("i-1", &keys("k", 5)));
}

/// A follower scans once, during an outage, and makes no passes. It would report the outage, and its brake
/// would be alerted of, for as long as it runs.
async fn a_process_that_makes_no_passes_sees_the_end_of_an_outage(engine: Engine) {
    let world = World::new(engine).await;
    for owner in ["i-1", "i-2", "i-3"] {
        world.dead(owner, &keys(owner, 2)).await;
    }
    let redis = connect(&world.server.url());
    let follower = redis.adopted_registry(id(), layout(TTL)).unwrap();
    assert_eq!(follower.census().await.unwrap().owners_overdue, 3);
    assert_eq!(follower.census().await.unwrap().owners_overdue, 3, "from the last scan");
    for owner in ["i-1", "i-2", "i-3"] {
        world.app.beat(owner, LONG_MS);
    }
    world.living("i-4", &keys("new", 1));
    eventually("the follower to see who is alive", async || {
        let census = follower.census().await.unwrap();
        (census.owners_overdue == 0 && census.owners_live == 4).then_some(())
    })
    .await;
    assert_eq!(follower.owners(None, 10).await.unwrap().len(), 4);
}

/// Everything is gone, the heartbeats too. Devices register again before their instance beats again.
async fn p7_after_flushall_everybody_has_a_whole_threshold_to_beat_again(engine: Engine) {
    let world = World::new(engine).await;
    world.living("i-1", &keys("k", 5));
    world.dead("i-0", &keys("z", 2)).await;
    let sweeper = world.sweeper();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 5).await;
    world.app.call(&["FLUSHALL"]);
    world.app.register("i-1", &keys("k", 5));
    let began = std::time::Instant::now();
    while began.elapsed() < TTL * 3 / 4 {
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, world.app.registry().len()), (0, 5), "{report:?}");
    }
    world.app.beat("i-1", LONG_MS);
    assert_eq!(pass(&sweeper).await.reclaimed, 0, "it is seen alive");
    world.app.beat("i-1", 100);
    world.app.dies("i-1").await;
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    assert_eq!(sum.reclaimed, 5);
}

async fn writing_through_lapsed_is_refused_with_the_way_out(engine: Engine) {
    let world = World::new(engine).await;
    world.living("i-1", &keys("k", 1));
    let claim = Claim::newest(name("i-1"));
    let registered =
        world.registry.register(&claim, &[name("k")], TakePolicy::Always).await.unwrap_err();
    let beaten = world.registry.beat(&claim).await.unwrap_err();
    for error in [registered, beaten] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("mode = \"native\""), "{error}");
    }
    let found = world.registry.find(&[name("k-000000"), name("nobody")]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().holder.owner, name("i-1"));
    assert!(found[1].is_none());
}

/// On a cluster the guard needs the hash and the heartbeats in one slot.
async fn on_a_cluster_the_layout_must_lie_in_one_slot() {
    let cluster = Cluster::start(Engine::Valkey, 3).unwrap();
    let redis = connect(&cluster.url());
    let error = redis.adopted_registry(id(), layout(TTL)).err().unwrap();
    let words = error.to_string();
    assert!(matches!(error, Error::Invalid(_)), "{words}");
    for part in ["connections:registry", "instance:heartbeat:{owner}", "one slot", "hash tag"] {
        assert!(words.contains(part), "{words}");
    }
    let tagged = RegistryLayout {
        registry_key: "{c}:registry".to_owned(),
        heartbeat_key: Template::new("{c}:hb:{owner}", "owner").unwrap(),
        ..layout(TTL)
    };
    let system = SystemId::new(Kind::Registry, "tagged").unwrap();
    let registry = redis.adopted_registry(system.clone(), tagged).unwrap();
    let sweep: Arc<dyn Sweep> = Arc::new(registry);
    settled(&*sweep).await;
    let node = cluster.master_of_slot(cluster.slot_of("{c}:registry")).unwrap();
    let app = App::on(&cluster.nodes()[node]);
    for key in 0..30 {
        app.call(&["HSET", "{c}:registry", &format!("dead-{key}"), "i-dead"]);
        app.call(&["HSET", "{c}:registry", &format!("live-{key}"), "i-live"]);
    }
    app.call(&["SET", "{c}:hb:i-live", "1", "PX", "600000"]);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let mut sum = Sum::default();
    let count = || app.number(&["HLEN", "{c}:registry"]);
    sweep_until(&sweeper, &mut sum, || count() == 30).await;
    assert_eq!((sum.reclaimed, receipts(&redis, &system).await.len()), (30, 30));
    assert_eq!(app.text(&["HGET", "{c}:registry", "live-7"]), "i-live");
}
