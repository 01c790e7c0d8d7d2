//! Redis and Valkey: in place on the keys that an application already writes (*adopt*), or written
//! through lapsed (*native*), which is the same layout with indexes beside it.
//!
//! Every decision is one script: it looks at the server's own clock and at which run of the server
//! this is, re-checks what it was told, acts, and writes the receipt. Scripts are not undone when
//! they fail in the middle, so each reads all that it needs before its first write.

mod call_batcher;
mod connection;
mod error_mapping;
mod functions;
#[doc(hidden)]
pub mod fuzzing;
mod held_entries;
mod housekeeping;
mod inflight;
mod mirror;
mod msgpack;
mod names;
mod notes;
mod overdue_owners;
mod owners;
mod prelude;
mod queues;
mod receipt_item;
mod receipts;
mod registry;
mod script;
mod server_settings;
mod services;
mod sessions;
mod suspect_prefetch;
mod system_context;

use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Result, SystemId};

use crate::connection::RedisConnection;
use crate::system_context::SystemContext;

pub use connection::RedisAddress;
pub use functions::{Downgrade, FUNCTIONS_VERSION, Loaded};
pub use inflight::{AdoptedInflight, AdoptedInflightLayout, InflightLayout, NativeInflight};
pub use mirror::{MirrorEvent, MirrorLayout, RedisMirror};
pub use names::{SHARDS_MAX, Template, shard_of, slot};
pub use queues::QueueFormat;
pub use registry::{AdoptedRegistry, NativeRegistry, RegistryLayout};
pub use sessions::{RedisSessions, SessionsLayout};

/// A server or cluster. Clones share the connection.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

struct Inner {
    connection: RedisConnection,
    address: RedisAddress,
    clock: Arc<dyn Clock>,
    contexts: RwLock<HashMap<SystemId, Arc<SystemContext>>>,
}

impl Redis {
    /// Prepares the client without connecting; the first call connects. Must be called inside a runtime.
    pub fn new(address: &RedisAddress) -> Result<Redis> {
        Self::with_clock(address, SystemClock::shared())
    }

    /// Like [`Redis::new`], with the clock that is used for waiting and for measuring answers.
    pub fn with_clock(address: &RedisAddress, clock: Arc<dyn Clock>) -> Result<Redis> {
        let connection = RedisConnection::new(address)?;
        let (address, contexts) = (address.clone(), RwLock::default());
        Ok(Redis { inner: Arc::new(Inner { connection, address, clock, contexts }) })
    }

    /// Whether the address is that of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.inner.connection.is_cluster()
    }

    /// How many round trips were made so far; a pipeline counts as one.
    pub fn requests(&self) -> u64 {
        self.inner.connection.requests.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn connection(&self) -> &RedisConnection {
        &self.inner.connection
    }

    pub(crate) fn address(&self) -> &RedisAddress {
        &self.inner.address
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    fn contexts(&self) -> RwLockReadGuard<'_, HashMap<SystemId, Arc<SystemContext>>> {
        self.inner.contexts.read().expect("no holder of this lock panics")
    }

    pub(crate) fn register_context(&self, context: &Arc<SystemContext>) {
        let mut contexts = self.inner.contexts.write().expect("no holder of this lock panics");
        contexts.insert(context.id.clone(), context.clone());
    }
}
