//! All that a run shares: the true time, the dice, the sim, the faults.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use lapsed_core::Result;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::bug::{Bug, PlantedBug};
use crate::clock::{ProcessTime, Time};
use crate::promise::{Broken, Checked, Promise};
use crate::random::SimRandom;
use crate::system::SimSystem;

/// What can happen to a call on its way, each by its odds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// The request is lost: never carried out.
    pub request_lost: f64,
    /// The answer is lost: carried out, and nobody is told.
    pub answer_lost: f64,
    /// The request takes its time, perhaps longer than its sender waits.
    pub request_late: f64,
    /// The answer takes its time.
    pub answer_late: f64,
    /// How late at the most.
    pub late_max_ms: u64,
    /// Of what is lost, how much is silence; the rest is an error.
    pub silence: f64,
}

impl NetworkFaults {
    /// Everything arrives at once.
    pub const CALM: NetworkFaults = NetworkFaults {
        request_lost: 0.0,
        answer_lost: 0.0,
        request_late: 0.0,
        answer_late: 0.0,
        late_max_ms: 0,
        silence: 0.0,
    };
}

/// What a run shares.
pub struct SimWorld {
    pub time: Time,
    pub random: SimRandom,
    planted: Arc<PlantedBug>,
    sim: Mutex<SimSystem>,
    faults: Mutex<NetworkFaults>,
    failed: Notify,
}

impl SimWorld {
    /// A world around `sim`.
    pub fn new(
        time: Time,
        random: SimRandom,
        planted: Arc<PlantedBug>,
        sim: SimSystem,
    ) -> Arc<Self> {
        Arc::new(SimWorld {
            time,
            random,
            planted,
            sim: Mutex::new(sim),
            faults: Mutex::new(NetworkFaults::CALM),
            failed: Notify::new(),
        })
    }

    /// The deliberate bug, if there is one.
    pub fn bug(&self) -> Option<Bug> {
        self.planted.bug()
    }

    /// The store's side. Never held across a wait.
    pub fn sim(&self) -> MutexGuard<'_, SimSystem> {
        self.sim.lock().expect("a panic inside a call is caught there")
    }

    pub fn faults(&self) -> NetworkFaults {
        *self.faults.lock().expect("nobody panics while holding the lock")
    }

    pub fn set_faults(&self, faults: NetworkFaults) {
        *self.faults.lock().expect("nobody panics while holding the lock") = faults;
    }

    /// Does something on the sim on behalf of `process`.
    pub fn carry_out<T>(
        &self,
        process: &ProcessTime,
        op: impl FnOnce(&mut SimSystem) -> Result<T>,
    ) -> Result<T> {
        self.planted.note_caller(process.skew_ms());
        let mut sim = self.sim();
        let answer = catch_unwind(AssertUnwindSafe(|| op(&mut sim)));
        let answer = answer.unwrap_or_else(|panic| {
            sim.check(Err(Broken::new(Promise::Panic, words(&*panic))));
            Err(lapsed_core::Error::Invalid("it panicked".to_owned()))
        });
        if sim.broken().is_some() {
            self.failed.notify_one();
        }
        answer
    }

    pub fn check(&self, checked: Checked) {
        if checked.is_err() {
            self.sim().check(checked);
            self.failed.notify_one();
        }
    }

    /// Resolves when a promise was broken.
    pub async fn failed(&self) {
        while self.sim().broken().is_none() {
            self.failed.notified().await;
        }
    }

    /// Runs `work` beside everything else; a panic of it is a failure of the run.
    pub fn spawn(
        self: &Arc<Self>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let world = self.clone();
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
                world.check(Err(Broken::new(Promise::Panic, words(&*panic))));
            }
        })
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
