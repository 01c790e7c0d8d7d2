//! How jobs in flight are assembled, on each store that carries them.
#![allow(missing_docs)]
// A build with only some of the stores does not use everything here.
#![cfg_attr(not(feature = "all-stores"), allow(dead_code, unused_imports, unused_variables))]

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{Inflight, InflightParts, InflightStore};
use lapsed_core::reconcile::Reconcile;
use lapsed_core::{Kind, Result, SystemId};

use crate::assembly::{Assembly, Index};
use crate::stores::{Carries, OpenStore, Opened, SystemSpec};

#[derive(Clone, Debug)]
pub struct InflightSpec {
    /// How long a worker may be silent before it is dead.
    pub ttl: Duration,
    /// How often a worker of this process sends heartbeats.
    pub beat_every: Duration,
    pub recovery: RecoveryPolicy,
    #[cfg(feature = "redis")]
    pub redis: RedisInflight,
}

/// The layout of jobs in flight on Redis, native or adopted from an application.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub enum RedisInflight {
    Native(lapsed_redis::InflightLayout),
    Adopt(lapsed_redis::AdoptedInflightLayout),
    /// A foreign job system, whose profile knows the keys.
    Rescue(lapsed_redis::RescueLayout),
}

impl InflightSpec {
    pub fn new(ttl: Duration, beat_every: Duration, recovery: RecoveryPolicy) -> Self {
        InflightSpec {
            ttl,
            beat_every,
            #[cfg(feature = "redis")]
            redis: RedisInflight::Native(lapsed_redis::InflightLayout::new(ttl, recovery.clone())),
            recovery,
        }
    }
}

impl Assembly {
    pub fn inflight(
        &self,
        store: &OpenStore,
        id: SystemId,
        spec: InflightSpec,
    ) -> Result<Arc<Inflight>> {
        let (ttl, beat_every) = (spec.ttl, spec.beat_every);
        let (inflight, index) = store.open_system(&id, spec)?;
        let parts = InflightParts::new(inflight, store.store(), ttl)
            .index(index)
            .beat_every(Some(beat_every));
        Ok(Arc::new(Inflight::new(self.equip(parts))))
    }
}

impl SystemSpec for InflightSpec {
    const KIND: Kind = Kind::Inflight;
    type Opened = (Arc<dyn InflightStore>, Index);
}

#[cfg(feature = "embedded")]
impl Carries<InflightSpec> for lapsed_embedded::Embedded {
    fn open_system(&self, id: &SystemId, spec: InflightSpec) -> Opened<InflightSpec> {
        Ok((self.inflight(id.clone(), spec.ttl, spec.recovery)?, None))
    }
}

#[cfg(feature = "redis")]
impl Carries<InflightSpec> for lapsed_redis::Redis {
    fn open_system(&self, id: &SystemId, spec: InflightSpec) -> Opened<InflightSpec> {
        match spec.redis {
            RedisInflight::Native(layout) => {
                let inflight = Arc::new(self.inflight(id.clone(), layout)?);
                Ok((inflight.clone(), Some(inflight)))
            }
            RedisInflight::Adopt(layout) => {
                Ok((Arc::new(self.adopted_inflight(id.clone(), layout)?), None))
            }
            RedisInflight::Rescue(layout) => {
                let inflight = Arc::new(self.rescued_inflight(id.clone(), layout)?);
                let index = inflight.finds_drift().then(|| inflight.clone() as Arc<dyn Reconcile>);
                Ok((inflight, index))
            }
        }
    }
}
