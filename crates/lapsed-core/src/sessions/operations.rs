//! The operations of `sessions`, the same on every store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::name::{Name, SystemId};
use crate::owner::{Beat, Claim, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore, Release};
use crate::receipt::{NoObserver, Observer};
use crate::reconcile::Reconcile;
use crate::sessions::{
    Activated, Deleted, PAGE_MAX, ReferenceChange, Session, SessionProfile, SessionsStore, check,
};
use crate::setters;
use crate::store::Store;
use crate::sweep::Sweep;
use crate::sweep::brake::{Brake, BrakePolicy};
use crate::sweep::policy::Policy;
use crate::system::release::let_go;
use crate::system::store_caller::StoreCaller;
use crate::system::{Explanation, OwnerService, Restored, System};

/// What a system of sessions needs.
pub struct SessionsParts {
    /// Kind and name of the system.
    pub(super) id: SystemId,
    /// Where its sessions are.
    pub(super) sessions: Arc<dyn SessionsStore>,
    /// The index of the system, if the store has one besides its data.
    pub(super) index: Option<Arc<dyn Reconcile>>,
    /// The store of the receipts.
    pub(super) store: Arc<dyn Store>,
    /// How long a session is kept that nobody is connected to.
    pub(super) grace: Duration,
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
    /// The most sessions whose references are dropped in one step when an owner retires.
    pub(super) batch: usize,
    /// Unique among all processes: signs the batches of those who retire.
    pub(super) sweeper: String,
}

impl SessionsParts {
    /// Everything that sessions must be given; the rest has the defaults of the configuration file.
    pub fn new(
        sessions: Arc<dyn SessionsStore>,
        store: Arc<dyn Store>,
        ttl: Duration,
        grace: Duration,
    ) -> Self {
        let (threshold, policy, clock) =
            (sessions.threshold(), Policy::default(), SystemClock::shared());
        SessionsParts {
            id: sessions.system().clone(),
            sessions,
            index: None,
            store,
            ttl,
            grace,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredSessionOwner {
    pub incarnation: Incarnation,
    /// Number of sessions whose references were removed. The sweep removes what is left.
    pub released: u64,
}

/// A system of sessions.
pub struct Sessions {
    pub(super) parts: SessionsParts,
    pub(super) calls: StoreCaller,
    owners: OwnerService,
}

impl Sessions {
    pub fn new(parts: SessionsParts) -> Self {
        let calls = StoreCaller {
            id: parts.id.clone(),
            clock: parts.clock.clone(),
            activity: parts.activity.clone(),
            observer: parts.witness.clone(),
            timeout: parts.timeout,
        };
        let store: Arc<dyn OwnerStore> = parts.sessions.clone();
        let owners = OwnerService::new(store, calls.clone(), parts.ttl, PAGE_MAX);
        Sessions { parts, calls, owners }
    }

    /// The store of this system, for callers that send heartbeats through a
    /// [`BeatHandle`](crate::owner::BeatHandle).
    pub fn store(&self) -> &Arc<dyn SessionsStore> {
        &self.parts.sessions
    }

    /// How long a heartbeat lasts unless the owner says otherwise.
    pub fn ttl(&self) -> Duration {
        self.parts.ttl
    }

    /// How long a session without references is kept.
    pub fn grace(&self) -> Duration {
        self.parts.grace
    }

    /// Creates a session or reactivates an existing one.
    pub async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated> {
        check(profile)?;
        self.calls.call("activate", self.parts.sessions.activate(id, profile)).await
    }

    /// Adds one reference of the claimed incarnation. `None`: there is no such session. If the
    /// answer is lost, repeat the call and compare [`ReferenceChange::yours`]; see
    /// [`SessionsStore`].
    pub async fn connect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.calls.call("connect", self.parts.sessions.connect(claim, id)).await
    }

    /// Removes one reference of the claimed incarnation. `None`: there is no such session. If the
    /// answer is lost, do not repeat the call; see [`SessionsStore`].
    pub async fn disconnect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.calls.call("disconnect", self.parts.sessions.disconnect(claim, id)).await
    }

    /// Clears the disconnection without adding a reference. `None`: there is no such session.
    pub async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>> {
        self.calls.call("resume", self.parts.sessions.resume(id)).await
    }

    /// One session, whether or not its grace period is over.
    pub async fn get(&self, id: &Name) -> Result<Option<Session>> {
        self.calls.call("get", self.parts.sessions.get(id)).await
    }

    /// Sets the fields that `profile` contains. `None`: there is no such session.
    pub async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>> {
        check(profile)?;
        self.calls.call("update", self.parts.sessions.update(id, profile)).await
    }

    /// Deletes a session and its index entries, unless it has references.
    pub async fn delete(&self, id: &Name) -> Result<Deleted> {
        self.calls.call("delete", self.parts.sessions.delete(id)).await
    }

    /// The id of a broadcaster's current session.
    pub async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>> {
        self.calls.call("broadcaster", self.parts.sessions.of_broadcaster(broadcaster)).await
    }

    /// Sessions whose grace period is over, the most overdue first, at most `limit` and never more
    /// than [`PAGE_MAX`].
    pub async fn orphans(&self, limit: usize) -> Result<Vec<Name>> {
        self.calls.quiet("orphans", self.parts.sessions.orphans(limit.min(PAGE_MAX))).await
    }

    /// How many sessions are disconnected. Not recorded as activity, because metrics call it.
    pub async fn disconnected_count(&self) -> Result<u64> {
        self.calls.quiet("disconnected", self.parts.sessions.disconnected_count()).await
    }

    /// Ids of the sessions that one incarnation refers to, in order.
    pub async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let limit = limit.min(PAGE_MAX);
        self.calls.call("referred", self.parts.sessions.referred(claim, after, limit)).await
    }

    /// Starts an owner whose handle sends heartbeats in the background.
    pub async fn owner(&self, name: &str) -> Result<Owner> {
        let store: Arc<dyn OwnerStore> = self.parts.sessions.clone();
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

    /// Incarnations after `after`, oldest first.
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.owners.owners(after, limit).await
    }

    pub async fn owner_info(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.owners.owner_info(claim).await
    }

    /// Ends an owner gracefully. One O(1) step ends the incarnation; its references are then
    /// removed in batches, by the same guarded step as those of dead owners. If the process crashes
    /// in between, the sweep removes the rest.
    pub async fn retire(&self, claim: &Claim) -> Result<RetiredSessionOwner> {
        let ended = self.calls.call("retire", self.parts.sessions.end(claim)).await?;
        let done = self.release()(ended).await?;
        Ok(RetiredSessionOwner { incarnation: done.incarnation, released: done.released })
    }

    /// Releases in batches what an ended incarnation holds.
    fn release(&self) -> Release {
        let (calls, sessions) = (self.calls.clone(), self.parts.sessions.clone());
        let (batch, sweeper) = (self.parts.batch, self.parts.sweeper.clone());
        Arc::new(move |ended| {
            let (calls, sessions, sweeper) = (calls.clone(), sessions.clone(), sweeper.clone());
            Box::pin(async move {
                let held_by = |owner: Claim| {
                    let sessions = sessions.clone();
                    async move { sessions.held_by(&owner, batch).await }
                };
                let_go(&calls, &*sessions, &ended, &sweeper, held_by).await
            })
        })
    }
}

#[async_trait]
impl System for Sessions {
    fn id(&self) -> &SystemId {
        &self.parts.id
    }

    fn owner_service(&self) -> Option<&OwnerService> {
        Some(&self.owners)
    }

    fn sweep(&self) -> Arc<dyn Sweep> {
        self.parts.sessions.clone()
    }

    async fn explain(&self, key: &str) -> Result<Explanation> {
        self.explain_key(&Name::new(key)?).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.calls.call("restore", self.parts.sessions.restore(seq)).await
    }

    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        self.parts.index.clone()
    }
}
