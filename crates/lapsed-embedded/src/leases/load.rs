//! Reads leases and decisions from disk, at opening and after a batch was undone.

use std::collections::HashMap;

use lapsed_core::leases::Subject;
use lapsed_core::leases::rules::DecisionMarker;
use lapsed_core::{Name, Result};

use crate::StoredSystem;
use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::leases::due::{Due, of_marker, of_record};
use crate::leases::rows::split_row;
use crate::leases::{Core, record_row};
use crate::owners::OwnerTable;
use crate::owners::load::open;
use crate::snapshot::Snapshot;

impl Core {
    fn load_due(&self, txn: &Snapshot) -> Tried<Due> {
        let mut due = Due::default();
        if let Some(leases) = open(txn, &self.tables.leases)? {
            for row in leases.iter()? {
                let (key, record) = row?;
                let record = record_row::read(record.value())?;
                let key = split_row(key.value())?;
                due.change(&key.subject(), None, of_record(&record));
            }
        }
        if let Some(decisions) = open(txn, &self.tables.decisions)? {
            for row in decisions.iter()? {
                let (txn, marker) = row?;
                let marker: DecisionMarker = serde_json::from_slice(marker.value())?;
                let subject = Subject::Decision(Name::from_bytes(txn.value())?).name();
                due.change(&subject, None, Some(of_marker(&marker)));
            }
        }
        Ok(due)
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
            *self.due() = self.load_due(&txn)?;
            Ok(())
        };
        read().map_err(|fault: Fault| fault.told(&disk.name))
    }
}
