//! Opened stores: the one place that knows which store crates there are.

use std::sync::Arc;
use std::time::Duration;

use lapsed::SystemId;
use lapsed::clock::Clock;
use lapsed::reconcile::Reconcile;
use lapsed::registry::RegistryStore;
use lapsed::sessions::SessionsStore;
use lapsed::store::Store;
use lapsed_embedded::{Embedded, Options};

use crate::config::store::{Place, StoreConfig};
use crate::systems::registry::RegistryLayout;
use crate::systems::sessions::{SessionsLayout, SessionsTimes};

/// A store that was opened.
#[derive(Clone)]
pub enum OpenStore {
    /// A folder of this machine.
    Embedded(Embedded),
}

/// A registry on a store.
pub struct OpenRegistry {
    /// Its entries.
    pub registry: Arc<dyn RegistryStore>,
    /// Its index, where it has one besides its truth.
    pub index: Option<Arc<dyn Reconcile>>,
}

/// Sessions on a store.
pub struct OpenSessions {
    /// The sessions.
    pub sessions: Arc<dyn SessionsStore>,
    /// Their index, where there is one besides the truth.
    pub index: Option<Arc<dyn Reconcile>>,
}

impl OpenStore {
    /// Opens it. Blocking.
    pub fn open(config: &StoreConfig, clock: Arc<dyn Clock>) -> lapsed::Result<OpenStore> {
        let Place::Embedded { dir, cache_bytes } = &config.place;
        let mut options = Options { clock, ..Options::default() };
        if let Some(bytes) = cache_bytes {
            options.cache_bytes = *bytes;
        }
        Ok(OpenStore::Embedded(Embedded::open(dir, options)?))
    }

    /// Receipts, terms and settings.
    pub fn store(&self) -> Arc<dyn Store> {
        let OpenStore::Embedded(store) = self;
        Arc::new(store.clone())
    }

    /// The registry `id` on it.
    pub fn registry(
        &self,
        id: &SystemId,
        threshold: Duration,
        _layout: &RegistryLayout,
    ) -> lapsed::Result<OpenRegistry> {
        let OpenStore::Embedded(store) = self;
        Ok(OpenRegistry { registry: store.registry(id.clone(), threshold)?, index: None })
    }

    /// The sessions `id` on it.
    pub fn sessions(
        &self,
        id: &SystemId,
        times: SessionsTimes,
        _layout: &SessionsLayout,
    ) -> lapsed::Result<OpenSessions> {
        let OpenStore::Embedded(store) = self;
        let sessions = store.sessions(id.clone(), times.ttl, times.grace)?;
        Ok(OpenSessions { sessions, index: None })
    }

    /// Flushes and closes it. Blocking.
    pub fn close(self) -> lapsed::Result<()> {
        let OpenStore::Embedded(store) = self;
        store.close()
    }
}
