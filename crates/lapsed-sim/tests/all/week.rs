//! What leases in a bucket cost over days: many keys, three daemons with the default policy, users by day
//! and nobody at night, and comparisons of the index. Nobody who acquires may be refused.
//!
//! `make week` runs it with 200,000 keys and seven days, and prints the requests of each day.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lapsed::assembly::Assembly;
use lapsed::leases::default_policy;
use lapsed::stores::StoreUse;
use lapsed_core::clock::Clock;
use lapsed_core::leases::{AcquireRequest, Acquired, LeaseKey, Leases, LeasesParts, LeasesStore};
use lapsed_core::receipt::Observer;
use lapsed_core::reconcile::{ReconcileEnd, ReconcileReport, Reconciled, ResumableReconcile};
use lapsed_core::schedule::{self, StopSignal};
use lapsed_core::sweep::brake::BrakePolicy;
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::{Name, SystemId};
use lapsed_object::{LeasesLayout, RequestKind};
use lapsed_sim::executor::{Executor, World};
use lapsed_sim::leases::bucket::SimBucket;

use crate::lease_process::{Fate, Process, system, tell};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const TTL: Duration = Duration::from_secs(30);
/// The default budget of a store.
const REQUESTS_PER_HOUR: u64 = 100_000;

/// How much of everything.
#[derive(Clone, Copy)]
struct Size {
    keys: usize,
    /// How long a day is. Ten of its 24 hours are working time.
    day: Duration,
    days: u32,
    /// How long each daemon rests between two keys while it is in use.
    between: Duration,
    reconcile_every: Duration,
    reconcile_requests_per_hour: u64,
    forget_after: Duration,
}

/// What the daemons did, together.
#[derive(Default)]
struct Tally {
    acquired: AtomicU64,
    refused: AtomicU64,
    reclaimed: AtomicU64,
    compared: AtomicU64,
    finished: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl Observer for Tally {
    fn passed(&self, report: &PassReport) {
        self.reclaimed.fetch_add(report.reclaimed, Ordering::Relaxed);
    }

    fn healed(&self, _: &SystemId, page: &Reconciled, _: PassMode) {
        self.compared.fetch_add(page.examined, Ordering::Relaxed);
    }

    fn reconciled(&self, report: &ReconcileReport, _: ReconcileEnd<'_>) {
        self.finished.fetch_add(u64::from(report.finished), Ordering::Relaxed);
    }

    fn store_error(&self, _: &SystemId, error: &lapsed_core::Error) {
        self.errors.lock().unwrap().push(error.to_string());
    }
}

impl Size {
    fn is_working_time(self, now: Duration) -> bool {
        now.as_secs() % self.day.as_secs() < self.day.as_secs() * 10 / 24
    }
}

/// A daemon: everything that `lapsed serve` runs for a system of leases, and its users.
fn daemon(world: &Arc<World>, bucket: &Arc<SimBucket>, size: Size, tally: &Arc<Tally>) -> Process {
    let policy = default_policy(StoreUse::PaidByRequest);
    let layout = LeasesLayout {
        forget_after: Some(size.forget_after),
        entry_delay: policy.entry_delay,
        ..LeasesLayout::default()
    };
    let process = Process::within(world, bucket, layout, REQUESTS_PER_HOUR, |_, _, _| Fate::Sent);
    let number = world.new_process();
    let clock = process.clock.clone();
    let assembly = Assembly::new(policy.clone(), BrakePolicy::default(), TTL)
        .clock(clock.clone())
        .observer(tally.clone())
        .process(format!("daemon-{number}"));
    let (sweeper, campaign) = assembly.sweeper(process.leases.clone(), process.store.clone());
    let sweeper = Arc::new(sweeper);
    let (stopper, stop) = StopSignal::channel();
    let reconcile = ResumableReconcile {
        system: system(),
        index: process.leases.clone(),
        store: process.store.clone(),
        clock: clock.clone(),
        observer: tally.clone(),
        idle: assembly.idle_rule(&system(), process.store.clone()),
        every: size.reconcile_every,
        requests_per_hour: size.reconcile_requests_per_hour,
        timeout: policy.timeout,
    };
    let leader = sweeper.clone();
    let told = stop.clone();
    let leads = move || leader.leads() != Some(false);
    world.spawn(number, async move { reconcile.keep(told, leads).await });
    world.spawn(number, schedule::run(sweeper, clock.clone(), stop));
    let campaign = campaign.expect("one of them leads");
    world.spawn(number, campaign.run(std::future::pending()));
    let signs = assembly.activity_signs(&system(), process.store.clone());
    world.spawn(number, signs.run(std::future::pending()));
    let parts = LeasesParts::new(process.leases.clone(), process.store.clone(), TTL)
        .clock(clock.clone())
        .activity(assembly.activity.clone())
        .timeout(policy.timeout);
    let leases = Arc::new(Leases::new(parts, HOUR));
    let (users, tally) = (world.clone(), tally.clone());
    world.spawn(number, async move {
        // The daemon stops with its users, so it is kept here.
        let _stopper = stopper;
        use_leases(&users, &*clock, &leases, size, &tally).await;
    });
    process
}

/// By day, a key after the other is leased; nine of ten are released.
async fn use_leases(world: &World, clock: &dyn Clock, leases: &Leases, size: Size, tally: &Tally) {
    loop {
        clock.sleep(size.between).await;
        if !size.is_working_time(world.now()) {
            continue;
        }
        let which = world.random.between(0, size.keys as u64 - 1);
        let key = LeaseKey::new("jobs", &name(which)).unwrap();
        let owner = Name::new("o").unwrap();
        let wish = AcquireRequest { key, owner, ttl_ms: TTL.as_millis() as u64, request: None };
        match leases.acquire(&wish, Duration::ZERO).await {
            Ok(Acquired::Granted(grant)) => {
                tally.acquired.fetch_add(1, Ordering::Relaxed);
                if !which.is_multiple_of(10) {
                    leases.release(&grant.ticket()).await.unwrap();
                }
            }
            // A key that another daemon's user has just now.
            Ok(Acquired::Held(_)) => {}
            Err(_) => drop(tally.refused.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Keys that were leased once and swept, as copies of one that really was.
fn fill(world: &Arc<World>, bucket: &Arc<SimBucket>, size: Size) {
    let layout = LeasesLayout { forget_after: Some(size.forget_after), ..LeasesLayout::default() };
    let process = Process::within(world, bucket, layout, u64::MAX, |_, _, _| Fate::Sent);
    tell(world, 3, async move {
        let key = LeaseKey::new("jobs", &name(0)).unwrap();
        let wish =
            AcquireRequest { key, owner: Name::new("o").unwrap(), ttl_ms: 30_000, request: None };
        let answer = process.leases.acquire(&wish).await.unwrap().answer;
        let Acquired::Granted(grant) = answer else { panic!("{answer:?}") };
        process.leases.release(&grant.ticket()).await.unwrap();
        process.sleep(2 * 3_600).await;
        process.pass().await;
    });
    bucket.copy_objects(&name(0), (1..size.keys as u64).map(name));
}

fn name(key: u64) -> String {
    format!("k{key:06}")
}

fn live(size: Size) {
    let began = Instant::now();
    let world = World::new(1, false);
    let bucket = SimBucket::new(&world, None);
    fill(&world, &bucket, size);
    let mut executor = Executor::new(&world);
    // Until the next midnight.
    world.spawn(world.new_process(), world.sleep(size.day));
    executor.run(size.day);
    println!("{} objects after filling; {} s", bucket.names().len(), began.elapsed().as_secs());
    let tally = Arc::<Tally>::default();
    let daemons: Vec<Process> = (0..3).map(|_| daemon(&world, &bucket, size, &tally)).collect();
    let mut before: BTreeMap<RequestKind, u64> = BTreeMap::new();
    println!(
        "| day | get | put | list | delete | acquired | reclaimed | rows compared | keys forgotten |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut last = [0; 4];
    for day in 1..=size.days {
        executor.run(size.day * (day + 1));
        let mut now: BTreeMap<RequestKind, u64> = BTreeMap::new();
        for daemon in &daemons {
            for (kind, count) in daemon.store.requests().by_kind {
                *now.entry(kind).or_default() += count;
            }
        }
        let of = |kind| now[&kind] - before.get(&kind).copied().unwrap_or(0);
        let forgotten: u64 = daemons.iter().map(|d| d.leases.keys_forgotten()).sum();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let total =
            [read(&tally.acquired), read(&tally.reclaimed), read(&tally.compared), forgotten];
        let [acquired, reclaimed, compared, gone] =
            std::array::from_fn(|n| total[n] - std::mem::replace(&mut last[n], total[n]));
        println!(
            "| {day} | {} | {} | {} | {} | {acquired} | {reclaimed} | {compared} | {gone} |",
            of(RequestKind::Get),
            of(RequestKind::Put),
            of(RequestKind::List),
            of(RequestKind::Delete)
        );
        before = now;
    }
    println!("{} objects in the end; {} s", bucket.names().len(), began.elapsed().as_secs());
    let withheld: u64 = daemons.iter().map(|d| d.store.requests().withheld).sum();
    let refused = tally.refused.load(Ordering::Relaxed);
    let errors = tally.errors.lock().unwrap();
    assert_eq!((refused, withheld), (0, 0), "{errors:?}");
    assert!(tally.acquired.load(Ordering::Relaxed) > 0);
    assert!(tally.reclaimed.load(Ordering::Relaxed) > 0, "passes run at night");
    assert!(tally.finished.load(Ordering::Relaxed) > 0, "a comparison came to its end");
}

#[test]
fn days_with_three_daemons_refuse_nobody() {
    live(Size {
        keys: 100,
        day: HOUR * 3,
        days: 2,
        between: Duration::from_secs(120),
        reconcile_every: HOUR,
        reconcile_requests_per_hour: 1_000,
        forget_after: HOUR * 3,
    });
}

#[test]
#[ignore = "minutes in release mode: `make week`"]
fn a_week_with_200_000_keys_refuses_nobody() {
    live(Size {
        keys: 200_000,
        day: DAY,
        days: 7,
        between: Duration::from_secs(20),
        reconcile_every: DAY * 3,
        reconcile_requests_per_hour: 10_000,
        forget_after: DAY * 30,
    });
}
