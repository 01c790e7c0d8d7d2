//! Data folders: made once a process, then copied; removed also after a process that could not.
//!
//! They lie in memory where there is enough of it: a busy disk makes a server wait for seconds, and what
//! the tests kill are processes, not machines. Not so where a story is about the disk.
//!
//! A test program ends without dropping what all of its tests share. So each folder has a lock that
//! ends with its process, and the next process removes the folders whose lock is free.

use std::env::temp_dir;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::statvfs;
use rustix::process::getuid;
use tempfile::TempDir;

use crate::postgres::{Durability, POSTGRES_USER, demoted};
use crate::{TestbedError, TestbedResult, paths, spawner};

const PREFIX: &str = "lapsed-testbed-postgres-";

/// A folder in memory, and how much must be free there for it to be used.
const MEMORY: &str = "/dev/shm";
const MEMORY_FREE_MIN: u64 = 4 << 30;

/// The user and the group without rights, by number.
pub(super) const NOBODY: &str = "65534";
const NOBODY_ID: u32 = 65_534;

/// A data folder. Dropping it removes it.
pub(super) struct Folder {
    data: PathBuf,
    _lock: File,
    // Last: dropped while the lock is still held does no harm, but the other way round nobody would
    // know that it is in use.
    _outer: TempDir,
}

impl Folder {
    /// A new data folder, as `initdb` makes it.
    pub(super) fn new(durability: Durability) -> TestbedResult<Self> {
        let (template, folder) = (template()?, Self::empty_for(durability)?);
        run(Command::new("cp")
            .args(["-a", "--reflink=auto", "-T"])
            .arg(template)
            .arg(&folder.data))?;
        Ok(folder)
    }

    /// An empty data folder, for a copy of another server.
    pub(super) fn empty_for(durability: Durability) -> TestbedResult<Self> {
        match durability {
            Durability::Process => Self::empty(&fast_place()),
            Durability::Disk => Self::empty(&temp_dir()),
        }
    }

    fn empty(place: &Path) -> TestbedResult<Self> {
        let outer = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        // The server's user must get through.
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o711))?;
        let lock = File::create(outer.path().join("lock.new"))?;
        lock.lock()?;
        fs::rename(outer.path().join("lock.new"), outer.path().join("lock"))?;
        let data = outer.path().join("data");
        fs::create_dir(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        own(&data)?;
        Ok(Self { data, _lock: lock, _outer: outer })
    }

    pub(super) fn path(&self) -> &Path {
        &self.data
    }

    /// Adds lines to a file that is there.
    pub(super) fn append(&self, name: &str, text: &str) -> TestbedResult<()> {
        let before = fs::read_to_string(self.data.join(name))?;
        self.write(name, &format!("{before}{text}"))
    }

    /// A file that only the server's user may read.
    pub(super) fn write(&self, name: &str, text: &str) -> TestbedResult<()> {
        let path = self.data.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        own(&path)
    }
}

/// `program` as the user that a server may run as, dying with this process.
pub(super) fn as_its_user(program: &Path) -> TestbedResult<Command> {
    // Where the link is may be closed to that user: what it leads to is not.
    let program = program.canonicalize()?;
    let arguments = if getuid().is_root() { demoted() } else { Vec::new() };
    spawner::dies_with_parent_and(&arguments, &program)
}

/// In memory, if there is enough of it; else where temporary files are.
fn fast_place() -> PathBuf {
    let free = statvfs(MEMORY).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    if free >= MEMORY_FREE_MIN { PathBuf::from(MEMORY) } else { temp_dir() }
}

fn own(path: &Path) -> TestbedResult<()> {
    if getuid().is_root() {
        chown(path, Some(NOBODY_ID), Some(NOBODY_ID))?;
    }
    Ok(())
}

/// What every server of this process begins with.
fn template() -> TestbedResult<&'static Path> {
    static TEMPLATE: OnceLock<std::result::Result<Folder, String>> = OnceLock::new();
    let made = TEMPLATE.get_or_init(|| make_template().map_err(|error| error.to_string()));
    made.as_ref().map(Folder::path).map_err(|error| TestbedError::new(error.clone()))
}

fn make_template() -> TestbedResult<Folder> {
    remove_left_behind();
    let folder = Folder::empty(&fast_place())?;
    let mut command = as_its_user(&paths::initdb()?)?;
    command.arg("-D").arg(folder.path()).args(["-U", POSTGRES_USER, "-A", "trust", "-E", "UTF8"]);
    command.args(["--no-locale", "--no-sync", "--no-instructions", "--wal-segsize=1"]);
    run(command.current_dir(folder.path()))?;
    Ok(folder)
}

/// Folders of processes that are gone.
fn remove_left_behind() {
    let places = [temp_dir(), PathBuf::from(MEMORY)];
    for entry in places.iter().flat_map(fs::read_dir).flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join("lock")) else { continue };
        if lock.try_lock().is_ok() {
            // Somebody else may be removing it as well.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn run(command: &mut Command) -> TestbedResult<()> {
    let output = command
        .output()
        .map_err(|error| TestbedError::from(error).during(format!("{command:?}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(TestbedError::new(format!("{command:?} ended with {}: {said}", output.status)))
}
