//! The lease operations, carried out on the store itself.

use std::time::Duration;

use lapsed_core::clock::{SystemClock, call_within};
use lapsed_core::leases::{
    Acquired, Decision, DecisionInfo, Fenced, Grant, LeaseInfo, LeaseKey, LeaseTicket, Leases,
    Namespace,
};
use lapsed_core::{Name, SystemId};

use super::backend::{LeaseBackend, LeaseRequest};
use crate::backend::LocalBackend;
use lapsed_server::failure::Failure;

impl LocalBackend {
    fn leases(&self, system: &SystemId) -> Result<&Leases, Failure> {
        let leases = self.live(system)?.operations::<Leases>();
        leases.ok_or_else(|| Failure::usage(format!("`{system}` has no leases")))
    }

    fn within<T>(
        &self,
        of: &SystemId,
        what: &str,
        limit: Duration,
        call: impl Future<Output = lapsed_core::Result<T>>,
    ) -> Result<T, Failure> {
        let clock = SystemClock::new();
        Ok(self.runtime.block_on(call_within(&clock, limit, of, what, call))?)
    }
}

impl LeaseBackend for LocalBackend {
    fn acquire(
        &self,
        of: &SystemId,
        wanted: &LeaseRequest,
        wait: Duration,
    ) -> Result<Acquired, Failure> {
        let leases = self.leases(of)?;
        let acquire = wanted.with_ttl(leases.ttl());
        Ok(self.runtime.block_on(leases.acquire(&acquire, wait))?)
    }

    fn renew(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        ttl: Option<Duration>,
        limit: Duration,
    ) -> Result<Fenced<Grant>, Failure> {
        self.within(of, "renew", limit, self.leases(of)?.renew(ticket, ttl))
    }

    fn release(
        &self,
        of: &SystemId,
        ticket: &LeaseTicket,
        limit: Duration,
    ) -> Result<Fenced<()>, Failure> {
        self.within(of, "release", limit, self.leases(of)?.release(ticket))
    }

    fn describe(&self, of: &SystemId, key: &LeaseKey) -> Result<Option<LeaseInfo>, Failure> {
        Ok(self.runtime.block_on(self.leases(of)?.describe(key))?)
    }

    fn list(
        &self,
        of: &SystemId,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>, Failure> {
        Ok(self.runtime.block_on(self.leases(of)?.list(namespace, after, limit))?)
    }

    fn namespaces(
        &self,
        of: &SystemId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Vec<Namespace>, Failure> {
        Ok(self.runtime.block_on(self.leases(of)?.namespaces(after, limit))?)
    }

    fn decide(
        &self,
        of: &SystemId,
        txn: &Name,
        decision: Decision,
        ttl: Option<Duration>,
    ) -> Result<DecisionInfo, Failure> {
        Ok(self.runtime.block_on(self.leases(of)?.decide(txn, decision, ttl))?)
    }

    fn decision(&self, of: &SystemId, txn: &Name) -> Result<Option<DecisionInfo>, Failure> {
        Ok(self.runtime.block_on(self.leases(of)?.decision(txn))?)
    }
}
