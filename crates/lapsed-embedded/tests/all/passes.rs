//! Passes on a real store: time limits, lost answers, the brake, idleness, limits. They run under
//! tokio's paused clock, so that a time limit passes at once.

#[path = "fixture/faulty.rs"]
mod faulty;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use faulty::{Call, Fault, Faulty};
use lapsed_core::Error;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::name::SystemId;
use lapsed_core::receipt::{Observer, Receipt};
use lapsed_core::registry::conformance::RegistryFixture;
use lapsed_core::schedule::{self, StopSignal};
use lapsed_core::store_caller::Activity;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::{Policy, WhenCapped};
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweeper, SweeperParts};
use lapsed_core::system::{System, SystemParts};

/// An observer that counts its calls.
#[derive(Default)]
struct Counter {
    receipts: Mutex<BTreeMap<String, u64>>,
    errors: Mutex<u64>,
    passes: Mutex<Vec<PassReport>>,
    /// Called after each batch.
    between: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Observer for Counter {
    fn reclaimed(&self, receipt: &Receipt) {
        *self.receipts.lock().unwrap().entry(receipt.key.to_string()).or_default() += 1;
    }
    fn batched(&self, _: &SystemId, _: usize, _: Duration) {
        if let Some(between) = &*self.between.lock().unwrap() {
            between();
        }
    }
    fn passed(&self, report: &PassReport) {
        self.passes.lock().unwrap().push(report.clone());
    }
    fn store_error(&self, _: &SystemId, _: &Error) {
        *self.errors.lock().unwrap() += 1;
    }
}

struct Bench {
    f: RegistryFixture,
    store_clock: ManualClock,
    sweep: Arc<Faulty>,
    counter: Arc<Counter>,
    activity: Arc<Activity>,
    clock: Arc<dyn Clock>,
}

impl Bench {
    async fn new() -> Bench {
        let (f, store_clock) = crate::fixture::in_memory();
        let f = f.settled().await;
        let sweep = Faulty::on(f.registry.clone());
        let clock = crate::fixture::PausedClock::shared();
        Bench { f, store_clock, sweep, counter: Arc::default(), activity: Arc::default(), clock }
    }

    fn sweeper(&self, policy: Policy) -> Sweeper {
        self.named_sweeper("s", policy)
    }

    fn named_sweeper(&self, name: &str, policy: Policy) -> Sweeper {
        Sweeper::new(
            SweeperParts::new(name.to_owned(), self.sweep.clone(), self.f.store.clone())
                .policy(policy)
                .clock(self.clock.clone())
                .activity(self.activity.clone())
                .observer(self.counter.clone()),
        )
    }

    async fn dead(&self, keys: &[&str]) {
        self.f.holding("dead", keys).await;
        (self.f.advance)(self.f.ttl).await;
    }
}

async fn pass(sweeper: &Sweeper) -> PassReport {
    let (_stopper, stop) = StopSignal::channel();
    sweeper.pass(PassMode::Reclaim, 100, &stop).await
}

/// A call that never returns does not block the pass.
#[tokio::test(start_paused = true)]
async fn trap_x1_a_call_without_an_answer_ends_the_pass() {
    for call in [Call::Census, Call::Suspects, Call::Reclaim] {
        let bench = Bench::new().await;
        bench.dead(&["a", "b"]).await;
        bench.sweep.plan(call, Fault::Hang);
        let report = pass(&bench.sweeper(Policy::default())).await;
        assert_eq!((report.stopped, report.errors, report.reclaimed), (Stopped::Error, 1, 0));
        let detail = report.detail.unwrap();
        assert!(detail.contains("within 5000 ms"), "{detail}");
        assert_eq!(*bench.counter.errors.lock().unwrap(), 1);
    }
}

/// A failed read is not an empty answer: nothing is deleted, and when the store answers again every
/// owner first gets a whole threshold.
#[tokio::test(start_paused = true)]
async fn trap_x2_a_failed_read_is_not_an_empty_page() {
    let bench = Bench::new().await;
    bench.dead(&["a"]).await;
    let sweeper = bench.sweeper(Policy::default());
    for call in [Call::Census, Call::Suspects] {
        bench.sweep.plan(call, Fault::Fail);
        let report = pass(&sweeper).await;
        assert_eq!((report.stopped, report.reclaimed), (Stopped::Error, 0));
    }
    let held = pass(&sweeper).await;
    assert_eq!((held.stopped, held.reclaimed), (Stopped::Brake, 0), "{held:?}");
    assert_eq!(bench.f.registry.census().await.unwrap().population, 1);
    (bench.f.advance)(bench.f.ttl).await;
    assert_eq!(pass(&sweeper).await.reclaimed, 1);
}

/// A batch is carried out but its answer is lost: it is in doubt, then settled by its receipts, and
/// counted once.
#[tokio::test(start_paused = true)]
async fn lost_answers_are_settled_by_receipts() {
    let bench = Bench::new().await;
    bench.dead(&["a", "b", "c", "d"]).await;
    let sweeper = bench.sweeper(Policy { batch: 2, ..Policy::default() });
    bench.sweep.plan(Call::Reclaim, Fault::LoseAnswer);
    let first = pass(&sweeper).await;
    assert_eq!((first.stopped, first.reclaimed), (Stopped::Error, 0));
    assert_eq!(first.skipped["in_doubt"], 2);
    let second = pass(&sweeper).await;
    assert_eq!((second.settled, second.reclaimed), (2, 4), "{second:?}");
    let counted = bench.counter.receipts.lock().unwrap().clone();
    assert_eq!(counted, ["a", "b", "c", "d"].map(|k| (k.to_owned(), 1)).into());
    assert_eq!(bench.f.receipts().await.len(), 4);
}

/// If settling fails as well, the batch stays in doubt until it is settled.
#[tokio::test(start_paused = true)]
async fn a_batch_stays_in_doubt_when_settling_fails() {
    let bench = Bench::new().await;
    bench.dead(&["a"]).await;
    let sweeper = bench.sweeper(Policy::default());
    bench.sweep.plan(Call::Reclaim, Fault::LoseAnswer);
    bench.sweep.plan(Call::Settle, Fault::Fail);
    pass(&sweeper).await;
    assert_eq!(pass(&sweeper).await.stopped, Stopped::Error);
    assert_eq!(pass(&sweeper).await.settled, 1);
    assert_eq!(pass(&sweeper).await.settled, 0);
}

/// A lost batch that was never carried out is not counted as a reclaim.
#[tokio::test(start_paused = true)]
async fn a_batch_that_never_arrived_is_not_counted() {
    let bench = Bench::new().await;
    bench.dead(&["a", "b"]).await;
    let sweeper = bench.sweeper(Policy::default());
    bench.sweep.plan(Call::Reclaim, Fault::Hang);
    pass(&sweeper).await;
    (bench.f.advance)(bench.f.ttl).await;
    let report = pass(&sweeper).await;
    assert_eq!((report.settled, report.reclaimed), (0, 0), "held: the store was unreachable");
    (bench.f.advance)(bench.f.ttl).await;
    assert_eq!(pass(&sweeper).await.reclaimed, 2);
}

const TTL: Duration = Duration::from_secs(90);

/// P7: a store that was opened again spares every owner for a whole threshold; entries of owners
/// that were declared dead before are still removed.
#[tokio::test]
async fn a_store_that_was_away_is_not_a_mass_death() {
    let (bytes, clock) =
        (crate::fixture::SharedBytes::default(), ManualClock::at(1_700_000_000_000));
    let f = crate::fixture::reopenable(&bytes, &clock, TTL);
    f.holding("i-1", &["a"]).await;
    let retired = f.holding("i-2", &["b"]).await;
    f.registry.end(&retired).await.unwrap();
    drop(f);
    clock.advance(Duration::from_secs(3_600));
    let f = crate::fixture::reopenable(&bytes, &clock, TTL);
    clock.advance(TTL - Duration::from_millis(1));
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (1, Stopped::Brake), "{report:?}");
    assert!(f.suspects().await.is_empty());
    clock.advance(Duration::from_millis(1));
    assert_eq!(f.sweep().await.reclaimed, 1);
}

/// The brake also spares an owner with a shorter TTL that is overdue, because the threshold is the
/// system's.
#[tokio::test]
async fn after_an_absence_the_brake_waits_for_the_whole_threshold() {
    let (bytes, clock) =
        (crate::fixture::SharedBytes::default(), ManualClock::at(1_700_000_000_000));
    let f = crate::fixture::reopenable(&bytes, &clock, TTL);
    let short = f.registry.start(&lapsed_core::Name::new("i-1").unwrap(), 1_000).await.unwrap();
    let claim =
        lapsed_core::owner::Claim::exact(lapsed_core::Name::new("i-1").unwrap(), short.incarnation);
    f.register(&claim, &["a"]).await;
    drop(f);
    let f = crate::fixture::reopenable(&bytes, &clock, TTL);
    clock.advance(Duration::from_secs(5));
    let held = f.sweep().await;
    assert_eq!((held.stopped, held.reclaimed), (Stopped::Brake, 0), "the store is 5 s old");
    assert!(held.detail.unwrap().contains("the store was away"));
    let setting = BrakeSetting::Override { reason: "it is gone".into() };
    f.store.set_brake(f.registry.system(), setting).await.unwrap();
    assert_eq!(f.sweep().await.reclaimed, 1, "an override waives the grace, in the guard too");
    let record = f.store.brake(f.registry.system()).await.unwrap();
    assert_eq!((record.setting, record.overriding), (BrakeSetting::Auto, None), "for one pass");
}

/// Nobody was cut off from an empty store, so an owner that starts later has only its own TTL.
#[tokio::test]
async fn an_empty_store_spares_nobody() {
    let (f, clock) = crate::fixture::in_memory();
    let short = f.registry.start(&lapsed_core::Name::new("i-1").unwrap(), 1_000).await.unwrap();
    let claim =
        lapsed_core::owner::Claim::exact(lapsed_core::Name::new("i-1").unwrap(), short.incarnation);
    f.register(&claim, &["a"]).await;
    clock.advance(Duration::from_secs(1));
    let report = f.sweep().await;
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, 1));
}

/// A hundred owners, most of them silent at once: held for a threshold, then released in steps.
#[tokio::test]
async fn trap_x3_a_mass_death_is_held_and_then_released_in_steps() {
    let bench = Bench::new().await;
    let mut live = Vec::new();
    for i in 0..100 {
        let key = format!("k{i}");
        let claim = bench.f.holding(&format!("i-{i}"), &[&key]).await;
        if i < 10 {
            live.push(claim);
        }
    }
    bench.f.outlive(bench.f.ttl, &live.iter().collect::<Vec<_>>()).await;
    let sweeper = bench.sweeper(Policy::default());
    let held = pass(&sweeper).await;
    assert_eq!((held.stopped, held.reclaimed), (Stopped::Brake, 0));
    assert!(held.detail.unwrap().contains("too many owners"));
    let dry = {
        let (_stopper, stop) = StopSignal::channel();
        sweeper.pass(PassMode::DryRun, 100, &stop).await
    };
    assert_eq!((dry.stopped, dry.reclaimed), (Stopped::Brake, 0), "a dry run is held as well");
    let mut steps = Vec::new();
    for _ in 0..6 {
        bench.f.outlive(bench.f.ttl, &live.iter().collect::<Vec<_>>()).await;
        steps.push(pass(&sweeper).await.reclaimed);
    }
    assert_eq!(steps.iter().sum::<u64>(), 90, "{steps:?}");
    assert_eq!(steps[0], 10, "{steps:?}");
    assert!(steps[1] > 0 && steps[1] <= 40, "{steps:?}");
    assert_eq!(bench.f.registry.census().await.unwrap().owners_live, 10);
}

/// One of two owners is not a mass death, and the operator's setting comes first.
#[tokio::test]
async fn the_operator_can_hold_the_brake_and_make_it_automatic_again() {
    let bench = Bench::new().await;
    bench.dead(&["a"]).await;
    let system = bench.f.registry.system().clone();
    bench.f.store.set_brake(&system, BrakeSetting::Hold).await.unwrap();
    let sweeper = bench.sweeper(Policy::default());
    assert_eq!(pass(&sweeper).await.stopped, Stopped::Brake);
    bench.f.store.set_brake(&system, BrakeSetting::Auto).await.unwrap();
    assert_eq!(pass(&sweeper).await.reclaimed, 1);
}

/// An idle-only sweep does not start while the system is used, and stops when it is used.
#[tokio::test(start_paused = true)]
async fn an_idle_sweep_stops_on_activity() {
    let bench = Bench::new().await;
    bench.dead(&["a", "b", "c"]).await;
    let policy = Policy {
        idle_grace: Some(Duration::from_secs(300)),
        op_delay: Duration::from_secs(1),
        batch: 1,
        ..Policy::default()
    };
    let sweeper = bench.sweeper(policy);
    bench.activity.note(bench.clock.mono());
    let first = pass(&sweeper).await;
    assert_eq!((first.stopped, first.has_begun()), (Stopped::Activity, false));
    tokio::time::sleep(Duration::from_secs(300)).await;
    let (activity, clock) = (bench.activity.clone(), bench.clock.clone());
    let user = tokio::spawn(async move {
        clock.sleep(Duration::from_millis(1_500)).await;
        activity.note(clock.mono());
    });
    let report = pass(&sweeper).await;
    user.await.unwrap();
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Activity, 2), "{report:?}");
    assert!(report.has_begun());
}

/// How long the schedule takes for three dead entries if a pass may reclaim one.
async fn time_for_three_capped_passes(when_capped: WhenCapped) -> Duration {
    let bench = Bench::new().await;
    bench.dead(&["a", "b", "c"]).await;
    let policy = Policy { max_ops: Some(1), when_capped, ..Policy::default() };
    let (began, clock) = (bench.clock.mono(), bench.clock.clone());
    let (stopper, stop) = StopSignal::channel();
    let passes = tokio::spawn(schedule::run(Arc::new(bench.sweeper(policy)), clock.clone(), stop));
    while bench.counter.receipts.lock().unwrap().len() < 3 {
        clock.sleep(Duration::from_secs(1)).await;
        assert!(clock.mono() - began < Duration::from_secs(600), "the schedule stands still");
    }
    stopper.stop();
    passes.await.unwrap();
    clock.mono() - began
}

#[tokio::test(start_paused = true)]
async fn a_pass_at_its_limit_goes_on_soon_or_waits_for_its_interval() {
    let soon = time_for_three_capped_passes(WhenCapped::ResumeSoon).await;
    assert!(soon < Duration::from_secs(90), "{soon:?}: within the first interval and a half");
    let waits = time_for_three_capped_passes(WhenCapped::WaitForInterval).await;
    assert!(waits >= Duration::from_secs(108), "{waits:?}: two intervals less their jitter");
}

/// `max_runtime` and `op_delay`: a pass pauses between batches and stops in time.
#[tokio::test(start_paused = true)]
async fn a_pass_respects_its_runtime() {
    let bench = Bench::new().await;
    bench.dead(&["a", "b", "c", "d", "e"]).await;
    let policy = Policy {
        batch: 1,
        op_delay: Duration::from_millis(100),
        max_runtime: Some(Duration::from_millis(250)),
        ..Policy::default()
    };
    let sweeper = bench.sweeper(policy);
    let first = pass(&sweeper).await;
    assert_eq!((first.stopped, first.reclaimed), (Stopped::Runtime, 3));
    assert_eq!(pass(&sweeper).await.reclaimed, 2);
}

/// P6: no call contains more entries than the batch size.
#[tokio::test]
async fn no_call_contains_more_than_the_batch() {
    let bench = Bench::new().await;
    let keys: Vec<String> = (0..500).map(|i| format!("k{i:04}")).collect();
    bench.dead(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(
        pass(&bench.sweeper(Policy { batch: 50, ..Policy::default() })).await.reclaimed,
        500
    );
    let batches = bench.sweep.batches.lock().unwrap();
    assert!(batches.iter().all(|size| *size <= 50), "{batches:?}");
}

/// P2: with scheduled passes, dead entries are removed within the threshold plus one interval and
/// its jitter.
#[tokio::test(start_paused = true)]
async fn dead_entries_are_removed_within_the_documented_bound() {
    let bench = Bench::new().await;
    let policy = Policy { every: Duration::from_secs(60), ..Policy::default() };
    let sweeper = Arc::new(bench.sweeper(policy));
    let (stopper, stop) = StopSignal::channel();
    let running = tokio::spawn(schedule::run(sweeper, bench.clock.clone(), stop));
    bench.f.holding("i-1", &["a"]).await;
    let mut gone_after = None;
    for second in 1..=200u64 {
        bench.store_clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        if gone_after.is_none() && bench.f.holder("a").await.is_none() {
            gone_after = Some(second);
        }
    }
    stopper.stop();
    running.await.unwrap();
    let gone_after = gone_after.expect("it is gone");
    assert!((90..=90 + 66).contains(&gone_after), "{gone_after} s");
    assert!(bench.counter.passes.lock().unwrap().len() >= 2);
}

/// The operator holds the brake during a pass, which then stops at once and not at its end.
#[tokio::test(start_paused = true)]
async fn holding_the_brake_during_a_pass_ends_it() {
    let bench = Bench::new().await;
    for n in 0..4 {
        bench
            .f
            .holding(
                &format!("i-{n}"),
                &["a", "b", "c"].map(|key| format!("{key}{n}")).each_ref().map(String::as_str),
            )
            .await;
    }
    bench.store_clock.advance(bench.f.ttl);
    let store = bench.f.store.clone();
    let overridden = || BrakeSetting::Override { reason: "a scale-down".into() };
    store.set_brake(bench.f.registry.system(), overridden()).await.unwrap();
    let policy = Policy { batch: 3, ..Policy::default() };
    let sweeper = bench.sweeper(policy.clone());
    let brake = sweeper.brake().clone();
    *bench.counter.between.lock().unwrap() =
        Some(Box::new(move || brake.set(brake.record().ordered(BrakeSetting::Hold))));
    let (_stopper, stop) = StopSignal::channel();
    let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Brake, 3), "{report:?}");
    assert!(report.detail.unwrap().contains("held"));

    // The setting was changed by another process; it is read again before a batch, at most a second
    // later.
    let system = bench.f.registry.system().clone();
    store.set_brake(&system, overridden()).await.unwrap();
    *bench.counter.between.lock().unwrap() = Some(Box::new(move || {
        futures::executor::block_on(store.set_brake(&system, BrakeSetting::Hold)).unwrap();
    }));
    let sweeper = bench.sweeper(Policy { op_delay: Duration::from_millis(600), ..policy });
    let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!(report.stopped, Stopped::Brake, "{report:?}");
    assert!(bench.f.registry.census().await.unwrap().population > 0, "not to the end: {report:?}");
}

impl Bench {
    /// A hundred owners with an entry each, all silent at once.
    async fn all_dead(&self) {
        for n in 0..100 {
            self.f.holding(&format!("i-{n}"), &[&format!("k{n}")]).await;
        }
        (self.f.advance)(self.f.ttl).await;
    }

    async fn overridden(&self) {
        let setting = BrakeSetting::Override { reason: "we scaled down".into() };
        self.f.store.set_brake(self.f.registry.system(), setting).await.unwrap();
    }
}

/// Each pass is one of a process of its own; the hold and its steps are in the store.
#[tokio::test]
async fn single_passes_get_past_a_mass_death_as_a_daemon_does() {
    let bench = Bench::new().await;
    bench.all_dead().await;
    let mut reclaimed = Vec::new();
    for n in 0..8 {
        let process = bench.named_sweeper(&format!("cron-{n}"), Policy::default());
        reclaimed.push(pass(&process).await.reclaimed);
        (bench.f.advance)(bench.f.ttl).await;
    }
    assert_eq!(reclaimed[..2], [0, 10], "held, then the first step: {reclaimed:?}");
    assert!(reclaimed[2] > 10 && reclaimed[2] <= 20, "about twice as many: {reclaimed:?}");
    assert_eq!(reclaimed.iter().sum::<u64>(), 100, "{reclaimed:?}");
}

#[tokio::test]
async fn an_override_lets_exactly_one_pass_through() {
    let bench = Bench::new().await;
    bench.all_dead().await;
    assert_eq!(
        pass(&bench.named_sweeper("first", Policy::default())).await.stopped,
        Stopped::Brake
    );
    bench.overridden().await;
    let through = pass(&bench.named_sweeper("through", Policy::default())).await;
    assert_eq!((through.stopped, through.reclaimed), (Stopped::Done, 100), "{through:?}");
    for n in 0..100 {
        bench.f.holding(&format!("j-{n}"), &[&format!("l{n}")]).await;
    }
    (bench.f.advance)(bench.f.ttl).await;
    let next = pass(&bench.named_sweeper("next", Policy::default())).await;
    assert_eq!((next.stopped, next.reclaimed), (Stopped::Brake, 0), "{next:?}");
}

/// The pass stops at its limit. What it did not reach is judged by the next pass on its own.
#[tokio::test]
async fn a_pass_that_stops_half_way_has_used_up_its_override() {
    let bench = Bench::new().await;
    bench.all_dead().await;
    bench.overridden().await;
    let policy = Policy { max_ops: Some(30), batch: 10, ..Policy::default() };
    let half = pass(&bench.named_sweeper("half", policy)).await;
    assert_eq!((half.stopped, half.reclaimed), (Stopped::Ops, 30), "{half:?}");
    let record = bench.f.store.brake(bench.f.registry.system()).await.unwrap();
    assert_eq!((record.setting, record.overriding), (BrakeSetting::Auto, None));
    let next = pass(&bench.named_sweeper("after", Policy::default())).await;
    assert_eq!((next.stopped, next.reclaimed), (Stopped::Brake, 0), "{next:?}");
}

#[tokio::test]
async fn a_dry_run_under_hold_lists_the_suspects_and_says_that_the_brake_holds() {
    let bench = Bench::new().await;
    bench.dead(&["a", "b"]).await;
    bench.f.store.set_brake(bench.f.registry.system(), BrakeSetting::Hold).await.unwrap();
    let (_stopper, stop) = StopSignal::channel();
    let dry = bench.sweeper(Policy::default()).pass(PassMode::DryRun, 100, &stop).await;
    assert_eq!((dry.stopped, dry.suspects, dry.reclaimed), (Stopped::Brake, 2, 0), "{dry:?}");
    let listed: Vec<_> = dry.entries.iter().map(|entry| entry.key.to_string()).collect();
    assert_eq!(listed, ["a", "b"]);
    assert!(dry.detail.unwrap().contains("held by the operator"));
    assert_eq!(bench.f.registry.census().await.unwrap().population, 2);
}

#[tokio::test]
async fn a_silent_owner_that_is_spared_after_a_restart_is_not_called_live() {
    let (bytes, clock) =
        (crate::fixture::SharedBytes::default(), ManualClock::at(1_700_000_000_000));
    let f = crate::fixture::reopenable(&bytes, &clock, TTL);
    let claim = f.holding("i-1", &["a"]).await;
    drop(f);
    clock.advance(2 * TTL);
    let f = crate::fixture::reopenable(&bytes, &clock, TTL);
    clock.advance(Duration::from_secs(2));
    let parts = SystemParts::new(f.registry.clone(), f.store.clone(), TTL);
    let registry = lapsed_core::registry::Registry::new(parts);
    for key in ["a", "i-1"] {
        let told = registry.explain(key).await.unwrap();
        assert_eq!(told.verdict, "spared", "{told:?}");
        let words = told.because.join("; ");
        assert!(words.contains("no heartbeat since the store came back 2.0 s ago"), "{words}");
        assert!(words.contains("spared for another"), "{words}");
    }
    f.registry.beat(&claim).await.unwrap();
    assert_eq!(registry.explain("a").await.unwrap().verdict, "live");
}
