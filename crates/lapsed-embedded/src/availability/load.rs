//! Memory from disk: at opening, and after a batch was undone.

use std::collections::HashMap;
use std::sync::PoisonError;

use lapsed_availability::rules::SettingsPatch;
use lapsed_core::{Name, Result};
use redb::{ReadTransaction, ReadableTable};

use crate::Room;
use crate::availability::Core;
use crate::availability::book::ProviderIndex;
use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::lives::OwnerTable;
use crate::lives::load::open;
use crate::tables::META;

impl Core {
    fn load_book(&self, txn: &ReadTransaction) -> Tried<ProviderIndex> {
        let mut book = ProviderIndex::default();
        if let Some(providers) = open(txn, &self.tables.providers)? {
            for row in providers.iter()? {
                let (id, row) = row?;
                let id = Name::from_bytes(id.value()).map_err(|e| Fault::row(e.to_string()))?;
                book.put(id, serde_json::from_slice(row.value())?);
            }
        }
        if let Some(meta) = open(txn, META)?
            && let Some(set) = meta.get(&*self.tables.settings)?
        {
            book.set = serde_json::from_slice::<SettingsPatch>(set.value())?;
        }
        Ok(book)
    }
}

impl Room for Core {
    fn lives(&self) -> &OwnerTable {
        &self.lives
    }

    fn read(&self, disk: &Disk) -> Result<()> {
        let txn = disk.read()?;
        let read = || {
            self.lives.load(&txn, &HashMap::new())?;
            let book = self.load_book(&txn)?;
            *self.book.write().unwrap_or_else(PoisonError::into_inner) = book;
            Ok(())
        };
        read().map_err(|fault: Fault| fault.told(&disk.name))
    }
}
