//! Reads providers from disk, at opening and after a batch was undone.

use std::collections::HashMap;
use std::sync::PoisonError;

use lapsed_availability::rules::SettingsPatch;
use lapsed_core::{Name, Result};

use crate::StoredSystem;
use crate::availability::Core;
use crate::availability::provider_index::ProviderIndex;
use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::owners::OwnerTable;
use crate::owners::load::open;
use crate::snapshot::Snapshot;
use crate::tables::META;

impl Core {
    fn load_index(&self, txn: &Snapshot) -> Tried<ProviderIndex> {
        let mut index = ProviderIndex::default();
        if let Some(providers) = open(txn, &self.tables.providers)? {
            for row in providers.iter()? {
                let (id, row) = row?;
                let id = Name::from_bytes(id.value()).map_err(|e| Fault::row(e.to_string()))?;
                index.put(id, serde_json::from_slice(row.value())?);
            }
        }
        if let Some(meta) = open(txn, META)?
            && let Some(set) = meta.get(&self.tables.settings)?
        {
            index.set = serde_json::from_slice::<SettingsPatch>(set.value())?;
        }
        Ok(index)
    }
}

impl StoredSystem for Core {
    fn owners(&self) -> &OwnerTable {
        &self.owners
    }

    fn read(&self, disk: &Disk) -> Result<()> {
        let txn = disk.read()?;
        let read = || {
            self.owners.load(&txn, &HashMap::new())?;
            let index = self.load_index(&txn)?;
            *self.index.write().unwrap_or_else(PoisonError::into_inner) = index;
            Ok(())
        };
        read().map_err(|fault: Fault| fault.told(&disk.name))
    }
}
