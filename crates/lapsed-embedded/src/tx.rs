//! One write transaction, shared by all jobs of a batch. It opens each table once, and keeps the
//! jobs' changes of in-memory state until the commit.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use redb::{ReadableTable, Table, WriteTransaction};

use crate::fault::Fault;
use crate::holder_index::Changes;
use crate::inflight::JobChanges;
use crate::tables::{Bytes, META, definition, number, to_number};

type Opened<'t> = Table<'t, Bytes, Bytes>;

pub(crate) struct Tx<'t> {
    txn: &'t WriteTransaction,
    tables: HashMap<Arc<str>, Opened<'t>, RandomState>,
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

impl<'t> Tx<'t> {
    pub fn new(txn: &'t WriteTransaction) -> Self {
        let (tables, changed, then) = (HashMap::default(), Changed::default(), Vec::new());
        Tx { txn, tables, meta: Arc::from(META), changed, then }
    }

    pub fn table(&mut self, name: &Arc<str>) -> Result<&mut Opened<'t>, Fault> {
        if !self.tables.contains_key(name) {
            let table = self.txn.open_table(definition(name))?;
            self.tables.insert(name.clone(), table);
        }
        Ok(self.tables.get_mut(name).expect("it was inserted just now"))
    }

    pub fn get(&mut self, table: &Arc<str>, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.table(table)?.get(key)?.map(|value| value.value().to_vec()))
    }

    pub fn put(&mut self, table: &Arc<str>, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.table(table)?.insert(key, value)?;
        Ok(())
    }

    /// Removes a row; whether it existed.
    pub fn remove(&mut self, table: &Arc<str>, key: &[u8]) -> Result<bool, Fault> {
        Ok(self.table(table)?.remove(key)?.is_some())
    }

    /// Removes a row and returns its value, if it existed.
    pub fn take(&mut self, table: &Arc<str>, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.table(table)?.remove(key)?.map(|value| value.value().to_vec()))
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

    /// All changes, to be applied after the commit.
    pub fn into_commit_effects(self) -> CommitEffects {
        CommitEffects { changed: self.changed, then: self.then }
    }

    pub fn meta_get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.get(&self.meta.clone(), key)
    }

    pub fn meta_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.put(&self.meta.clone(), key, value)
    }

    /// Reserves the next `count` numbers of a counter that starts at 1, and returns the first of
    /// them.
    pub fn take_numbers(&mut self, counter: &[u8], count: u64) -> Result<u64, Fault> {
        let next = self.meta_get(counter)?.and_then(|bytes| to_number(&bytes)).unwrap_or(1);
        self.meta_put(counter, &number(next + count))?;
        Ok(next)
    }
}
