//! Adopting begins by observing. If `heartbeat_key` is wrong, every owner looks dead, and evicting them all would be an
//! outage that lapsed made. Who was seen alive is kept in the store, so that commands that run once behave the same.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::registry::{AdoptedOwnerState, RegistryStore};
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{AdoptObservation, Outcome, PassMode, Refusal, Stopped, Sweep, Sweeper};
use lapsed_redis::{AdoptedRegistry, Redis, RegistryLayout, Template};
use lapsed_testbed::{Engine, RedisServer};

use crate::story::{
    App, Sum, connect, dry, eventually, held_by, id, keys, layout, name, on_both_engines, pass,
    reclaim, settled, suspects, sweep_until, sweeper,
};

const TTL: Duration = Duration::from_millis(800);

/// An owner with this beat lives for longer than any test.
const LONG_MS: u64 = 600_000;

on_both_engines! {
    with_a_wrong_heartbeat_key_nobody_is_evicted_until_an_operator_confirms,
    a_healthy_fleet_needs_no_confirmation,
    half_of_the_owners_seen_alive_end_the_observation,
    an_operator_s_override_does_not_end_the_observation,
    another_heartbeat_key_begins_observing_anew,
    commands_that_run_once_judge_by_what_earlier_ones_saw,
    trap_a3_a_newcomer_that_registers_before_its_first_heartbeat_keeps_its_entries,
    trap_a3_a_name_that_comes_back_after_its_eviction_is_a_newcomer,
    an_instance_that_restarts_under_its_name_and_beats_first_keeps_what_it_registers,
    an_instance_that_restarts_under_its_name_and_registers_first_loses_it_with_its_old_entries,
    the_guard_itself_spares_a_newcomer,
    explain_tells_a_heartbeat_that_is_gone_from_one_that_never_came,
    a_dry_run_and_a_census_record_nothing,
    records_of_owners_that_hold_nothing_are_removed,
}

struct World {
    server: RedisServer,
    app: App,
    redis: Redis,
    registry: Arc<AdoptedRegistry>,
    sweep: Arc<dyn Sweep>,
}

fn wrong_layout() -> RegistryLayout {
    let heartbeat_key = Template::new("instance:hb:{owner}", "owner").unwrap();
    RegistryLayout { heartbeat_key, ..layout(TTL) }
}

impl World {
    async fn new(engine: Engine, layout: RegistryLayout) -> World {
        let server = RedisServer::start(engine).unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        let registry = Arc::new(redis.adopted_registry(id(), layout).unwrap());
        let world = World { server, app, redis, sweep: registry.clone(), registry };
        settled(&*world.sweep).await;
        world
    }

    /// Five owners that beat under `instance:heartbeat:`, and hold five entries each.
    fn fleet(&self) {
        for owner in ["i-1", "i-2", "i-3", "i-4", "i-5"] {
            self.app.register(owner, &keys(owner, 5));
            self.app.beat(owner, LONG_MS);
        }
    }

    fn sweeper(&self) -> Sweeper {
        sweeper(&self.sweep, &self.redis, Policy::default())
    }

    /// A sweeper of a process that has just been started, with connections of its own.
    fn fresh(&self, layout: RegistryLayout) -> (Arc<dyn Sweep>, Sweeper) {
        let redis = connect(&self.server.url());
        let sweep: Arc<dyn Sweep> = Arc::new(redis.adopted_registry(id(), layout).unwrap());
        let sweeper = sweeper(&sweep, &redis, Policy::default());
        (sweep, sweeper)
    }

    async fn observation(&self) -> AdoptObservation {
        self.sweep.census().await.unwrap().observation.unwrap()
    }

    /// Passes for two whole TTLs, none of which may evict anything.
    async fn observes(&self, sweeper: &Sweeper, entries: usize) {
        let began = std::time::Instant::now();
        while began.elapsed() < 2 * TTL + TTL / 2 {
            let report = pass(sweeper).await;
            assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
            assert_eq!(self.app.registry().len(), entries);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn record(&self) -> Vec<String> {
        let found = self.app.text(&["KEYS", "lapsed:*:observed:*"]);
        let keys: Vec<&str> = found.lines().filter(|line| !line.is_empty()).collect();
        let Some(key) = keys.first() else { return Vec::new() };
        let mut names: Vec<String> =
            self.app.text(&["HKEYS", key]).lines().map(str::to_owned).collect();
        names.sort();
        names
    }
}

async fn with_a_wrong_heartbeat_key_nobody_is_evicted_until_an_operator_confirms(engine: Engine) {
    let world = World::new(engine, wrong_layout()).await;
    world.fleet();
    let sweeper = world.sweeper();
    world.observes(&sweeper, 25).await;
    let report = pass(&sweeper).await;
    let detail = report.detail.unwrap();
    for part in [
        "0 of 5 owners have a heartbeat",
        "`instance:hb:{owner}`",
        "lapsed sweep SYSTEM --dry-run",
        "lapsed adopt SYSTEM",
    ] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let would = dry(&sweeper).await;
    assert_eq!((would.entries.len(), would.stopped), (25, Stopped::Brake), "{would:?}");
    assert_eq!((would.reclaimed, would.skipped.get("brake")), (0, Some(&25)), "{would:?}");
    assert_eq!(world.app.registry().len(), 25, "a dry run changes nothing");
    let confirmed_ms = world.sweep.confirm_adoption().await.unwrap();
    assert_eq!(world.sweep.confirm_adoption().await.unwrap(), confirmed_ms, "once is enough");
    assert_eq!(world.observation().await.confirmed_ms, Some(confirmed_ms));
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    assert_eq!(sum.reclaimed, 25);
}

async fn a_healthy_fleet_needs_no_confirmation(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    let first = pass(&sweeper).await;
    assert_eq!((first.reclaimed, first.stopped), (0, Stopped::Done), "{first:?}");
    let seen = world.observation().await;
    assert_eq!((seen.total, seen.alive, seen.seen_alive, seen.confirmed_ms), (5, 5, 5, None));
    // All of them die: they were seen alive, so that this is not a matter of the configuration.
    for n in 1..=5 {
        world.app.call(&["DEL", &format!("instance:heartbeat:i-{n}")]);
    }
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    assert_eq!(sum.reclaimed, 25);
}

async fn half_of_the_owners_seen_alive_end_the_observation(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    for owner in ["i-1", "i-2", "dead-1", "dead-2", "dead-3"] {
        world.app.register(owner, &keys(owner, 2));
    }
    for owner in ["i-1", "i-2"] {
        world.app.beat(owner, LONG_MS);
    }
    let sweeper = world.sweeper();
    world.observes(&sweeper, 10).await;
    world.app.register("i-3", &keys("i-3", 2));
    world.app.beat("i-3", LONG_MS);
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 6).await;
    assert_eq!(sum.reclaimed, 6, "three of six were seen alive");
}

async fn an_operator_s_override_does_not_end_the_observation(engine: Engine) {
    let world = World::new(engine, wrong_layout()).await;
    world.fleet();
    let overridden = BrakeSetting::Override { reason: "they are dead".to_owned() };
    world.redis.set_brake(&id(), overridden).await.unwrap();
    let sweeper = world.sweeper();
    world.observes(&sweeper, 25).await;
    world.sweep.confirm_adoption().await.unwrap();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
}

/// The owners were seen alive, and then the configuration is changed.
async fn another_heartbeat_key_begins_observing_anew(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    assert_eq!(pass(&world.sweeper()).await.stopped, Stopped::Done);
    let (_sweep, edited) = world.fresh(wrong_layout());
    world.observes(&edited, 25).await;
    let right = pass(&world.sweeper()).await;
    assert_eq!(
        (right.reclaimed, right.stopped),
        (0, Stopped::Done),
        "the other goes on: {right:?}"
    );
}

/// As from a crontab: every pass is a process of its own.
async fn commands_that_run_once_judge_by_what_earlier_ones_saw(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let once = async || pass(&world.fresh(layout(TTL)).1).await;
    assert_eq!(once().await.stopped, Stopped::Done);
    for n in 1..=4 {
        world.app.call(&["DEL", &format!("instance:heartbeat:i-{n}")]);
    }
    let mut reclaimed = 0;
    eventually("the eviction of the four", async || {
        reclaimed += once().await.reclaimed;
        (world.app.registry().len() == 5).then_some(())
    })
    .await;
    assert_eq!(reclaimed, 20, "one of five is alive, and all were seen alive");
    // And with a wrong configuration each of them observes.
    let began = std::time::Instant::now();
    while began.elapsed() < 2 * TTL {
        let report = pass(&world.fresh(wrong_layout()).1).await;
        assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.fresh(wrong_layout()).0.confirm_adoption().await.unwrap();
    eventually("the eviction of the last", async || {
        pass(&world.fresh(wrong_layout()).1).await;
        world.app.registry().is_empty().then_some(())
    })
    .await;
}

async fn trap_a3_a_newcomer_that_registers_before_its_first_heartbeat_keeps_its_entries(
    engine: Engine,
) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    pass(&sweeper).await;
    world.app.register("i-new", &keys("new", 5));
    let began = std::time::Instant::now();
    while began.elapsed() < TTL / 2 {
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, report.suspects), (0, 0), "{report:?}");
    }
    world.app.beat("i-new", LONG_MS);
    tokio::time::sleep(TTL).await;
    assert_eq!(pass(&sweeper).await.reclaimed, 0);
    assert_eq!(world.app.registry().len(), 30);
    // One that never beats is dead a whole TTL after it was first seen.
    world.app.register("i-mute", &keys("mute", 5));
    pass(&sweeper).await;
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 30).await;
    assert_eq!(sum.reclaimed, 5);
}

/// It died, everything was taken from it, and a process with its name registers before it beats.
async fn trap_a3_a_name_that_comes_back_after_its_eviction_is_a_newcomer(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    pass(&sweeper).await;
    world.app.call(&["DEL", "instance:heartbeat:i-1"]);
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 20).await;
    world.app.register("i-1", &keys("again", 5));
    let report = pass(&sweeper).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "{report:?}");
    world.app.beat("i-1", LONG_MS);
    tokio::time::sleep(TTL).await;
    assert_eq!(pass(&sweeper).await.reclaimed, 0);
    assert_eq!(world.app.registry().len(), 25);
}

/// Its heartbeat ran out and its old entries are still there. With one heartbeat before anything else, all of it is its own again.
async fn an_instance_that_restarts_under_its_name_and_beats_first_keeps_what_it_registers(
    engine: Engine,
) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    pass(&sweeper).await;
    world.app.call(&["DEL", "instance:heartbeat:i-1"]);
    world.app.beat("i-1", LONG_MS);
    world.app.register("i-1", &keys("again", 5));
    tokio::time::sleep(2 * TTL).await;
    let report = pass(&sweeper).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Done), "{report:?}");
    assert_eq!(world.app.registry().len(), 30);
}

/// What `docs/guarantees.md` says of P1 in adopt mode: without incarnations, its new entries cannot be told from its old ones.
async fn an_instance_that_restarts_under_its_name_and_registers_first_loses_it_with_its_old_entries(
    engine: Engine,
) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    pass(&sweeper).await;
    world.app.call(&["DEL", "instance:heartbeat:i-1"]);
    world.app.register("i-1", &keys("again", 5));
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 20).await;
    assert_eq!(sum.reclaimed, 10, "the five of before and the five of now");
}

/// Somebody sends its entries to be reclaimed, on whatever ground: the script knows better.
async fn the_guard_itself_spares_a_newcomer(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    pass(&world.sweeper()).await;
    world.app.call(&["DEL", "instance:heartbeat:i-1"]);
    world.sweep.survey(PassMode::Reclaim).await.unwrap();
    let mut found = suspects(&*world.sweep).await;
    assert_eq!(found.len(), 5);
    world.app.register("i-new", &keys("new", 5));
    for (suspect, key) in found.iter_mut().zip(keys("new", 5)) {
        (suspect.owner, suspect.key) = (name("i-new"), name(&key));
    }
    let unknown = reclaim(&*world.sweep, 1, found.clone()).await;
    assert_eq!(unknown.outcomes, vec![Outcome::Refused(Refusal::Newcomer); 5]);
    world.sweep.survey(PassMode::Reclaim).await.unwrap();
    let young = reclaim(&*world.sweep, 2, found.clone()).await;
    assert_eq!(young.outcomes, vec![Outcome::Refused(Refusal::Newcomer); 5]);
    tokio::time::sleep(TTL).await;
    let answer = eventually("an answer that is not held", async || {
        let answer = world.sweep.reclaim(crate::story::batch("late", 3, found.clone())).await;
        answer.ok().filter(|a| a.outcomes[0] != Outcome::Refused(Refusal::StoreAway))
    })
    .await;
    assert!(answer.outcomes.iter().all(|o| matches!(o, Outcome::Reclaimed(_))), "{answer:?}");
}

async fn explain_tells_a_heartbeat_that_is_gone_from_one_that_never_came(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    pass(&sweeper).await;
    world.app.register("i-mute", &keys("mute", 1));
    let life = async |owner: &str| {
        world.registry.adopted_owner_state(&name(owner)).await.unwrap().unwrap()
    };
    assert_eq!(life("i-2").await, AdoptedOwnerState::Alive);
    pass(&sweeper).await;
    let young = life("i-mute").await;
    assert!(matches!(young, AdoptedOwnerState::Newcomer { .. }), "{young:?}");
    assert!(young.describe().contains("if none arrives it is dead in"), "{}", young.describe());
    let mute = eventually("the end of its TTL", async || {
        Some(life("i-mute").await)
            .filter(|life| !matches!(life, AdoptedOwnerState::Newcomer { .. }))
    })
    .await;
    assert!(matches!(mute, AdoptedOwnerState::NeverBeat { .. }), "{mute:?}");
    assert!(mute.describe().contains("never seen with a heartbeat"), "{}", mute.describe());
    world.app.call(&["DEL", "instance:heartbeat:i-1"]);
    let gone = life("i-1").await;
    assert!(matches!(gone, AdoptedOwnerState::HeartbeatGone { .. }), "{gone:?}");
    assert!(gone.describe().contains("was seen and is gone"), "{}", gone.describe());
}

async fn a_dry_run_and_a_census_record_nothing(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    dry(&world.sweeper()).await;
    world.sweep.census().await.unwrap();
    assert_eq!(world.record(), Vec::<String>::new());
    pass(&world.sweeper()).await;
    assert_eq!(world.record(), ["i-1", "i-2", "i-3", "i-4", "i-5"]);
}

async fn records_of_owners_that_hold_nothing_are_removed(engine: Engine) {
    let world = World::new(engine, layout(TTL)).await;
    world.fleet();
    let sweeper = world.sweeper();
    pass(&sweeper).await;
    for (key, _) in held_by("i-4", &keys("i-4", 5)) {
        world.app.call(&["HDEL", "connections:registry", &key]);
    }
    pass(&sweeper).await;
    assert_eq!(world.record(), ["i-1", "i-2", "i-3", "i-5"], "it has unregistered everything");
    let record = world.app.text(&["KEYS", "lapsed:*:observed:*"]);
    assert!(world.app.number(&["TTL", record.trim()]) > 24 * 3_600, "and ends if nobody looks");
}
