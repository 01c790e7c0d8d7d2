//! How a registry is assembled, on each store that carries it.
#![allow(missing_docs)]
// A build with only some of the stores does not use everything here.
#![cfg_attr(not(feature = "all-stores"), allow(dead_code, unused_imports, unused_variables))]

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::registry::{Registry, RegistryParts, RegistryStore};
use lapsed_core::{Kind, Result, SystemId};

use crate::assembly::{Assembly, Index};
use crate::stores::{Carries, OpenStore, Opened, SystemSpec};

#[derive(Clone, Debug)]
pub struct RegistrySpec {
    /// How long an owner may be silent before it is dead.
    pub ttl: Duration,
    #[cfg(feature = "redis")]
    pub redis: RedisRegistry,
}

/// The layout of a registry on Redis, native or adopted from an application.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub enum RedisRegistry {
    Native(lapsed_redis::RegistryLayout),
    Adopt(lapsed_redis::RegistryLayout),
}

impl RegistrySpec {
    pub fn new(ttl: Duration) -> Self {
        RegistrySpec {
            ttl,
            #[cfg(feature = "redis")]
            redis: RedisRegistry::Native(lapsed_redis::RegistryLayout::new(ttl)),
        }
    }
}

impl Assembly {
    pub fn registry(
        &self,
        store: &OpenStore,
        id: SystemId,
        spec: RegistrySpec,
    ) -> Result<Arc<Registry>> {
        let ttl = spec.ttl;
        let (registry, index) = store.open_system(&id, spec)?;
        let parts = RegistryParts::new(registry, store.store(), ttl).index(index);
        Ok(Arc::new(Registry::new(self.equip(parts))))
    }
}

impl SystemSpec for RegistrySpec {
    const KIND: Kind = Kind::Registry;
    type Opened = (Arc<dyn RegistryStore>, Index);
}

#[cfg(feature = "embedded")]
impl Carries<RegistrySpec> for lapsed_embedded::Embedded {
    fn open_system(&self, id: &SystemId, spec: RegistrySpec) -> Opened<RegistrySpec> {
        Ok((self.registry(id.clone(), spec.ttl)?, None))
    }
}

#[cfg(feature = "redis")]
impl Carries<RegistrySpec> for lapsed_redis::Redis {
    fn open_system(&self, id: &SystemId, spec: RegistrySpec) -> Opened<RegistrySpec> {
        match spec.redis {
            RedisRegistry::Native(layout) => {
                let registry = Arc::new(self.registry(id.clone(), layout)?);
                Ok((registry.clone(), Some(registry)))
            }
            RedisRegistry::Adopt(layout) => {
                Ok((Arc::new(self.adopted_registry(id.clone(), layout)?), None))
            }
        }
    }
}
