//! Reads a registry from disk, at opening and after a batch was undone.

use std::collections::HashMap;

use lapsed_core::{Name, Result};

use crate::StoredSystem;
use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::owners::OwnerTable;
use crate::owners::load::open;
use crate::registry::Core;
use crate::snapshot::Snapshot;
use crate::tables::{split_held, to_number};
use crate::tx::Changed;

impl Core {
    /// Reads the entries, and counts them by incarnation.
    fn load_held(&self, txn: &Snapshot) -> Tried<HashMap<u64, u64>> {
        let mut counts = HashMap::new();
        let mut entries = self.held.load();
        if let Some(held) = open(txn, &self.tables.held)? {
            for row in held.iter()? {
                let (key, value) = row?;
                let entry = split_held(key.value()).zip(to_number(value.value()));
                let ((incarnation, key), registered_ms) =
                    entry.ok_or_else(|| Fault::row("a row of `held` is not an entry"))?;
                Name::check(key)?;
                self.held.add(&mut entries, key, (incarnation, registered_ms));
                *counts.entry(incarnation).or_default() += 1;
            }
        }
        self.held.replace(entries);
        Ok(counts)
    }
}

impl StoredSystem for Core {
    fn owners(&self) -> &OwnerTable {
        &self.owners
    }

    fn read(&self, disk: &Disk) -> Result<()> {
        let txn = disk.read()?;
        let read = || self.owners.load(&txn, &self.load_held(&txn)?);
        read().map_err(|fault: Fault| fault.told(&disk.name))
    }

    fn committed(&self, changed: &mut Changed) {
        if let Some(changes) = changed.held.remove(&self.tables.held) {
            self.held.apply(changes);
        }
    }
}
