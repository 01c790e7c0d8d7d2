//! Opened stores, and which systems each of them carries.
// If only one store is compiled in, some match arms are unreachable and some arguments unused.
#![allow(unreachable_patterns, unused_variables)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "embedded")]
use lapsed_availability::memory::MemoryMirror;
use lapsed_availability::{Mirror, Truth};
use lapsed_core::clock::Clock;
use lapsed_core::inflight::InflightStore;
use lapsed_core::leases::LeasesStore;
use lapsed_core::reconcile::Reconcile;
use lapsed_core::registry::RegistryStore;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::store::Store;
use lapsed_core::{Error, Result, SystemId};
#[cfg(feature = "embedded")]
use lapsed_embedded::{Embedded, Options};

use super::{AvailabilitySpec, InflightSpec, LeasesSpec, RegistrySpec, SessionsSpec};
#[cfg(feature = "redis")]
use super::{RedisInflight, RedisRegistry, RedisSessionsKeys};
use crate::open::OpenOptions;

#[cfg(not(any(
    feature = "embedded",
    feature = "redis",
    feature = "postgres",
    feature = "object"
)))]
compile_error!("enable at least one of the features embedded, redis, postgres, object");

/// The memory store is checked every second. A longer time than this between two checks means that the process
/// was suspended.
const MEMORY_GAP: Duration = Duration::from_secs(5);

/// The index of a system that can be reconciled, if the store has one.
type Index = Option<Arc<dyn Reconcile>>;

/// An opened store of any kind.
#[derive(Clone)]
pub enum OpenStore {
    /// A folder of this machine, or the memory of this process.
    #[cfg(feature = "embedded")]
    Embedded(Embedded),
    #[cfg(feature = "redis")]
    Redis(lapsed_redis::Redis),
    /// S3, Azure Blob, Google Cloud Storage.
    #[cfg(feature = "object")]
    Object(super::OpenObject),
    #[cfg(feature = "postgres")]
    Postgres(lapsed_postgres::Postgres),
}

/// Availability on the store of its truth and its mirror.
pub struct OpenAvailability {
    pub truth: Arc<dyn Truth>,
    /// The mirror that answers reads.
    pub mirror: Arc<dyn Mirror>,
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

impl OpenStore {
    /// Opens a folder. Blocking.
    pub fn embedded(
        dir: &Path,
        cache_bytes: Option<usize>,
        clock: Arc<dyn Clock>,
    ) -> Result<OpenStore> {
        #[cfg(feature = "embedded")]
        {
            let usual = Options { clock, ..Options::default() };
            let cache_bytes = cache_bytes.unwrap_or(usual.cache_bytes);
            Ok(OpenStore::Embedded(Embedded::open(dir, Options { cache_bytes, ..usual })?))
        }
        #[cfg(not(feature = "embedded"))]
        Err(feature_off("embedded:DIR", "embedded"))
    }

    /// Opens an embedded store in memory; its data are lost when the last handle is dropped.
    pub fn memory(clock: Arc<dyn Clock>) -> Result<OpenStore> {
        #[cfg(feature = "embedded")]
        {
            let options = Options { clock, ..Options::default() };
            Ok(OpenStore::Embedded(Embedded::in_memory(options)?))
        }
        #[cfg(not(feature = "embedded"))]
        Err(feature_off("memory:", "embedded"))
    }

    pub(crate) fn redis_url(url: &str, clock: Arc<dyn Clock>) -> Result<OpenStore> {
        #[cfg(feature = "redis")]
        {
            let address = lapsed_redis::RedisAddress::new(url);
            address.check().map_err(Error::Invalid)?;
            Ok(OpenStore::Redis(lapsed_redis::Redis::with_clock(&address, clock)?))
        }
        #[cfg(not(feature = "redis"))]
        Err(feature_off("redis://", "redis"))
    }

    pub(crate) fn postgres_url(url: &str, clock: Arc<dyn Clock>) -> Result<OpenStore> {
        #[cfg(feature = "postgres")]
        {
            let address = lapsed_postgres::PostgresAddress::new(url);
            address.check().map_err(Error::Invalid)?;
            Ok(OpenStore::Postgres(lapsed_postgres::Postgres::with_clock(&address, clock)?))
        }
        #[cfg(not(feature = "postgres"))]
        Err(feature_off("postgres://", "postgres"))
    }

    pub(crate) fn object_url(
        url: &str,
        options: &OpenOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<OpenStore> {
        #[cfg(feature = "object")]
        {
            let (id, secret) = options.access_key.clone().unzip();
            let config = lapsed_object::ObjectConfig {
                endpoint: options.endpoint.clone(),
                region: options.region.clone(),
                access_key_id: id,
                secret_access_key: secret,
                account: options.account.clone(),
                account_key: options.account_key.clone(),
                allow_http: options.allow_http,
                ..lapsed_object::ObjectConfig::new("the object store", url)
            };
            Ok(OpenStore::Object(super::OpenObject::open(config, clock)?))
        }
        #[cfg(not(feature = "object"))]
        Err(feature_off("s3://, az:// and gs://", "object"))
    }

    /// The store of receipts, terms and settings.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(store) => Arc::new(store.clone()),
            #[cfg(feature = "redis")]
            OpenStore::Redis(store) => Arc::new(store.clone()),
            #[cfg(feature = "object")]
            OpenStore::Object(store) => store.store().clone(),
            #[cfg(feature = "postgres")]
            OpenStore::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// Whether only this process can write to the store.
    pub fn is_embedded(&self) -> bool {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(_) => true,
            _ => false,
        }
    }

    /// The object store; none if it is another kind of store.
    #[cfg(feature = "object")]
    pub fn object(&self) -> Option<&super::OpenObject> {
        match self {
            OpenStore::Object(store) => Some(store),
            _ => None,
        }
    }

    /// The number of statements sent to the store; none if they are not counted.
    pub fn statements(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "postgres")]
            OpenStore::Postgres(store) => Some(store.statements()),
            _ => None,
        }
    }

    /// Opens the registry `id` on this store.
    pub(super) fn registry(
        &self,
        id: SystemId,
        spec: RegistrySpec,
    ) -> Result<(Arc<dyn RegistryStore>, Index)> {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(store) => Ok((store.registry(id, spec.ttl)?, None)),
            #[cfg(feature = "redis")]
            OpenStore::Redis(store) => match spec.redis {
                RedisRegistry::Native(layout) => {
                    let registry = Arc::new(store.registry(id, layout)?);
                    Ok((registry.clone(), Some(registry)))
                }
                RedisRegistry::Adopt(layout) => {
                    Ok((Arc::new(store.adopted_registry(id, layout)?), None))
                }
            },
            _ => Err(self.cannot(&id)),
        }
    }

    /// Opens the sessions `id` on this store.
    pub(super) fn sessions(
        &self,
        id: SystemId,
        spec: SessionsSpec,
    ) -> Result<(Arc<dyn SessionsStore>, Index)> {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(store) => Ok((store.sessions(id, spec.ttl, spec.grace)?, None)),
            #[cfg(feature = "redis")]
            OpenStore::Redis(store) => {
                let sessions = Arc::new(match spec.redis {
                    RedisSessionsKeys::Native(layout) => store.sessions(id, layout)?,
                    RedisSessionsKeys::Adopt(layout) => store.adopted_sessions(id, layout)?,
                });
                Ok((sessions.clone(), Some(sessions)))
            }
            _ => Err(self.cannot(&id)),
        }
    }

    /// Opens the jobs in flight `id` on this store.
    pub(super) fn inflight(
        &self,
        id: SystemId,
        spec: InflightSpec,
    ) -> Result<(Arc<dyn InflightStore>, Index)> {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(store) => Ok((store.inflight(id, spec.ttl, spec.recovery)?, None)),
            #[cfg(feature = "redis")]
            OpenStore::Redis(store) => match spec.redis {
                RedisInflight::Native(layout) => {
                    let inflight = Arc::new(store.inflight(id, layout)?);
                    Ok((inflight.clone(), Some(inflight)))
                }
                RedisInflight::Adopt(layout) => {
                    Ok((Arc::new(store.adopted_inflight(id, layout)?), None))
                }
            },
            _ => Err(self.cannot(&id)),
        }
    }

    /// Opens the leases `id` on this store.
    pub(super) fn leases(
        &self,
        id: SystemId,
        spec: LeasesSpec,
        requests_per_pass: Option<u64>,
    ) -> Result<(Arc<dyn LeasesStore>, Index)> {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(store) => Ok((store.leases(id, spec.ttl)?, None)),
            #[cfg(feature = "object")]
            OpenStore::Object(store) => {
                let usual = lapsed_object::LeasesLayout::default();
                let bucket = spec.bucket.unwrap_or(usual.bucket);
                let layout = lapsed_object::LeasesLayout { bucket, requests_per_pass, ..usual };
                let leases = store.leases(&id, layout)?;
                Ok((leases.clone(), Some(leases)))
            }
            _ => Err(self.cannot(&id)),
        }
    }

    /// Opens the availability `id`, whose truth is in this store.
    pub(super) fn availability(
        &self,
        mirror: Option<&OpenStore>,
        id: &SystemId,
        spec: AvailabilitySpec,
        clock: Arc<dyn Clock>,
    ) -> Result<OpenAvailability> {
        match (self, mirror) {
            #[cfg(feature = "embedded")]
            (OpenStore::Embedded(store), None) => {
                let truth = store.availability(id.clone())?;
                Ok(OpenAvailability { truth, mirror: memory_mirror(clock), changes: None })
            }
            #[cfg(all(feature = "postgres", feature = "redis"))]
            (OpenStore::Postgres(store), Some(OpenStore::Redis(cache))) => {
                let truth = Arc::new(store.availability(id.clone(), spec.tables)?);
                let mirror = cache.mirror(id.clone(), spec.keys, spec.threshold)?;
                let changes = ChangeSources { truth: store.clone(), mirror: mirror.clone() };
                Ok(OpenAvailability { truth, mirror, changes: Some(changes) })
            }
            #[cfg(feature = "postgres")]
            (OpenStore::Postgres(_), None) => Err(Error::Invalid(
                "availability in Postgres needs a mirror on Redis: `.mirror(&redis)`".to_owned(),
            )),
            _ => Err(self.cannot(id)),
        }
    }

    /// Flushes and closes the store. Blocking.
    pub fn close(self) -> Result<()> {
        match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(store) => store.close(),
            _ => Ok(()),
        }
    }

    fn cannot(&self, id: &SystemId) -> Error {
        let store = match self {
            #[cfg(feature = "embedded")]
            OpenStore::Embedded(_) => "an embedded store",
            #[cfg(feature = "redis")]
            OpenStore::Redis(_) => "Redis",
            #[cfg(feature = "object")]
            OpenStore::Object(_) => "an object store",
            #[cfg(feature = "postgres")]
            OpenStore::Postgres(_) => "Postgres",
        };
        Error::Unsupported { operation: id.kind.to_string(), store: store.to_owned() }
    }
}

/// A mirror in the memory of this process. It starts like a mirror that has just lost its data: every provider
/// has a whole threshold to send a heartbeat.
#[cfg(feature = "embedded")]
fn memory_mirror(clock: Arc<dyn Clock>) -> Arc<dyn Mirror> {
    let mirror = MemoryMirror::new(clock, Some(MEMORY_GAP));
    mirror.lose();
    Arc::new(mirror)
}

#[allow(dead_code)]
fn feature_off(url: &str, feature: &str) -> Error {
    Error::Invalid(format!(
        "this build cannot open {url}: it was built without the feature `{feature}` of the crate \
         `lapsed`"
    ))
}
