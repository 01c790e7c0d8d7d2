//! The embedded store: one data folder, opened by one process, nothing to install.
//!
//! Entries are on disk, in a log whose batches many callers share, and later in a database (redb). Heartbeats are in memory,
//! where one is a single compare-and-swap; deadlines are written to disk once a second. After a
//! restart every owner gets a whole TTL to send a heartbeat again, so a deadline that was not
//! written is not missed.
//!
//! Writes are serial: one job after the other, in batches, each batch one durable record of the log. The index
//! of entries changes in memory after the commit. Owners change in memory with the job, before the
//! commit, and are read again from disk when a batch is undone.
//!
//! Five systems run on it. [`EmbeddedRegistry`], [`EmbeddedSessions`] and [`EmbeddedInflight`]
//! share owners, batches and receipts, and differ in what an owner holds. [`EmbeddedLeases`] has no
//! owners: every lease has its own deadline. [`EmbeddedTruth`] is the durable half of availability,
//! whose heartbeats are in a mirror.
//!
//! A registry, from its opening to its first reclaim:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use lapsed_core::registry::{Registry, RegistryParts};
//! use lapsed_core::{Kind, Name, SystemId};
//! use lapsed_embedded::{Embedded, Options};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lapsed_core::Result<()> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let folder = folder.path();
//! let store = Embedded::open(folder, Options::default())?;
//! let id = SystemId::new(Kind::Registry, "devices")?;
//! let ttl = Duration::from_secs(90);
//! let parts = RegistryParts::new(store.registry(id, ttl)?, Arc::new(store.clone()), ttl);
//! let registry = Registry::new(parts);
//!
//! let owner = registry.owner("gateway-1").await?;     // a new incarnation; heartbeats in the background
//! let key = Name::new("imei-356307042441013")?;
//! registry.register(owner.claim(), &key).await?;      // durable when it returns
//! let found = registry.lookup(&key).await?.expect("its owner is alive");
//! assert_eq!(found.holder.incarnation, owner.incarnation());
//!
//! let claim = owner.claim().clone();
//! drop(owner);
//! assert_eq!(registry.retire(&claim).await?.reclaimed, 1); // with a receipt
//! assert!(registry.lookup(&key).await?.is_none());
//! # Ok(())
//! # }
//! ```
//!
//! The crate `lapsed` opens this store and starts a system on it in one line each.

mod append;
mod availability;
mod checked_backend;
mod checkpoint;
mod compact;
mod disk;
mod fault;
mod holder_index;
mod inflight;
mod leases;
mod location;
mod log;
mod log_file;
mod memtable;
mod notes;
mod open_store;
mod owners;
mod receipt_block;
mod receipt_row;
mod registry;
mod removed_fields;
mod requests;
mod services;
mod sessions;
mod shrink;
mod snapshot;
mod store_clock;
mod tables;
mod tx;
mod writer;

use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::registry::rules::{OwnerGuard, StrictOwnerGuard};
use lapsed_core::{Error, Result, SystemId};
use redb::StorageBackend;

use crate::disk::Disk;
use crate::fault::{Fault, Tried};
use crate::open_store::DiskOptions;
use crate::owners::OwnerTable;
use crate::snapshot::Snapshot;
use crate::store_clock::StoreClock;
use crate::tables::{META, number, to_number};
use crate::tx::{Changed, Tx};
use crate::writer::{Chore, Undone, Writer, WriterCallbacks};

pub use crate::availability::{EmbeddedTruth, LogRow, LogStatus};
pub use crate::inflight::EmbeddedInflight;
pub use crate::leases::{EmbeddedLeases, HOLD as LEASES_HOLD};
pub use crate::location::StoreFile;
pub use crate::registry::EmbeddedRegistry;
pub use crate::sessions::EmbeddedSessions;
/// The bytes behind an in-memory store. The simulation passes one that crashes.
pub use redb::StorageBackend as Backend;

/// How often deadlines are written to disk, and how many at most in one commit.
const MIRROR_EVERY_MS: u64 = 1_000;
const MIRROR_ROWS_MAX: usize = 2_000;

/// Options for opening a store.
#[derive(Clone)]
pub struct Options {
    /// How much of the file is cached in memory.
    pub cache_bytes: usize,
    /// How much waits in the log, and in memory, before it is brought into the database.
    pub checkpoint_bytes: usize,
    pub clock: Arc<dyn Clock>,
    /// The guard that decides whether an owner is dead.
    pub guard: Arc<dyn OwnerGuard>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache_bytes: 256 << 20,
            checkpoint_bytes: 32 << 20,
            clock: SystemClock::shared(),
            guard: Arc::new(StrictOwnerGuard),
        }
    }
}

impl Options {
    fn disk(&self) -> DiskOptions {
        let Options { cache_bytes, checkpoint_bytes, .. } = *self;
        DiskOptions { cache_bytes, checkpoint_bytes, new_log_id: self.clock.random() }
    }
}

/// An open store. Clones share it; dropping the last one closes it.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

/// What the handles of an open store share. The store's own threads have its [`StoreState`] instead: so the last
/// handle is always dropped by its user, and the folder is free when that returns.
pub(crate) struct Inner {
    state: Arc<StoreState>,
    writer: Writer,
    guard: Arc<dyn OwnerGuard>,
    clock: Arc<dyn Clock>,
    incarnation: String,
    /// Lets one long read at a time go to a thread that may block. `None`: the store has no threads,
    /// and every call is carried out by its caller.
    long_reads: Option<tokio::sync::Semaphore>,
}

/// What the writer's thread works with.
pub(crate) struct StoreState {
    disk: Arc<Disk>,
    store_clock: Arc<StoreClock>,
    /// The open systems, whose deadlines are written to disk and which are read again after a
    /// failure.
    systems: RwLock<Vec<Weak<dyn StoredSystem>>>,
    mirrored_ms: AtomicU64,
    failed: AtomicBool,
}

impl Deref for Inner {
    type Target = StoreState;
    fn deref(&self) -> &StoreState {
        &self.state
    }
}

impl Embedded {
    /// Opens the store in the folder `dir` and creates it if it does not exist. Only one process
    /// can have it open.
    pub fn open(dir: &Path, options: Options) -> Result<Embedded> {
        Self::start(Disk::open_folder(dir, options.disk())?, options, true)
    }

    /// A store without a file, lost when dropped. It has no thread: every call is carried out by
    /// its caller, so that a simulation repeats exactly.
    pub fn in_memory(options: Options) -> Result<Embedded> {
        // Its callers wait for checkpoints, so these are small.
        let checkpoint_bytes = options.checkpoint_bytes.min(1 << 20);
        let options = Options { checkpoint_bytes, ..options };
        Self::with_backend(options, |_| Box::new(redb::backends::InMemoryBackend::new()))
    }

    /// A store on the caller's bytes; `make` is called for each of its files, each time the store is opened.
    pub fn with_backend(
        options: Options,
        make: impl Fn(StoreFile) -> Box<dyn StorageBackend> + Send + Sync + 'static,
    ) -> Result<Embedded> {
        Self::start(Disk::in_memory(Box::new(make), options.disk()), options, false)
    }

    fn start(disk: Disk, options: Options, threaded: bool) -> Result<Embedded> {
        let disk = Arc::new(disk);
        let opened = disk.open(|snapshot| Opened::read(snapshot, &disk.name))?;
        let store_clock =
            Arc::new(StoreClock::new(options.clock.clone(), opened.high_ms, threaded));
        let incarnation = format!("{}-{:08x}", opened.opens + 1, options.clock.random() as u32);
        let state = Arc::new(StoreState {
            disk: disk.clone(),
            store_clock,
            systems: RwLock::default(),
            mirrored_ms: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        });
        let callbacks: Arc<dyn WriterCallbacks> = state.clone();
        let callbacks = Arc::downgrade(&callbacks);
        let writer = match threaded {
            true => Writer::threaded(disk, callbacks)?,
            false => Writer::inline(disk, callbacks),
        };
        let inner = Arc::new(Inner {
            state,
            writer,
            guard: options.guard,
            clock: options.clock,
            incarnation,
            long_reads: threaded.then(|| tokio::sync::Semaphore::new(1)),
        });
        note_opening(&inner, opened.opens + 1)?;
        Ok(Embedded { inner })
    }

    /// Opens the registry `id`. `threshold` is how long owners are spared after an absence of the
    /// store.
    pub fn registry(&self, id: SystemId, threshold: Duration) -> Result<Arc<EmbeddedRegistry>> {
        let registry = EmbeddedRegistry::open(self.inner.clone(), id, threshold)?;
        let system: Arc<dyn StoredSystem> = registry.core().clone();
        self.inner.register(&system);
        Ok(Arc::new(registry))
    }

    /// Opens the sessions `id`. An owner's heartbeat lasts for `ttl` unless the owner says
    /// otherwise; a session without references is kept for `grace`.
    pub fn sessions(
        &self,
        id: SystemId,
        ttl: Duration,
        grace: Duration,
    ) -> Result<Arc<EmbeddedSessions>> {
        let sessions = EmbeddedSessions::open(self.inner.clone(), id, ttl, grace)?;
        let system: Arc<dyn StoredSystem> = sessions.core().clone();
        self.inner.register(&system);
        Ok(Arc::new(sessions))
    }

    /// Opens the jobs `id`: queues, jobs in flight and dead letters. An owner's heartbeat lasts for
    /// `ttl` unless the owner says otherwise; `recovery` decides what happens to jobs of dead
    /// workers.
    pub fn inflight(
        &self,
        id: SystemId,
        ttl: Duration,
        recovery: RecoveryPolicy,
    ) -> Result<Arc<EmbeddedInflight>> {
        let inflight = EmbeddedInflight::open(self.inner.clone(), id, ttl, recovery)?;
        let system: Arc<dyn StoredSystem> = inflight.core().clone();
        self.inner.register(&system);
        Ok(Arc::new(inflight))
    }

    /// Opens the leases and decisions `id`. A lease lasts for `ttl` unless the request says
    /// otherwise.
    pub fn leases(&self, id: SystemId, ttl: Duration) -> Result<Arc<EmbeddedLeases>> {
        let forget_after = Duration::from_millis(lapsed_core::leases::FORGET_AFTER_MS);
        self.leases_forgetting(id, ttl, Some(forget_after))
    }

    /// The same, with the time after which a key that nobody uses is forgotten; `None`: never.
    pub fn leases_forgetting(
        &self,
        id: SystemId,
        ttl: Duration,
        forget_after: Option<Duration>,
    ) -> Result<Arc<EmbeddedLeases>> {
        let leases = EmbeddedLeases::open(self.inner.clone(), id, ttl, forget_after)?;
        let system: Arc<dyn StoredSystem> = leases.core().clone();
        self.inner.register(&system);
        Ok(Arc::new(leases))
    }

    /// Opens the durable half of the availability system `id`.
    pub fn availability(&self, id: SystemId) -> Result<Arc<EmbeddedTruth>> {
        let truth = EmbeddedTruth::open(self.inner.clone(), id)?;
        let system: Arc<dyn StoredSystem> = truth.core().clone();
        self.inner.register(&system);
        Ok(Arc::new(truth))
    }

    /// Writes the deadlines to disk, finishes pending jobs, and releases the folder. Blocks the
    /// thread.
    pub fn close(self) -> Result<()> {
        let answer = block_on(self.mirror());
        self.inner.writer.quit();
        self.inner.disk.leave();
        answer
    }
}

impl Embedded {
    /// Writes the deadlines to disk now. This also happens once a second, and when the store
    /// closes.
    pub async fn mirror(&self) -> Result<()> {
        let state = self.inner.state.clone();
        self.inner.writer.write(move |tx| state.mirror(tx, usize::MAX), |_| {}).await
    }
}

const LOCK: &str = "no holder of this lock panics";

impl Drop for Inner {
    fn drop(&mut self) {
        self.writer.quit();
        self.disk.leave();
    }
}

/// Counters that the file contains about itself.
struct Opened {
    opens: u64,
    high_ms: u64,
}

impl Opened {
    fn read(snapshot: &Snapshot, place: &str) -> Result<Opened> {
        let read = || -> Tried<Opened> {
            let Some(meta) = snapshot.table(META)? else {
                return Ok(Opened { opens: 0, high_ms: 0 });
            };
            let number = |key: &str| -> Tried<u64> {
                let value = meta.get(key.as_bytes())?;
                Ok(value.and_then(|value| to_number(value.value())).unwrap_or(0))
            };
            Ok(Opened { opens: number("opens")?, high_ms: number("high_ms")? })
        };
        read().map_err(|fault: Fault| fault.told(place))
    }
}

/// Blocks this thread, because opening and closing are not asynchronous. If the caller is a task
/// that has used up its tokio budget, a ready answer would be delayed until the task yields, which
/// it cannot do while it is blocked here. So this wait is exempt from the budget.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    futures::executor::block_on(tokio::task::unconstrained(work))
}

fn note_opening(inner: &Arc<Inner>, opens: u64) -> Result<()> {
    let noted =
        inner.writer.write(move |tx: &mut Tx| tx.meta_put(b"opens", &number(opens)), |()| {});
    match block_on(noted) {
        // A full disk must not keep the store from serving reads.
        Err(Error::Unavailable { what, .. }) if !inner.disk.has_room() => {
            tracing::warn!(%what, "the disk is full: the store was opened and serves reads only");
            Ok(())
        }
        other => other,
    }
}

/// One open system, as the store itself sees it.
pub(crate) trait StoredSystem: Send + Sync {
    fn owners(&self) -> &OwnerTable;
    /// Reads all of the system's in-memory state again from disk.
    fn read(&self, disk: &Disk) -> Result<()>;
    /// Writes what is written once per batch.
    fn stamp(&self, _: &mut Tx) -> Tried<()> {
        Ok(())
    }
    /// Applies the changes of a durable batch to the in-memory state.
    fn committed(&self, _: &mut Changed) {}
}

impl StoreState {
    fn register(&self, system: &Arc<dyn StoredSystem>) {
        self.systems.write().expect(LOCK).push(Arc::downgrade(system));
    }

    fn systems(&self) -> Vec<Arc<dyn StoredSystem>> {
        self.systems.read().expect(LOCK).iter().filter_map(Weak::upgrade).collect()
    }

    /// Writes at most `limit` changed deadlines of each system.
    fn mirror(&self, tx: &mut Tx, limit: usize) -> Tried<()> {
        self.systems().iter().try_for_each(|system| system.owners().mirror(tx, limit))
    }

    fn reopen(&self) -> Result<()> {
        self.disk.close();
        self.disk.open(|snapshot| Opened::read(snapshot, &self.disk.name)).map(|_| ())
    }
}

impl WriterCallbacks for StoreState {
    fn stamp(&self, tx: &mut Tx) -> Tried<()> {
        if tx.has_changed() {
            self.systems().iter().try_for_each(|system| system.stamp(tx))?;
        }
        tx.meta_put(b"high_ms", &number(self.store_clock.now_ms()))
    }

    fn committed(&self, mut changed: Changed) {
        if !changed.is_empty() {
            self.systems().iter().for_each(|system| system.committed(&mut changed));
        }
    }

    fn tick(&self) -> Option<Chore<'_>> {
        let (now_ms, _) = self.store_clock.look();
        if self.failed.load(Ordering::Acquire) {
            self.undone(Undone::DiskFailed);
            return None;
        }
        if now_ms.saturating_sub(self.mirrored_ms.load(Ordering::Relaxed)) < MIRROR_EVERY_MS {
            return None;
        }
        self.mirrored_ms.store(now_ms, Ordering::Relaxed);
        let moved = self.systems().iter().any(|system| system.owners().has_moved());
        moved.then(|| -> Chore<'_> { Box::new(|tx| self.mirror(tx, MIRROR_ROWS_MAX)) })
    }

    fn undone(&self, why: Undone) {
        let reopened = match why {
            Undone::DiskFailed => self.reopen(),
            Undone::BatchOnly => Ok(()),
        };
        let systems = self.systems();
        let reloaded = reopened.and_then(|()| systems.iter().try_for_each(|r| r.read(&self.disk)));
        self.failed.store(reloaded.is_err(), Ordering::Release);
        if let Err(error) = reloaded {
            tracing::error!(%error, "the store is closed until its disk works again");
        }
    }
}
