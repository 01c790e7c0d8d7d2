//! A server's clock that a test sets: it stands still at that time, or runs at the speed of the real one.
//!
//! libfaketime, preloaded into the server, answers the server's questions for the wall clock with what a
//! file says, and reads that file at every question. Monotonic clocks stay real, so that time limits and
//! event loops work. Debian's redis-server cannot be started with it, because its allocator (jemalloc) asks
//! for the time before libfaketime is ready; Valkey and PostgreSQL can.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;

use crate::{TestbedResult, paths};

/// Sets variables and turns into another program.
pub(crate) const ENV: &str = "/usr/bin/env";

/// The wall clock of the servers that were started with it. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct SettableClock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dir: TempDir,
    /// The processes that were started with it.
    pids: Mutex<Vec<u32>>,
}

impl Drop for Shared {
    /// libfaketime leaves its shared memory behind when a process is killed.
    fn drop(&mut self) {
        for pid in self.pids.get_mut().unwrap_or_else(PoisonError::into_inner) {
            for name in [format!("sem.faketime_sem_{pid}"), format!("faketime_shm_{pid}")] {
                let _ = fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}

impl SettableClock {
    /// A clock that stands still at `ms` milliseconds since 1970-01-01 UTC.
    pub fn standing_at(ms: u64) -> TestbedResult<Self> {
        let dir = tempfile::Builder::new().prefix("clock-").tempdir()?;
        // PostgreSQL runs as another user.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let clock = Self { shared: Arc::new(Shared { dir, pids: Mutex::default() }) };
        clock.set_ms(ms)?;
        Ok(clock)
    }

    /// A clock that is `seconds` ahead of this machine's, or behind it if that is negative.
    pub fn ahead_by(seconds: i64) -> TestbedResult<Self> {
        let clock = Self::standing_at(0)?;
        clock.run_ahead_by(seconds)?;
        Ok(clock)
    }

    /// From now on the clock runs `seconds` ahead of this machine's, or behind it if that is negative.
    pub fn run_ahead_by(&self, seconds: i64) -> TestbedResult<()> {
        self.write(&format!("{seconds:+}"))
    }

    /// From now on the clock stands still at `ms`. May be set back.
    pub fn set_ms(&self, ms: u64) -> TestbedResult<()> {
        self.write(&format!("{}.{:03}", ms / 1_000, ms % 1_000))
    }

    /// Replaced at once: a server never reads half of it.
    fn write(&self, text: &str) -> TestbedResult<()> {
        let next = self.shared.dir.path().join("next");
        fs::write(&next, format!("{text}\n"))?;
        Ok(fs::rename(next, self.file())?)
    }

    fn file(&self) -> PathBuf {
        self.shared.dir.path().join("now")
    }

    /// Arguments of [`ENV`] that start `program` with this clock. Not in the environment of the whole
    /// command: what drops root's rights before the program would use the clock, too, as root.
    pub(crate) fn arguments(&self, program: &Path) -> TestbedResult<Vec<OsString>> {
        let variable = |name: &str, value: &OsStr| {
            let mut set = OsString::from(format!("{name}="));
            set.push(value);
            set
        };
        Ok(vec![
            // Where the links are may be closed to PostgreSQL's user: what they lead to is not.
            variable("LD_PRELOAD", paths::libfaketime()?.canonicalize()?.as_os_str()),
            variable("FAKETIME_TIMESTAMP_FILE", self.file().as_os_str()),
            "FAKETIME_FMT=%s".into(),
            "FAKETIME_NO_CACHE=1".into(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            program.canonicalize()?.into(),
        ])
    }

    /// Remembers a process that was started with this clock.
    pub(crate) fn note(&self, pid: Option<u32>) {
        self.shared.pids.lock().unwrap_or_else(PoisonError::into_inner).extend(pid);
    }
}
