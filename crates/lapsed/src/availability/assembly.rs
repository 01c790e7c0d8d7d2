//! How availability is assembled, on each store that carries it.
#![allow(missing_docs)]
// A build with only some of the stores does not use everything here.
#![cfg_attr(not(feature = "all-stores"), allow(dead_code, unused_imports, unused_variables))]

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "embedded")]
use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::{
    Availability, AvailabilityParts, BreakerPolicy, MIRROR_TIMEOUT, Mirror, SNAPSHOT_MS, Truth,
};
use lapsed_core::clock::Clock;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::{Error, Kind, Result, SystemId};

use crate::assembly::{self, Assembly, common_parts};
use crate::stores::{Carries, OpenStore, Opened, StoreUse, SystemSpec, unsupported};

/// An assembled system of availability, with the sources of changes.
pub struct AssembledAvailability {
    pub system: Arc<Availability>,
    /// The sources that report changes by other processes; none if no other process can change anything.
    pub changes: Option<ChangeSources>,
}

/// The sources that report changes by other processes.
#[derive(Clone)]
pub struct ChangeSources {
    /// Reports what the application changed in its tables, if they have triggers.
    #[cfg(feature = "postgres")]
    pub truth: lapsed_postgres::Postgres,
    /// Reports changed settings, and providers whose heartbeat key has expired.
    #[cfg(feature = "redis")]
    pub mirror: Arc<lapsed_redis::RedisMirror>,
}

#[derive(Clone, Debug)]
pub struct AvailabilitySpec {
    /// How long a provider may be silent before it is set offline.
    pub threshold: Duration,
    pub mirror_timeout: Duration,
    pub breaker: BreakerPolicy,
    pub snapshot_ttl: Duration,
    /// The names of the application's tables.
    #[cfg(feature = "postgres")]
    pub tables: lapsed_postgres::Layout,
    /// The names of the keys in the mirror.
    #[cfg(feature = "redis")]
    pub keys: lapsed_redis::MirrorLayout,
}

impl AvailabilitySpec {
    pub fn new(threshold: Duration) -> Self {
        AvailabilitySpec {
            threshold,
            mirror_timeout: MIRROR_TIMEOUT,
            breaker: BreakerPolicy::default(),
            snapshot_ttl: Duration::from_millis(SNAPSHOT_MS),
            #[cfg(feature = "postgres")]
            tables: lapsed_postgres::Layout::default(),
            #[cfg(feature = "redis")]
            keys: lapsed_redis::MirrorLayout::default(),
        }
    }
}

impl Assembly {
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
        let request =
            AvailabilityRequest { spec, mirror: mirror.cloned(), clock: self.clock.clone() };
        let (truth, cache, changes) = store.open_system(&id, request)?;
        let parts = AvailabilityParts::new(id, truth, cache)
            .mirror_timeout(mirror_timeout)
            .breaker(breaker)
            .snapshot_ttl(snapshot_ttl);
        Ok(AssembledAvailability { system: Availability::new(common_parts!(self, parts)), changes })
    }
}

/// What the availability of one system is opened from: its settings, and the store of its mirror.
pub struct AvailabilityRequest {
    spec: AvailabilitySpec,
    mirror: Option<OpenStore>,
    clock: Arc<dyn Clock>,
}

impl SystemSpec for AvailabilityRequest {
    const KIND: Kind = Kind::Availability;
    type Opened = (Arc<dyn Truth>, Arc<dyn Mirror>, Option<ChangeSources>);
}

#[cfg(feature = "embedded")]
impl Carries<AvailabilityRequest> for lapsed_embedded::Embedded {
    fn open_system(
        &self,
        id: &SystemId,
        request: AvailabilityRequest,
    ) -> Opened<AvailabilityRequest> {
        match request.mirror {
            None => Ok((self.availability(id.clone())?, memory_mirror(request.clock), None)),
            Some(_) => Err(unsupported(id, "an embedded store")),
        }
    }
}

#[cfg(feature = "postgres")]
impl Carries<AvailabilityRequest> for lapsed_postgres::Postgres {
    fn open_system(
        &self,
        id: &SystemId,
        request: AvailabilityRequest,
    ) -> Opened<AvailabilityRequest> {
        let Some(mirror) = &request.mirror else {
            let what = "availability in Postgres needs a mirror on Redis: `.mirror(&redis)`";
            return Err(Error::Invalid(what.to_owned()));
        };
        #[cfg(feature = "redis")]
        if let Some(cache) = mirror.get::<lapsed_redis::Redis>() {
            let spec = request.spec;
            let truth = Arc::new(self.availability(id.clone(), spec.tables)?);
            let mirror = cache.mirror(id.clone(), spec.keys, spec.threshold)?;
            let changes = ChangeSources { truth: self.clone(), mirror: mirror.clone() };
            return Ok((truth, mirror, Some(changes)));
        }
        Err(unsupported(id, "Postgres"))
    }
}

/// A mirror in the memory of this process. It starts like a mirror that has just lost its data: every provider
/// has a whole threshold to send a heartbeat.
#[cfg(feature = "embedded")]
fn memory_mirror(clock: Arc<dyn Clock>) -> Arc<dyn Mirror> {
    // The mirror is checked every second. A longer time than this between two checks means that the process
    // was suspended.
    let gap = Duration::from_secs(5);
    let mirror = MemoryMirror::new(clock, Some(gap));
    mirror.lose();
    Arc::new(mirror)
}

/// The default policy of availability.
pub fn default_policy(used_by: StoreUse) -> Policy {
    Policy { every: Duration::from_secs(30), ..assembly::default_policy(used_by) }
}
