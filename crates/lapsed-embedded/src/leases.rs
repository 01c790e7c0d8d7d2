//! `leases` on the embedded store.
//!
//! A key is one row, which is deleted when nobody has used the key for long ([`forget`]); a decision
//! is one row. Every operation is one job:
//! it reads the row, clears what has expired (with a receipt), applies the rules of
//! [`lapsed_core::leases::rules`], and writes the row back. Jobs are serial, so nothing happens in
//! between. Deadlines are indexed in memory ([`due`]), so that a pass reads only what has expired.

mod decisions;
mod due;
mod forget;
mod load;
mod operations;
mod record_row;
mod restore;
mod rows;
mod sweep;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lapsed_core::leases::rules::ClockReading;
use lapsed_core::request;
use lapsed_core::{Name, Result, SystemId};
use tokio::sync::Notify;

use crate::fault::Tried;
use crate::leases::due::Due;
use crate::owners::{OwnerService, OwnerTable};
use crate::tx::Tx;
use crate::{Inner, StoredSystem};

/// How long a batch of a sweep may occupy the writer. A caller waits for one such batch at most, and
/// shares its commit.
pub const HOLD: Duration = Duration::from_millis(1);

/// A system of leases on an embedded store.
pub struct EmbeddedLeases {
    owner_service: OwnerService,
    core: Arc<Core>,
    /// The row at which the search for idle keys continues.
    forget_from: Mutex<Vec<u8>>,
}

/// State that jobs on the writer's thread work with.
pub(crate) struct Core {
    /// Leases have no owners with heartbeats, but batches and receipts are the same as in other
    /// systems.
    owners: Arc<OwnerTable>,
    due: Arc<Mutex<Due>>,
    waiters: Arc<LeaseWaiters>,
    /// How long the row of a key that nobody uses is kept; `None`: for ever.
    forget_after: Option<Duration>,
    forgotten: Arc<AtomicU64>,
}

impl Deref for Core {
    type Target = OwnerTable;
    fn deref(&self) -> &OwnerTable {
        &self.owners
    }
}

impl Core {
    /// The clock reading by which a job judges and grants. A millisecond that has begun is granted whole:
    /// otherwise a lease would end up to one earlier than its holder's clock says.
    fn moment(&self) -> ClockReading {
        let (judging_ms, back_ms) = self.look();
        let granting_ms = self.store_clock.ceil_ms().max(judging_ms);
        ClockReading { judging_ms, granting_ms, back_ms }
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EmbeddedLeases {
    pub(crate) fn open(
        inner: Arc<Inner>,
        id: SystemId,
        ttl: Duration,
        forget_after: Option<Duration>,
    ) -> Result<Self> {
        let owners = Arc::new(OwnerTable::new(&inner, id, ttl));
        let core = Core {
            owners: owners.clone(),
            due: Arc::default(),
            waiters: Arc::default(),
            forget_after,
            forgotten: Arc::default(),
        };
        core.read(&inner.disk)?;
        let owner_service = OwnerService { inner, owners };
        Ok(EmbeddedLeases { owner_service, core: Arc::new(core), forget_from: Mutex::default() })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Runs a job on the writer's thread.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Core, &mut Tx) -> Tried<T> + Send + 'static,
    ) -> Result<T> {
        let (core, current) = (self.core.clone(), request::current(&self.core.id));
        let work =
            move |tx: &mut Tx| core.requests().noted(tx, current.as_deref(), |tx| work(&core, tx));
        self.owner_service.inner.writer.write(work, |_| {}).await
    }
}

/// Notifications for tasks that wait for a key.
#[derive(Default)]
struct LeaseWaiters {
    waiters: Mutex<HashMap<Name, Weak<Notify>>>,
}

impl LeaseWaiters {
    fn of(&self, key: &Name) -> Arc<Notify> {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiter) = waiters.get(key).and_then(Weak::upgrade) {
            return waiter;
        }
        // Entries without a waiting task are removed before the map has to grow.
        if waiters.len() == waiters.capacity() {
            waiters.retain(|_, waiter| waiter.strong_count() > 0);
        }
        let waiter = Arc::new(Notify::new());
        waiters.insert(key.clone(), Arc::downgrade(&waiter));
        waiter
    }

    fn ring_all<'k>(&self, keys: impl Iterator<Item = &'k Name>) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            if waiters.is_empty() {
                return;
            }
            if let Some(waiter) = waiters.remove(key).and_then(|waiter| waiter.upgrade()) {
                waiter.notify_waiters();
            }
        }
    }

    fn ring(&self, key: &Name) {
        let waiter = self.waiters.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        if let Some(waiter) = waiter.and_then(|waiter| waiter.upgrade()) {
            waiter.notify_waiters();
        }
    }
}
