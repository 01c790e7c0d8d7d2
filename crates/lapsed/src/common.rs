//! What the five systems have in common: the settings of a builder, and the background tasks of a system.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_core::clock::Clock;
use lapsed_core::receipt::{NoObserver, Observer, Receipt, ReceiptQuery, Retention};
use lapsed_core::schedule::{self, StopHandle, StopSignal};
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::BrakePolicy;
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{PassMode, PassReport, Sweeper};
use lapsed_core::system::{Explanation, Restored, System};
use lapsed_core::{Error, Kind, Name, Result, SystemId};
use tokio::task::JoinHandle;

use crate::assembly::{Assembly, default_policy};
use crate::open::Lapsed;
use crate::stores::StoreUse;

/// The most entries that the report of one pass names.
const LISTED_MAX: usize = 100;

/// When the passes of a system run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SweepSchedule {
    /// Only when the caller calls `pass()`.
    Manual,
    /// In the background, one pass every interval, for as long as the system is not dropped.
    Every(Duration),
}

/// The settings of a builder; the defaults are those of the configuration file.
pub(crate) struct Settings {
    pub lapsed: Lapsed,
    pub kind: Kind,
    pub name: String,
    pub policy: Policy,
    manual: bool,
    brake: BrakePolicy,
    retention: Retention,
    observer: Arc<dyn Observer>,
}

impl Settings {
    pub fn new(lapsed: &Lapsed, kind: Kind, name: &str) -> Settings {
        Settings {
            lapsed: lapsed.clone(),
            kind,
            name: name.to_owned(),
            policy: default_policy(lapsed.store().used_by()),
            manual: false,
            brake: BrakePolicy::default(),
            retention: Retention::default(),
            observer: Arc::new(NoObserver),
        }
    }

    /// Replaces the policy by the default of a kind.
    pub fn with_policy(mut self, default: fn(StoreUse) -> Policy) -> Settings {
        self.policy = default(self.lapsed.store().used_by());
        self
    }

    pub fn schedule(&mut self, schedule: SweepSchedule) {
        match schedule {
            SweepSchedule::Manual => self.manual = true,
            SweepSchedule::Every(every) => (self.manual, self.policy.every) = (false, every),
        }
    }

    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = observer;
    }

    pub fn retain(&mut self, age: Duration) {
        self.retention.age_ms = age.as_millis() as u64;
    }

    pub fn id(&self) -> Result<SystemId> {
        SystemId::new(self.kind, &self.name)
    }

    /// The parts that a system is assembled from. An owner is dead after `threshold` without a heartbeat.
    pub fn assembly(&self, threshold: Duration) -> Result<Assembly> {
        if self.policy.every.is_zero() {
            return Err(Error::Invalid("the interval between two passes must be above 0".into()));
        }
        let mut policy = self.policy.clone();
        if self.manual {
            // The caller decides when a pass runs and which process runs it.
            (policy.idle_grace, policy.mode) = (None, SweepMode::Idempotent);
        }
        Ok(Assembly::new(policy, self.brake.clone(), threshold)
            .clock(self.lapsed.clock().clone())
            .process(self.lapsed.process().to_owned())
            .retention(self.retention)
            .observer(self.observer.clone()))
    }

    /// Starts the passes in the background, unless the schedule is manual.
    pub fn run(
        &self,
        assembly: &Assembly,
        system: Arc<dyn System>,
        store: Arc<dyn Store>,
    ) -> Arc<Running> {
        let (sweeper, campaign) = assembly.sweeper(system.sweep(), store.clone());
        let signs = assembly.activity_signs(system.id(), store.clone());
        let running = Running::new(system, store, Arc::new(sweeper), assembly.clock.clone());
        let signal = running.signal.clone();
        running.spawn(Box::pin(async move { signs.run(signal.stopped()).await }));
        if !self.manual {
            let passes = schedule::run(
                running.sweeper.clone(),
                running.clock.clone(),
                running.signal.clone(),
            );
            running.spawn(Box::pin(passes));
        }
        if let Some(campaign) = campaign {
            let signal = running.signal.clone();
            running.spawn(Box::pin(async move { campaign.run(signal.stopped()).await }));
        }
        Arc::new(running)
    }
}

/// A started system with its background tasks.
pub(crate) struct Running {
    pub system: Arc<dyn System>,
    store: Arc<dyn Store>,
    pub sweeper: Arc<Sweeper>,
    clock: Arc<dyn Clock>,
    pub signal: StopSignal,
    stop: StopHandle,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Running {
    fn new(
        system: Arc<dyn System>,
        store: Arc<dyn Store>,
        sweeper: Arc<Sweeper>,
        clock: Arc<dyn Clock>,
    ) -> Running {
        let (stop, signal) = StopSignal::channel();
        Running { system, store, sweeper, clock, signal, stop, tasks: Mutex::default() }
    }

    /// Runs `task` in the background; it must end after the stop signal.
    pub fn spawn(&self, task: BoxFuture<'static, ()>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push(tokio::spawn(task));
    }

    pub async fn pass(&self, act: PassMode) -> PassReport {
        self.sweeper.pass(act, LISTED_MAX, &self.signal).await
    }

    pub async fn receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
        let query = ReceiptQuery { limit, ..ReceiptQuery::default() };
        self.limited("receipts", self.store.receipts(self.system.id(), query)).await
    }

    pub async fn explain(&self, key: &str) -> Result<Explanation> {
        self.system.explain(key).await
    }

    pub async fn restore(&self, receipt: &Receipt) -> Result<Restored> {
        if &receipt.id.system != self.system.id() {
            let (id, own) = (&receipt.id, self.system.id());
            return Err(Error::Invalid(format!("the receipt {id} is not one of {own}")));
        }
        self.system.restore(receipt.id.seq).await
    }

    /// Stops all background tasks, and waits until they have ended.
    pub async fn stop(&self) {
        self.stop.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // A task that panicked has also ended.
            let _ = task.await;
        }
    }

    async fn limited<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.sweeper.policy().timeout;
        let answer = lapsed_core::clock::within(&*self.clock, limit, call).await;
        answer.unwrap_or_else(|| Err(Error::timed_out("the store", what, limit.as_millis())))
    }
}

pub(crate) fn names(texts: &[&str]) -> Result<Vec<Name>> {
    texts.iter().map(|text| Name::new(text)).collect()
}

/// The settings that every builder has.
macro_rules! common_settings {
    () => {
        /// When passes run; by default in the background, as often as the configuration file's
        /// default says.
        pub fn sweep(mut self, schedule: crate::SweepSchedule) -> Self {
            self.settings.schedule(schedule);
            self
        }

        /// The observer that is called with every event, for metrics and logs. The types in its calls are in
        /// [`observe`](crate::observe).
        pub fn observer(mut self, observer: std::sync::Arc<dyn crate::Observer>) -> Self {
            self.settings.observe(observer);
            self
        }

        /// The most entries that one store call of a pass works on.
        pub fn batch(mut self, entries: usize) -> Self {
            self.settings.policy.batch = entries.max(1);
            self
        }

        /// The most time that one store call may take.
        pub fn timeout(mut self, limit: std::time::Duration) -> Self {
            self.settings.policy.timeout = limit;
            self
        }

        /// How long receipts are kept; by default 30 days, and at most a million of them.
        pub fn receipts_for(mut self, age: std::time::Duration) -> Self {
            self.settings.retain(age);
            self
        }
    };
}

/// What every started system can do.
macro_rules! common_operations {
    () => {
        /// Runs one pass now and says what it did. Waits for a pass that is under way.
        pub async fn pass(&self) -> crate::PassReport {
            self.running.pass(lapsed_core::sweep::PassMode::Reclaim).await
        }

        /// Says what a pass would do, without changing anything.
        pub async fn dry_run(&self) -> crate::PassReport {
            self.running.pass(lapsed_core::sweep::PassMode::DryRun).await
        }

        /// Says why `key` is, or is not, dead.
        pub async fn explain(&self, key: &str) -> crate::Result<crate::Explanation> {
            self.running.explain(key).await
        }

        /// The newest receipts, newest first, at most `limit`.
        pub async fn receipts(&self, limit: usize) -> crate::Result<Vec<crate::Receipt>> {
            self.running.receipts(limit).await
        }

        /// Restores the entry that `receipt` records as removed, if nobody else holds its key by now.
        pub async fn restore(&self, receipt: &crate::Receipt) -> crate::Result<crate::Restored> {
            self.running.restore(receipt).await
        }

        /// Stops sweeping and waits until the pass under way has ended. Dropping every clone of
        /// this handle stops sweeping, too, without waiting.
        pub async fn stop(self) {
            self.running.stop().await;
        }
    };
}

/// What every handle of an owner can do.
macro_rules! member_operations {
    () => {
        /// The name that it joined with.
        pub fn name(&self) -> &str {
            self.owner.name().as_str()
        }

        /// Which incarnation this is: a fencing token to pass along with what it writes elsewhere.
        pub fn incarnation(&self) -> u64 {
            self.owner.incarnation().0
        }

        /// Whether this process can still rely on holding its entries.
        pub fn is_live(&self) -> bool {
            self.owner.is_live()
        }

        /// Resolves when this owner was lost: the store has declared it dead, or no heartbeat was
        /// answered for a whole TTL. Join again, then take again what is still in use.
        pub async fn lost(&self) -> crate::Lost {
            self.owner.lost().await
        }

        /// Ends this incarnation and releases everything that it held, with receipts, within 30 s.
        ///
        /// # Errors
        /// After an error the owner may have ended; the next pass then releases what it held.
        pub async fn leave(self) -> crate::Result<crate::ReleasedHoldings> {
            self.owner.retire().await
        }
    };
}

pub(crate) use {common_operations, common_settings, member_operations};
