//! Reads sessions from disk, at opening and after a batch was undone.

use std::collections::HashMap;

use lapsed_core::{Name, Result};

use crate::StoredSystem;
use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::owners::OwnerTable;
use crate::owners::load::open;
use crate::sessions::Core;
use crate::sessions::rows::stand;
use crate::snapshot::Snapshot;
use crate::tables::{SessionRow, split_held};

impl Core {
    /// How many sessions each incarnation refers to.
    fn load_references(&self, txn: &Snapshot) -> Tried<HashMap<u64, u64>> {
        let mut counts = HashMap::new();
        if let Some(held) = open(txn, &self.tables.held)? {
            for row in held.iter()? {
                let (incarnation, _) = split_held(row?.0.value())
                    .ok_or_else(|| Fault::row("a row of `held` is not a reference"))?;
                *counts.entry(incarnation).or_default() += 1;
            }
        }
        Ok(counts)
    }

    fn load_waiting(&self, txn: &Snapshot) -> Tried<()> {
        let mut all = Vec::new();
        if let Some(sessions) = open(txn, &self.tables.sessions)? {
            for row in sessions.iter()? {
                let (id, row) = row?;
                let row: SessionRow = serde_json::from_slice(row.value())?;
                all.push((Name::from_bytes(id.value())?, stand(Some(&row))));
            }
        }
        self.waiting.replace(all.into_iter());
        Ok(())
    }
}

impl StoredSystem for Core {
    fn owners(&self) -> &OwnerTable {
        &self.owners
    }

    fn read(&self, disk: &Disk) -> Result<()> {
        let txn = disk.read()?;
        let read = || {
            self.owners.load(&txn, &self.load_references(&txn)?)?;
            self.load_waiting(&txn)
        };
        read().map_err(|fault: Fault| fault.told(&disk.name))
    }
}
