//! How leases are assembled, on each store that carries them.
#![allow(missing_docs)]
// A build with only some of the stores does not use everything here.
#![cfg_attr(not(feature = "all-stores"), allow(dead_code, unused_imports, unused_variables))]

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::leases::{FORGET_AFTER_MS, Leases, LeasesParts, LeasesStore};
use lapsed_core::sweep::policy::{Policy, SweepMode, WhenCapped};
use lapsed_core::{Kind, Result, SystemId};

use crate::assembly::{Assembly, Index, SHARED_STORE_SHARE};
use crate::stores::{Carries, OpenStore, Opened, StoreUse, SystemSpec};

/// The limit of requests for each entry in a pass over leases on an object store: three are usual, and listing
/// needs some more.
const REQUESTS_PER_OP: u64 = 10;
const REQUESTS_MIN: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
pub struct LeasesSpec {
    /// How long a lease lasts from each renewal unless the caller says otherwise.
    pub ttl: Duration,
    /// How long a decision is kept unless the caller says otherwise.
    pub decision_ttl: Duration,
    /// The width of the index buckets on an object store; none: the store's default.
    pub bucket: Option<Duration>,
    /// The most requests of one pass on an object store; none: no limit.
    pub requests_per_pass: Option<u64>,
    /// How long a key is kept that nobody uses; none: for ever.
    pub forget_after: Option<Duration>,
    /// How long a pass pauses between two entries on an object store.
    pub entry_delay: Duration,
}

impl LeasesSpec {
    pub fn new(ttl: Duration, decision_ttl: Duration) -> Self {
        LeasesSpec {
            ttl,
            decision_ttl,
            bucket: None,
            requests_per_pass: None,
            forget_after: Some(Duration::from_millis(FORGET_AFTER_MS)),
            entry_delay: Duration::ZERO,
        }
    }
}

impl Assembly {
    pub fn leases(&self, store: &OpenStore, id: SystemId, spec: LeasesSpec) -> Result<Arc<Leases>> {
        let (ttl, decision_ttl) = (spec.ttl, spec.decision_ttl);
        let per_pass = |ops: u64| ops.saturating_mul(REQUESTS_PER_OP) + REQUESTS_MIN;
        let requests_per_pass = self.policy.max_ops.map(per_pass);
        let entry_delay = self.policy.entry_delay;
        let spec = LeasesSpec { requests_per_pass, entry_delay, ..spec };
        let (leases, index) = store.open_system(&id, spec)?;
        let parts = LeasesParts::new(leases, store.store(), ttl).index(index);
        Ok(Arc::new(Leases::new(self.equip(parts), decision_ttl)))
    }
}

impl SystemSpec for LeasesSpec {
    const KIND: Kind = Kind::Leases;
    type Opened = (Arc<dyn LeasesStore>, Index);
}

#[cfg(feature = "embedded")]
impl Carries<LeasesSpec> for lapsed_embedded::Embedded {
    fn open_system(&self, id: &SystemId, spec: LeasesSpec) -> Opened<LeasesSpec> {
        Ok((self.leases_forgetting(id.clone(), spec.ttl, spec.forget_after)?, None))
    }
}

#[cfg(feature = "object")]
impl Carries<LeasesSpec> for crate::stores::object::OpenObject {
    fn open_system(&self, id: &SystemId, spec: LeasesSpec) -> Opened<LeasesSpec> {
        let usual = lapsed_object::LeasesLayout::default();
        let (bucket, requests_per_pass) =
            (spec.bucket.unwrap_or(usual.bucket), spec.requests_per_pass);
        let (forget_after, entry_delay) = (spec.forget_after, spec.entry_delay);
        let layout = lapsed_object::LeasesLayout {
            bucket,
            requests_per_pass,
            forget_after,
            entry_delay,
            ..usual
        };
        let leases = self.leases(id, layout)?;
        Ok((leases.clone(), Some(leases)))
    }
}

/// The default policy of leases. Where requests are paid, every entry of a batch takes a few of them, and the log of a
/// batch two more, while the server may throttle: so batches are small there and may take long, one process sweeps for all, and a pass that
/// reached a limit does not go on before its next interval.
pub fn default_policy(used_by: StoreUse) -> Policy {
    let policy = Policy {
        idle_grace: Some(Duration::from_secs(5 * 60)),
        max_ops: Some(1_000),
        max_runtime: Some(Duration::from_secs(30)),
        ..Policy::default()
    };
    match used_by {
        StoreUse::Exclusive => Policy { hold: Duration::from_millis(10), ..policy },
        StoreUse::Shared => Policy { share: SHARED_STORE_SHARE, ..policy },
        StoreUse::PaidByRequest => Policy {
            mode: SweepMode::Leader,
            term_ttl: Duration::from_secs(3 * 60),
            when_capped: WhenCapped::WaitForInterval,
            entry_delay: Duration::from_millis(100),
            batch: 20,
            hold: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
            ..policy
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_sweeps_a_store_whose_requests_are_paid() {
        let paid = default_policy(StoreUse::PaidByRequest);
        assert_eq!(paid.mode, SweepMode::Leader);
        assert_eq!(paid.when_capped, WhenCapped::WaitForInterval);
        assert_eq!(default_policy(StoreUse::Exclusive).mode, SweepMode::Idempotent);
    }
}
