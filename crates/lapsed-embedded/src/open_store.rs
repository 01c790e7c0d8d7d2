//! The files of a store while they are open: the log that batches are appended to, the database behind it, and the view
//! that readers have of both.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::{Database, StorageBackend};

use crate::fault::{Fault, Tried};
use crate::location::StoreLocation;
use crate::log::Log;
use crate::memtable::Memtable;
use crate::snapshot::{Base, Snapshot, View};

const LOCK: &str = "no holder of this lock panics";

/// How often it is looked whether the last reader is done, when the files are closed.
pub(crate) const CLOSE_POLL: Duration = Duration::from_millis(1);

pub(crate) struct OpenStore {
    database: RwLock<Arc<Database>>,
    pub location: Arc<StoreLocation>,
    view: RwLock<Arc<View>>,
    appending: Mutex<Appending>,
    closing: AtomicBool,
    /// Whether a checkpoint has failed. The database refuses everything after that.
    failed: AtomicBool,
    pub options: DiskOptions,
    /// How many bytes of rows checkpoints have removed since they last looked how much of the file is free.
    pub removed_bytes: AtomicU64,
}

/// What only the writer uses.
pub(crate) struct Appending {
    pub log: Log,
    /// Whether everything that was found in the log is in the database, and the log is empty.
    pub is_ready: bool,
    pub checkpoint: Option<JoinHandle<Tried<()>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskOptions {
    /// How much of the database is cached in memory.
    pub cache_bytes: usize,
    /// How much waits in the log, and in memory, before a checkpoint.
    pub checkpoint_bytes: usize,
    /// The number of the log, if the store has none yet.
    pub new_log_id: u64,
}

impl OpenStore {
    /// `found` has the batches of the log that the database does not contain.
    pub fn new(
        database: Database,
        location: Arc<StoreLocation>,
        (log, found): (Log, Memtable),
        options: DiskOptions,
    ) -> Tried<OpenStore> {
        let database = Arc::new(database);
        let base = Base::of(&database)?;
        let active = Arc::new(Memtable::new(found.last_seq()));
        let frozen = (!found.is_empty()).then(|| Arc::new(found));
        Ok(OpenStore {
            database: RwLock::new(database),
            location,
            view: RwLock::new(Arc::new(View { active, frozen, base })),
            appending: Mutex::new(Appending { log, is_ready: false, checkpoint: None }),
            closing: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            options,
            removed_bytes: AtomicU64::new(0),
        })
    }

    pub fn database(&self) -> Arc<Database> {
        self.database.read().expect(LOCK).clone()
    }

    /// Only a checkpoint does this, and it is the only one that writes to the database.
    pub fn replace_database(&self, by: Database) {
        *self.database.write().expect(LOCK) = Arc::new(by);
    }

    pub fn view(&self) -> Arc<View> {
        self.view.read().expect(LOCK).clone()
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.view())
    }

    /// Checkpoint and writer both replace it, each a part of its own, so `by` is given the newest.
    pub fn replace_view(&self, by: impl FnOnce(&View) -> View) {
        let mut view = self.view.write().expect(LOCK);
        *view = Arc::new(by(&view));
    }

    /// Shows readers what the database contains now. Pages that only older views show are free for the next transaction
    /// when nobody reads them.
    pub fn refresh_base(&self) -> Tried<()> {
        let base = Base::of(&self.database())?;
        self.replace_view(|view| View { base, ..view.clone() });
        Ok(())
    }

    pub fn appending(&self) -> MutexGuard<'_, Appending> {
        self.appending.lock().expect(LOCK)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Notes that a checkpoint has failed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether enough waits in the log for the next checkpoint.
    pub fn is_due(&self) -> bool {
        self.view().active.waiting_bytes() >= self.options.checkpoint_bytes
    }

    /// Lets a checkpoint that waits for room, or makes the file smaller, give up.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Waits for the checkpoint that is under way, and returns how it ended.
    pub fn stop(&self) -> Tried<()> {
        self.begin_closing();
        let running = self.appending().checkpoint.take();
        wait_for(running)
    }

    /// Closes the database, when nobody reads it any more.
    pub fn close(self) {
        drop(self.view);
        let mut database = Some(self.database.into_inner().expect(LOCK));
        while let Some(shared) = database.take() {
            database = Arc::try_unwrap(shared).err();
            if database.is_some() {
                std::thread::sleep(CLOSE_POLL);
            }
        }
    }
}

pub(crate) fn io_fault(error: std::io::Error) -> Fault {
    Fault::Disk(redb::Error::Io(error))
}

pub(crate) fn wait_for(checkpoint: Option<JoinHandle<Tried<()>>>) -> Tried<()> {
    match checkpoint.map(JoinHandle::join) {
        None => Ok(()),
        Some(Ok(done)) => done,
        Some(Err(_)) => Err(io_fault(std::io::Error::other("a checkpoint panicked"))),
    }
}

/// `create_with_backend` wants a concrete type.
#[derive(Debug)]
pub(crate) struct Boxed(pub Box<dyn StorageBackend>);

impl StorageBackend for Boxed {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }
    fn close(&self) -> std::io::Result<()> {
        self.0.close()
    }
}
