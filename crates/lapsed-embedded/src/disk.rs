//! The database file: opened exclusively, opened again after the disk failed, closed on request.
//!
//! After one failed write redb refuses everything, also reads. So a disk that is nearly full is
//! noticed before a write is tried, and a database that failed nevertheless is opened again.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use lapsed_core::{Error, Result};
use redb::{Builder, Database, ReadTransaction, ReadableDatabase, StorageBackend};

use crate::checked_backend::CheckedBackend;
use crate::fault::{Fault, disk_error};

/// Free space that is required before a batch is tried: more than any batch writes.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// Name of the database file.
const FILE: &str = "lapsed.redb";
const MARK: &str = "format";

/// Where the database is stored.
pub(crate) enum DatabaseLocation {
    Folder { dir: PathBuf, lock: Mutex<Option<File>> },
    Memory(Box<dyn Fn() -> Box<dyn StorageBackend> + Send + Sync>),
}

pub(crate) struct Disk {
    pub name: String,
    place: DatabaseLocation,
    cache_bytes: usize,
    database: RwLock<Option<Arc<Database>>>,
}

impl Disk {
    pub fn open_folder(dir: &Path, cache_bytes: usize) -> Result<Disk> {
        let name = format!("the embedded store in {}", dir.display());
        let failed = |what: &str, error: std::io::Error| Error::Unavailable {
            store: name.clone(),
            what: format!("{what}: {error}"),
        };
        std::fs::create_dir_all(dir).map_err(|e| failed("its folder cannot be made", e))?;
        let lock = lock(dir).map_err(|e| failed("its lock file cannot be used", e))?;
        let lock = lock.map_err(|holder| Error::InUse { store: name.clone(), holder })?;
        let place = DatabaseLocation::Folder { dir: dir.to_owned(), lock: Mutex::new(Some(lock)) };
        Ok(Disk { name, place, cache_bytes, database: RwLock::default() })
    }

    pub fn in_memory(
        make: Box<dyn Fn() -> Box<dyn StorageBackend> + Send + Sync>,
        cache_bytes: usize,
    ) -> Disk {
        let name = "the embedded store in memory".to_owned();
        Disk {
            name,
            place: DatabaseLocation::Memory(make),
            cache_bytes,
            database: RwLock::default(),
        }
    }

    /// Opens the file and lets `load` read it. Nothing on disk changes before `load` has succeeded.
    pub fn open<T>(&self, load: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let (backend, checked): (Box<dyn StorageBackend>, _) = match &self.place {
            DatabaseLocation::Memory(make) => (make(), None),
            DatabaseLocation::Folder { dir, .. } => {
                let path = dir.join(FILE);
                let used_before = dir.join(MARK).exists();
                if used_before && std::fs::metadata(&path).map_or(0, |meta| meta.len()) == 0 {
                    return Err(self.corrupt("its file is empty, and it was not always"));
                }
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false);
                let file = options.open(&path).map_err(|e| self.corrupt(e))?;
                let checked = CheckedBackend::new(file).map_err(|e| self.corrupt(e))?;
                (Box::new(checked.clone()), Some(checked))
            }
        };
        let database = quietly(|| {
            let mut database = Builder::new()
                .set_cache_size(self.cache_bytes)
                .create_with_backend(Boxed(backend))
                .map_err(|e| self.corrupt(e))?;
            // Checks every checksum before any content is used.
            if checked.is_some() && !database.check_integrity().map_err(|e| self.corrupt(e))? {
                return Err(self.corrupt("its checksums do not agree with what it holds"));
            }
            let loaded = load(&database)?;
            Ok((database, loaded))
        });
        let (database, loaded) = database.unwrap_or_else(|| Err(self.corrupt("it is damaged")))?;
        if let Some(checked) = checked {
            let told = |e| Fault::Disk(redb::Error::Io(e)).told(&self.name);
            checked.trust().map_err(told)?;
            self.mark().map_err(told)?;
        }
        *self.database.write().expect(LOCK) = Some(Arc::new(database));
        Ok(loaded)
    }

    /// Records that this folder has been used, so that an empty database file is not taken for a
    /// new one.
    fn mark(&self) -> std::io::Result<()> {
        let DatabaseLocation::Folder { dir, .. } = &self.place else { return Ok(()) };
        let mark = dir.join(MARK);
        if mark.exists() { Ok(()) } else { std::fs::write(mark, "lapsed, format 1\n") }
    }

    pub fn database(&self) -> Result<Arc<Database>> {
        let database = self.database.read().expect(LOCK).clone();
        database.ok_or_else(|| Error::Unavailable {
            store: self.name.clone(),
            what: "it is closed, or its disk failed; it is being opened again".to_owned(),
        })
    }

    pub fn read(&self) -> Result<ReadTransaction> {
        self.database()?.begin_read().map_err(|e| disk_error(&self.name, &e.into()))
    }

    /// Closes the file. Others have the database for as long as it takes to begin a transaction, or for a batch:
    /// that is waited for, so that nobody closes it after the folder was released.
    pub fn close(&self) {
        let mut database = self.database.write().expect(LOCK).take();
        while let Some(shared) = database.take() {
            database = Arc::try_unwrap(shared).err();
            std::thread::yield_now();
        }
    }

    /// Closes the file and releases the folder's lock.
    pub fn leave(&self) {
        self.close();
        if let DatabaseLocation::Folder { lock, .. } = &self.place {
            lock.lock().expect(LOCK).take();
        }
    }

    /// Address of the store, without secrets.
    pub fn address(&self) -> String {
        match &self.place {
            DatabaseLocation::Folder { dir, .. } => dir.display().to_string(),
            DatabaseLocation::Memory(_) => "memory".to_owned(),
        }
    }

    /// Whether there is enough free space for a batch.
    pub fn has_room(&self) -> bool {
        let DatabaseLocation::Folder { dir, .. } = &self.place else { return true };
        match rustix::fs::statvfs(dir) {
            Ok(stat) => stat.f_bavail * stat.f_frsize >= FREE_BYTES_MIN,
            Err(_) => true,
        }
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

const LOCK: &str = "no holder of this lock panics";

/// A damaged file can make redb panic; the panic becomes an error.
fn quietly<T>(work: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}

/// Takes the folder's lock, or returns a description of the process that has it.
fn lock(dir: &Path) -> std::io::Result<std::result::Result<File, String>> {
    let path = dir.join("lock");
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            writeln!(file, "{}", std::process::id())?;
            Ok(Ok(file))
        }
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder)?;
            Ok(Err(format!("the process with pid {}", holder.trim())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// `create_with_backend` wants a concrete type.
#[derive(Debug)]
struct Boxed(Box<dyn StorageBackend>);

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
