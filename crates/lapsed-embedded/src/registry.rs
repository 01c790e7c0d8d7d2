//! `registry` on the embedded store.

mod entries;
mod load;
mod reclaim;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, BeatHandle, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::{Name, Result, SystemId};

use crate::fault::Tried;
use crate::holder_index::HolderIndex;
use crate::owners::{OwnerService, OwnerTable};
use crate::tx::Tx;
use crate::{Inner, StoredSystem};

/// A registry on an embedded store.
pub struct EmbeddedRegistry {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// State that jobs on the writer's thread work with: the owners and their entries.
pub(crate) struct Core {
    owners: Arc<OwnerTable>,
    held: HolderIndex,
}

impl Deref for Core {
    type Target = OwnerTable;
    fn deref(&self) -> &OwnerTable {
        &self.owners
    }
}

impl EmbeddedRegistry {
    pub(crate) fn open(inner: Arc<Inner>, id: SystemId, threshold: Duration) -> Result<Self> {
        let owners = Arc::new(OwnerTable::new(&inner, id, threshold));
        let core = Core { owners: owners.clone(), held: HolderIndex::new() };
        core.read(&inner.disk)?;
        Ok(EmbeddedRegistry { owner_service: OwnerService { inner, owners }, core: Arc::new(core) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Runs a job on the writer's thread.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core, &mut Tx<'_>) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let core = self.core.clone();
        self.owner_service.inner.writer.write(move |tx| work(&core, tx), done).await
    }
}

crate::owners::impl_owner_store!(EmbeddedRegistry);
