//! Who takes part in a run, and what they need to do so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use lapsed_core::sweep::policy::SweepMode;
use tokio::task::JoinHandle;

use crate::actors::sweeper::SweeperProcess;
use crate::brake_model::BrakeModel;
use crate::clock::{ProcessTime, SimClock};
use crate::connection::StoreConnection;
use crate::remote::SimRemote;
use crate::scenario::{CallFaults, Scenario};
use crate::world::SimWorld;

/// How long silence must last before it means death.
pub const THRESHOLD_MS: u64 = 10_000;
/// How often sweepers run, at the most seldom.
pub const EVERY_MS: u64 = 6_000;
/// How far that may stray.
pub const JITTER: f64 = 0.2;

/// An owner that takes part.
pub struct OwnerProcess {
    /// Its name: others may have had it before.
    pub name: Name,
    pub process: Arc<ProcessTime>,
    /// Whether it was asked to leave.
    pub leaving: Arc<AtomicBool>,
    pub task: JoinHandle<()>,
}

/// A run under way.
pub struct RunContext {
    pub world: Arc<SimWorld>,
    /// What it is like.
    pub scenario: &'static Scenario,
    pub host: Arc<ProcessTime>,
    owners: Mutex<Vec<OwnerProcess>>,
    sweepers: Mutex<BTreeMap<String, SweeperProcess>>,
    quiet: AtomicBool,
    named: AtomicU64,
}

impl RunContext {
    /// Nobody takes part yet.
    pub fn new(
        world: Arc<SimWorld>,
        scenario: &'static Scenario,
        host: Arc<ProcessTime>,
    ) -> Arc<Self> {
        Arc::new(RunContext {
            world,
            scenario,
            host,
            owners: Mutex::default(),
            sweepers: Mutex::default(),
            quiet: AtomicBool::new(false),
            named: AtomicU64::new(0),
        })
    }

    pub fn owners(&self) -> MutexGuard<'_, Vec<OwnerProcess>> {
        self.owners.lock().expect("nobody panics while holding the lock")
    }

    pub fn sweepers(&self) -> MutexGuard<'_, BTreeMap<String, SweeperProcess>> {
        self.sweepers.lock().expect("nobody panics while holding the lock")
    }

    /// Whether nothing new is begun any more: only beats and sweeps.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// From now on it is quiet.
    pub fn stop_activity(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    /// How many of the owners are only just in time.
    pub fn beats_late(&self) -> f64 {
        if self.scenario.connection == CallFaults::Late { 0.7 } else { 0.2 }
    }

    /// A name that nothing in this run had before.
    pub fn fresh(&self, kind: &str) -> String {
        format!("{kind}-{}", self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A process with a wall clock of its own.
    pub fn process(&self, name: &str) -> Arc<ProcessTime> {
        let skew_ms = self.world.random.between(0, 60_000) as i64 - 30_000;
        ProcessTime::new(name, self.world.time, skew_ms)
    }

    /// The clocks of a process.
    pub fn clock(&self, process: &Arc<ProcessTime>) -> Arc<dyn Clock> {
        SimClock::shared(process, &self.world.random)
    }

    /// The store, as that process sees it.
    pub fn remote(&self, process: &Arc<ProcessTime>) -> Arc<SimRemote> {
        self.remote_for(process, SweepMode::Idempotent, usize::MAX)
    }

    /// The same for a sweeper.
    pub fn remote_for(
        &self,
        process: &Arc<ProcessTime>,
        mode: SweepMode,
        batch_max: usize,
    ) -> Arc<SimRemote> {
        let connection = StoreConnection { world: self.world.clone(), process: process.clone() };
        let brake_model = BrakeModel::new(mode, batch_max, THRESHOLD_MS);
        SimRemote::new(connection, Duration::from_millis(THRESHOLD_MS), brake_model)
    }

    /// One of the keys.
    pub fn key(&self) -> Name {
        let number = self.world.random.between(1, self.scenario.keys);
        Name::new(&format!("k{number}")).expect("it is a valid name")
    }

    /// Up to `max` of the keys.
    pub fn keys(&self, max: u64) -> Vec<Name> {
        (0..self.world.random.between(1, max)).map(|_| self.key()).collect()
    }

    /// Waits for true time.
    pub async fn wait(&self, from_ms: u64, to_ms: u64) {
        let span = self.world.random.between(from_ms, to_ms);
        tokio::time::sleep(Duration::from_millis(span)).await;
    }
}
