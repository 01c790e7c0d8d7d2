//! Where a store is: a folder that one process has at a time, or memory.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use redb::StorageBackend;

use crate::checked_backend::CheckedBackend;
use crate::log_file::LogFile;

/// Free space that is required before a batch is tried, and before each transaction of a checkpoint: more than any of them
/// writes.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// Name of the database file.
const FILE: &str = "lapsed.redb";
/// Name of the file that takes its place when it is made smaller.
const SMALLER_FILE: &str = "lapsed.redb.new";
const LOGS: [&str; 2] = ["log.0", "log.1"];
const MARK: &str = "format";

const LOCK: &str = "no holder of this lock panics";

/// One of the files of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreFile {
    Database,
    /// One of the two files of the log: 0 or 1.
    Log(usize),
}

pub(crate) type MakeBackend = dyn Fn(StoreFile) -> Box<dyn StorageBackend> + Send + Sync;

pub(crate) enum StoreLocation {
    Folder { dir: PathBuf, lock: Mutex<Option<File>> },
    Memory(Box<MakeBackend>),
}

impl StoreLocation {
    /// Takes the lock of a folder; `Err` in `Ok`: who has it.
    pub fn folder(dir: &Path) -> std::io::Result<Result<StoreLocation, String>> {
        let folder =
            |lock| StoreLocation::Folder { dir: dir.to_owned(), lock: Mutex::new(Some(lock)) };
        Ok(lock(dir)?.map(folder))
    }

    pub fn unlock(&self) {
        if let StoreLocation::Folder { lock, .. } = self {
            lock.lock().expect(LOCK).take();
        }
    }

    /// Address of the store, without secrets.
    pub fn address(&self) -> String {
        match self {
            StoreLocation::Folder { dir, .. } => dir.display().to_string(),
            StoreLocation::Memory(_) => "memory".to_owned(),
        }
    }

    /// Whether there is enough free space for a batch.
    pub fn has_room(&self) -> bool {
        self.has_room_for(0)
    }

    /// Whether there is enough free space for a batch and this much besides.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let StoreLocation::Folder { dir, .. } = self else { return true };
        match rustix::fs::statvfs(dir) {
            Ok(stat) => stat.f_bavail * stat.f_frsize >= FREE_BYTES_MIN + bytes,
            Err(_) => true,
        }
    }

    /// Whether the database file is empty although this folder has been used.
    pub fn has_lost_its_database(&self) -> bool {
        let StoreLocation::Folder { dir, .. } = self else { return false };
        let length = std::fs::metadata(dir.join(FILE)).map_or(0, |meta| meta.len());
        dir.join(MARK).exists() && length == 0
    }

    /// The database file, and for a folder the same as what keeps it unchanged until it is trusted.
    pub fn database(&self) -> std::io::Result<(Box<dyn StorageBackend>, Option<CheckedBackend>)> {
        match self {
            StoreLocation::Memory(make) => Ok((make(StoreFile::Database), None)),
            StoreLocation::Folder { dir, .. } => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false);
                let checked = CheckedBackend::new(options.open(dir.join(FILE))?)?;
                Ok((Box::new(checked.clone()), Some(checked)))
            }
        }
    }

    pub fn logs(&self) -> std::io::Result<[Box<dyn StorageBackend>; 2]> {
        let log = |number: usize| -> std::io::Result<Box<dyn StorageBackend>> {
            match self {
                StoreLocation::Memory(make) => Ok(make(StoreFile::Log(number))),
                StoreLocation::Folder { dir, .. } => {
                    Ok(Box::new(LogFile::open(dir.join(LOGS[number]))?))
                }
            }
        };
        Ok([log(0)?, log(1)?])
    }

    /// The length of the database file; `None` where there are no files.
    pub fn database_length(&self) -> std::io::Result<Option<u64>> {
        let StoreLocation::Folder { dir, .. } = self else { return Ok(None) };
        Ok(Some(std::fs::metadata(dir.join(FILE))?.len()))
    }

    /// A file of the log that this folder must have and has not.
    pub fn missing_log(&self) -> Option<&'static str> {
        let StoreLocation::Folder { dir, .. } = self else { return None };
        LOGS.into_iter().find(|log| !dir.join(log).exists())
    }

    /// Records that this folder has been used, so that an empty database file is not taken for a
    /// new one, and removes what a process left that ended while it made the file smaller.
    pub fn mark_used(&self) -> std::io::Result<()> {
        let StoreLocation::Folder { dir, .. } = self else { return Ok(()) };
        match std::fs::remove_file(dir.join(SMALLER_FILE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mark = dir.join(MARK);
        if mark.exists() { Ok(()) } else { std::fs::write(mark, "lapsed, format 1\n") }
    }

    /// Makes the names of new files durable.
    pub fn sync_names(&self) -> std::io::Result<()> {
        match self {
            StoreLocation::Folder { dir, .. } => File::open(dir)?.sync_all(),
            StoreLocation::Memory(_) => Ok(()),
        }
    }

    /// A new file that may take the place of the database; `None` where there are no files.
    pub fn smaller_file(&self) -> std::io::Result<Option<Box<dyn StorageBackend>>> {
        let StoreLocation::Folder { dir, .. } = self else { return Ok(None) };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let backend = CheckedBackend::new(options.open(dir.join(SMALLER_FILE))?)?;
        backend.trust()?;
        Ok(Some(Box::new(backend)))
    }

    pub fn remove_smaller_file(&self) {
        if let StoreLocation::Folder { dir, .. } = self {
            let _ = std::fs::remove_file(dir.join(SMALLER_FILE));
        }
    }

    /// Puts the file of [`smaller_file`](Self::smaller_file) in the place of the database, durably.
    pub fn use_smaller_file(&self) -> std::io::Result<()> {
        let StoreLocation::Folder { dir, .. } = self else { return Ok(()) };
        std::fs::rename(dir.join(SMALLER_FILE), dir.join(FILE))?;
        self.sync_names()
    }
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
