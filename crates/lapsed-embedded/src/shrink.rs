//! Space is given back: when most of the database file is free, the rows are copied to a smaller file, which then takes its
//! place.
//!
//! The checkpoint does this, and nobody else writes to the database; so what is copied stays as it is, while batches go on
//! in the log. Readers of the old file go on with it, and it is removed when the last of them is done. A crash before the
//! new file has taken the place leaves a file that the next opening removes.

use std::sync::atomic::Ordering;

use redb::{
    Builder, Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, TableHandle,
};

use crate::fault::Tried;
use crate::open_store::{Boxed, OpenStore, io_fault};
use crate::tables::definition;

/// A smaller file is left as it is.
const FILE_BYTES_MIN: u64 = 16 << 20;

/// The file is copied when its rows would fit into it this many times.
const TIMES_LARGER: u64 = 4;

/// How many rows are copied in one transaction.
const ROWS_MAX: usize = 4_096;

/// Makes the file smaller, if enough was removed since this was last looked at and most of the file is free.
pub(crate) fn shrink_if_mostly_free(store: &OpenStore) -> Tried<()> {
    let Some(length) = store.location.database_length().map_err(io_fault)? else { return Ok(()) };
    if length < FILE_BYTES_MIN || store.removed_bytes.load(Ordering::Relaxed) < length / 8 {
        return Ok(());
    }
    store.removed_bytes.store(0, Ordering::Relaxed);
    let from = store.database().begin_read()?;
    let used = used_bytes(&from)?;
    if used * TIMES_LARGER > length || !store.location.has_room_for(2 * used) {
        return Ok(());
    }
    let Some(backend) = store.location.smaller_file().map_err(io_fault)? else { return Ok(()) };
    let to = Builder::new()
        .set_cache_size(store.options.cache_bytes)
        .create_with_backend(Boxed(backend))?;
    if !copy(store, &from, &to)? {
        drop(to);
        store.location.remove_smaller_file();
        return Ok(());
    }
    store.location.use_smaller_file().map_err(io_fault)?;
    store.replace_database(to);
    store.refresh_base()
}

/// How much the rows take, with what is lost inside pages.
fn used_bytes(txn: &ReadTransaction) -> Tried<u64> {
    let mut used = 0;
    for table in txn.list_tables()? {
        let stats = txn.open_table(definition(table.name()))?.stats()?;
        used += stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes();
    }
    Ok(used)
}

/// Copies all rows; `false`: the store is closing or the next checkpoint is due, and that comes first.
fn copy(store: &OpenStore, from: &ReadTransaction, to: &Database) -> Tried<bool> {
    for table in from.list_tables()? {
        let rows = from.open_table(definition(table.name()))?;
        let mut rows = rows.iter()?.peekable();
        while rows.peek().is_some() {
            if store.is_closing() || store.is_due() {
                return Ok(false);
            }
            let mut txn = to.begin_write()?;
            // All of them are made durable together, at the end.
            txn.set_durability(Durability::None)?;
            {
                let mut copied = txn.open_table(definition(table.name()))?;
                for row in rows.by_ref().take(ROWS_MAX) {
                    let (key, value) = row?;
                    copied.insert(key.value(), value.value())?;
                }
            }
            txn.commit()?;
        }
    }
    to.begin_write()?.commit()?;
    Ok(true)
}
