//! Leases, whoever is asked for them. What a daemon and a store answer is the same.

use std::time::Duration;

use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey,
    LeaseTicket, Namespace,
};
use lapsed_core::{Name, SystemId};

use lapsed_server::failure::Failure;

/// What to acquire; how long it lasts may be left to the configuration.
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

pub trait LeaseBackend {
    /// Acquires, waiting in line for as long as told.
    fn acquire(
        &self,
        of: &SystemId,
        wanted: &LeaseRequest,
        wait: Duration,
    ) -> Result<Acquired, Failure>;
    /// Moves the deadline on; the answer must be there within `limit`.
    fn renew(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        ttl: Option<Duration>,
        limit: Duration,
    ) -> Result<Fenced<Grant>, Failure>;
    /// Ends the lease; the answer must be there within `limit`.
    fn release(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        limit: Duration,
    ) -> Result<Fenced<()>, Failure>;
    /// One key; none: it was never leased.
    fn describe(&self, of: &SystemId, key: &LeaseKey) -> Result<Option<LeaseInfo>, Failure>;
    /// Keys of a namespace, by name.
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
    /// Decides a transaction, unless it is decided.
    fn decide(
        &self,
        of: &SystemId,
        txn: &Name,
        decision: Decision,
        ttl: Option<Duration>,
    ) -> Result<DecisionInfo, Failure>;
    /// The decision on a transaction.
    fn decision(&self, of: &SystemId, txn: &Name) -> Result<Option<DecisionInfo>, Failure>;
}
