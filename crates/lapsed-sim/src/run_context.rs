//! The context of a run: its owners and sweepers, and what they share.

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

/// How long an owner must be silent before it may be declared dead, in milliseconds.
pub const THRESHOLD_MS: u64 = 10_000;
/// The longest interval between two passes of a sweeper, in milliseconds.
pub const EVERY_MS: u64 = 6_000;
/// The share by which the interval is jittered.
pub const JITTER: f64 = 0.2;

/// A process that runs an owner.
pub struct OwnerProcess {
    /// The owner's name; earlier processes may have used it.
    pub name: Name,
    pub process: Arc<ProcessTime>,
    /// Set when the owner should end itself.
    pub leaving: Arc<AtomicBool>,
    pub task: JoinHandle<()>,
}

/// A run in progress.
pub struct RunContext {
    pub world: Arc<SimWorld>,
    /// The scenario of the run.
    pub scenario: &'static Scenario,
    pub host: Arc<ProcessTime>,
    owners: Mutex<Vec<OwnerProcess>>,
    sweepers: Mutex<BTreeMap<String, SweeperProcess>>,
    quiet: AtomicBool,
    named: AtomicU64,
}

impl RunContext {
    /// Creates the context without any processes.
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

    /// Whether processes only send beats and sweep, and start nothing new.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// Makes all processes only beat and sweep from now on.
    pub fn stop_activity(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    /// The share of owners that send their beats shortly before the deadline.
    pub fn beats_late(&self) -> f64 {
        if self.scenario.connection == CallFaults::Late { 0.7 } else { 0.2 }
    }

    /// A name that is new in this run.
    pub fn new_name(&self, kind: &str) -> String {
        format!("{kind}-{}", self.named.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A process whose wall clock is off by up to 30 s.
    pub fn process(&self, name: &str) -> Arc<ProcessTime> {
        let skew_ms = self.world.random.between(0, 60_000) as i64 - 30_000;
        ProcessTime::new(name, self.world.time, skew_ms)
    }

    /// The clock as this process sees it.
    pub fn clock(&self, process: &Arc<ProcessTime>) -> Arc<dyn Clock> {
        SimClock::shared(process, &self.world.random)
    }

    /// The store as this process reaches it.
    pub fn remote(&self, process: &Arc<ProcessTime>) -> Arc<SimRemote> {
        self.remote_for(process, SweepMode::Idempotent, usize::MAX)
    }

    /// The store as a sweeper with this mode and batch size reaches it.
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

    pub fn key(&self) -> Name {
        let number = self.world.random.between(1, self.scenario.keys);
        Name::new(&format!("k{number}")).expect("it is a valid name")
    }

    /// One to `max` random keys.
    pub fn keys(&self, max: u64) -> Vec<Name> {
        (0..self.world.random.between(1, max)).map(|_| self.key()).collect()
    }

    /// Sleeps for a random time in this range, in true milliseconds.
    pub async fn wait(&self, from_ms: u64, to_ms: u64) {
        let span = self.world.random.between(from_ms, to_ms);
        tokio::time::sleep(Duration::from_millis(span)).await;
    }
}
