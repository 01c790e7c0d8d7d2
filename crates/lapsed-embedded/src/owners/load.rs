//! Reads owners from disk, at opening and after a batch was undone; and writes changed deadlines to
//! disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lapsed_core::sweep::brake::BrakeRecord;

use crate::fault::{Fault, Tried};
use crate::owners::OwnerTable;
use crate::owners::slot::Slot;
use crate::snapshot::{Snapshot, Table};
use crate::tables::{META, OwnerRow, number, to_number};
use crate::tx::Tx;

/// Opens a table; `None` if it was never written to.
pub(crate) fn open(snapshot: &Snapshot, name: &str) -> Tried<Option<Table>> {
    snapshot.table(name)
}

impl OwnerTable {
    /// Reads owners and the operator's brake setting; `held` is the number of entries of each
    /// incarnation. Owners that are in memory keep their deadlines, because heartbeats are newer
    /// there.
    pub fn load(&self, txn: &Snapshot, held: &HashMap<u64, u64>) -> Tried<()> {
        self.load_setting(txn)?;
        let (now_ms, back_ms) = self.look();
        let mut known: HashMap<u64, Arc<Slot>> = HashMap::new();
        for slot in self.index.page(None, usize::MAX) {
            known.insert(slot.incarnation, slot);
        }
        if let Some(owners) = open(txn, &self.tables.owners)? {
            for row in owners.iter()? {
                let (key, value) = row?;
                let incarnation = to_number(key.value())
                    .ok_or_else(|| Fault::row("a key of `owners` is not an incarnation"))?;
                let count = held.get(&incarnation).copied().unwrap_or(0);
                let row: OwnerRow = serde_json::from_slice(value.value())?;
                if let Some(slot) = known.remove(&incarnation) {
                    slot.set_held(count);
                    // A commit that failed may have reached the disk nevertheless.
                    slot.begin(now_ms + slot.ttl_ms);
                    self.index.due().note_undone(&slot);
                    continue;
                }
                self.store_clock.mind_ttl(row.ttl_ms);
                let slot = Arc::new(Slot::from_row(self.slots.clone(), incarnation, &row));
                slot.set_held(count);
                self.index.add(slot, now_ms, back_ms);
            }
        }
        // Owners that are in memory but not on disk were never durable.
        let known: Vec<Arc<Slot>> = known.into_values().collect();
        known.iter().for_each(|slot| self.index.due().withdraw(slot));
        self.index.forget(&known);
        Ok(())
    }

    fn load_setting(&self, txn: &Snapshot) -> Tried<()> {
        let Some(meta) = open(txn, META)? else { return Ok(()) };
        if let Some(value) = meta.get(format!("brake/{}", self.id).as_bytes())? {
            let record: BrakeRecord = serde_json::from_slice(value.value())?;
            self.waived_until_ms.store(record.waived_until_ms(), Ordering::Release);
        }
        Ok(())
    }

    /// Whether any deadline has changed since it was written to disk.
    pub fn has_moved(&self) -> bool {
        self.index.any_alive(|slot| slot.to_mirror().is_some())
    }

    /// Writes at most `limit` changed deadlines.
    pub fn mirror(&self, tx: &mut Tx, limit: usize) -> Tried<()> {
        // Each call continues where the last one stopped, so that no owner is left out.
        let from = self.mirror_from.load(Ordering::Relaxed);
        for slot in self.index.pick_alive(from, limit, |slot| slot.to_mirror().is_some()) {
            let Some(deadline_ms) = slot.to_mirror() else { continue };
            let row = OwnerRow { deadline_ms, end: None, ..slot.row() };
            tx.put(&self.tables.owners, &number(slot.incarnation), &serde_json::to_vec(&row)?)?;
            slot.mirrored(deadline_ms);
            self.mirror_from.store(slot.incarnation + 1, Ordering::Relaxed);
        }
        Ok(())
    }
}
