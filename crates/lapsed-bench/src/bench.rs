//! What every benchmark is given: sizes, a runtime, folders on a real disk, and a store with a
//! million entries, which is built once and copied.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::availability::Part;
use crate::bench_store::BenchStore;

/// The sizes of all benchmarks: how much each measures.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Owners of the large store, and what each holds: 1,000,000 entries together.
    pub owners: usize,
    pub each: usize,
    /// How often the sides take turns.
    pub rounds: usize,
    /// Beats a side, a round.
    pub beats: usize,
    /// Registrations a round, by concurrent callers, and by one.
    pub registers_shared: usize,
    pub registers_alone: usize,
    /// Entries of the owner that dies.
    pub dying: usize,
    /// HTTP requests a side, a round.
    pub requests: usize,
    /// Passes a round while others listen: 10,000 receipts each, one a second.
    pub told_passes: usize,
    /// Jobs in flight of the worker that dies.
    pub orphans: usize,
    /// Jobs taken and completed a side, a round.
    pub takes: usize,
    /// Cycles of a lease a side, a round.
    pub lease_cycles: usize,
    /// Leases that expire at one instant.
    pub leases: usize,
    /// Of as many leases on an object store: those that are over.
    pub expired_objects: usize,
    /// How often each of several processes gets the key that all of them want.
    pub contended: usize,
    /// Heartbeats of providers a side, a round.
    pub heartbeats: usize,
    /// Sessions in the table that the JOIN looks at, and looks a side, a round.
    pub chat_sessions: usize,
    pub finds: usize,
    /// Providers online at once, and how long the latency of an unrelated client is measured per
    /// round.
    pub crowd: usize,
    pub watched: Duration,
    /// How long a snapshot of the beacon lasts, and for how many of those it is asked.
    pub snapshot_ttl: Duration,
    pub snapshot_lifetimes: u32,
    /// How long statements are counted; whether until every cadence has come round.
    pub statements_watched: Duration,
    pub is_whole: bool,
}

const FULL: Sizes = Sizes {
    owners: 100_000,
    each: 10,
    rounds: 7,
    beats: 1_000_000,
    registers_shared: 30_000,
    registers_alone: 500,
    dying: 10_000,
    requests: 60_000,
    told_passes: 5,
    orphans: 50_000,
    takes: 200_000,
    lease_cycles: 10_000,
    leases: 100_000,
    expired_objects: 100,
    contended: 25,
    heartbeats: 100_000,
    chat_sessions: 100_000,
    finds: 2_000,
    crowd: 100_000,
    watched: Duration::from_secs(2),
    snapshot_ttl: Duration::from_secs(10),
    snapshot_lifetimes: 5,
    statements_watched: Duration::from_secs(310),
    is_whole: true,
};

const QUICK: Sizes = Sizes {
    owners: 10_000,
    each: 10,
    rounds: 3,
    beats: 200_000,
    registers_shared: 5_000,
    registers_alone: 100,
    dying: 2_000,
    requests: 10_000,
    told_passes: 2,
    orphans: 5_000,
    takes: 20_000,
    lease_cycles: 2_560,
    leases: 5_000,
    expired_objects: 20,
    contended: 5,
    heartbeats: 20_000,
    chat_sessions: 100_000,
    finds: 640,
    crowd: 10_000,
    watched: Duration::from_millis(500),
    snapshot_ttl: Duration::from_secs(1),
    snapshot_lifetimes: 5,
    statements_watched: Duration::from_secs(60),
    is_whole: false,
};

pub struct Bench {
    pub runtime: Runtime,
    pub sizes: Sizes,
    /// Which parts of `availability` are run; none: all of them.
    pub parts: Vec<Part>,
    folder: TempDir,
    million: OnceCell<BenchStore>,
}

impl Bench {
    pub fn new(quick: bool, parts: Vec<Part>) -> Result<Self> {
        if cfg!(debug_assertions) {
            eprintln!("lapsed-bench: built without optimisation; use `make bench`");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let sizes = if quick { QUICK } else { FULL };
        Ok(Bench { runtime, sizes, parts, folder: folder()?, million: OnceCell::new() })
    }

    /// The large store, closed. Only to be read or copied.
    pub fn million(&self) -> Result<&BenchStore> {
        if let Some(store) = self.million.get() {
            return Ok(store);
        }
        let store = self.create("million", self.sizes.owners, self.sizes.each)?;
        Ok(self.million.get_or_init(|| store))
    }

    /// Creates a store with `owners` owners that hold `each` entries.
    pub fn create(&self, name: &str, owners: usize, each: usize) -> Result<BenchStore> {
        BenchStore::create(&self.runtime, self.path(name), owners, each)
    }

    /// Where something of that name goes.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Below `$LAPSED_BENCH_DIR`, or beside the executable: a disk, not memory, or a durable commit
/// would cost nothing.
fn folder() -> Result<TempDir> {
    let parent = match std::env::var_os("LAPSED_BENCH_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => beside("bench-data")?,
    };
    std::fs::create_dir_all(&parent).with_context(|| format!("making {}", parent.display()))?;
    Ok(TempDir::with_prefix_in("run-", parent)?)
}

/// A path in the folder of this executable.
pub fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this executable")?;
    Ok(own.parent().unwrap_or(Path::new(".")).join(name))
}

/// One line about what is being prepared.
pub fn progress(what: impl std::fmt::Display) {
    eprintln!("  … {what}");
}
