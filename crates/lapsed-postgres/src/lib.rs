//! PostgreSQL: the truth of `availability`, in an application's own tables or in tables made for it.
//!
//! Read in this order: [`Layout`] (what the tables are called), `schema` (how they are made), `pool` (a
//! call: a connection, a time limit, an end), `availability` (the operations). Every change of a provider
//! is one transaction: first the lock on the provider's version, then the change, then a read
//! in a statement of its own, which sees every change with a lower version.

mod address;
mod availability;
mod call_error;
mod layout;
mod listen;
mod notes;
mod number;
mod own_tables;
mod pool;
mod quote;
mod receipts;
mod requests;
mod schema;
mod services;
mod tls;
mod write_probe;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Result, SystemId};

use crate::own_tables::OwnTables;
use crate::pool::PostgresPool;

pub use address::PostgresAddress;
pub use availability::PostgresTruth;
pub use layout::{Config, IdType, Layout, Logins, Logs, Providers, Sessions, Status};
pub use listen::{ChangeEvent, ChangeListener};
pub use schema::{
    AVAILABILITY_CHANNEL, Applied, SETTINGS_CHANNEL, Triggers, print as print_schema,
};

/// A database. Clones share the connections.
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PostgresPool,
    own: OwnTables,
    /// The tables of each system that was opened here.
    layouts: Mutex<BTreeMap<SystemId, Layout>>,
}

impl Postgres {
    /// Creates the store; the first call connects. Must be called inside a runtime.
    pub fn new(address: &PostgresAddress) -> Result<Postgres> {
        Self::with_clock(address, SystemClock::shared())
    }

    /// Like [`Self::new`], with the clock by which the process waits.
    pub fn with_clock(address: &PostgresAddress, clock: Arc<dyn Clock>) -> Result<Postgres> {
        let pool = PostgresPool::new(address, clock)?;
        let (own, layouts) = (OwnTables::new(&address.prefix), Mutex::default());
        Ok(Postgres { inner: Arc::new(Inner { pool, own, layouts }) })
    }

    /// The number of statements that were sent so far.
    pub fn statements(&self) -> u64 {
        self.inner.pool.statements()
    }

    pub(crate) fn pool(&self) -> &PostgresPool {
        &self.inner.pool
    }

    pub(crate) fn own(&self) -> &OwnTables {
        &self.inner.own
    }
}
