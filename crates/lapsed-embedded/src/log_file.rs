//! A file of the log. It is created when its length is set for the first time: opening a folder changes nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use redb::StorageBackend;

#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: OnceLock<File>,
}

impl LogFile {
    pub fn open(path: PathBuf) -> io::Result<LogFile> {
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => OnceLock::from(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => OnceLock::new(),
            Err(error) => return Err(error),
        };
        Ok(LogFile { path, file })
    }

    /// Only the one who sets the length comes before everybody else.
    fn created(&self) -> io::Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&self.path)?;
        Ok(self.file.get_or_init(|| file))
    }
}

impl StorageBackend for LogFile {
    fn len(&self) -> io::Result<u64> {
        self.file.get().map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.created()?.read_exact_at(out, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.created()?.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.created()?.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.created()?.write_all_at(data, offset)
    }
}
