//! Passes that are stopped, or that stall, between two of their steps.
//!
//! D11: the pass has read a page and is stopped before it reclaims it. The cursor must stay before that
//! page; at its end, the next pass would begin with later suspects. X5: the leader stalls, its term
//! ends, another process leads, and the first one wakes up in the middle of its pass.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::BoxFuture;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::conformance::{SweepMoment, WatchedSweep};
use lapsed_core::leader::{Campaign, TermOptions};
use lapsed_core::registry::conformance::RegistryFixture;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store_caller::Activity;
use lapsed_core::sweep::brake::{Brake, BrakePolicy, BrakeSetting};
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{PassMode, Stopped, Sweeper, SweeperParts};

use crate::fixture::{PausedClock, in_memory};

/// What stops the pass when it has read its second page, or sent it as a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupted {
    Shutdown,
    Runtime,
    Activity,
    Brake,
    LostAnswer,
}

const GRACE: Duration = Duration::from_secs(300);

impl Interrupted {
    fn policy(self) -> Policy {
        let policy = Policy { batch: 2, timeout: 10 * GRACE, ..Policy::default() };
        match self {
            Interrupted::Runtime => Policy { max_runtime: Some(GRACE), ..policy },
            Interrupted::Activity => Policy { idle_grace: Some(GRACE), ..policy },
            _ => policy,
        }
    }

    fn stopped(self) -> Stopped {
        match self {
            Interrupted::Shutdown | Interrupted::Runtime => Stopped::Runtime,
            Interrupted::Activity => Stopped::Activity,
            Interrupted::Brake => Stopped::Brake,
            Interrupted::LostAnswer => Stopped::Error,
        }
    }
}

/// A registry with seven entries of a dead owner.
async fn seven_dead_entries() -> (RegistryFixture, ManualClock) {
    let (f, clock) = in_memory();
    let f = f.settled().await;
    f.holding("dead", &["a", "b", "c", "d", "e", "f", "g"]).await;
    (f.advance)(f.ttl).await;
    (f, clock)
}

async fn the_cursor_stays_before_a_page_that_is(interrupted: Interrupted) {
    let (f, _) = seven_dead_entries().await;
    let clock = PausedClock::shared();
    tokio::time::sleep(GRACE).await;
    let activity = Arc::new(Activity::default());
    let brake = Arc::new(Brake::new(BrakePolicy::default(), f.ttl));
    let (stopper, stop) = StopSignal::channel();
    let stopper = Arc::new(stopper);
    let (used, held, time) = (activity.clone(), brake.clone(), clock.clone());
    let watched = WatchedSweep::new(f.registry.clone(), move |moment| -> BoxFuture<'static, ()> {
        match (interrupted, moment) {
            (Interrupted::Shutdown, SweepMoment::PageRead(2)) => stopper.stop(),
            (Interrupted::Runtime, SweepMoment::PageRead(2)) => return time.sleep(GRACE),
            (Interrupted::Activity, SweepMoment::PageRead(2)) => used.note(time.mono()),
            (Interrupted::Brake, SweepMoment::PageRead(2)) => {
                held.set(held.record().ordered(BrakeSetting::Hold));
            }
            (Interrupted::LostAnswer, SweepMoment::BatchSent(2)) => return pending().boxed(),
            _ => {}
        }
        Box::pin(async {})
    });
    let parts = SweeperParts::new("s".to_owned(), watched.clone(), f.store.clone())
        .policy(interrupted.policy())
        .clock(clock.clone())
        .activity(activity)
        .brake(brake);
    let sweeper = Sweeper::new(parts);
    let first = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!(
        (first.stopped, first.reclaimed),
        (interrupted.stopped(), 2),
        "{interrupted:?}: {first:?}"
    );
    clock.sleep(GRACE).await;
    let (_stopper, never) = StopSignal::channel();
    let second = sweeper.pass(PassMode::Reclaim, 0, &never).await;
    let pages = watched.pages();
    assert_eq!(pages[2], pages[1], "{interrupted:?}: the page that was left comes first");
    assert_eq!(second.reclaimed, 5, "{interrupted:?}: {second:?}");
}

#[tokio::test(start_paused = true)]
async fn trap_d11_whatever_stops_a_pass_the_cursor_stays_before_the_page_that_it_left() {
    the_cursor_stays_before_a_page_that_is(Interrupted::Shutdown).await;
    the_cursor_stays_before_a_page_that_is(Interrupted::Runtime).await;
    the_cursor_stays_before_a_page_that_is(Interrupted::Activity).await;
    the_cursor_stays_before_a_page_that_is(Interrupted::Brake).await;
    the_cursor_stays_before_a_page_that_is(Interrupted::LostAnswer).await;
}

const TERM: TermOptions =
    TermOptions { ttl: Duration::from_secs(15), timeout: Duration::from_secs(3) };

/// A clock that stands still for longer than a term, once, just before its `stalls_at`th reading: the
/// process was stopped there. Another process leads when it wakes up.
struct StallingClock {
    clock: ManualClock,
    readings: AtomicUsize,
    stalls_at: usize,
    stall: Box<dyn Fn() + Send + Sync>,
}

impl StallingClock {
    fn read(&self) {
        if self.readings.fetch_add(1, Ordering::SeqCst) + 1 == self.stalls_at {
            (self.stall)();
        }
    }
}

impl Clock for StallingClock {
    fn wall_ms(&self) -> u64 {
        self.read();
        self.clock.wall_ms()
    }
    fn mono(&self) -> Duration {
        self.read();
        self.clock.mono()
    }
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(span)
    }
    fn random(&self) -> u64 {
        self.clock.random()
    }
}

/// Runs a leader's pass that stalls at one reading of its clock; whether it reached that reading.
async fn a_leader_stalls_at(reading: usize) -> bool {
    let (f, clock) = seven_dead_entries().await;
    let candidate = |clock: Arc<dyn Clock>, who: &str| {
        Campaign::new(f.store.clone(), clock, f.registry.system().clone(), who, TERM)
    };
    let (two, leading_two) = candidate(Arc::new(clock.clone()), "two");
    let reclaimed_before = Arc::new(Mutex::new(None));
    let stalling = Arc::new(StallingClock {
        clock: clock.clone(),
        readings: AtomicUsize::new(0),
        stalls_at: reading,
        stall: {
            let (clock, before, store) = (clock.clone(), reclaimed_before.clone(), f.store.clone());
            let system = f.registry.system().clone();
            Box::new(move || {
                let query = lapsed_core::receipt::ReceiptQuery {
                    after: Some(0),
                    limit: 100,
                    ..Default::default()
                };
                let receipts = block_on(store.receipts(&system, query)).unwrap();
                *before.lock().unwrap() = Some(receipts.len());
                clock.advance(TERM.ttl + Duration::from_secs(1));
                block_on(two.renew());
            })
        },
    });
    let (one, leading_one) = candidate(stalling.clone(), "one");
    one.renew().await;
    let watched = WatchedSweep::new(f.registry.clone(), |_| Box::pin(async {}));
    let parts = SweeperParts::new("s".to_owned(), watched.clone(), f.store.clone())
        .policy(Policy { mode: SweepMode::Leader, batch: 2, ..Policy::default() })
        .clock(stalling)
        .leadership(Some(leading_one));
    let (_stopper, stop) = StopSignal::channel();
    let report = Sweeper::new(parts).pass(PassMode::Reclaim, 0, &stop).await;
    for batch in watched.batches() {
        assert!(batch.term.is_some(), "reading {reading}: a batch without the leader's term");
    }
    let Some(before) = *reclaimed_before.lock().unwrap() else {
        assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, 7), "{report:?}");
        return false;
    };
    assert!(leading_two.term().is_some());
    let after = f.receipts().await.len();
    assert_eq!(after, before, "reading {reading}: reclaimed after another process led: {report:?}");
    true
}

/// The process stalls at every instant of its pass at which it looks at its clock, one after another.
#[tokio::test]
async fn trap_x5_a_leader_that_stalls_anywhere_in_its_pass_reclaims_nothing_more() {
    let mut reading = 1;
    while a_leader_stalls_at(reading).await {
        reading += 1;
    }
    assert!(reading > 30, "the pass looked at its clock only {reading} times");
}
