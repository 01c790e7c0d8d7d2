//! A checkpoint brings the rows of a memtable into the database, in bounded transactions, while batches go on in the log.
//!
//! If the process dies in between, the database has some of the rows and not the number of their last batch: the
//! next opening finds all of them in the log, whose records say what rows are and may be carried out twice. That is so only
//! because those records are durable. What an opening has found in the log may have been read from memory of a disk that
//! lost it; so it is brought in by one transaction.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::{Database, WriteTransaction};

use crate::fault::Tried;
use crate::memtable::{Key, KeyRange, Memtable, Value};
use crate::open_store::OpenStore;
use crate::snapshot::{Base, View};
use crate::tables::{FORMAT, META, definition, number};

/// How many rows are read from the memtable at a time.
const PAGE_ROWS: usize = 500;

/// The number of the last batch that the database contains completely.
pub(crate) const LOG_SEQ: &[u8] = b"log_seq";

/// How much one transaction writes. It ends with the page of rows that exceeds this.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransactionSize {
    rows: usize,
    bytes: usize,
}

impl TransactionSize {
    /// For rows whose records are durable. It fits into the room that must be left on the disk.
    pub const BOUNDED: TransactionSize = TransactionSize { rows: 1_000, bytes: 2 << 20 };
    /// All rows, for those whose records may not be durable.
    pub const WHOLE: TransactionSize = TransactionSize { rows: usize::MAX, bytes: usize::MAX };
}

/// A transaction that is being filled.
struct Filling<'a> {
    store: &'a OpenStore,
    database: Arc<Database>,
    size: TransactionSize,
    txn: Option<WriteTransaction>,
    rows: usize,
    bytes: usize,
}

impl Filling<'_> {
    /// `false`: there is not enough room on the disk.
    fn write(&mut self, table: &str, rows: &[(Key, Value)]) -> Tried<bool> {
        let txn = match self.txn.take() {
            Some(txn) => txn,
            None if !self.store.location.has_room() => return Ok(false),
            None => self.database.begin_write()?,
        };
        let removed = write(&txn, table, rows)?;
        let _ = self.store.removed_bytes.fetch_add(removed, Ordering::Relaxed);
        self.rows += rows.len();
        self.bytes += rows.iter().map(bytes_of).sum::<usize>();
        if self.rows < self.size.rows && self.bytes < self.size.bytes {
            self.txn = Some(txn);
            return Ok(true);
        }
        txn.commit()?;
        (self.rows, self.bytes) = (0, 0);
        // Pages that only older views show are free for the next transaction when nobody reads them.
        self.store.refresh_base()?;
        Ok(true)
    }

    /// Records the last batch in the last transaction.
    fn finish(&mut self, last_seq: u64) -> Tried<()> {
        let txn = match self.txn.take() {
            Some(txn) => txn,
            None => self.database.begin_write()?,
        };
        {
            let mut meta = txn.open_table(definition(META))?;
            meta.insert(LOG_SEQ, &number(last_seq)[..])?;
            meta.insert(&b"format"[..], &number(FORMAT)[..])?;
        }
        txn.commit()?;
        Ok(())
    }
}

fn bytes_of((key, value): &(Key, Value)) -> usize {
    key.len() + value.as_ref().map_or(0, |value| value.len())
}

/// Brings `rows` into the database and shows readers a view without them. `false`: there is not enough room on the disk.
pub(crate) fn bring_in(store: &OpenStore, rows: &Memtable, size: TransactionSize) -> Tried<bool> {
    let database = store.database();
    let mut filling = Filling { store, database, size, txn: None, rows: 0, bytes: 0 };
    let mut tables = rows.names();
    tables.sort();
    for name in tables {
        let Some(table) = rows.table(&name) else { continue };
        let mut after: Option<Key> = None;
        loop {
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let range = KeyRange { from, to: Bound::Unbounded, backwards: false };
            let page = table.page(range, PAGE_ROWS, u64::MAX);
            let Some((last, _)) = page.last() else { break };
            if !filling.write(&name, &page)? {
                return Ok(false);
            }
            after = Some(last.clone());
        }
    }
    filling.finish(rows.last_seq())?;
    let base = Base::of(&filling.database)?;
    store.replace_view(|view| View { active: view.active.clone(), frozen: None, base });
    Ok(true)
}

/// Writes some rows of a table; returns how many bytes of rows were removed.
fn write(txn: &WriteTransaction, table: &str, rows: &[(Key, Value)]) -> Tried<u64> {
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
