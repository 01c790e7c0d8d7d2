//! The transaction of one batch: what its jobs read and write, and their changes of in-memory state until the commit.

use std::collections::HashMap;
use std::ops::RangeBounds;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::fault::Tried;
use crate::holder_index::Changes;
use crate::inflight::JobChanges;
use crate::memtable::BatchRows;
use crate::snapshot::{Range, Snapshot, Table};
use crate::tables::{META, number, to_number};

pub(crate) struct Tx {
    snapshot: Snapshot,
    /// The tables that were read, as they were before this batch.
    tables: HashMap<Arc<str>, Table, RandomState>,
    rows: BatchRows,
    meta: Arc<str>,
    changed: Changed,
    then: Vec<AfterCommit>,
}

/// Changes of a batch to in-memory state, by the name of the `held` table.
#[derive(Default)]
pub(crate) struct Changed {
    pub held: HashMap<Arc<str>, Changes, RandomState>,
    /// Changes of systems of jobs.
    pub jobs: HashMap<Arc<str>, JobChanges, RandomState>,
}

impl Changed {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.jobs.is_empty()
    }
}

/// A change of in-memory state that is applied after the commit.
type AfterCommit = Box<dyn FnOnce() + Send>;

/// What is applied in memory after the commit.
pub(crate) struct CommitEffects {
    pub changed: Changed,
    pub then: Vec<AfterCommit>,
}

impl Tx {
    pub fn new(snapshot: Snapshot) -> Self {
        Tx {
            snapshot,
            tables: HashMap::default(),
            rows: BatchRows::default(),
            meta: Arc::from(META),
            changed: Changed::default(),
            then: Vec::new(),
        }
    }

    /// A table as it was before this batch.
    fn before(&mut self, name: &Arc<str>) -> Tried<&Table> {
        if !self.tables.contains_key(name) {
            let table = self.snapshot.table(name)?.unwrap_or_else(Table::empty);
            self.tables.insert(name.clone(), table);
        }
        Ok(self.tables.get(name).expect("it was inserted just now"))
    }

    pub fn get(&mut self, table: &Arc<str>, key: &[u8]) -> Tried<Option<Vec<u8>>> {
        if let Some(value) = self.rows.get(table, key) {
            return Ok(value.as_ref().map(|value| value.to_vec()));
        }
        Ok(self.before(table)?.get(key)?.map(|value| value.value().to_vec()))
    }

    /// Whether this batch has written or removed a row.
    pub fn has_changed_row(&self, table: &str, key: &[u8]) -> bool {
        self.rows.get(table, key).is_some()
    }

    /// The rows of a table in a range of keys, in order.
    pub fn range<'a, K: AsRef<[u8]>>(
        &'a mut self,
        table: &'a Arc<str>,
        keys: impl RangeBounds<K>,
    ) -> Tried<Range<'a>> {
        self.before(table)?;
        self.tables[table].range_under(Some((&self.rows, table)), keys)
    }

    pub fn put(&mut self, table: &Arc<str>, key: &[u8], value: &[u8]) -> Tried<()> {
        self.rows.set(table, key, Some(Arc::from(value)));
        Ok(())
    }

    /// Removes a row, if it exists.
    pub fn remove(&mut self, table: &Arc<str>, key: &[u8]) -> Tried<()> {
        self.rows.set(table, key, None);
        Ok(())
    }

    /// Removes a row and returns its value, if it existed.
    pub fn take(&mut self, table: &Arc<str>, key: &[u8]) -> Tried<Option<Vec<u8>>> {
        let value = self.get(table, key)?;
        if value.is_some() {
            self.remove(table, key)?;
        }
        Ok(value)
    }

    /// Changes of this batch to the entries of a system, by the name of its `held` table.
    pub fn held(&mut self, table: &Arc<str>) -> &mut Changes {
        self.changed.held.entry(table.clone()).or_default()
    }

    /// Changes of this batch to a system of jobs, by the name of its `held` table.
    pub fn jobs(&mut self, table: &Arc<str>) -> &mut JobChanges {
        self.changed.jobs.entry(table.clone()).or_default()
    }

    /// Changes of this batch to a system of jobs, if there are any.
    pub fn jobs_changed(&self, table: &Arc<str>) -> Option<&JobChanges> {
        self.changed.jobs.get(table)
    }

    /// Whether this batch has changed in-memory state.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Runs `change` after the commit, before any caller is answered; never if the commit fails.
    pub fn then(&mut self, change: impl FnOnce() + Send + 'static) {
        self.then.push(Box::new(change));
    }

    /// The rows to commit, and the changes to be applied after that.
    pub fn into_parts(self) -> (BatchRows, CommitEffects) {
        (self.rows, CommitEffects { changed: self.changed, then: self.then })
    }

    pub fn meta_get(&mut self, key: &[u8]) -> Tried<Option<Vec<u8>>> {
        self.get(&self.meta.clone(), key)
    }

    pub fn meta_put(&mut self, key: &[u8], value: &[u8]) -> Tried<()> {
        self.put(&self.meta.clone(), key, value)
    }

    /// Reserves the next `count` numbers of a counter that starts at 1, and returns the first of
    /// them.
    pub fn take_numbers(&mut self, counter: &[u8], count: u64) -> Tried<u64> {
        let next = self.meta_get(counter)?.and_then(|bytes| to_number(&bytes)).unwrap_or(1);
        if count > 0 {
            self.meta_put(counter, &number(next + count))?;
        }
        Ok(next)
    }
}
