//! `availability` on the embedded store: the truth about providers, their sessions and settings.
//!
//! A provider is one row, with the number of its sessions in it, so that nobody counts. Every change is one
//! job: it reads the rows, takes the next versions, and writes the rows, the log and the receipts; jobs are
//! serial, so nobody comes in between, and a version that is higher has seen everything that came before.
//! The rows are also in memory ([`book`]), changed once they are durable: reads never wait for the disk.
//!
//! There are no logins here, so that deactivating somebody revokes none.

mod book;
mod flips;
mod load;
mod log;
mod providers;
mod rows;
mod sessions;
mod truth;

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_core::{Result, SystemId};

use crate::availability::book::ProviderIndex;
use crate::fault::Tried;
use crate::lives::{OwnerService, OwnerTable};
use crate::tx::Tx;
use crate::{Inner, Room};

pub use crate::availability::log::{LogRow, LogStatus};

/// The truth of one system of availability on an embedded store.
pub struct EmbeddedTruth {
    desk: OwnerService,
    core: Arc<Core>,
}

/// What the jobs on the writer's thread work with.
pub(crate) struct Core {
    /// Nobody's life is judged here, but batches and receipts are the same everywhere.
    lives: Arc<OwnerTable>,
    book: Arc<RwLock<ProviderIndex>>,
}

impl Deref for Core {
    type Target = OwnerTable;
    fn deref(&self) -> &OwnerTable {
        &self.lives
    }
}

impl Core {
    fn book(&self) -> RwLockReadGuard<'_, ProviderIndex> {
        self.book.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is in memory, once the batch is durable.
    fn then(&self, tx: &mut Tx<'_>, change: impl FnOnce(&mut ProviderIndex) + Send + 'static) {
        let book = self.book.clone();
        tx.then(move || change(&mut book.write().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl EmbeddedTruth {
    pub(crate) fn open(inner: Arc<Inner>, id: SystemId) -> Result<Self> {
        let threshold = Duration::from_millis(AvailabilitySettings::default().stale_ms());
        let lives = Arc::new(OwnerTable::new(&inner, id, threshold));
        let core = Core { lives: lives.clone(), book: Arc::default() };
        core.read(&inner.disk)?;
        Ok(EmbeddedTruth { desk: OwnerService { inner, lives }, core: Arc::new(core) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Runs a job that needs nothing but the core.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core, &mut Tx<'_>) -> Tried<T> + Send + 'static,
    ) -> Result<T> {
        let core = self.core.clone();
        self.desk.inner.writer.write(move |tx| work(&core, tx), |_| {}).await
    }
}
