//! One write transaction, shared by every job of a batch. Opens each table once, and keeps what the
//! jobs change in memory until it is committed.

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
    then: Vec<Then>,
}

/// What a batch has changed of what is kept in memory, by the name of the table of what is held.
#[derive(Default)]
pub(crate) struct Changed {
    pub held: HashMap<Arc<str>, Changes, RandomState>,
    /// Of jobs in flight.
    pub jobs: HashMap<Arc<str>, JobChanges, RandomState>,
}

impl Changed {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.jobs.is_empty()
    }
}

/// A change in memory that follows the commit.
type Then = Box<dyn FnOnce() + Send>;

/// What is to be done in memory once a batch is committed.
pub(crate) struct Aftermath {
    pub changed: Changed,
    pub then: Vec<Then>,
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

    /// Whether it was there.
    pub fn remove(&mut self, table: &Arc<str>, key: &[u8]) -> Result<bool, Fault> {
        Ok(self.table(table)?.remove(key)?.is_some())
    }

    /// Removes a row: what it held, if it was there.
    pub fn take(&mut self, table: &Arc<str>, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.table(table)?.remove(key)?.map(|value| value.value().to_vec()))
    }

    /// What this batch has changed so far of what is held, by the name of the table.
    pub fn held(&mut self, table: &Arc<str>) -> &mut Changes {
        self.changed.held.entry(table.clone()).or_default()
    }

    /// The same of a system of jobs.
    pub fn jobs(&mut self, table: &Arc<str>) -> &mut JobChanges {
        self.changed.jobs.entry(table.clone()).or_default()
    }

    /// The same, if there is any.
    pub fn jobs_changed(&self, table: &Arc<str>) -> Option<&JobChanges> {
        self.changed.jobs.get(table)
    }

    /// Whether anything has changed that is kept in memory.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Does `change` once this batch is committed, before anybody is answered; never if it is not.
    pub fn then(&mut self, change: impl FnOnce() + Send + 'static) {
        self.then.push(Box::new(change));
    }

    /// All of it, to be applied once it is committed.
    pub fn into_aftermath(self) -> Aftermath {
        Aftermath { changed: self.changed, then: self.then }
    }

    pub fn meta_get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.get(&self.meta.clone(), key)
    }

    pub fn meta_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.put(&self.meta.clone(), key, value)
    }

    /// The next `count` numbers of a counter that starts at 1: the first of them.
    pub fn take_numbers(&mut self, counter: &[u8], count: u64) -> Result<u64, Fault> {
        let next = self.meta_get(counter)?.and_then(|bytes| to_number(&bytes)).unwrap_or(1);
        self.meta_put(counter, &number(next + count))?;
        Ok(next)
    }
}
