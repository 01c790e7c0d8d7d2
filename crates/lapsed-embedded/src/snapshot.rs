//! What is committed, at one instant: the database and, on top of it, what is only in the log.
//!
//! The race: a checkpoint moves rows from a memtable into the database while they are read. It writes to the database
//! first, and then replaces the [`View`] as a whole, by one with a newer read transaction and without that memtable.
//! Whoever has the older view goes on with the older transaction and the memtable. Rows that are in both are equal.

use std::collections::HashMap;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex};

use foldhash::fast::RandomState;
use redb::{AccessGuard, Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, TableError};

use crate::fault::Tried;
use crate::memtable::{BatchRows, Key, KeyRange, Memtable, Reader, Rows, Value};
use crate::tables::{Bytes, definition};

type DatabaseTable = ReadOnlyTable<Bytes, Bytes>;

/// How many rows of a memtable are read at a time; its lock is held for so long.
const PAGE: usize = 64;

const LOCK: &str = "no holder of this lock panics";

/// The database at one instant. Its tables are opened once. The database stays open for as long as somebody reads it.
pub(crate) struct Base {
    tables: Mutex<HashMap<Arc<str>, Option<Arc<DatabaseTable>>, RandomState>>,
    txn: ReadTransaction,
    _database: Arc<Database>,
}

impl Base {
    pub fn of(database: &Arc<Database>) -> Tried<Arc<Base>> {
        let txn = database.begin_read()?;
        Ok(Arc::new(Base { tables: Mutex::default(), txn, _database: database.clone() }))
    }

    /// A table; `None` if it was never written to.
    fn table(&self, name: &str) -> Tried<Option<Arc<DatabaseTable>>> {
        if let Some(table) = self.tables.lock().expect(LOCK).get(name) {
            return Ok(table.clone());
        }
        let table = match self.txn.open_table(definition(name)) {
            Ok(table) => Some(Arc::new(table)),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(error.into()),
        };
        self.tables.lock().expect(LOCK).insert(Arc::from(name), table.clone());
        Ok(table)
    }
}

/// Where committed rows are. It is replaced, never changed, except that batches are added to `active`.
#[derive(Clone)]
pub(crate) struct View {
    pub active: Arc<Memtable>,
    /// What a checkpoint is bringing into the database.
    pub frozen: Option<Arc<Memtable>>,
    pub base: Arc<Base>,
}

/// Everything that was committed when it was taken.
#[derive(Clone)]
pub(crate) struct Snapshot {
    view: Arc<View>,
    reader: Arc<Reader>,
}

impl Snapshot {
    /// The view may be outdated when this is called: batches that `active` does not get are not seen, all of them.
    pub fn new(view: Arc<View>) -> Snapshot {
        let reader = Arc::new(view.active.reader());
        Snapshot { view, reader }
    }

    /// A table; `None` if it was never written to.
    pub fn table(&self, name: &str) -> Tried<Option<Table>> {
        let table = Table {
            active: self.view.active.table(name),
            frozen: self.view.frozen.as_ref().and_then(|frozen| frozen.table(name)),
            base: self.view.base.table(name)?.map(|table| (table, self.view.base.clone())),
            reader: Some(self.reader.clone()),
        };
        let exists = table.active.is_some() || table.frozen.is_some() || table.base.is_some();
        Ok(exists.then_some(table))
    }
}

/// A key or a value that was read.
pub(crate) enum Cell {
    Base(AccessGuard<'static, Bytes>),
    Memory(Arc<[u8]>),
}

impl Cell {
    pub fn value(&self) -> &[u8] {
        match self {
            Cell::Base(guard) => guard.value(),
            Cell::Memory(bytes) => bytes,
        }
    }
}

/// One table of a snapshot.
#[derive(Clone)]
pub(crate) struct Table {
    active: Option<Arc<Rows>>,
    frozen: Option<Arc<Rows>>,
    /// The table, and what keeps it readable.
    base: Option<(Arc<DatabaseTable>, Arc<Base>)>,
    /// `None`: nothing is read from memory.
    reader: Option<Arc<Reader>>,
}

impl Table {
    pub fn get(&self, key: &[u8]) -> Tried<Option<Cell>> {
        for rows in [&self.active, &self.frozen].into_iter().flatten() {
            if let Some(value) = rows.get(key, self.seq()) {
                return Ok(value.map(Cell::Memory));
            }
        }
        match &self.base {
            Some((base, _)) => Ok(base.get(key)?.map(Cell::Base)),
            None => Ok(None),
        }
    }

    pub fn iter(&self) -> Tried<Range<'static>> {
        self.range::<&[u8]>(..)
    }

    /// The rows in a range of keys, in order.
    pub fn range<'k, K>(&self, keys: impl RangeBounds<K>) -> Tried<Range<'static>>
    where
        K: AsRef<[u8]> + 'k,
    {
        self.range_under(None, keys)
    }

    /// The same with the rows of a batch on top.
    pub fn range_under<'b, K: AsRef<[u8]>>(
        &self,
        batch: Option<(&'b BatchRows, &'b str)>,
        keys: impl RangeBounds<K>,
    ) -> Tried<Range<'b>> {
        let from = keys.start_bound().map(|key| Key::from(key.as_ref()));
        let to = keys.end_bound().map(|key| Key::from(key.as_ref()));
        let base = match &self.base {
            Some((table, base)) => {
                let rows = table.range::<&[u8]>((as_slice(&from), as_slice(&to)))?;
                Some((rows, base.clone()))
            }
            None => None,
        };
        let mut layers = Vec::new();
        if let Some((rows, table)) = batch {
            layers.push(Layer::new(Source::Batch(rows, table)));
        }
        for rows in [&self.active, &self.frozen].into_iter().flatten() {
            layers.push(Layer::new(Source::Memory(rows.clone(), self.seq())));
        }
        let reader = self.reader.clone();
        Ok(Range { layers, base, next_of_base: None, from, to, backwards: false, _reader: reader })
    }

    /// A table that was never written to.
    pub fn empty() -> Table {
        Table { active: None, frozen: None, base: None, reader: None }
    }

    fn seq(&self) -> u64 {
        self.reader.as_ref().map_or(0, |reader| reader.seq)
    }
}

fn as_slice(bound: &Bound<Key>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

enum Source<'b> {
    Batch(&'b BatchRows, &'b str),
    Memory(Arc<Rows>, u64),
}

/// The rows of one layer, read a page at a time.
struct Layer<'b> {
    source: Source<'b>,
    page: std::vec::IntoIter<(Key, Value)>,
    /// The last key of the page; `None` before the first page.
    last: Option<Key>,
    /// Whether the page is the last one.
    ended: bool,
    next: Option<(Key, Value)>,
}

impl<'b> Layer<'b> {
    fn new(source: Source<'b>) -> Layer<'b> {
        Layer { source, page: Vec::new().into_iter(), last: None, ended: false, next: None }
    }

    /// Makes `next` the next row, if there is one.
    fn fill(&mut self, range: KeyRange<'_>) {
        if self.next.is_none() {
            self.next = self.page.next();
        }
        if self.next.is_some() || self.ended {
            return;
        }
        let range = match (&self.last, range.backwards) {
            (None, _) => range,
            (Some(last), true) => KeyRange { to: Bound::Excluded(last), ..range },
            (Some(last), false) => KeyRange { from: Bound::Excluded(last), ..range },
        };
        let page = match &self.source {
            Source::Batch(rows, table) => rows.page(table, range, PAGE),
            Source::Memory(rows, seq) => rows.page(range, PAGE, *seq),
        };
        self.ended = page.len() < PAGE;
        self.last = page.last().map(|(key, _)| key.clone());
        self.page = page.into_iter();
        self.next = self.page.next();
    }
}

type BaseRow = (AccessGuard<'static, Bytes>, AccessGuard<'static, Bytes>);

/// Rows in order of their keys, from all layers.
pub(crate) struct Range<'b> {
    /// In the order of their age: what the first says of a row holds.
    layers: Vec<Layer<'b>>,
    /// The rows of the database, and what keeps them readable.
    base: Option<(redb::Range<'static, Bytes, Bytes>, Arc<Base>)>,
    next_of_base: Option<BaseRow>,
    from: Bound<Key>,
    to: Bound<Key>,
    backwards: bool,
    /// Keeps the rows of memory readable.
    _reader: Option<Arc<Reader>>,
}

impl Range<'_> {
    /// From the last row to the first. To be called before anything was read.
    pub fn rev(mut self) -> Self {
        self.backwards = !self.backwards;
        self
    }

    fn fill(&mut self) -> Tried<()> {
        let (from, to) = (as_slice(&self.from), as_slice(&self.to));
        let range = KeyRange { from, to, backwards: self.backwards };
        self.layers.iter_mut().for_each(|layer| layer.fill(range));
        if self.next_of_base.is_none()
            && let Some((rows, _)) = &mut self.base
        {
            let next = if self.backwards { rows.next_back() } else { rows.next() };
            self.next_of_base = next.transpose()?;
        }
        Ok(())
    }

    /// Whether `key` comes before `other` in the direction of reading.
    fn is_before(&self, key: &[u8], other: &[u8]) -> bool {
        if self.backwards { key > other } else { key < other }
    }

    /// The layer whose row is next; `None`: that of the database, or there is none.
    fn next_layer(&self) -> Option<usize> {
        let mut first: Option<(usize, &[u8])> = None;
        for (at, layer) in self.layers.iter().enumerate() {
            if let Some((key, _)) = &layer.next
                && first.is_none_or(|(_, first)| self.is_before(key, first))
            {
                first = Some((at, key));
            }
        }
        let (at, key) = first?;
        match &self.next_of_base {
            Some((base, _)) if self.is_before(base.value(), key) => None,
            _ => Some(at),
        }
    }

    /// The next row that is not removed.
    fn advance(&mut self) -> Tried<Option<(Cell, Cell)>> {
        loop {
            self.fill()?;
            let Some(at) = self.next_layer() else {
                let row = self.next_of_base.take();
                return Ok(row.map(|(key, value)| (Cell::Base(key), Cell::Base(value))));
            };
            let Some((key, value)) = self.layers[at].next.take() else { return Ok(None) };
            // Older versions of the same row.
            for layer in &mut self.layers {
                layer.next.take_if(|(other, _)| *other == key);
            }
            self.next_of_base.take_if(|(other, _)| other.value() == &*key);
            if let Some(value) = value {
                return Ok(Some((Cell::Memory(key), Cell::Memory(value))));
            }
        }
    }
}

impl Iterator for Range<'_> {
    type Item = Tried<(Cell, Cell)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Where a change is: below are the older ones.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Level {
        Base,
        Frozen,
        Active,
        /// In `active`, after the snapshot was taken.
        Later,
        Batch,
    }

    type Change = (Level, u8, Option<u8>);

    fn change() -> impl Strategy<Value = Change> {
        use Level::{Active, Base, Batch, Frozen, Later};
        let level = prop_oneof![Just(Base), Just(Frozen), Just(Active), Just(Later), Just(Batch)];
        (level, 0u8..150, proptest::option::of(any::<u8>()))
    }

    fn base(changes: &[Change]) -> Arc<Base> {
        let bytes = redb::backends::InMemoryBackend::new();
        let database = redb::Builder::new().create_with_backend(bytes).unwrap();
        let txn = database.begin_write().unwrap();
        {
            let mut table = txn.open_table(definition("t")).unwrap();
            for (_, key, value) in changes {
                match value {
                    Some(value) => table.insert(&[*key][..], &[*value][..]).unwrap(),
                    None => table.remove(&[*key][..]).unwrap(),
                };
            }
        }
        txn.commit().unwrap();
        Base::of(&Arc::new(database)).unwrap()
    }

    fn apply(memtable: &Memtable, changes: &[Change]) {
        for (_, key, value) in changes {
            let mut batch = BatchRows::default();
            batch.set(&Arc::from("t"), &[*key], value.map(|value| Arc::from([value])));
            memtable.apply(memtable.last_seq() + 1, batch);
        }
    }

    fn read(range: Range<'_>) -> Vec<(u8, u8)> {
        range
            .map(|row| row.unwrap())
            .map(|(key, value)| (key.value()[0], value.value()[0]))
            .collect()
    }

    proptest! {
        #[test]
        fn a_snapshot_reads_what_a_map_contains(
            mut changes in proptest::collection::vec(change(), 0..400),
            from in 0u8..150, to in 0u8..150,
        ) {
            changes.sort_by_key(|(level, ..)| *level);
            let of = |level: Level| -> Vec<Change> {
                changes.iter().filter(|(at, ..)| *at == level).copied().collect()
            };
            let frozen = Arc::new(Memtable::new(0));
            apply(&frozen, &of(Level::Frozen));
            let active = Arc::new(Memtable::new(frozen.last_seq()));
            apply(&active, &of(Level::Active));
            let view = View { active: active.clone(), frozen: Some(frozen), base: base(&of(Level::Base)) };
            let snapshot = Snapshot::new(Arc::new(view));
            apply(&active, &of(Level::Later));
            let table = snapshot.table("t").unwrap().unwrap();
            let mut model: BTreeMap<u8, u8> = BTreeMap::new();
            let change = |model: &mut BTreeMap<u8, u8>, (_, key, value): &Change| match value {
                Some(value) => model.insert(*key, *value),
                None => model.remove(key),
            };
            for level in [Level::Base, Level::Frozen, Level::Active] {
                of(level).iter().for_each(|it| { change(&mut model, it); });
            }
            for key in 0..150 {
                let found = table.get(&[key]).unwrap().map(|cell| cell.value()[0]);
                prop_assert_eq!(found, model.get(&key).copied());
            }
            let mut batch = BatchRows::default();
            let mut with_batch = model.clone();
            for it @ (_, key, value) in &of(Level::Batch) {
                change(&mut with_batch, it);
                batch.set(&Arc::from("t"), &[*key], value.map(|value| Arc::from([value])));
            }
            let (from, to) = (from.min(to), from.max(to));
            let all = |model: &BTreeMap<u8, u8>| -> Vec<(u8, u8)> {
                model.range(from..to).map(|(key, value)| (*key, *value)).collect()
            };
            let (low, high) = ([from], [to]);
            prop_assert_eq!(read(table.range(&low[..]..&high[..]).unwrap()), all(&model));
            let under = table.range_under(Some((&batch, "t")), &low[..]..&high[..]).unwrap();
            prop_assert_eq!(read(under), all(&with_batch));
            let backwards = table.range_under(Some((&batch, "t")), &low[..]..&high[..]).unwrap().rev();
            let mut expected = all(&with_batch);
            expected.reverse();
            prop_assert_eq!(read(backwards), expected);
        }
    }
}
