//! The operations of a registry, the same on every store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::activity::Activity;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::name::{Name, SystemId};
use crate::owner::{Beat, Claim, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore, Release};
use crate::receipt::{NoObserver, Observer};
use crate::reconcile::Reconcile;
use crate::registry::{FoundEntry, KEYS_MAX, RegisterAnswer, RegistryStore, TakePolicy};
use crate::setters;
use crate::store::Store;
use crate::sweep::Sweep;
use crate::sweep::brake::{Brake, BrakePolicy};
use crate::sweep::policy::Policy;
use crate::system::release::let_go;
use crate::system::store_caller::StoreCaller;
use crate::system::{Explanation, OwnerService, Restored, System};

/// What a registry needs.
pub struct RegistryParts {
    /// Kind and name of the system.
    pub(super) id: SystemId,
    /// The store of the entries.
    pub(super) registry: Arc<dyn RegistryStore>,
    /// The index of the system, if the store has one besides its data.
    pub(super) index: Option<Arc<dyn Reconcile>>,
    /// The store of the receipts.
    pub(super) store: Arc<dyn Store>,
    /// How long a beat lasts unless the owner says otherwise.
    pub(super) ttl: Duration,
    /// The brake, which decides whether overdue owners are spared.
    pub(super) brake: Arc<Brake>,
    pub(super) clock: Arc<dyn Clock>,
    /// Records when the system is used.
    pub(super) activity: Arc<Activity>,
    pub(super) witness: Arc<dyn Observer>,
    /// Time limit of every store call.
    pub(super) timeout: Duration,
    /// The most entries removed in one step when an owner retires.
    pub(super) batch: usize,
    /// Unique among all processes: signs the receipts of those who retire.
    pub(super) sweeper: String,
}

impl RegistryParts {
    /// Everything that a registry must be given; the rest has the defaults of the configuration file.
    pub fn new(registry: Arc<dyn RegistryStore>, store: Arc<dyn Store>, ttl: Duration) -> Self {
        let (threshold, policy, clock) =
            (registry.threshold(), Policy::default(), SystemClock::shared());
        RegistryParts {
            id: registry.system().clone(),
            registry,
            index: None,
            store,
            ttl,
            brake: Arc::new(Brake::new(BrakePolicy::default(), threshold)),
            clock: clock.clone(),
            activity: Arc::default(),
            witness: Arc::new(NoObserver),
            timeout: policy.timeout,
            batch: policy.batch,
            sweeper: format!("process-{:016x}", clock.random()),
        }
    }

    setters! {
        /// The index, where the store keeps one besides its truth.
        index: Option<Arc<dyn Reconcile>>;
        /// The brake, to be shared with the sweeper of the same system.
        brake: Arc<Brake>;
        /// The clock of this process; by default the system's.
        clock: Arc<dyn Clock>;
        /// Counts the operations, to be shared with the sweeper of the same system.
        activity: Arc<Activity>;
        /// The most time that one store call may take; by default 5 s.
        timeout: Duration;
        /// The most entries that one step releases when an owner retires; by default 500.
        batch: usize;
        /// Signs the batches of owners that retire; must be unique among all processes.
        sweeper: String;
    }

    /// Is shown what happens, for metrics and logs.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.witness = observer;
        self
    }
}

/// Result of a graceful end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RetiredOwner {
    pub incarnation: Incarnation,
    /// Number of entries removed, each with its receipt. The sweep removes what is left.
    pub reclaimed: u64,
}

pub struct Registry {
    pub(super) parts: RegistryParts,
    pub(super) calls: StoreCaller,
    owners: OwnerService,
}

impl Registry {
    pub fn new(parts: RegistryParts) -> Self {
        let calls = StoreCaller {
            id: parts.id.clone(),
            clock: parts.clock.clone(),
            activity: parts.activity.clone(),
            observer: parts.witness.clone(),
            timeout: parts.timeout,
        };
        let store: Arc<dyn OwnerStore> = parts.registry.clone();
        let owners = OwnerService::new(store, calls.clone(), parts.ttl, KEYS_MAX);
        Registry { parts, calls, owners }
    }

    /// The store of this system, for callers that send heartbeats through a
    /// [`BeatHandle`](crate::owner::BeatHandle).
    pub fn store(&self) -> &Arc<dyn RegistryStore> {
        &self.parts.registry
    }

    /// How long a heartbeat lasts unless the owner says otherwise.
    pub fn ttl(&self) -> Duration {
        self.parts.ttl
    }

    /// Starts an owner whose handle sends heartbeats in the background.
    pub async fn owner(&self, name: &str) -> Result<Owner> {
        let store: Arc<dyn OwnerStore> = self.parts.registry.clone();
        let options = OwnerOptions::with_ttl(self.parts.ttl);
        let owner = Owner::start(store, self.parts.clock.clone(), name, options).await?;
        Ok(owner.releasing(self.release()))
    }

    /// Starts a new incarnation of `owner`.
    pub async fn start(&self, owner: &Name, ttl: Option<Duration>) -> Result<Beat> {
        self.owners.start(owner, ttl).await
    }

    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.owners.beat(claim).await
    }

    pub async fn register(&self, claim: &Claim, key: &Name) -> Result<RegisterAnswer> {
        self.register_many(claim, std::slice::from_ref(key), TakePolicy::Always).await
    }

    /// Registers many keys, up to [`RegistryStore::atomic_keys`] of them in one atomic step.
    pub async fn register_many(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        bounded(keys)?;
        self.calls.call("register", self.parts.registry.register(claim, keys, take)).await
    }

    /// Removes those of the keys that this owner still holds; the answer says for each key whether
    /// it did.
    pub async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        bounded(keys)?;
        self.calls.call("unregister", self.parts.registry.unregister(claim, keys)).await
    }

    /// The entry of `key`, if its owner is alive.
    pub async fn lookup(&self, key: &Name) -> Result<Option<FoundEntry>> {
        let found = self.lookup_many(std::slice::from_ref(key)).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// The entries of many keys. An overdue owner counts as dead unless the brake would spare it:
    /// in a mass death a fault of the network is likelier, so its entries are still found.
    pub async fn lookup_many(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        bounded(keys)?;
        let mut found = self.calls.call("lookup", self.parts.registry.find(keys)).await?;
        let is_overdue = |f: &FoundEntry| f.ended.is_none() && f.due_ms <= f.now_ms;
        let spare = match found.iter().flatten().any(is_overdue) {
            true => self.parts.brake.would_spare(&self.words().census().await?),
            false => false,
        };
        for slot in &mut found {
            let dead = |f: &FoundEntry| f.ended.is_some() || (is_overdue(f) && !spare);
            if slot.as_ref().is_some_and(dead) {
                *slot = None;
            }
        }
        Ok(found)
    }

    /// What one incarnation holds, ordered by key.
    pub async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.calls
            .call("entries", self.parts.registry.entries(claim, after, limit.min(KEYS_MAX)))
            .await
    }

    /// Incarnations after `after`, oldest first.
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.owners.owners(after, limit).await
    }

    pub async fn owner_info(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.owners.owner_info(claim).await
    }

    /// Ends an owner gracefully. One O(1) step ends the incarnation, which makes its entries
    /// invalid at once. They are then removed in batches, by the same guarded reclaim as those of
    /// dead owners. If the process crashes in between, the sweep removes the rest.
    pub async fn retire(&self, claim: &Claim) -> Result<RetiredOwner> {
        let ended = self.calls.call("retire", self.parts.registry.end(claim)).await?;
        let done = self.release()(ended).await?;
        Ok(RetiredOwner { incarnation: done.incarnation, reclaimed: done.reclaimed })
    }

    /// Releases in batches what an ended incarnation holds.
    fn release(&self) -> Release {
        let (calls, registry) = (self.calls.clone(), self.parts.registry.clone());
        let (batch, sweeper) = (self.parts.batch, self.parts.sweeper.clone());
        Arc::new(move |ended| {
            let (calls, registry, sweeper) = (calls.clone(), registry.clone(), sweeper.clone());
            Box::pin(async move {
                let held_by = |owner: Claim| {
                    let registry = registry.clone();
                    async move { registry.held_by(&owner, batch).await }
                };
                let_go(&calls, &*registry, &ended, &sweeper, held_by).await
            })
        })
    }
}

#[async_trait]
impl System for Registry {
    fn id(&self) -> &SystemId {
        &self.parts.id
    }

    fn owner_service(&self) -> Option<&OwnerService> {
        Some(&self.owners)
    }

    fn sweep(&self) -> Arc<dyn Sweep> {
        self.parts.registry.clone()
    }

    async fn explain(&self, key: &str) -> Result<Explanation> {
        self.explain_key(&Name::new(key)?).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.calls.call("restore", self.parts.registry.restore(seq)).await
    }

    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        self.parts.index.clone()
    }
}

fn bounded(keys: &[Name]) -> Result<()> {
    if keys.len() <= KEYS_MAX {
        return Ok(());
    }
    let count = keys.len();
    Err(Error::Invalid(format!("at most {KEYS_MAX} keys in one call; this one has {count}")))
}
