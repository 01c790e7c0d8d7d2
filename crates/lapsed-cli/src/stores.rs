//! Opened stores: the one place that knows which store crates there are.

use std::sync::Arc;
use std::time::Duration;

use lapsed::SystemId;
use lapsed::clock::Clock;
use lapsed::registry::RegistryStore;
use lapsed::store::Store;
use lapsed_embedded::{Embedded, Options};

use crate::config::store::{Place, StoreConfig};

/// A store that was opened.
#[derive(Clone)]
pub enum OpenStore {
    /// A folder of this machine.
    Embedded(Embedded),
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
        id: SystemId,
        threshold: Duration,
    ) -> lapsed::Result<Arc<dyn RegistryStore>> {
        let OpenStore::Embedded(store) = self;
        Ok(store.registry(id, threshold)?)
    }

    /// Flushes and closes it. Blocking.
    pub fn close(self) -> lapsed::Result<()> {
        let OpenStore::Embedded(store) = self;
        store.close()
    }
}
