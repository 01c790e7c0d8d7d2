//! Space is given back: when most of the database file is free, the rows are copied to a smaller file, which then takes its
//! place.
//!
//! The checkpoint does this, and nobody else writes to the database; so what is copied stays as it is, while batches go on
//! in the log. Readers of the old file go on with it, and it is removed when the last of them is done. A crash before the
//! new file has taken the place leaves a file that the next opening removes.

use std::sync::atomic::Ordering;

use redb::{
    Builder, Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableHandle,
};

use crate::fault::Tried;
use crate::open_store::{Boxed, OpenStore, io_fault};
use crate::tables::definition;

/// A smaller file is left as it is.
const FILE_BYTES_MIN: u64 = 16 << 20;

/// The file is copied when its rows would fit into it this many times.
const TIMES_LARGER: u64 = 4;

/// What part of the file must have been removed before it is looked at.
const REMOVED_PART: u64 = 8;

/// How many rows are copied in one transaction, or counted before it is looked whether something else comes first.
const ROWS_MAX: usize = 4_096;

/// What a row takes in a page besides its bytes, about.
const ROW_BYTES: usize = 16;

/// Makes the file smaller, if enough was removed since this was last looked at and most of the file is free. What fails
/// before the new file takes the place of the old one is given up.
pub(crate) fn shrink_if_mostly_free(store: &OpenStore) -> Tried<()> {
    let Some(length) = store.location.database_length().map_err(io_fault)? else { return Ok(()) };
    if length < FILE_BYTES_MIN
        || store.removed_bytes.load(Ordering::Relaxed) < length / REMOVED_PART
    {
        return Ok(());
    }
    match smaller(store, length) {
        Ok(Shrunk::Database(smaller)) => {
            store.removed_bytes.store(0, Ordering::Relaxed);
            store.location.use_smaller_file().map_err(io_fault)?;
            store.replace_database(smaller);
            return store.refresh_base();
        }
        Ok(Shrunk::NotMostlyFree) => store.removed_bytes.store(0, Ordering::Relaxed),
        Ok(Shrunk::GivenUp) => {
            // Not at once again: half as much must be removed as for the first try.
            store.removed_bytes.store(length / REMOVED_PART / 2, Ordering::Relaxed);
            store.location.remove_smaller_file();
        }
        Err(fault) => {
            store.removed_bytes.store(0, Ordering::Relaxed);
            store.location.remove_smaller_file();
            tracing::warn!(
                ?fault,
                "the database file could not be made smaller; it stays as it is"
            );
        }
    }
    Ok(())
}

enum Shrunk {
    /// A database in a smaller file, with all rows, durable.
    Database(Database),
    NotMostlyFree,
    /// The store is closing, the next checkpoint is due, or there is no room for a second file.
    GivenUp,
}

fn smaller(store: &OpenStore, length: u64) -> Tried<Shrunk> {
    let from = store.database().begin_read()?;
    let Some(used) = used_bytes(store, &from, length / TIMES_LARGER)? else {
        return Ok(if must_stop(store) { Shrunk::GivenUp } else { Shrunk::NotMostlyFree });
    };
    if !store.location.has_room_for(2 * used) {
        return Ok(Shrunk::GivenUp);
    }
    let Some(backend) = store.location.smaller_file().map_err(io_fault)? else {
        return Ok(Shrunk::GivenUp);
    };
    let to = Builder::new()
        .set_cache_size(store.options.cache_bytes)
        .create_with_backend(Boxed(backend))?;
    match copy(store, &from, &to)? {
        true => Ok(Shrunk::Database(to)),
        false => Ok(Shrunk::GivenUp),
    }
}

/// Whether something else comes first.
fn must_stop(store: &OpenStore) -> bool {
    store.is_closing() || store.is_due()
}

/// How many bytes the rows have; `None`: more than `max`, or something else comes first.
fn used_bytes(store: &OpenStore, txn: &ReadTransaction, max: u64) -> Tried<Option<u64>> {
    let mut used = 0;
    for table in txn.list_tables()? {
        let rows = txn.open_table(definition(table.name()))?;
        for (at, row) in rows.iter()?.enumerate() {
            let (key, value) = row?;
            used += (key.value().len() + value.value().len() + ROW_BYTES) as u64;
            if used > max || (at % ROWS_MAX == 0 && must_stop(store)) {
                return Ok(None);
            }
        }
    }
    Ok(Some(used))
}

/// Copies all rows; `false`: something else comes first.
fn copy(store: &OpenStore, from: &ReadTransaction, to: &Database) -> Tried<bool> {
    for table in from.list_tables()? {
        let rows = from.open_table(definition(table.name()))?;
        let mut rows = rows.iter()?.peekable();
        while rows.peek().is_some() {
            if must_stop(store) {
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
