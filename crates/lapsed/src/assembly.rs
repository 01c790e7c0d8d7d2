//! Assembles a system out of a store, a policy, a brake, a clock and an observer: the only place that
//! does. The builders of this crate and the daemon go through it. Not part of the public interface.
#![allow(missing_docs)]

#[cfg(feature = "object")]
mod object;
mod spec;
mod store;

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::{Availability, AvailabilityParts};
use lapsed_core::activity::Activity;
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::inflight::{Inflight, InflightParts};
use lapsed_core::leader::{Campaign, TermOptions};
use lapsed_core::leases::{Leases, LeasesParts};
use lapsed_core::receipt::{NoObserver, Observer, Retention};
use lapsed_core::registry::{Registry, RegistryParts};
use lapsed_core::sessions::{Sessions, SessionsParts};
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::{Brake, BrakePolicy};
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{Sweep, Sweeper, SweeperParts};
use lapsed_core::{Kind, Result, SystemId, setters};

#[cfg(feature = "object")]
pub use object::OpenObject;
pub use spec::{AvailabilitySpec, InflightSpec, LeasesSpec, RegistrySpec, SessionsSpec};
#[cfg(feature = "redis")]
pub use spec::{RedisInflight, RedisRegistry, RedisSessionsKeys};
pub use store::{ChangeSources, OpenAvailability, OpenStore};

/// The share of the time that a pass may keep a store busy which others also use.
pub const SHARED_STORE_SHARE: f64 = 0.75;

/// The limit of requests for each entry in a pass over leases on an object store: three are usual, and listing
/// needs some more.
const REQUESTS_PER_OP: u64 = 10;
const REQUESTS_MIN: u64 = 1_000;

/// The parts of a system, besides its store and the settings of its kind.
pub struct Assembly {
    pub policy: Policy,
    pub brake: Arc<Brake>,
    pub activity: Arc<Activity>,
    pub clock: Arc<dyn Clock>,
    pub observer: Arc<dyn Observer>,
    /// The name of this process, unique among all processes.
    pub process: String,
    pub retention: Retention,
}

/// An assembled system of availability, with the sources of changes.
pub struct AssembledAvailability {
    pub system: Arc<Availability>,
    /// The sources that report changes by other processes; none if no other process can change anything.
    pub changes: Option<ChangeSources>,
}

impl Assembly {
    /// An owner is dead after `threshold` without a heartbeat.
    pub fn new(policy: Policy, brake: BrakePolicy, threshold: Duration) -> Assembly {
        let clock = SystemClock::shared();
        Assembly {
            policy,
            brake: Arc::new(Brake::new(brake, threshold)),
            activity: Arc::default(),
            process: format!("process-{:016x}", clock.random()),
            clock,
            observer: Arc::new(NoObserver),
            retention: Retention::default(),
        }
    }

    setters! {
        clock: Arc<dyn Clock>;
        observer: Arc<dyn Observer>;
        process: String;
        retention: Retention;
    }

    pub fn registry(
        &self,
        store: &OpenStore,
        id: SystemId,
        spec: RegistrySpec,
    ) -> Result<Arc<Registry>> {
        let ttl = spec.ttl;
        let (registry, index) = store.registry(id, spec)?;
        let parts = RegistryParts::new(registry, store.store(), ttl)
            .index(index)
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .observer(self.observer.clone())
            .timeout(self.policy.timeout)
            .batch(self.policy.batch)
            .sweeper(self.process.clone());
        Ok(Arc::new(Registry::new(parts)))
    }

    pub fn sessions(
        &self,
        store: &OpenStore,
        id: SystemId,
        spec: SessionsSpec,
    ) -> Result<Arc<Sessions>> {
        let (ttl, grace) = (spec.ttl, spec.grace);
        let (sessions, index) = store.sessions(id, spec)?;
        let parts = SessionsParts::new(sessions, store.store(), ttl, grace)
            .index(index)
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .observer(self.observer.clone())
            .timeout(self.policy.timeout)
            .batch(self.policy.batch)
            .sweeper(self.process.clone());
        Ok(Arc::new(Sessions::new(parts)))
    }

    pub fn inflight(
        &self,
        store: &OpenStore,
        id: SystemId,
        spec: InflightSpec,
    ) -> Result<Arc<Inflight>> {
        let (ttl, beat_every) = (spec.ttl, spec.beat_every);
        let (inflight, index) = store.inflight(id, spec)?;
        let parts = InflightParts::new(inflight, store.store(), ttl)
            .index(index)
            .beat_every(Some(beat_every))
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .observer(self.observer.clone())
            .timeout(self.policy.timeout)
            .batch(self.policy.batch)
            .sweeper(self.process.clone());
        Ok(Arc::new(Inflight::new(parts)))
    }

    pub fn leases(&self, store: &OpenStore, id: SystemId, spec: LeasesSpec) -> Result<Arc<Leases>> {
        let (ttl, decision_ttl) = (spec.ttl, spec.decision_ttl);
        let per_pass = |ops: u64| ops.saturating_mul(REQUESTS_PER_OP) + REQUESTS_MIN;
        let (leases, index) = store.leases(id, spec, self.policy.max_ops.map(per_pass))?;
        let parts = LeasesParts::new(leases, store.store(), ttl)
            .index(index)
            .decision_ttl(decision_ttl)
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .observer(self.observer.clone())
            .timeout(self.policy.timeout);
        Ok(Arc::new(Leases::new(parts)))
    }

    /// Assembles availability. `store` holds the truth; `mirror` answers reads, or memory if there is none.
    pub fn availability(
        &self,
        store: &OpenStore,
        mirror: Option<&OpenStore>,
        id: SystemId,
        spec: AvailabilitySpec,
    ) -> Result<AssembledAvailability> {
        let (mirror_timeout, breaker) = (spec.mirror_timeout, spec.breaker);
        let snapshot_ttl = spec.snapshot_ttl;
        let opened = store.availability(mirror, &id, spec, self.clock.clone())?;
        let parts = AvailabilityParts::new(id, opened.truth, opened.mirror)
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .observer(self.observer.clone())
            .timeout(self.policy.timeout)
            .mirror_timeout(mirror_timeout)
            .breaker(breaker)
            .snapshot_ttl(snapshot_ttl);
        let changes = opened.changes;
        Ok(AssembledAvailability { system: Availability::new(parts), changes })
    }

    /// The sweeper of one system; in leader mode also its candidate, which the caller must run.
    pub fn sweeper(
        &self,
        sweep: Arc<dyn Sweep>,
        store: Arc<dyn Store>,
    ) -> (Sweeper, Option<Campaign>) {
        let (campaign, leadership) = match self.policy.mode {
            SweepMode::Idempotent => (None, None),
            SweepMode::Leader => {
                let (campaign, leadership) = Campaign::new(
                    store.clone(),
                    self.clock.clone(),
                    sweep.system().clone(),
                    &self.process,
                    TermOptions::default(),
                );
                (Some(campaign), Some(leadership))
            }
        };
        let parts = SweeperParts::new(self.process.clone(), sweep, store)
            .policy(self.policy.clone())
            .brake(self.brake.clone())
            .clock(self.clock.clone())
            .activity(self.activity.clone())
            .leadership(leadership)
            .observer(self.observer.clone())
            .retention(self.retention);
        (Sweeper::new(parts), campaign)
    }
}

/// The default policy of a kind. On a store that others also use, a pass pauses after each batch for a third of
/// the time that the batch took.
pub fn default_policy(kind: Kind, is_embedded: bool) -> Policy {
    let share = if is_embedded { 1.0 } else { SHARED_STORE_SHARE };
    let policy = Policy { share, ..Policy::default() };
    match kind {
        Kind::Registry | Kind::Inflight => policy,
        Kind::Sessions | Kind::Availability => Policy { every: Duration::from_secs(30), ..policy },
        Kind::Leases => leases_policy(is_embedded),
    }
}

/// The default policy of leases. On an object store every entry of a batch takes a few requests, and the log of a
/// batch two more, while the server may throttle: so batches are small there and may take long.
fn leases_policy(is_embedded: bool) -> Policy {
    let policy = Policy {
        idle_grace: Some(Duration::from_secs(5 * 60)),
        max_ops: Some(1_000),
        max_runtime: Some(Duration::from_secs(30)),
        ..Policy::default()
    };
    match is_embedded {
        true => Policy { hold: Duration::from_millis(10), ..policy },
        false => Policy {
            entry_delay: Duration::from_millis(100),
            batch: 20,
            hold: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
            ..policy
        },
    }
}
