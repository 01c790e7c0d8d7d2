//! All that a run shares: the true time, the dice, the ground, the weather.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use lapsed_core::Result;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::bug::{Bug, Plant};
use crate::chance::SimRandom;
use crate::clock::{ProcessTime, Time};
use crate::ground::SimSystem;
use crate::promise::{Broken, Checked, Promise};

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
    pub chance: SimRandom,
    plant: Arc<Plant>,
    ground: Mutex<SimSystem>,
    weather: Mutex<NetworkFaults>,
    failed: Notify,
}

impl SimWorld {
    /// A world around `ground`.
    pub fn new(time: Time, chance: SimRandom, plant: Arc<Plant>, ground: SimSystem) -> Arc<Self> {
        Arc::new(SimWorld {
            time,
            chance,
            plant,
            ground: Mutex::new(ground),
            weather: Mutex::new(NetworkFaults::CALM),
            failed: Notify::new(),
        })
    }

    /// The deliberate bug, if there is one.
    pub fn bug(&self) -> Option<Bug> {
        self.plant.bug()
    }

    /// The store's side. Never held across a wait.
    pub fn ground(&self) -> MutexGuard<'_, SimSystem> {
        self.ground.lock().expect("what panics on the ground is caught there")
    }

    pub fn weather(&self) -> NetworkFaults {
        *self.weather.lock().expect("nobody panics while holding the weather")
    }

    pub fn set_weather(&self, weather: NetworkFaults) {
        *self.weather.lock().expect("nobody panics while holding the weather") = weather;
    }

    /// Does something on the ground on behalf of `process`.
    pub fn carry_out<T>(
        &self,
        process: &ProcessTime,
        op: impl FnOnce(&mut SimSystem) -> Result<T>,
    ) -> Result<T> {
        self.plant.note_caller(process.skew_ms());
        let mut ground = self.ground();
        let answer = catch_unwind(AssertUnwindSafe(|| op(&mut ground)));
        let answer = answer.unwrap_or_else(|panic| {
            ground.check(Err(Broken::new(Promise::Panic, words(&*panic))));
            Err(lapsed_core::Error::Invalid("it panicked".to_owned()))
        });
        if ground.broken().is_some() {
            self.failed.notify_one();
        }
        answer
    }

    pub fn check(&self, checked: Checked) {
        if checked.is_err() {
            self.ground().check(checked);
            self.failed.notify_one();
        }
    }

    /// Resolves when a promise was broken.
    pub async fn failed(&self) {
        while self.ground().broken().is_none() {
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
