//! A checkpoint brings the rows of a memtable into the database, in bounded transactions, while batches go on in the log.
//!
//! If the process dies in between, the database has some of the rows and not the number of their last batch: the
//! next opening finds all of them in the log, whose records say what rows are and may be carried out twice.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::WriteTransaction;

use crate::fault::Tried;
use crate::memtable::{Key, KeyRange, Memtable, Value};
use crate::open_store::OpenStore;
use crate::snapshot::{Base, View};
use crate::tables::{FORMAT, META, definition, number};

/// How many rows one transaction of a checkpoint writes. Each is durable.
const ROWS_MAX: usize = 4_096;

/// The number of the last batch that the database contains completely.
pub(crate) const LOG_SEQ: &[u8] = b"log_seq";

/// Brings `rows` into the database and shows readers a view without them. `false`: there is not enough room on the disk.
pub(crate) fn bring_in(store: &OpenStore, rows: &Memtable) -> Tried<bool> {
    let database = store.database();
    let mut tables = rows.names();
    tables.sort();
    for name in tables {
        let Some(table) = rows.table(&name) else { continue };
        let mut after: Option<Key> = None;
        loop {
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let range = KeyRange { from, to: Bound::Unbounded, backwards: false };
            let page = table.page(range, ROWS_MAX, u64::MAX);
            let Some((last, _)) = page.last() else { break };
            if !store.location.has_room() {
                return Ok(false);
            }
            let txn = database.begin_write()?;
            let removed = write(&txn, &name, &page)?;
            txn.commit()?;
            let _ =
                store.removed_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
                    Some(bytes.saturating_add(removed))
                });
            store.refresh_base()?;
            after = Some(last.clone());
        }
    }
    let txn = database.begin_write()?;
    {
        let mut meta = txn.open_table(definition(META))?;
        meta.insert(LOG_SEQ, &number(rows.last_seq())[..])?;
        meta.insert(&b"format"[..], &number(FORMAT)[..])?;
    }
    txn.commit()?;
    let base = Base::of(&database)?;
    store.replace_view(|view| View { active: view.active.clone(), frozen: None, base });
    Ok(true)
}

/// Writes some rows of a table; returns how many bytes of rows were removed.
fn write(txn: &WriteTransaction, table: &Arc<str>, rows: &[(Key, Value)]) -> Tried<u64> {
    let mut table = txn.open_table(definition(table))?;
    let mut removed = 0;
    for (key, value) in rows {
        match value {
            Some(value) => {
                table.insert(&**key, &**value)?;
            }
            None => {
                if let Some(before) = table.remove(&**key)? {
                    removed += (key.len() + before.value().len()) as u64;
                }
            }
        }
    }
    Ok(removed)
}
