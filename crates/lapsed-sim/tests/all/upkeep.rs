//! The upkeep of leases in a bucket that several processes share: who sweeps and compares when, how fast,
//! and out of whose budget.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::SystemId;
use lapsed_core::leases::{LeaseKey, Leases, LeasesParts};
use lapsed_core::receipt::Observer;
use lapsed_core::reconcile::{ReconcileEnd, ReconcileReport, Reconciled, ResumableReconcile};
use lapsed_core::schedule::StopSignal;
use lapsed_core::store_caller::Activity;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, Stopped, SweeperParts};
use lapsed_core::upkeep::{ActivitySigns, IdleRule};
use lapsed_object::LeasesLayout;
use lapsed_sim::executor::World;
use lapsed_sim::leases::bucket::SimBucket;

use crate::lease_process::{Fate, Process, layout, system, tell};

const MINUTE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(300);

/// The leases of a process whose use others see.
fn used(world: &Arc<World>, process: &Process) -> Leases {
    let activity = Arc::<Activity>::default();
    let parts =
        LeasesParts::new(process.leases.clone(), process.store.clone(), Duration::from_secs(30))
            .clock(process.clock.clone())
            .activity(activity.clone())
            .timeout(MINUTE);
    let signs = ActivitySigns {
        store: process.store.clone(),
        system: system(),
        activity,
        clock: process.clock.clone(),
        timeout: MINUTE,
    };
    world.spawn(world.new_process(), signs.run(std::future::pending()));
    Leases::new(parts, Duration::from_secs(3_600))
}

fn idle_policy() -> Policy {
    Policy { idle_grace: Some(GRACE), timeout: MINUTE, ..Policy::default() }
}

/// One process does not sweep because only another one is in use; and that costs one small write a
/// minute.
#[test]
fn use_by_another_process_keeps_a_sweeper_waiting() {
    let world = World::new(1, false);
    let bucket = SimBucket::new(&world, None);
    let (busy, sweeper) = (Process::new(&world, &bucket), Process::new(&world, &bucket));
    let user = used(&world, &busy);
    let tap = busy.tap.clone();
    let stops = tell(&world, 10, async move {
        let parts = || {
            SweeperParts::new("s".into(), sweeper.leases.clone(), sweeper.store.clone())
                .policy(idle_policy())
        };
        sweeper.sleep(600).await;
        let mut stops = vec![sweeper.pass_by(parts()).await.stopped];
        for _ in 0..60 {
            let key = LeaseKey::new("n", "k").unwrap();
            user.describe(&key).await.unwrap();
            sweeper.sleep(10).await;
        }
        stops.push(sweeper.pass_by(parts()).await.stopped);
        // Still within the grace, counted from the last sign.
        sweeper.sleep(240).await;
        stops.push(sweeper.pass_by(parts()).await.stopped);
        sweeper.sleep(240).await;
        stops.push(sweeper.pass_by(parts()).await.stopped);
        stops
    });
    use Stopped::{Activity, Done};
    assert_eq!(stops, [Done, Activity, Activity, Done]);
    let seen = tap.seen.lock().unwrap();
    let signs =
        seen.iter().filter(|(_, method, path)| method == "PUT" && path.ends_with("/activity"));
    let signs: Vec<Duration> = signs.map(|(at, ..)| *at).collect();
    assert!(signs.len() >= 9, "{signs:?}");
    assert!(signs.windows(2).all(|two| two[1] - two[0] >= MINUTE), "{signs:?}");
}

/// Ten leases have run out: the records are replaced one by one, with the pause between them.
#[test]
fn a_pass_rests_between_two_entries() {
    let rest = Duration::from_millis(300);
    let world = World::new(1, false);
    let bucket = SimBucket::new(&world, None);
    let paced = LeasesLayout { entry_delay: rest, ..layout() };
    let process = Process::with(&world, &bucket, paced, |_, _, _| Fate::Sent);
    let tap = process.tap.clone();
    let report = tell(&world, 10, async move {
        for n in 0..10 {
            process.acquire(&format!("k{n}"), 1_000).await.unwrap();
        }
        process.sleep(30).await;
        process.tap.seen.lock().unwrap().clear();
        let policy = Policy { entry_delay: rest, batch: 20, timeout: MINUTE, ..Policy::default() };
        let parts = SweeperParts::new("s".into(), process.leases.clone(), process.store.clone());
        process.pass_by(parts.policy(policy)).await
    });
    assert_eq!((report.reclaimed, report.stopped), (10, Stopped::Done), "{report:?}");
    let seen = tap.seen.lock().unwrap();
    let put = |path: &str| path.contains("/meta/");
    let puts: Vec<Duration> =
        seen.iter().filter(|(_, m, path)| m == "PUT" && put(path)).map(|(at, ..)| *at).collect();
    assert_eq!(puts.len(), 10);
    assert!(puts.windows(2).all(|two| two[1] - two[0] >= rest), "{puts:?}");
}

/// Counts the rows that were compared, and how runs ended.
#[derive(Default)]
struct Compared {
    rows: AtomicU64,
    ends: Mutex<Vec<(u64, bool)>>,
}

impl Observer for Compared {
    fn healed(&self, _: &SystemId, page: &Reconciled, _: PassMode) {
        self.rows.fetch_add(page.examined, Ordering::Relaxed);
    }

    fn reconciled(&self, report: &ReconcileReport, _: ReconcileEnd<'_>) {
        self.ends.lock().unwrap().push((report.examined, report.finished));
    }
}

const EVERY: Duration = Duration::from_secs(24 * 3_600);

fn reconcile(
    process: &Process,
    activity: &Arc<Activity>,
    seen: Arc<Compared>,
) -> ResumableReconcile {
    let idle = IdleRule {
        store: process.store.clone(),
        system: system(),
        activity: activity.clone(),
        clock: process.clock.clone(),
        timeout: MINUTE,
        grace: GRACE,
    };
    ResumableReconcile {
        system: system(),
        index: process.leases.clone(),
        store: process.store.clone(),
        clock: process.clock.clone(),
        observer: seen,
        idle: Some(idle),
        every: EVERY,
        requests_per_hour: 1_000,
        timeout: MINUTE,
    }
}

/// The first process compares a part and dies, a second one goes on there and is interrupted because a
/// third one is in use, and finishes later: every row once, and nothing more until the next interval.
/// A process that does not lead does nothing.
#[test]
fn a_comparison_goes_on_where_another_process_stopped() {
    let world = World::new(1, false);
    let bucket = SimBucket::new(&world, None);
    let all: Vec<Process> = (0..4).map(|_| Process::new(&world, &bucket)).collect();
    let user = used(&world, &all[3]);
    let seen: Vec<Arc<Compared>> = (0..3).map(|_| Arc::default()).collect();
    let (_stopper, stop) = StopSignal::channel();
    let leads: Vec<Arc<AtomicBool>> = (0..3).map(|n| Arc::new(AtomicBool::new(n == 0))).collect();
    let mut numbers = Vec::new();
    for n in 0..3 {
        let number = world.new_process();
        let run = reconcile(&all[n], &Arc::default(), seen[n].clone());
        let (stop, leads) = (stop.clone(), leads[n].clone());
        world.spawn(number, async move { run.keep(stop, || leads.load(Ordering::Relaxed)).await });
        numbers.push(number);
    }
    let (done, watch) = (seen.clone(), world.clone());
    let rows = move |n: usize| done[n].rows.load(Ordering::Relaxed);
    tell(&world, 400, async move {
        let process = &all[3];
        for n in 0..350 {
            process.use_once(&format!("k{n:03}")).await;
        }
        while rows(0) == 0 {
            process.sleep(60).await;
        }
        assert!(watch.now() >= EVERY, "not before one interval");
        watch.kill(numbers[0]);
        let first = rows(0);
        assert!(first < 350, "{first}");
        leads[1].store(true, Ordering::Relaxed);
        while rows(1) == 0 {
            process.sleep(60).await;
        }
        // In use: it stops, and does not go on before that is over.
        let key = LeaseKey::new("n", "k000").unwrap();
        for _ in 0..180 {
            user.describe(&key).await.unwrap();
            process.sleep(20).await;
        }
        let part = rows(1);
        assert!(first + part < 350, "{first} and {part}");
        process.sleep(3 * 3_600).await;
        assert_eq!(first + rows(1), 350, "every row once");
        assert_eq!(rows(2), 0, "it does not lead");
    });
    let ends = seen[1].ends.lock().unwrap();
    assert!(ends.len() >= 2 && ends.last().unwrap().1, "{ends:?}");
}

/// The budget of a process is small. Comparing uses up about as much again, and its users are not
/// refused.
#[test]
fn comparing_takes_nothing_from_the_budget_of_those_who_acquire() {
    let world = World::new(1, false);
    let bucket = SimBucket::new(&world, None);
    let filler = Process::new(&world, &bucket);
    let tight = Process::within(&world, &bucket, layout(), 400, |_, _, _| Fate::Sent);
    tell(&world, 100, async move {
        for n in 0..150 {
            filler.use_once(&format!("k{n:03}")).await;
        }
        let index: &dyn lapsed_core::reconcile::Reconcile = &*tight.leases;
        let page = index.reconcile(Default::default(), 150, PassMode::DryRun).await.unwrap();
        assert_eq!(page.examined, 150);
        assert!(index.requests_sent() >= 150);
        for n in 0..65 {
            // Six requests each.
            tight.use_once(&format!("new{n}")).await;
        }
        let counts = tight.store.requests();
        assert_eq!(counts.withheld, 0);
        assert!(counts.total() > 400, "{}", counts.total());
    });
}
