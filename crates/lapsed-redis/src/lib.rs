//! Redis and Valkey: in place on the keys that an application already writes (*adopt*), or written
//! through lapsed (*native*), which is the same layout with indexes beside it.
//!
//! Every decision is one script: it looks at the server's own clock and at which run of the server
//! this is, re-checks its arguments, acts, and writes the receipt. Scripts are not undone when
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
mod own_stalls;
mod owner_listing;
mod owners;
mod prelude;
mod queues;
mod receipt_item;
mod receipts;
mod registry;
mod rescue;
mod script;
mod server_settings;
mod services;
mod sessions;
mod suspect_prefetch;
mod system_context;
mod write_probe;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Result, SystemId};

use crate::connection::RedisConnection;
use crate::system_context::SystemContext;

pub use connection::RedisAddress;
pub use functions::{Downgrade, FUNCTIONS_VERSION, Loaded};
pub use inflight::{
    AdoptedInflight, AdoptedInflightLayout, DeadLetterPlace, InflightLayout, NativeInflight,
};
pub use mirror::{MirrorEvent, MirrorLayout, RedisMirror};
pub use names::{SHARDS_MAX, Template, shard_of, slot};
pub use queues::QueueFormat;
pub use registry::{AdoptedRegistry, NativeRegistry, RegistryLayout};
pub use rescue::{
    DetectOptions, Detected, FoundSystem, ProfileInfo, RescueLayout, RescuedInflight,
    profile_names, profiles,
};
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
    /// Keys that each system writes besides lapsed's own: one example of each name.
    written: RwLock<BTreeMap<SystemId, Vec<String>>>,
}

impl Redis {
    /// Prepares the client without connecting; the first call connects. Must be called inside a runtime.
    pub fn new(address: &RedisAddress) -> Result<Redis> {
        Self::with_clock(address, SystemClock::shared())
    }

    /// Like [`Redis::new`], with the clock that is used for waiting and for measuring answers.
    pub fn with_clock(address: &RedisAddress, clock: Arc<dyn Clock>) -> Result<Redis> {
        let connection = RedisConnection::new(address)?;
        let address = address.clone();
        let (contexts, written) = (RwLock::default(), RwLock::default());
        Ok(Redis { inner: Arc::new(Inner { connection, address, clock, contexts, written }) })
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

    /// `written`: the application's keys that this system writes, one example of each name.
    pub(crate) fn register_context(&self, context: &Arc<SystemContext>, written: Vec<String>) {
        let mut contexts = self.inner.contexts.write().expect("no holder of this lock panics");
        contexts.insert(context.id.clone(), context.clone());
        let mut all = self.inner.written.write().expect("no holder of this lock panics");
        all.insert(context.id.clone(), written);
    }
}
