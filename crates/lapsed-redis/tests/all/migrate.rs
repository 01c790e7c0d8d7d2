//! From adopt to native while everything runs: the application still writes its keys, `reconcile`
//! builds the index beside them, and native sweeps evict exactly the dead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapsed_core::clock::SystemClock;
use lapsed_core::owner::{Claim, Ending, OwnerStore};
use lapsed_core::reconcile::{self, ReconcilePlan, ReconcileReport};
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Cursor, Outcome, PassMode, Refusal, Sweep, Sweeper};
use lapsed_redis::{NativeRegistry, Redis, RegistryLayout, Template};
use lapsed_testbed::{Cluster, Engine, Persistence, RedisServer, ServerOptions};

use crate::story::{
    App, Sum, audit, connect, eventually, held_by, id, keys, layout, name, names, on_both_engines,
    pass, receipts, reclaim, suspects, sweep_until, sweeper,
};

const TTL: Duration = Duration::from_secs(1);
const LONG_MS: u64 = 600_000;

struct World {
    server: RedisServer,
    app: App,
    redis: Redis,
    registry: NativeRegistry,
}

impl World {
    fn new(engine: Engine) -> World {
        World::with(ServerOptions::new(engine))
    }

    fn with(options: ServerOptions) -> World {
        let server = options.start().unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        let registry = redis.registry(id(), layout(TTL)).unwrap();
        World { server, app, redis, registry }
    }

    fn living(&self, owner: &str, keys: &[String]) -> Vec<(String, String)> {
        self.app.register(owner, keys);
        self.app.beat(owner, LONG_MS);
        held_by(owner, keys)
    }

    fn sweeper(&self) -> Sweeper {
        let sweep: Arc<dyn Sweep> = Arc::new(self.registry.clone());
        sweeper(&sweep, &self.redis, Policy::default())
    }

    async fn reconcile(&self, act: PassMode) -> ReconcileReport {
        reconcile(&self.registry, act).await
    }

    /// What lapsed has written, as the server sees it; heartbeats come and go by themselves.
    fn digest(&self) -> BTreeMap<String, String> {
        let listed = self.app.text(&["KEYS", "lapsed:*"]);
        let keys = listed.lines().chain(["connections:registry"]);
        keys.map(|key| (key.to_owned(), self.app.text(&["DEBUG", "DIGEST-VALUE", key]))).collect()
    }
}

async fn reconcile(registry: &NativeRegistry, act: PassMode) -> ReconcileReport {
    let (_stopper, stop) = StopSignal::channel();
    let plan = ReconcilePlan { after: Cursor::default(), page: 50, pause: Duration::ZERO, act };
    let clock = SystemClock::shared();
    reconcile::run(&id(), registry, &*clock, plan, &stop, &mut |_| {}).await.unwrap()
}

on_both_engines! {
    the_index_is_built_and_the_dead_are_evicted,
    a_dry_run_says_so_and_changes_nothing,
    what_the_application_removed_or_moved_leaves_the_index,
    a_heartbeat_key_keeps_its_owner_alive_and_its_end_is_the_owner_s,
    a_heartbeat_that_comes_back_keeps_what_is_left,
    a_native_start_gives_the_old_life_one_last_ttl,
    many_owners_that_beat_by_themselves_are_no_mass_death,
    p7_taken_over_just_after_a_restart,
    b10_b11_p8_nothing_is_lost_that_changed_while_it_ran,
}

lapsed_testbed::steady_async_tests! {
    what_cannot_be_judged_is_left_alone,
}

async fn the_index_is_built_and_the_dead_are_evicted(engine: Engine) {
    let world = World::new(engine);
    let living = world.living("i-live", &keys("live", 250));
    world.app.register("i-dead", &keys("dead", 250));
    let first = world.reconcile(PassMode::Reclaim).await;
    assert_eq!((first.added, first.removed, first.finished), (500, 0, true), "{first:?}");
    let second = world.reconcile(PassMode::Reclaim).await;
    assert!(second.agree, "{second:?}");
    let mut sum = Sum::default();
    sweep_until(&world.sweeper(), &mut sum, || world.app.registry().len() == 250).await;
    let receipts = receipts(&world.redis, &id()).await;
    audit(&world.app, &receipts, sum.reclaimed, &keys("dead", 250), &living);
    let third = world.reconcile(PassMode::Reclaim).await;
    assert!(third.agree, "{third:?}");
}

async fn a_dry_run_says_so_and_changes_nothing(engine: Engine) {
    let world = World::new(engine);
    world.living("i-live", &keys("live", 30));
    world.app.register("i-dead", &keys("dead", 30));
    let before = world.digest();
    let would = world.reconcile(PassMode::DryRun).await;
    assert_eq!((would.added, would.dry_run, would.agree), (60, true, false), "{would:?}");
    assert_eq!(world.digest(), before);
    let did = world.reconcile(PassMode::Reclaim).await;
    assert_eq!(did.added, 60);
    world.app.call(&["HDEL", "connections:registry", "live-000003"]);
    let before = world.digest();
    let would = world.reconcile(PassMode::DryRun).await;
    assert_eq!((would.added, would.removed), (0, 1), "{would:?}");
    assert_eq!(world.digest(), before);
}

async fn what_the_application_removed_or_moved_leaves_the_index(engine: Engine) {
    let world = World::new(engine);
    world.living("i-1", &keys("k", 20));
    world.reconcile(PassMode::Reclaim).await;
    world.app.call(&["HDEL", "connections:registry", "k-000000", "k-000001"]);
    world.living("i-2", &["k-000002".to_owned()]);
    let report = world.reconcile(PassMode::Reclaim).await;
    assert_eq!((report.added, report.removed), (1, 3), "{report:?}");
    assert!(world.reconcile(PassMode::Reclaim).await.agree);
    for (owner, held) in [("i-1", 17), ("i-2", 1)] {
        let claim = Claim::newest(name(owner));
        let entries = world.registry.entries(&claim, None, 100).await.unwrap();
        assert_eq!(entries.len(), held, "{owner}");
    }
}

/// No incarnation, no beat through lapsed: the key is all there is, and it is enough. When it is gone
/// the owner is dead at once, not a TTL later (P2).
async fn a_heartbeat_key_keeps_its_owner_alive_and_its_end_is_the_owner_s(engine: Engine) {
    let world = World::new(engine);
    world.app.register("i-1", &keys("k", 10));
    world.app.beat("i-1", 3_000);
    world.reconcile(PassMode::Reclaim).await;
    let sweeper = world.sweeper();
    let began = std::time::Instant::now();
    // Twice as long as the TTL that lapsed is told.
    while began.elapsed() < 2 * TTL {
        world.app.beat("i-1", 2_500);
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, world.app.registry().len()), (0, 10), "{report:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Read off just before its end.
    world.app.beat("i-1", 300);
    let sweep: &dyn Sweep = &world.registry;
    sweep.survey(PassMode::Reclaim).await.unwrap();
    world.app.dies("i-1").await;
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    let receipts = receipts(&world.redis, &id()).await;
    audit(&world.app, &receipts, sum.reclaimed, &keys("k", 10), &[]);
    let owner = world.registry.owner(&Claim::newest(name("i-1"))).await.unwrap().unwrap();
    assert_eq!(owner.ended.unwrap().0, Ending::Dead);
}

/// It was declared dead, half of what it held is gone, and it comes back: what is left is kept, and
/// what it registers again as well (P1).
async fn a_heartbeat_that_comes_back_keeps_what_is_left(engine: Engine) {
    let world = World::new(engine);
    world.app.register("i-1", &keys("k", 6));
    world.reconcile(PassMode::Reclaim).await;
    let found = eventually("six suspects", async || {
        let found = suspects(&world.registry).await;
        (found.len() == 6).then_some(found)
    })
    .await;
    let first = eventually("the first half", async || {
        let answer = reclaim(&world.registry, 1, found[..3].to_vec()).await;
        matches!(answer.outcomes[0], Outcome::Reclaimed(_)).then_some(answer)
    })
    .await;
    assert_eq!(first.owners_ended, 1);
    world.app.beat("i-1", LONG_MS);
    world.app.register("i-1", &keys("k", 2));
    let second = reclaim(&world.registry, 2, found[3..].to_vec()).await;
    assert_eq!(second.outcomes, vec![Outcome::Refused(Refusal::Alive); 3]);
    let report = world.reconcile(PassMode::Reclaim).await;
    assert_eq!((report.added, report.removed), (2, 0), "{report:?}");
    let sweeper = world.sweeper();
    for _ in 0..3 {
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, report.suspects), (0, 0), "{report:?}");
    }
    assert_eq!(world.app.registry().len(), 5);
    assert!(world.reconcile(PassMode::Reclaim).await.agree);
    world.app.beat("i-1", 1);
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().is_empty()).await;
    assert_eq!((sum.reclaimed, receipts(&world.redis, &id()).await.len()), (5, 8));
}

/// The same owner, now through lapsed: from here on the key is its new life's. What the old one held
/// and the new one does not take over goes after one last TTL.
async fn a_native_start_gives_the_old_life_one_last_ttl(engine: Engine) {
    let world = World::new(engine);
    world.living("i-1", &keys("k", 10));
    world.reconcile(PassMode::Reclaim).await;
    let old = world.registry.owner(&Claim::newest(name("i-1"))).await.unwrap().unwrap();
    let began_ms = lapsed_core::store::Store::info(&world.redis).await.unwrap().now_ms;
    let beat = world.registry.start(&name("i-1"), 600_000).await.unwrap();
    assert!(beat.incarnation > old.incarnation);
    let claim = Claim::exact(name("i-1"), beat.incarnation);
    let kept = names(&keys("k", 4));
    world.registry.register(&claim, &kept, TakePolicy::Always).await.unwrap();
    let sweeper = world.sweeper();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 4).await;
    let receipts = receipts(&world.redis, &id()).await;
    let living = held_by("i-1", &keys("k", 4));
    audit(&world.app, &receipts, sum.reclaimed, &keys("k", 10)[4..], &living);
    for receipt in receipts {
        assert_eq!(receipt.incarnation, old.incarnation);
        assert!(receipt.at_ms >= began_ms + TTL.as_millis() as u64, "a whole TTL: {receipt:?}");
    }
    assert!(world.reconcile(PassMode::Reclaim).await.agree);
}

/// Thirty owners whose deadlines in the index have passed, all of them alive: the brake must neither
/// hold nor take them for dead.
async fn many_owners_that_beat_by_themselves_are_no_mass_death(engine: Engine) {
    let world = World::new(engine);
    let mut living = Vec::new();
    for n in 0..30 {
        let owner = format!("i-{n:02}");
        world.app.register(&owner, &keys(&owner, 4));
        world.app.beat(&owner, 700);
        living.extend(held_by(&owner, &keys(&owner, 4)));
    }
    world.reconcile(PassMode::Reclaim).await;
    for n in 0..30 {
        world.app.beat(&format!("i-{n:02}"), LONG_MS);
    }
    world.app.register("i-dead", &keys("dead", 10));
    world.reconcile(PassMode::Reclaim).await;
    // Past the deadlines that were read off at first.
    tokio::time::sleep(Duration::from_millis(800)).await;
    let sweeper = world.sweeper();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == 120).await;
    assert!(!sum.details.iter().any(|d| d.contains("too many owners")), "{sum:?}");
    let receipts = receipts(&world.redis, &id()).await;
    audit(&world.app, &receipts, sum.reclaimed, &keys("dead", 10), &living);
}

/// The heartbeat ran out while the server was down, and the index is built right after: its owner has
/// a whole threshold to beat again.
async fn p7_taken_over_just_after_a_restart(engine: Engine) {
    let world = World::with(ServerOptions::new(engine).persistence(Persistence::Aof));
    world.app.register("i-1", &keys("k", 5));
    world.app.beat("i-1", 100);
    world.server.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    world.server.restart().unwrap();
    let began = std::time::Instant::now();
    let app = App::on(&world.server);
    // A process that knows nothing of what was before.
    let redis = connect(&world.server.url());
    let registry = redis.registry(id(), layout(TTL)).unwrap();
    let report = reconcile(&registry, PassMode::Reclaim).await;
    assert_eq!(report.added, 5, "{report:?}");
    let sweep: Arc<dyn Sweep> = Arc::new(registry.clone());
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    while began.elapsed() < TTL * 3 / 4 {
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, app.registry().len()), (0, 5), "{report:?}");
    }
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().is_empty()).await;
    audit(&app, &receipts(&redis, &id()).await, sum.reclaimed, &keys("k", 5), &[]);
}

/// What the application does all the while, and what must be there in the end.
struct Traffic {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<BTreeMap<String, String>>,
}

impl Traffic {
    fn start(server: &RedisServer, owners: usize, keys: usize) -> Traffic {
        let app = App::on(server);
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut there, mut dice) = (BTreeMap::new(), 12_345_u64);
            for owner in 0..owners {
                app.beat(&format!("i-{owner}"), 5_000);
            }
            while !told.load(Ordering::SeqCst) {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (key, owner) = ((dice >> 33) as usize % keys, (dice >> 20) as usize % owners);
                let (key, owner) = (format!("busy-{key}"), format!("i-{owner}"));
                if dice >> 62 == 0 {
                    app.call(&["HDEL", "connections:registry", &key]);
                    there.remove(&key);
                } else {
                    app.call(&["HSET", "connections:registry", &key, &owner]);
                    there.insert(key, owner.clone());
                }
                if (dice >> 40) % 16 == 0 {
                    app.beat(&owner, 5_000);
                }
            }
            for owner in 0..owners {
                app.beat(&format!("i-{owner}"), LONG_MS);
            }
            there
        });
        Traffic { stop, thread }
    }

    fn end(self) -> BTreeMap<String, String> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

async fn b10_b11_p8_nothing_is_lost_that_changed_while_it_ran(engine: Engine) {
    let world = World::new(engine);
    let mut dead = Vec::new();
    for owner in ["dead-1", "dead-2", "dead-3"] {
        world.app.register(owner, &keys(owner, 300));
        dead.extend(keys(owner, 300));
    }
    let traffic = Traffic::start(&world.server, 12, 400);
    let sweeper = world.sweeper();
    let mut sum = Sum::default();
    let began = std::time::Instant::now();
    // Reconciling and sweeping beside each other, while the application goes on.
    while began.elapsed() < Duration::from_secs(2) {
        let (report, swept) = tokio::join!(world.reconcile(PassMode::Reclaim), pass(&sweeper));
        assert!(report.finished, "{report:?}");
        sum.add(&swept);
    }
    let there = traffic.end();
    world.reconcile(PassMode::Reclaim).await;
    let again = world.reconcile(PassMode::Reclaim).await;
    assert!(again.agree, "nothing changed meanwhile: {again:?}");
    let living: Vec<(String, String)> = there.into_iter().collect();
    sweep_until(&sweeper, &mut sum, || world.app.registry().len() == living.len()).await;
    audit(&world.app, &receipts(&world.redis, &id()).await, sum.reclaimed, &dead, &living);
    // What the index holds is what is there, and its counts say so.
    let dry = world.reconcile(PassMode::DryRun).await;
    assert!(dry.agree, "{dry:?}");
    let owners = world.registry.owners(None, 1_000).await.unwrap();
    let held: u64 = owners.iter().map(|owner| owner.held).sum();
    assert_eq!(held, living.len() as u64);
}

/// On a cluster whose heartbeats lie in other slots, the application's entries cannot be judged: they are
/// left alone, and that is reported.
async fn what_cannot_be_judged_is_left_alone() {
    let cluster = Cluster::start(Engine::Redis, 3).unwrap();
    let redis = connect(&cluster.url());
    let registry = redis.registry(id(), layout(TTL)).unwrap();
    let node = |key: &str| {
        let node = cluster.master_of_slot(cluster.slot_of(key)).unwrap();
        App::on(&cluster.nodes()[node])
    };
    node("connections:registry").register("i-1", &keys("k", 5));
    node("instance:heartbeat:i-1").beat("i-1", LONG_MS);
    let report = reconcile(&registry, PassMode::Reclaim).await;
    assert_eq!(report.left.get("heartbeat_in_another_slot"), Some(&5), "{report:?}");
    let sweep: Arc<dyn Sweep> = Arc::new(registry);
    let first = sweeper(&sweep, &redis, Policy::default());
    assert_eq!(pass(&first).await.reclaimed, 0);
    assert_eq!(node("connections:registry").registry().len(), 5);
    // With one hash tag for both it works.
    let tagged = RegistryLayout {
        registry_key: "{c}:registry".to_owned(),
        heartbeat_key: Template::new("{c}:hb:{owner}", "owner").unwrap(),
        ..layout(TTL)
    };
    let system = lapsed_core::SystemId::new(lapsed_core::Kind::Registry, "tagged").unwrap();
    let registry = redis.registry(system, tagged).unwrap();
    let app = node("{c}:registry");
    app.call(&["HSET", "{c}:registry", "a", "i-live", "b", "i-dead"]);
    app.call(&["SET", "{c}:hb:i-live", "1", "PX", "600000"]);
    assert_eq!(reconcile(&registry, PassMode::Reclaim).await.added, 2);
    let sweep: Arc<dyn Sweep> = Arc::new(registry);
    let second = sweeper(&sweep, &redis, Policy::default());
    let mut sum = Sum::default();
    sweep_until(&second, &mut sum, || app.number(&["HLEN", "{c}:registry"]) == 1).await;
    assert_eq!(app.text(&["HGET", "{c}:registry", "a"]), "i-live");
}
