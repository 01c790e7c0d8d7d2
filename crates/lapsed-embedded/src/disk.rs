//! The data folder: opened exclusively, opened again after the disk failed, closed on request.
//!
//! A batch is durable when it is in the log; a checkpoint brings it into the database later. After one failed write,
//! log and database refuse everything. So a disk that is nearly full is noticed before a write is tried, and a store that
//! failed nevertheless is opened again.

use std::path::Path;
use std::sync::{Arc, RwLock};

use lapsed_core::{Error, Result};
use redb::{Builder, Database};

use crate::append::LOG_ID;
use crate::checkpoint::LOG_SEQ;
use crate::fault::{Fault, Tried};
use crate::location::{MakeBackend, StoreLocation};
use crate::log::{Log, LogError};
use crate::memtable::{BatchRows, Memtable};
use crate::open_store::{Boxed, CLOSE_POLL, DiskOptions, OpenStore, io_fault};
use crate::snapshot::{Base, Snapshot, View};
use crate::tables::{FORMAT, FORMATS_WITH_LOG, FORMATS_WITHOUT_LOG, META, to_number};

pub(crate) struct Disk {
    pub name: String,
    location: Arc<StoreLocation>,
    options: DiskOptions,
    store: RwLock<Option<Arc<OpenStore>>>,
}

const LOCK: &str = "no holder of this lock panics";

impl Disk {
    pub fn open_folder(dir: &Path, options: DiskOptions) -> Result<Disk> {
        let name = format!("the embedded store in {}", dir.display());
        let failed = |what: &str, error: std::io::Error| Error::Unavailable {
            store: name.clone(),
            what: format!("{what}: {error}"),
        };
        std::fs::create_dir_all(dir).map_err(|e| failed("its folder cannot be made", e))?;
        let location = StoreLocation::folder(dir);
        let location = location.map_err(|e| failed("its lock file cannot be used", e))?;
        let location = location.map_err(|holder| Error::InUse { store: name.clone(), holder })?;
        Ok(Disk { name, location: Arc::new(location), options, store: RwLock::default() })
    }

    pub fn in_memory(make: Box<MakeBackend>, options: DiskOptions) -> Disk {
        let name = "the embedded store in memory".to_owned();
        let location = Arc::new(StoreLocation::Memory(make));
        Disk { name, location, options, store: RwLock::default() }
    }

    /// Opens the files and lets `load` read them. Nothing on disk changes before `load` has succeeded.
    pub fn open<T>(&self, load: impl FnOnce(&Snapshot) -> Result<T>) -> Result<T> {
        if self.location.has_lost_its_database() {
            return Err(self.corrupt("its file is empty, and it was not always"));
        }
        let (backend, checked) = self.location.database().map_err(|e| self.corrupt(e))?;
        let opened = quietly(|| {
            let mut database = Builder::new()
                .set_cache_size(self.options.cache_bytes)
                .create_with_backend(Boxed(backend))
                .map_err(|e| self.corrupt(e))?;
            // Checks every checksum before any content is used.
            if checked.is_some() && !database.check_integrity().map_err(|e| self.corrupt(e))? {
                return Err(self.corrupt("its checksums do not agree with what it holds"));
            }
            let store = self.with_log(database)?;
            let loaded = load(&store.snapshot())?;
            Ok((store, loaded))
        });
        let (store, loaded) = opened.unwrap_or_else(|| Err(self.corrupt("it is damaged")))?;
        if let Some(checked) = checked {
            let told = |e| io_fault(e).told(&self.name);
            checked.trust().map_err(told)?;
            self.location.mark_used().map_err(told)?;
        }
        *self.store.write().expect(LOCK) = Some(Arc::new(store));
        Ok(loaded)
    }

    /// Reads the log and lays what the database does not contain on top of it.
    fn with_log(&self, database: Database) -> Result<OpenStore> {
        let told = |fault: Fault| fault.told(&self.name);
        let database = Arc::new(database);
        let base = Base::of(&database).map_err(told)?;
        let empty = View { active: Arc::new(Memtable::new(0)), frozen: None, base };
        let (id, contained) = self.log_position(&Snapshot::new(Arc::new(empty)))?;
        let database = Arc::into_inner(database).expect("nobody reads it yet");
        let logs = self.location.logs().map_err(|e| told(io_fault(e)))?;
        let log = Log::open(logs, id, contained).map_err(|error| match error {
            LogError::Io(error) => told(io_fault(error)),
            LogError::Damaged(what) => self.corrupt(what),
        })?;
        let location = self.location.clone();
        OpenStore::new(database, location, log, self.options).map_err(told)
    }

    /// The number of the log, and the last batch of it that the database contains. An error if the format is unknown, or
    /// if the log is missing.
    fn log_position(&self, database: &Snapshot) -> Result<(u64, u64)> {
        let read = |key: &[u8]| -> Tried<Option<u64>> {
            let Some(meta) = database.table(META)? else { return Ok(None) };
            Ok(meta.get(key)?.and_then(|value| to_number(value.value())))
        };
        let told = |fault: Fault| fault.told(&self.name);
        let is_new = database.table(META).map_err(told)?.is_none();
        let format = read(b"format").map_err(told)?;
        match format {
            None if is_new => return Ok((self.options.new_log_id, 0)),
            Some(FORMAT) => {}
            Some(format) if FORMATS_WITH_LOG.contains(&format) => {}
            Some(format) if FORMATS_WITHOUT_LOG.contains(&format) => {
                return Ok((self.options.new_log_id, 0));
            }
            other => {
                return Err(self.corrupt(format!(
                    "its format is {other:?} and this version knows 1 to {FORMAT}: use the version that wrote it"
                )));
            }
        }
        if let Some(log) = self.location.missing_log() {
            return Err(self.corrupt(format!("its file {log} is missing")));
        }
        let id = read(LOG_ID).map_err(told)?.unwrap_or(self.options.new_log_id);
        Ok((id, read(LOG_SEQ).map_err(told)?.unwrap_or(0)))
    }

    fn store(&self) -> Result<Arc<OpenStore>> {
        let store = self.store.read().expect(LOCK).clone();
        store.ok_or_else(|| Error::Unavailable {
            store: self.name.clone(),
            what: "it is closed, or its disk failed; it is being opened again".to_owned(),
        })
    }

    /// What is committed now.
    pub fn read(&self) -> Result<Snapshot> {
        Ok(self.store()?.snapshot())
    }

    /// Makes a batch durable and shows it to readers. After `Fault::Disk` the store must be opened again.
    pub fn append(&self, rows: BatchRows) -> Tried<()> {
        let threaded = matches!(&*self.location, StoreLocation::Folder { .. });
        self.store()?.append(rows, threaded)
    }

    /// Whether a checkpoint has failed, so that the store must be opened again.
    pub fn has_failed(&self) -> bool {
        self.store().is_ok_and(|store| store.has_failed())
    }

    /// Closes the files. Others have them for as long as it takes to read something, or for a batch: that is waited for,
    /// so that nobody closes them after the folder was released.
    pub fn close(&self) {
        let Some(mut store) = self.store.write().expect(LOCK).take() else { return };
        if let Err(fault) = store.stop() {
            let error = fault.told(&self.name);
            tracing::warn!(%error, "a checkpoint failed; its rows are in the log");
        }
        loop {
            match Arc::try_unwrap(store) {
                Ok(store) => return store.close(),
                Err(shared) => store = shared,
            }
            std::thread::sleep(CLOSE_POLL);
        }
    }

    /// Brings everything into the database, closes the files and releases the folder's lock.
    pub fn leave(&self) {
        if let Ok(store) = self.store()
            && let Err(fault) = store.finish()
        {
            let error = fault.told(&self.name);
            tracing::warn!(%error, "the last checkpoint failed; its rows are in the log");
        }
        self.close();
        self.location.unlock();
    }

    /// Address of the store, without secrets.
    pub fn address(&self) -> String {
        self.location.address()
    }

    /// Whether there is enough free space for a batch.
    pub fn has_room(&self) -> bool {
        self.location.has_room()
    }

    fn corrupt(&self, why: impl ToString) -> Error {
        Error::Corrupt {
            store: self.name.clone(),
            what: format!(
                "{}. Nothing was changed: keep a copy of the folder, then restore it from a \
                 backup or start with an empty one",
                why.to_string()
            ),
        }
    }
}

/// A damaged file can make redb panic; the panic becomes an error.
fn quietly<T>(work: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}
