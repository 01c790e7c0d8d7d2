//! An opened object store, with the operations that only object stores have.

use std::sync::{Arc, Mutex, PoisonError};

use lapsed_core::clock::Clock;
use lapsed_core::{Result, SystemId};
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore, ProbeReport};

/// The leases on a store, by system.
type Known = Vec<(SystemId, Arc<ObjectLeases>)>;

/// An opened object store, and the systems of leases on it.
#[derive(Clone)]
pub struct OpenObject {
    name: String,
    store: Arc<ObjectStore>,
    leases: Arc<Mutex<Known>>,
}

impl OpenObject {
    pub fn open(config: ObjectConfig, clock: Arc<dyn Clock>) -> Result<OpenObject> {
        let name = config.name.clone();
        let store = ObjectStore::open(config, clock)?;
        Ok(OpenObject { name, store, leases: Arc::default() })
    }

    pub fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    pub fn leases(&self, id: &SystemId, layout: LeasesLayout) -> Result<Arc<ObjectLeases>> {
        let leases = self.store.leases(id.clone(), layout)?;
        self.lock().push((id.clone(), leases.clone()));
        Ok(leases)
    }

    /// Tries the conditional operations that lapsed needs, and reports which of them the server carries out.
    pub async fn probe(&self) -> Result<ProbeReport> {
        self.store.probe().await
    }

    /// Fails if the server does not carry out the conditional operations that lapsed needs.
    pub async fn check(&self) -> Result<()> {
        self.probe().await?.verdict(&self.name)
    }

    /// The number of deleted index entries, by system.
    pub fn entries_deleted(&self) -> Vec<(SystemId, u64)> {
        self.lock().iter().map(|(id, leases)| (id.clone(), leases.entries_deleted())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
