//! Leases with a fencing token, and decisions of transactions.

mod assembly;

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::leases::{
    AcquireRequest, DECISION_TTL_MS, FORGET_AFTER_MS, Fenced, Hold, HoldAttempt, HoldOptions,
    LeaseKey, Leases, TTL_MS, txn,
};
use lapsed_core::{Kind, Name, Result};

use crate::assembly::Assembly;
use crate::common::{Running, Settings, common_operations, common_settings};
use crate::open::Lapsed;

pub use assembly::{LeasesSpec, default_policy};
pub use lapsed_core::leases::{Decision, DecisionInfo, LostLease};

/// How long one request waits before it is repeated; the waiter keeps its place in the queue.
const WAIT: Duration = Duration::from_secs(60);

impl Lapsed {
    /// Leases with a fencing token, and decisions of transactions.
    pub fn leases(&self, name: &str) -> LeasesBuilder {
        LeasesBuilder::new(Settings::new(self, Kind::Leases, name))
    }
}

/// A builder for a system of leases.
#[must_use]
pub struct LeasesBuilder {
    settings: Settings,
    ttl: Duration,
    decision_ttl: Duration,
    forget_after: Option<Duration>,
}

impl LeasesBuilder {
    pub(crate) fn new(settings: Settings) -> Self {
        let settings = settings.with_policy(default_policy);
        let ms = Duration::from_millis;
        LeasesBuilder {
            settings,
            ttl: ms(TTL_MS),
            decision_ttl: ms(DECISION_TTL_MS),
            forget_after: Some(ms(FORGET_AFTER_MS)),
        }
    }

    /// How long a lease lasts from each renewal; by default 30 s, at least 1 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a decision is kept; by default 24 h.
    pub fn decision_ttl(mut self, ttl: Duration) -> Self {
        self.decision_ttl = ttl;
        self
    }

    /// How long a key without a state is kept after the deadline of its last lease; by default 30
    /// days. `None`: for ever. The tokens of a key that was forgotten do not start again.
    pub fn forget_after(mut self, after: Option<Duration>) -> Self {
        self.forget_after = after;
        self
    }

    common_settings!();

    /// What [`start`](Self::start) assembles the system from. The daemon's tests compare its own defaults with this.
    #[doc(hidden)]
    pub fn assembly(&self) -> Result<(Assembly, LeasesSpec)> {
        let forget_after = self.forget_after;
        let spec = LeasesSpec { forget_after, ..LeasesSpec::new(self.ttl, self.decision_ttl) };
        Ok((self.settings.assembly(self.ttl)?, spec))
    }

    /// Starts the system: from now on passes run, unless the schedule is manual.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a name or a duration is wrong,
    /// [`Error::Unsupported`](crate::Error::Unsupported) when the store cannot keep leases.
    pub async fn start(self) -> Result<LeasesSystem> {
        let (assembly, spec) = self.assembly()?;
        let store = self.settings.lapsed.store();
        let leases = assembly.leases(store, self.settings.id()?, spec)?;
        let running = self.settings.run(&assembly, leases.clone(), store.store());
        let process = Name::new(self.settings.lapsed.process())?;
        Ok(LeasesSystem { leases, running, process })
    }
}

/// A started system of leases; it is swept until the last clone is dropped.
#[derive(Clone)]
pub struct LeasesSystem {
    leases: Arc<Leases>,
    running: Arc<Running>,
    process: Name,
}

impl LeasesSystem {
    /// Acquires the lease on `key` (or `NAMESPACE/KEY`); waits in the queue while another owner holds
    /// it.
    pub async fn acquire(&self, key: &str) -> Result<LeaseGuard> {
        loop {
            if let Some(guard) = self.acquire_within(key, WAIT).await? {
                return Ok(guard);
            }
        }
    }

    /// Like [`acquire`](Self::acquire); `None` if another owner still holds the lease after `wait`.
    pub async fn acquire_within(&self, key: &str, wait: Duration) -> Result<Option<LeaseGuard>> {
        let key: LeaseKey = key.parse()?;
        let (owner, ttl_ms) = (self.process.clone(), self.leases.ttl().as_millis() as u64);
        let request = AcquireRequest { key, owner, ttl_ms, request: None };
        match self.leases.hold(&request, wait, HoldOptions::default()).await? {
            HoldAttempt::Hold(hold) => Ok(Some(LeaseGuard { hold })),
            _ => Ok(None),
        }
    }

    /// Acquires the lease without waiting; `None` if another owner holds it.
    pub async fn try_acquire(&self, key: &str) -> Result<Option<LeaseGuard>> {
        self.acquire_within(key, Duration::ZERO).await
    }

    /// Decides the transaction `id`; if it is decided already, the earlier decision is returned.
    pub async fn decide(&self, id: &str, decision: Decision) -> Result<DecisionInfo> {
        self.leases.decide(&txn(id)?, decision, None).await
    }

    /// The decision on the transaction `id`. `None`: it is not decided, or the decision is no longer kept.
    pub async fn decision(&self, id: &str) -> Result<Option<DecisionInfo>> {
        self.leases.decision(&txn(id)?).await
    }

    common_operations!();
}

/// A lease that is held: renews itself until it is released or lost. A guard that is dropped is not
/// renewed any more, and its lease ends with its TTL.
pub struct LeaseGuard {
    hold: Hold,
}

impl LeaseGuard {
    /// The fencing token: larger than every one before it on the same key. Pass it along with what
    /// is written elsewhere.
    pub fn token(&self) -> u64 {
        self.hold.token().0
    }

    /// Whether this process can still rely on holding the lease.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Resolves when the lease was lost: the store says so, or no renewal was answered for a whole
    /// TTL.
    pub async fn lost(&self) -> LostLease {
        self.hold.lost().await
    }

    /// Ends the lease at once. `false`: it was lost before, and nothing changed.
    pub async fn release(self) -> Result<bool> {
        Ok(matches!(self.hold.release().await?, Fenced::Done(())))
    }
}
