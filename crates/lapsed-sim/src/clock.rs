//! Virtual time, and each process's own idea of it.
//!
//! There is one true time: the paused clock of the runtime, in whole milliseconds since the run
//! began. A process sees it through its own wall clock (skewed, set forward and back) and its own
//! monotonic clock (which stands still while its host sleeps). A process that is frozen or asleep
//! does nothing: every wait of it ends only once it runs again.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_core::clock::Clock;
use tokio::time::Instant;

use crate::random::SimRandom;

/// What the true wall clock shows when a run begins.
const EPOCH_MS: u64 = 1_700_000_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Time(Instant);

impl Time {
    pub fn begin() -> Self {
        Time(Instant::now())
    }

    /// Milliseconds since the run began.
    pub fn now_ms(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }
}

/// Why a process is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessPause {
    /// The process is stopped (SIGSTOP); its monotonic clock goes on.
    Frozen,
    /// Its host is suspended; its monotonic clock stands still.
    Asleep,
}

#[derive(Debug, Default)]
struct Paused {
    from_ms: u64,
    until_ms: u64,
    asleep: bool,
    slept_ms: u64,
    was_set_back: bool,
}

impl Paused {
    /// How much of true time its monotonic clock has missed.
    fn missed_ms(&self, now_ms: u64) -> u64 {
        let now_asleep = now_ms.min(self.until_ms).saturating_sub(self.from_ms);
        self.slept_ms + if self.asleep { now_asleep } else { 0 }
    }
}

/// One process: where its clocks stand, whether it runs, whether its connection is cut.
#[derive(Debug)]
pub struct ProcessTime {
    /// Its name in the trace.
    pub name: String,
    time: Time,
    skew_ms: AtomicI64,
    paused: Mutex<Paused>,
    cut: AtomicBool,
}

impl ProcessTime {
    /// A running process whose wall clock is off by `skew_ms`.
    pub fn new(name: &str, time: Time, skew_ms: i64) -> Arc<Self> {
        Arc::new(ProcessTime {
            name: name.to_owned(),
            time,
            skew_ms: AtomicI64::new(skew_ms),
            paused: Mutex::default(),
            cut: AtomicBool::new(false),
        })
    }

    /// By how many milliseconds its wall clock is off.
    pub fn skew_ms(&self) -> i64 {
        self.skew_ms.load(Ordering::Relaxed)
    }

    /// Sets its wall clock. On a host that is ever suspended it is only set forward: set back, a
    /// process could not notice the suspension.
    pub fn jump_wall(&self, by_ms: i64) {
        let mut paused = self.lock();
        let sleeps = paused.asleep || paused.slept_ms > 0;
        let by_ms = if sleeps { by_ms.abs() } else { by_ms };
        paused.was_set_back |= by_ms < 0;
        self.skew_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    /// Whether its connection is cut: nothing that it sends arrives.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Cuts its connection, or mends it.
    pub fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    /// Pauses the process for `span_ms` from now. A process that is already paused is not changed.
    pub fn pause(&self, how: ProcessPause, span_ms: u64) {
        let now_ms = self.time.now_ms();
        let mut paused = self.lock();
        if now_ms < paused.until_ms {
            return;
        }
        paused.slept_ms = paused.missed_ms(now_ms);
        (paused.from_ms, paused.until_ms) = (now_ms, now_ms + span_ms);
        paused.asleep = how == ProcessPause::Asleep && !paused.was_set_back;
    }

    /// Resolves as soon as the process is not paused.
    pub async fn running(&self) {
        loop {
            let left_ms = self.lock().until_ms.saturating_sub(self.time.now_ms());
            if left_ms == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(left_ms)).await;
        }
    }

    fn mono(&self) -> Duration {
        let now_ms = self.time.now_ms();
        Duration::from_millis(now_ms - self.lock().missed_ms(now_ms))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Paused> {
        self.paused.lock().expect("nobody panics while holding a process")
    }
}

/// The clocks of one process.
#[derive(Clone, Debug)]
pub struct SimClock {
    process: Arc<ProcessTime>,
    random: SimRandom,
}

impl SimClock {
    /// The clock of `process`.
    pub fn new(process: Arc<ProcessTime>, random: SimRandom) -> Self {
        SimClock { process, random }
    }

    /// The clock of `process`, shared.
    pub fn shared(process: &Arc<ProcessTime>, random: &SimRandom) -> Arc<dyn Clock> {
        Arc::new(Self::new(process.clone(), random.clone()))
    }
}

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        (EPOCH_MS + self.process.time.now_ms()).saturating_add_signed(self.process.skew_ms())
    }

    fn mono(&self) -> Duration {
        self.process.mono()
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        let process = self.process.clone();
        let until = process.mono() + span;
        Box::pin(async move {
            loop {
                process.running().await;
                let rest = until.saturating_sub(process.mono());
                if rest.is_zero() {
                    return;
                }
                tokio::time::sleep(rest).await;
            }
        })
    }

    fn random(&self) -> u64 {
        self.random.any()
    }
}
