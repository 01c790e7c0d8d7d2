//! An opened object store: what is asked of it besides what every store can do.

use std::sync::{Arc, Mutex, PoisonError};

use lapsed_core::SystemId;
use lapsed_core::clock::Clock;
use lapsed_object::{LeasesLayout, ObjectConfig, ObjectLeases, ObjectStore, ProbeReport};

use crate::config::store::StoreConfig;
use crate::config::store::object::ObjectPlace;

/// The leases on a store, by system.
type Known = Vec<(SystemId, Arc<ObjectLeases>)>;

/// An object store, and the leases on it.
#[derive(Clone)]
pub struct OpenObject {
    name: String,
    store: Arc<ObjectStore>,
    leases: Arc<Mutex<Known>>,
}

impl OpenObject {
    pub fn open(
        config: &StoreConfig,
        place: &ObjectPlace,
        clock: Arc<dyn Clock>,
    ) -> lapsed_core::Result<OpenObject> {
        let (id, secret) = match &place.access_key {
            Some((id, secret)) => (Some(id.clone()), Some(secret.reveal().to_owned())),
            None => (None, None),
        };
        let store = ObjectStore::open(
            ObjectConfig {
                endpoint: place.endpoint.clone(),
                region: place.region.clone(),
                access_key_id: id,
                secret_access_key: secret,
                account: place.account.clone(),
                account_key: place.account_key.as_ref().map(|key| key.reveal().to_owned()),
                allow_http: place.allow_http,
                virtual_host: place.virtual_host,
                requests_per_hour: place.requests_per_hour,
                timeout: place.timeout,
                ..ObjectConfig::new(&config.name, &place.url)
            },
            clock,
        )?;
        Ok(OpenObject { name: config.name.clone(), store, leases: Arc::default() })
    }

    pub fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    /// The leases of one system.
    pub fn leases(
        &self,
        id: &SystemId,
        layout: LeasesLayout,
    ) -> lapsed_core::Result<Arc<ObjectLeases>> {
        let leases = self.store.leases(id.clone(), layout)?;
        self.lock().push((id.clone(), leases.clone()));
        Ok(leases)
    }

    /// What the server really does.
    pub async fn probe(&self) -> lapsed_core::Result<ProbeReport> {
        self.store.probe().await
    }

    /// Refuses a server on which nothing is safe.
    pub async fn check(&self) -> lapsed_core::Result<()> {
        self.probe().await?.verdict(&self.name)
    }

    /// Entries of the index that were deleted, by system.
    pub fn entries_deleted(&self) -> Vec<(SystemId, u64)> {
        self.lock().iter().map(|(id, leases)| (id.clone(), leases.entries_deleted())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
