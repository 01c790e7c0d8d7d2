//! Opened stores: the one place that knows which store crates there are.

mod availability;
mod object;

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::SystemId;
use lapsed_core::clock::Clock;
use lapsed_core::inflight::InflightStore;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::leases::LeasesStore;
use lapsed_core::reconcile::Reconcile;
use lapsed_core::registry::RegistryStore;
use lapsed_core::sessions::SessionsStore;
use lapsed_core::store::Store;
use lapsed_embedded::{Embedded, Options};
use lapsed_object::LeasesLayout;
use lapsed_postgres::Postgres;
use lapsed_redis::{AdoptedInflightLayout, QueueFormat, Redis, Template};

use crate::config::common::Access;
use crate::config::store::{StoreConfig, StoreLocation};
use crate::systems::inflight::InflightTimes;
use crate::systems::inflight::layout::{Adopted, InflightKeys, QueueWord};
use crate::systems::leases::LeasesTimes;
use crate::systems::registry::RegistryKeys;
use crate::systems::sessions::{SessionsKeys, SessionsTimes};
pub use availability::{OpenAvailability, Tellers};
pub use object::OpenObject;

/// A store that was opened.
#[derive(Clone)]
pub enum OpenStore {
    /// A folder of this machine.
    Embedded(Embedded),
    Redis(Redis),
    /// S3, Azure Blob, Google Cloud Storage.
    Object(OpenObject),
    Postgres(Postgres),
}

/// A registry on a store.
pub struct OpenRegistry {
    pub registry: Arc<dyn RegistryStore>,
    /// Its index, where it has one besides its truth.
    pub index: Option<Arc<dyn Reconcile>>,
}

/// Sessions on a store.
pub struct OpenSessions {
    pub sessions: Arc<dyn SessionsStore>,
    /// Their index, where there is one besides the truth.
    pub index: Option<Arc<dyn Reconcile>>,
}

/// Jobs in flight on a store.
pub struct OpenInflight {
    pub inflight: Arc<dyn InflightStore>,
    /// Their index, where there is one besides the truth.
    pub index: Option<Arc<dyn Reconcile>>,
}

/// Leases on a store.
pub struct OpenLeases {
    /// The leases, and the decisions.
    pub leases: Arc<dyn LeasesStore>,
    /// Their index, where there is one besides the truth.
    pub index: Option<Arc<dyn Reconcile>>,
}

impl OpenStore {
    /// Opens it. Blocking; inside a runtime. A server is connected to by the first call.
    pub fn open(config: &StoreConfig, clock: Arc<dyn Clock>) -> lapsed_core::Result<OpenStore> {
        match &config.place {
            StoreLocation::Embedded { dir, cache_bytes } => {
                let mut options = Options { clock, ..Options::default() };
                if let Some(bytes) = cache_bytes {
                    options.cache_bytes = *bytes;
                }
                Ok(OpenStore::Embedded(Embedded::open(dir, options)?))
            }
            StoreLocation::Redis(address) => {
                Ok(OpenStore::Redis(Redis::with_clock(address, clock)?))
            }
            StoreLocation::Object(place) => {
                Ok(OpenStore::Object(OpenObject::open(config, place, clock)?))
            }
            StoreLocation::Postgres(address) => {
                Ok(OpenStore::Postgres(Postgres::with_clock(address, clock)?))
            }
        }
    }

    /// Receipts, terms and settings.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            OpenStore::Embedded(store) => Arc::new(store.clone()),
            OpenStore::Redis(store) => Arc::new(store.clone()),
            OpenStore::Object(store) => store.store().clone(),
            OpenStore::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// The object store that it is, if it is one.
    pub fn object(&self) -> Option<&OpenObject> {
        match self {
            OpenStore::Object(store) => Some(store),
            OpenStore::Embedded(_) | OpenStore::Redis(_) | OpenStore::Postgres(_) => None,
        }
    }

    /// How many statements it was sent, where they are counted.
    pub fn statements(&self) -> Option<u64> {
        match self {
            OpenStore::Postgres(store) => Some(store.statements()),
            OpenStore::Embedded(_) | OpenStore::Redis(_) | OpenStore::Object(_) => None,
        }
    }

    /// The registry `id` on it.
    pub fn registry(
        &self,
        id: &SystemId,
        threshold: Duration,
        layout: &RegistryKeys,
    ) -> lapsed_core::Result<OpenRegistry> {
        let store = match self {
            OpenStore::Embedded(store) => {
                let registry = store.registry(id.clone(), threshold)?;
                return Ok(OpenRegistry { registry, index: None });
            }
            OpenStore::Redis(store) => store,
            OpenStore::Object(_) | OpenStore::Postgres(_) => return Err(cannot(id)),
        };
        let keys = lapsed_redis::RegistryLayout {
            registry_key: layout.registry_key.clone(),
            heartbeat_key: template("heartbeat_key", &layout.heartbeat_key, "owner")?,
            heartbeat_ttl: threshold,
            shards: usize::from(layout.shards),
        };
        match layout.access {
            Access::Native => {
                let registry = Arc::new(store.registry(id.clone(), keys)?);
                Ok(OpenRegistry { index: Some(registry.clone()), registry })
            }
            Access::Adopt => {
                let registry = Arc::new(store.adopted_registry(id.clone(), keys)?);
                Ok(OpenRegistry { registry, index: None })
            }
        }
    }

    /// The sessions `id` on it.
    pub fn sessions(
        &self,
        id: &SystemId,
        times: SessionsTimes,
        layout: &SessionsKeys,
    ) -> lapsed_core::Result<OpenSessions> {
        let store = match self {
            OpenStore::Embedded(store) => {
                let sessions = store.sessions(id.clone(), times.ttl, times.grace)?;
                return Ok(OpenSessions { sessions, index: None });
            }
            OpenStore::Redis(store) => store,
            OpenStore::Object(_) | OpenStore::Postgres(_) => return Err(cannot(id)),
        };
        let keys = lapsed_redis::SessionsLayout {
            session_key: template("session_key", &layout.session_key, "session")?,
            ref_count_key: template("ref_count_key", &layout.ref_count_key, "session")?,
            broadcaster_key: template("broadcaster_key", &layout.broadcaster_key, "broadcaster")?,
            disconnected_key: layout.disconnected_key.clone(),
            grace: times.grace,
            heartbeat_ttl: times.ttl,
            shards: usize::from(layout.shards),
        };
        let sessions = Arc::new(match layout.access {
            Access::Native => store.sessions(id.clone(), keys)?,
            Access::Adopt => store.adopted_sessions(id.clone(), keys)?,
        });
        Ok(OpenSessions { index: Some(sessions.clone()), sessions })
    }

    /// The jobs in flight `id` on it.
    pub fn inflight(
        &self,
        id: &SystemId,
        times: InflightTimes,
        layout: &InflightKeys,
        recovery: &RecoveryPolicy,
    ) -> lapsed_core::Result<OpenInflight> {
        let (id, recovery) = (id.clone(), recovery.clone());
        let store = match self {
            OpenStore::Embedded(store) => {
                let inflight = store.inflight(id, times.ttl, recovery)?;
                return Ok(OpenInflight { inflight, index: None });
            }
            OpenStore::Redis(store) => store,
            OpenStore::Object(_) | OpenStore::Postgres(_) => return Err(cannot(&id)),
        };
        let queue_key = template("queue_key", &layout.queue_key, "queue")?;
        let queues = queue_format(layout.queues);
        let Some(adopted) = &layout.adopted else {
            let keys = lapsed_redis::InflightLayout {
                prefix: layout.prefix.clone(),
                queues,
                queue_key,
                heartbeat_ttl: times.ttl,
                recovery,
            };
            let inflight = Arc::new(store.inflight(id, keys)?);
            return Ok(OpenInflight { index: Some(inflight.clone()), inflight });
        };
        let keys = AdoptedInflightLayout {
            orphan_threshold: times.ttl,
            heartbeat_interval: times.interval,
            queues,
            queue_key,
            recovery,
            ..adopted_keys(&layout.prefix, adopted)
        };
        let inflight = Arc::new(store.adopted_inflight(id, keys)?);
        Ok(OpenInflight { inflight, index: None })
    }

    /// The leases `id` on it.
    pub fn leases(
        &self,
        id: &SystemId,
        times: &LeasesTimes,
        requests_per_pass: Option<u64>,
    ) -> lapsed_core::Result<OpenLeases> {
        match self {
            OpenStore::Embedded(store) => {
                let leases = store.leases(id.clone(), times.ttl)?;
                Ok(OpenLeases { leases, index: None })
            }
            OpenStore::Object(store) => {
                let usual = LeasesLayout::default();
                let bucket = times.bucket.unwrap_or(usual.bucket);
                let layout = LeasesLayout { bucket, requests_per_pass, ..usual };
                let leases = store.leases(id, layout)?;
                Ok(OpenLeases { index: Some(leases.clone()), leases })
            }
            OpenStore::Redis(_) | OpenStore::Postgres(_) => Err(cannot(id)),
        }
    }

    /// Flushes and closes it. Blocking.
    pub fn close(self) -> lapsed_core::Result<()> {
        match self {
            OpenStore::Embedded(store) => store.close(),
            OpenStore::Redis(_) | OpenStore::Object(_) | OpenStore::Postgres(_) => Ok(()),
        }
    }
}

/// The configuration refuses this before anything is opened.
fn cannot(id: &SystemId) -> lapsed_core::Error {
    let operation = id.kind.to_string();
    lapsed_core::Error::Unsupported { operation, store: "a store of this kind".to_owned() }
}

fn queue_format(word: QueueWord) -> QueueFormat {
    match word {
        QueueWord::Lapsed => QueueFormat::Own,
        QueueWord::Sidekiq => QueueFormat::Sidekiq,
        QueueWord::List => QueueFormat::List,
        QueueWord::Stream => QueueFormat::Stream,
    }
}

/// The keys that the application names itself, and those beside them.
fn adopted_keys(prefix: &str, adopted: &Adopted) -> AdoptedInflightLayout {
    let keys = AdoptedInflightLayout::under(prefix);
    let details = |key: Option<String>| key.filter(|_| adopted.has_details);
    AdoptedInflightLayout {
        index_key: adopted.index_key.clone(),
        jobs_key: adopted.jobs_key.clone(),
        gc_lock_key: adopted.gc_lock_key.clone(),
        details_key: details(keys.details_key),
        details_index_key: details(keys.details_index_key),
        ..keys
    }
}

/// A key with a place for a name.
fn template(key: &str, text: &str, place: &str) -> lapsed_core::Result<Template> {
    let wrong = || lapsed_core::Error::Invalid(format!("`{key}` must contain `{{{place}}}`"));
    Template::new(text, place).ok_or_else(wrong)
}
