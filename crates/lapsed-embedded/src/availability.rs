//! `availability` on the embedded store: the durable half, with providers, their sessions and the
//! settings.
//!
//! A provider is one row, which contains the number of its sessions, so that nothing has to be
//! counted. Every change is one job: it reads the rows, takes the next versions, and writes the
//! rows, the log and the receipts. Jobs are serial, so a higher version has seen every earlier
//! change. The rows are also in memory ([`provider_index`]) and change there after the commit, so
//! reads never wait for the disk.
//!
//! There are no logins in this store, so deactivating a provider revokes none.

mod flips;
mod load;
mod log;
mod provider_index;
mod providers;
mod rows;
mod sessions;
mod truth;

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_core::{Result, SystemId};

use crate::availability::provider_index::ProviderIndex;
use crate::fault::Tried;
use crate::owners::{OwnerService, OwnerTable};
use crate::tx::Tx;
use crate::{Inner, StoredSystem};

pub use crate::availability::log::{LogRow, LogStatus};

/// The durable half of an availability system on an embedded store.
pub struct EmbeddedTruth {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// State that jobs on the writer's thread work with.
pub(crate) struct Core {
    /// Providers have no incarnations, but batches and receipts are the same as in other systems.
    owners: Arc<OwnerTable>,
    index: Arc<RwLock<ProviderIndex>>,
}

impl Deref for Core {
    type Target = OwnerTable;
    fn deref(&self) -> &OwnerTable {
        &self.owners
    }
}

impl Core {
    fn index(&self) -> RwLockReadGuard<'_, ProviderIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the index in memory after the commit.
    fn then(&self, tx: &mut Tx, change: impl FnOnce(&mut ProviderIndex) + Send + 'static) {
        let index = self.index.clone();
        tx.then(move || change(&mut index.write().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl EmbeddedTruth {
    pub(crate) fn open(inner: Arc<Inner>, id: SystemId) -> Result<Self> {
        let threshold = Duration::from_millis(AvailabilitySettings::default().stale_ms());
        let owners = Arc::new(OwnerTable::new(&inner, id, threshold));
        let core = Core { owners: owners.clone(), index: Arc::default() };
        core.read(&inner.disk)?;
        Ok(EmbeddedTruth { owner_service: OwnerService { inner, owners }, core: Arc::new(core) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Runs a job on the writer's thread.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core, &mut Tx) -> Tried<T> + Send + 'static,
    ) -> Result<T> {
        let core = self.core.clone();
        self.owner_service.inner.writer.write(move |tx| work(&core, tx), |_| {}).await
    }
}
