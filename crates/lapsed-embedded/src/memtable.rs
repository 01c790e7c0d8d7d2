//! Rows in memory: those of the batch that is being made, and those of batches that are durable in the log but not
//! yet in the database.
//!
//! A row may be "removed", which hides it in everything below. Readers see a memtable as it was when their snapshot
//! began: a row that changes while there are readers keeps its older values for them.

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use foldhash::fast::RandomState;

pub(crate) type Key = Arc<[u8]>;
/// The value of a row; `None`: the row is removed.
pub(crate) type Value = Option<Arc<[u8]>>;

const LOCK: &str = "no holder of this lock panics";

/// What a row costs in memory besides its bytes.
const ROW_BYTES: usize = 96;

/// Part of the rows of a table, by key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyRange<'a> {
    pub from: Bound<&'a [u8]>,
    pub to: Bound<&'a [u8]>,
    /// Whether the rows are read from the last to the first.
    pub backwards: bool,
}

impl KeyRange<'_> {
    /// `BTreeMap::range` panics on these.
    fn is_empty(&self) -> bool {
        use Bound::{Excluded, Included};
        match (self.from, self.to) {
            (Excluded(from), Excluded(to)) => from >= to,
            (Included(from) | Excluded(from), Included(to) | Excluded(to)) => from > to,
            _ => false,
        }
    }
}

/// The first rows in a range, for somebody who reads one page after the other.
fn page<'a, R: 'a, T>(
    rows: &'a BTreeMap<Key, R>,
    range: KeyRange<'_>,
    limit: usize,
    read: impl Fn(&'a Key, &'a R) -> Option<T>,
) -> Vec<T> {
    if range.is_empty() {
        return Vec::new();
    }
    let rows = rows.range::<[u8], _>((range.from, range.to));
    match range.backwards {
        true => rows.rev().filter_map(|(key, row)| read(key, row)).take(limit).collect(),
        false => rows.filter_map(|(key, row)| read(key, row)).take(limit).collect(),
    }
}

/// The rows that a batch has written so far, by table.
#[derive(Default)]
pub(crate) struct BatchRows {
    /// In order, so that the same batch is always the same record.
    tables: BTreeMap<Arc<str>, BTreeMap<Key, Value>>,
}

impl BatchRows {
    pub fn set(&mut self, table: &Arc<str>, key: &[u8], value: Value) {
        let rows = match self.tables.get_mut(table) {
            Some(rows) => rows,
            None => self.tables.entry(table.clone()).or_default(),
        };
        match rows.get_mut(key) {
            Some(row) => *row = value,
            None => {
                rows.insert(Key::from(key), value);
            }
        }
    }

    /// What this batch has made of a row; `None`: nothing.
    pub fn get(&self, table: &str, key: &[u8]) -> Option<&Value> {
        self.tables.get(table)?.get(key)
    }

    pub fn page(&self, table: &str, range: KeyRange<'_>, limit: usize) -> Vec<(Key, Value)> {
        let read = |key: &Key, value: &Value| Some((key.clone(), value.clone()));
        self.tables.get(table).map_or_else(Vec::new, |rows| page(rows, range, limit, read))
    }

    pub fn tables(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<Key, Value>)> {
        self.tables.iter()
    }
}

/// A row with its older values, which a snapshot may still have to show.
struct Row {
    seq: u64,
    value: Value,
    older: Vec<(u64, Value)>,
}

impl Row {
    /// What the row was after batch `seq`; `None`: it was not there, and the database says what it was.
    fn after(&self, seq: u64) -> Option<&Value> {
        if self.seq <= seq {
            return Some(&self.value);
        }
        self.older.iter().rev().find(|(at, _)| *at <= seq).map(|(_, value)| value)
    }
}

/// The rows of one table.
#[derive(Default)]
pub(crate) struct Rows(RwLock<BTreeMap<Key, Row>>);

impl Rows {
    /// What a row was after batch `seq`; `None`: nothing is known of it here.
    pub fn get(&self, key: &[u8], seq: u64) -> Option<Value> {
        self.0.read().expect(LOCK).get(key)?.after(seq).cloned()
    }

    pub fn page(&self, range: KeyRange<'_>, limit: usize, seq: u64) -> Vec<(Key, Value)> {
        let read = |key: &Key, row: &Row| Some((key.clone(), row.after(seq)?.clone()));
        page(&self.0.read().expect(LOCK), range, limit, read)
    }
}

/// Rows of batches that follow each other.
pub(crate) struct Memtable {
    tables: RwLock<HashMap<Arc<str>, Arc<Rows>, RandomState>>,
    /// The last batch that readers may see. It is locked while a batch is being added.
    last_seq: RwLock<u64>,
    /// How many [`Reader`]s there are. One more is counted only under the lock of `last_seq`.
    readers: AtomicUsize,
    bytes: AtomicUsize,
    logged: AtomicUsize,
}

/// Keeps readable what a memtable contained after batch `seq`.
pub(crate) struct Reader {
    pub seq: u64,
    memtable: Arc<Memtable>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.memtable.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Memtable {
    /// An empty one, for the batches after `seq`.
    pub fn new(seq: u64) -> Memtable {
        Memtable {
            tables: RwLock::default(),
            last_seq: RwLock::new(seq),
            readers: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            logged: AtomicUsize::new(0),
        }
    }

    pub fn last_seq(&self) -> u64 {
        *self.last_seq.read().expect(LOCK)
    }

    /// A reader of what the memtable contains now.
    pub fn reader(self: &Arc<Self>) -> Reader {
        let last_seq = self.last_seq.read().expect(LOCK);
        self.readers.fetch_add(1, Ordering::AcqRel);
        Reader { seq: *last_seq, memtable: self.clone() }
    }

    /// About how much memory its rows take.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How much waits here for a checkpoint: in memory, or in the log, whichever is more.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes().max(self.logged.load(Ordering::Relaxed))
    }

    /// Counts a record whose rows are here.
    pub fn note_logged(&self, bytes: usize) {
        self.logged.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn is_empty(&self) -> bool {
        self.tables.read().expect(LOCK).is_empty()
    }

    pub fn table(&self, name: &str) -> Option<Arc<Rows>> {
        self.tables.read().expect(LOCK).get(name).cloned()
    }

    /// The names of all tables.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.tables.read().expect(LOCK).keys().cloned().collect()
    }

    /// Adds the rows of batch `seq`, and then shows them to new snapshots, all at once. Only one thread may call this.
    pub fn apply(&self, seq: u64, batch: BatchRows) {
        let mut last_seq = self.last_seq.write().expect(LOCK);
        // Who reads now began before this batch; nobody else begins before its end.
        let is_read = self.readers.load(Ordering::Acquire) > 0;
        let mut bytes = self.bytes();
        for (name, rows) in batch.tables {
            let table = self.table(&name).unwrap_or_else(|| {
                self.tables.write().expect(LOCK).entry(name).or_default().clone()
            });
            let mut table = table.0.write().expect(LOCK);
            for (key, value) in rows {
                let length = bytes_of(&value);
                match table.entry(key) {
                    Entry::Occupied(mut row) if is_read => {
                        bytes += ROW_BYTES + row.key().len() + length;
                        let row = row.get_mut();
                        let before = std::mem::replace(&mut row.value, value);
                        row.older.push((row.seq, before));
                        row.seq = seq;
                    }
                    Entry::Occupied(mut row) => {
                        bytes = (bytes + length).saturating_sub(bytes_of(&row.get().value));
                        row.insert(Row { seq, value, older: Vec::new() });
                    }
                    Entry::Vacant(place) => {
                        bytes += ROW_BYTES + place.key().len() + length;
                        place.insert(Row { seq, value, older: Vec::new() });
                    }
                }
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        *last_seq = seq;
    }
}

fn bytes_of(value: &Value) -> usize {
    value.as_ref().map_or(0, |value| value.len())
}
