//! `registry` on the embedded store.

mod entries;
mod entry_index;
mod load;
mod reclaim;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::{Result, SystemId};

use crate::owners::{OwnerService, OwnerTable};
use crate::registry::entry_index::EntryIndex;
use crate::{Inner, StoredSystem};

/// A registry on an embedded store.
pub struct EmbeddedRegistry {
    owner_service: OwnerService,
    core: Arc<Core>,
}

/// State that jobs on the writer's thread work with: the owners and their entries.
pub(crate) struct Core {
    owners: Arc<OwnerTable>,
    held: EntryIndex,
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
        let core = Core { owners: owners.clone(), held: EntryIndex::new() };
        core.read(&inner.disk)?;
        Ok(EmbeddedRegistry { owner_service: OwnerService { inner, owners }, core: Arc::new(core) })
    }
}

crate::owners::impl_system_with_owners!(EmbeddedRegistry);
