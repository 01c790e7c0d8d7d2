//! The operations of `sessions`, the same on every store.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::name::Name;
use crate::owner::Claim;
use crate::request::RequestId;
use crate::sessions::{
    Activated, Deleted, PAGE_MAX, ReferenceChange, ReferenceStep, Session, SessionProfile,
    SessionsStore, check,
};
use crate::store_caller::StoreCaller;
use crate::system::{OwnerService, SystemParts, system_with_owners};

/// What a system of sessions needs, besides the grace.
pub type SessionsParts = SystemParts<dyn SessionsStore>;

/// A system of sessions.
pub struct Sessions {
    pub(super) parts: SessionsParts,
    pub(super) calls: StoreCaller,
    owners: OwnerService,
    grace: Duration,
}

impl Sessions {
    /// `grace` is how long a session without references is kept.
    pub fn new(parts: SessionsParts, grace: Duration) -> Self {
        let (calls, entries) = (parts.calls(), &parts.entries);
        let owners = OwnerService::new(&parts, entries.clone(), entries.clone(), PAGE_MAX);
        Sessions { parts, calls, owners, grace }
    }

    /// The store of this system, for callers that send heartbeats through a
    /// [`BeatHandle`](crate::owner::BeatHandle).
    pub fn store(&self) -> &Arc<dyn SessionsStore> {
        &self.parts.entries
    }

    /// How long a session without references is kept.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Creates a session or reactivates an existing one.
    pub async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated> {
        check(profile)?;
        self.calls.call("activate", self.parts.entries.activate(id, profile)).await
    }

    /// Adds one reference of the claimed incarnation. `None`: there is no such session. If the
    /// answer is lost, repeat the call and compare [`ReferenceChange::yours`]; see
    /// [`SessionsStore`].
    pub async fn connect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.calls.call("connect", self.parts.entries.connect(claim, id)).await
    }

    /// Removes one reference of the claimed incarnation. `None`: there is no such session. If the
    /// answer is lost, do not repeat the call; see [`SessionsStore`].
    pub async fn disconnect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.calls.call("disconnect", self.parts.entries.disconnect(claim, id)).await
    }

    /// Adds or removes one reference for a request that may be repeated: all its attempts count once
    /// and get the same answer. `None`: there is no such session.
    pub async fn change_once(
        &self,
        request: &RequestId,
        change: ReferenceStep,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        let call = self.parts.entries.change_once(request, change, claim, id);
        self.calls.call(change.as_str(), call).await
    }

    /// Clears the disconnection without adding a reference. `None`: there is no such session.
    pub async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>> {
        self.calls.call("resume", self.parts.entries.resume(id)).await
    }

    /// One session, whether or not its grace period is over.
    pub async fn get(&self, id: &Name) -> Result<Option<Session>> {
        self.calls.call("get", self.parts.entries.get(id)).await
    }

    /// Sets the fields that `profile` contains. `None`: there is no such session.
    pub async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>> {
        check(profile)?;
        self.calls.call("update", self.parts.entries.update(id, profile)).await
    }

    /// Deletes a session and its index entries, unless it has references.
    pub async fn delete(&self, id: &Name) -> Result<Deleted> {
        self.calls.call("delete", self.parts.entries.delete(id)).await
    }

    /// The id of a broadcaster's current session.
    pub async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>> {
        self.calls.call("broadcaster", self.parts.entries.of_broadcaster(broadcaster)).await
    }

    /// Sessions whose grace period is over, the most overdue first, at most `limit` and never more
    /// than [`PAGE_MAX`].
    pub async fn orphans(&self, limit: usize) -> Result<Vec<Name>> {
        self.calls.quiet("orphans", self.parts.entries.orphans(limit.min(PAGE_MAX))).await
    }

    /// How many sessions are disconnected. Not recorded as activity, because metrics call it.
    pub async fn disconnected_count(&self) -> Result<u64> {
        self.calls.quiet("disconnected", self.parts.entries.disconnected_count()).await
    }

    /// Ids of the sessions that one incarnation refers to, in order.
    pub async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let limit = limit.min(PAGE_MAX);
        self.calls.call("referred", self.parts.entries.referred(claim, after, limit)).await
    }
}

system_with_owners!(Sessions);
