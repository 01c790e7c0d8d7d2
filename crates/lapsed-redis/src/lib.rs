//! Redis and Valkey: in place on the keys that an application already writes (*adopt*), or written
//! through lapsed (*native*), which is the same layout with indexes beside it.
//!
//! Every decision is one script: it looks at the server's own clock and at which life of the server
//! this is, re-checks what it was told, acts, and writes the receipt. Scripts are not undone when
//! they fail in the middle, so each reads all that it needs before its first write.

mod ahead;
mod doomed;
mod fault;
mod functions;
mod ground;
mod hints;
mod holdings;
mod inflight;
mod item;
mod joint;
mod ledger;
mod link;
mod mirror;
mod msgpack;
mod names;
mod notes;
mod owners;
mod prelude;
mod queues;
mod registry;
mod rounds;
mod script;
mod services;
mod sessions;
#[doc(hidden)]
pub mod trial;

use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Result, SystemId};

use crate::ground::SystemContext;
use crate::link::RedisConnection;

pub use functions::{Downgrade, FUNCTIONS_VERSION, Loaded};
pub use inflight::{AdoptedInflight, AdoptedInflightLayout, InflightLayout, NativeInflight};
pub use link::RedisAddress;
pub use mirror::{MirrorEvent, MirrorLayout, RedisMirror};
pub use names::{Template, shard_of, slot};
pub use queues::QueueFormat;
pub use registry::{AdoptedRegistry, NativeRegistry, RegistryLayout};
pub use sessions::{RedisSessions, SessionsLayout};

/// A server or cluster. Clones share the connection.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

struct Inner {
    link: RedisConnection,
    address: RedisAddress,
    clock: Arc<dyn Clock>,
    grounds: RwLock<HashMap<SystemId, Arc<SystemContext>>>,
}

impl Redis {
    /// Makes ready; the first call connects. Must be called inside a runtime.
    pub fn new(address: &RedisAddress) -> Result<Redis> {
        Self::with_clock(address, SystemClock::shared())
    }

    /// The same with a clock of the caller's, for waiting and for measuring answers.
    pub fn with_clock(address: &RedisAddress, clock: Arc<dyn Clock>) -> Result<Redis> {
        let link = RedisConnection::new(address)?;
        let (address, grounds) = (address.clone(), RwLock::default());
        Ok(Redis { inner: Arc::new(Inner { link, address, clock, grounds }) })
    }

    /// Whether it is a cluster.
    pub fn is_cluster(&self) -> bool {
        self.inner.link.is_cluster()
    }

    /// How many requests were sent so far: round trips, whatever each carried.
    pub fn requests(&self) -> u64 {
        self.inner.link.requests.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn link(&self) -> &RedisConnection {
        &self.inner.link
    }

    pub(crate) fn address(&self) -> &RedisAddress {
        &self.inner.address
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    fn grounds(&self) -> RwLockReadGuard<'_, HashMap<SystemId, Arc<SystemContext>>> {
        self.inner.grounds.read().expect("no holder of this lock panics")
    }

    pub(crate) fn settle_on(&self, ground: &Arc<SystemContext>) {
        let mut grounds = self.inner.grounds.write().expect("no holder of this lock panics");
        grounds.insert(ground.id.clone(), ground.clone());
    }
}
