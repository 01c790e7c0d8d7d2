//! The operations of `sessions`, the same on every store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::{Name, SystemId};
use crate::owner::{Beat, Claim, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore};
use crate::receipt::Observer;
use crate::reconcile::Reconcile;
use crate::sessions::{
    Activated, Deleted, PAGE_MAX, ReferenceChange, Session, SessionProfile, SessionsStore, check,
};
use crate::store::Store;
use crate::sweep::Sweep;
use crate::sweep::brake::Brake;
use crate::system::release::let_go;
use crate::system::store_caller::StoreCaller;
use crate::system::{Explanation, Restored, System};

/// What `sessions` is made of.
pub struct SessionsParts {
    /// Which system this is.
    pub id: SystemId,
    /// Where its sessions are.
    pub sessions: Arc<dyn SessionsStore>,
    /// Its index, where it has one besides its truth.
    pub index: Option<Arc<dyn Reconcile>>,
    /// Where its receipts are.
    pub store: Arc<dyn Store>,
    /// How long a session is kept that nobody is connected to.
    pub grace: Duration,
    /// How long a beat lasts unless the owner says otherwise.
    pub ttl: Duration,
    /// Whether the overdue are spared.
    pub brake: Arc<Brake>,
    pub clock: Arc<dyn Clock>,
    /// Notes who uses it.
    pub activity: Arc<Activity>,
    pub witness: Arc<dyn Observer>,
    /// How long any one store call may take.
    pub timeout: Duration,
    /// The most sessions whose references are dropped in one step when an owner retires.
    pub batch: usize,
    /// Unique among all processes: signs the batches of those who retire.
    pub sweeper: String,
}

/// What a graceful end did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredSessionOwner {
    pub incarnation: Incarnation,
    /// How many sessions it was let go from. What is left the sweep lets go.
    pub released: u64,
}

/// One system of sessions.
pub struct Sessions {
    pub(super) parts: SessionsParts,
    pub(super) calls: StoreCaller,
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
        Sessions { parts, calls }
    }

    /// The seam below: for whoever wants to beat without a search.
    pub fn store(&self) -> &Arc<dyn SessionsStore> {
        &self.parts.sessions
    }

    /// How long a beat lasts unless the owner says otherwise.
    pub fn ttl(&self) -> Duration {
        self.parts.ttl
    }

    /// How long a session is kept that nobody is connected to.
    pub fn grace(&self) -> Duration {
        self.parts.grace
    }

    /// Makes it, or brings an existing one back.
    pub async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated> {
        check(profile)?;
        self.calls.call("activate", self.parts.sessions.activate(id, profile)).await
    }

    /// One more reference, of the claimed life. `None`: there is no such session. In doubt, repeat it
    /// and compare [`ReferenceChange::yours`]: see [`SessionsStore`].
    pub async fn connect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.calls.call("connect", self.parts.sessions.connect(claim, id)).await
    }

    /// One reference of the claimed life less. `None`: there is no such session. In doubt, do not
    /// repeat it: see [`SessionsStore`].
    pub async fn disconnect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.calls.call("disconnect", self.parts.sessions.disconnect(claim, id)).await
    }

    /// Forgets the disconnection without adding a reference. `None`: there is no such session.
    pub async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>> {
        self.calls.call("resume", self.parts.sessions.resume(id)).await
    }

    /// One session, whatever has become of its grace.
    pub async fn get(&self, id: &Name) -> Result<Option<Session>> {
        self.calls.call("get", self.parts.sessions.get(id)).await
    }

    /// Sets what `profile` gives. `None`: there is no such session.
    pub async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>> {
        check(profile)?;
        self.calls.call("update", self.parts.sessions.update(id, profile)).await
    }

    /// Removes it with what hangs on it, unless somebody is connected.
    pub async fn delete(&self, id: &Name) -> Result<Deleted> {
        self.calls.call("delete", self.parts.sessions.delete(id)).await
    }

    /// The current session of a broadcaster.
    pub async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>> {
        self.calls.call("broadcaster", self.parts.sessions.of_broadcaster(broadcaster)).await
    }

    /// Sessions whose grace is over, the longest overdue first, at most `limit` and never more
    /// than [`PAGE_MAX`].
    pub async fn orphans(&self, limit: usize) -> Result<Vec<Name>> {
        self.calls.quiet("orphans", self.parts.sessions.orphans(limit.min(PAGE_MAX))).await
    }

    /// How many sessions are disconnected. Not activity: metrics ask for it.
    pub async fn disconnected_count(&self) -> Result<u64> {
        self.calls.quiet("disconnected", self.parts.sessions.disconnected_count()).await
    }

    /// The sessions that one life refers to, by id.
    pub async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let limit = limit.min(PAGE_MAX);
        self.calls.call("referred", self.parts.sessions.referred(claim, after, limit)).await
    }

    /// A living owner that beats by itself.
    pub async fn owner(&self, name: &str) -> Result<Owner> {
        let store: Arc<dyn OwnerStore> = self.parts.sessions.clone();
        let options = OwnerOptions::with_ttl(self.parts.ttl);
        Owner::start(store, self.parts.clock.clone(), name, options).await
    }

    /// Begins a new life of `owner`.
    pub async fn start(&self, owner: &Name, ttl: Option<Duration>) -> Result<Beat> {
        let ttl_ms = ttl.unwrap_or(self.parts.ttl).as_millis() as u64;
        if ttl_ms == 0 {
            return Err(Error::Invalid("ttl_ms must be above 0".to_owned()));
        }
        self.calls.call("start", self.parts.sessions.start(owner, ttl_ms)).await
    }

    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.calls.call("beat", self.parts.sessions.beat(claim)).await
    }

    /// Owners, oldest incarnation first.
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.calls.call("owners", self.parts.sessions.owners(after, limit.min(PAGE_MAX))).await
    }

    pub async fn owner_info(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.calls.call("owner", self.parts.sessions.owner(claim)).await
    }

    /// The graceful end. First the life ends, in one O(1) step; then its references are dropped in
    /// batches by the same guarded step as those of the dead. A crash in between leaves an ended
    /// owner, which the sweep finds.
    pub async fn retire(&self, claim: &Claim) -> Result<RetiredSessionOwner> {
        let (sessions, batch) = (&self.parts.sessions, self.parts.batch);
        let ended = self.calls.call("retire", sessions.end(claim)).await?;
        let held_by = |owner: Claim| async move { sessions.held_by(&owner, batch).await };
        let sweeper = &self.parts.sweeper;
        let done = let_go(&self.calls, &**sessions, &ended, sweeper, held_by).await?;
        Ok(RetiredSessionOwner { incarnation: done.incarnation, released: done.released })
    }
}

#[async_trait]
impl System for Sessions {
    fn id(&self) -> &SystemId {
        &self.parts.id
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
