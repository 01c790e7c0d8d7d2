//! What all processes of a run share: the true time, the randomness, the simulated system, the
//! network faults.

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

/// The probability of each network fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// The request is lost: it is never carried out.
    pub request_lost: f64,
    /// The answer is lost: the request was carried out.
    pub answer_lost: f64,
    /// The request is late, possibly by more than its sender waits.
    pub request_late: f64,
    /// The answer is late.
    pub answer_late: f64,
    /// The longest delay, in milliseconds.
    pub late_max_ms: u64,
    /// Of the lost calls, the share that gets no answer at all; the rest gets an error.
    pub silence: f64,
}

impl NetworkFaults {
    /// No faults: every call arrives at once.
    pub const CALM: NetworkFaults = NetworkFaults {
        request_lost: 0.0,
        answer_lost: 0.0,
        request_late: 0.0,
        answer_late: 0.0,
        late_max_ms: 0,
        silence: 0.0,
    };
}

/// The shared state of a run.
pub struct SimWorld {
    pub time: Time,
    pub random: SimRandom,
    planted: Arc<PlantedBug>,
    sim: Mutex<SimSystem>,
    faults: Mutex<NetworkFaults>,
    failed: Notify,
}

impl SimWorld {
    /// Wraps the simulated system, without network faults.
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

    /// The planted bug, if the run has one.
    pub fn bug(&self) -> Option<Bug> {
        self.planted.bug()
    }

    /// Locks the simulated system. The guard must not be held across an `await`.
    pub fn sim(&self) -> MutexGuard<'_, SimSystem> {
        self.sim.lock().expect("a panic inside a call is caught there")
    }

    pub fn faults(&self) -> NetworkFaults {
        *self.faults.lock().expect("nobody panics while holding the lock")
    }

    pub fn set_faults(&self, faults: NetworkFaults) {
        *self.faults.lock().expect("nobody panics while holding the lock") = faults;
    }

    /// Runs a call on the simulated system on behalf of `process`. A panic breaks the promise
    /// `Panic`.
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

    /// Spawns a task; a panic in it fails the run.
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
