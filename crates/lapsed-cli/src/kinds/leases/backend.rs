//! The operations on leases that a daemon and a store have in common.

use std::time::Duration;

use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey,
    LeaseTicket, Namespace,
};
use lapsed_core::{Name, SystemId};

use crate::backend::{Backend, BackendRef};
use lapsed_server::failure::Failure;

/// A request for a lease; without `ttl`, the configuration decides how long it lasts.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    pub key: LeaseKey,
    pub owner: Name,
    pub ttl: Option<Duration>,
    pub request: Option<Name>,
}

impl LeaseRequest {
    pub fn with_ttl(&self, usual: Duration) -> AcquireRequest {
        AcquireRequest {
            key: self.key.clone(),
            owner: self.owner.clone(),
            ttl_ms: self.ttl.unwrap_or(usual).as_millis() as u64,
            request: self.request.clone(),
        }
    }
}

/// The operations on leases of `backend`.
pub fn lease_backend(backend: &dyn Backend) -> &dyn LeaseBackend {
    match backend.as_ref() {
        BackendRef::Local(local) => local,
        BackendRef::Remote(remote) => remote,
    }
}

pub trait LeaseBackend: Backend {
    /// Acquires a lease, and waits up to `wait` while another owner holds it.
    fn acquire(
        &self,
        of: &SystemId,
        wanted: &LeaseRequest,
        wait: Duration,
    ) -> Result<Acquired, Failure>;
    /// Extends the lease by `ttl`, or by the same TTL as before. Fails if there is no answer within `limit`.
    fn renew(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        ttl: Option<Duration>,
        limit: Duration,
    ) -> Result<Fenced<Grant>, Failure>;
    /// Releases the lease. Fails if there is no answer within `limit`.
    fn release(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        limit: Duration,
    ) -> Result<Fenced<()>, Failure>;
    /// The state of one key; none if it was never leased.
    fn describe(&self, of: &SystemId, key: &LeaseKey) -> Result<Option<LeaseInfo>, Failure>;
    /// At most `limit` keys of a namespace behind `after`, ordered by name.
    fn list(
        &self,
        of: &SystemId,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>, Failure>;
    fn namespaces(
        &self,
        of: &SystemId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<Namespace>, Failure>;
    /// Decides a transaction; if it is decided already, the earlier decision is returned.
    fn decide(
        &self,
        of: &SystemId,
        txn: &Name,
        decision: Decision,
        ttl: Option<Duration>,
    ) -> Result<DecisionInfo, Failure>;
    /// The decision on a transaction; none if it is not decided or no longer kept.
    fn decision(&self, of: &SystemId, txn: &Name) -> Result<Option<DecisionInfo>, Failure>;
}
