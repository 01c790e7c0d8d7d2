//! A store on disk with owners that live long, each holding the same number of entries.
//!
//! Keys are scattered over the key space, as serial numbers of devices are: an owner's entries do
//! not lie together, and a new one may fall anywhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::registry::{HEARTBEAT_TTL_MS, Registry, RegistryParts, RegistryStore, TakePolicy};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};
use tokio::runtime::Runtime;

use crate::bench::progress;

/// A TTL that does not end while a benchmark runs.
const LONG_MS: u64 = 24 * 3_600_000;
/// How many callers share a commit while the store is filled.
const AT_ONCE: usize = 4_000;

/// A closed store in its folder.
#[derive(Debug)]
pub struct BenchStore {
    dir: PathBuf,
    pub owners: usize,
    pub each: usize,
    ttl_ms: u64,
}

pub struct OpenedRegistry {
    pub store: Embedded,
    pub registry: Arc<EmbeddedRegistry>,
}

impl BenchStore {
    pub fn create(runtime: &Runtime, dir: PathBuf, owners: usize, each: usize) -> Result<Self> {
        let ttl = Duration::from_millis(LONG_MS);
        Self::create_mortal(runtime, dir, owners, each, ttl)
    }

    /// The same with owners whose heartbeats last for `ttl`. No sweep runs while it is filled.
    pub fn create_mortal(
        runtime: &Runtime,
        dir: PathBuf,
        owners: usize,
        each: usize,
        ttl: Duration,
    ) -> Result<Self> {
        progress(format!(
            "registering {} entries: {owners} owners hold {each} each",
            owners * each
        ));
        let store = BenchStore { dir, owners, each, ttl_ms: ttl.as_millis() as u64 };
        let open = store.open()?;
        let numbers: Vec<usize> = (0..owners).collect();
        for some in numbers.chunks(AT_ONCE.min(AT_ONCE * 10 / each).max(1)) {
            runtime.block_on(store.settle(&open, some))?;
        }
        open.close()?;
        Ok(store)
    }

    /// Starts those owners and registers what they hold.
    async fn settle(&self, open: &OpenedRegistry, owners: &[usize]) -> Result<()> {
        let names: Vec<Name> = owners.iter().map(|i| owner(*i)).collect();
        let beats = try_join_all(names.iter().map(|n| open.registry.start(n, self.ttl_ms))).await?;
        let lives = names.into_iter().zip(beats).map(|(n, beat)| Claim::exact(n, beat.incarnation));
        let claims: Vec<Claim> = lives.collect();
        let keys: Vec<Vec<Name>> = owners.iter().map(|i| self.keys_of(*i)).collect();
        let pairs = claims.iter().zip(&keys);
        let calls =
            pairs.map(|(claim, keys)| open.registry.register(claim, keys, TakePolicy::Always));
        try_join_all(calls).await?;
        Ok(())
    }

    /// The keys of one owner.
    fn keys_of(&self, owner: usize) -> Vec<Name> {
        (0..self.each).map(|i| key((owner * self.each + i) as u64)).collect()
    }

    pub fn entries(&self) -> usize {
        self.owners * self.each
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join("lapsed.redb")
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The same in another folder.
    pub fn copy(&self, dir: PathBuf) -> Result<BenchStore> {
        std::fs::create_dir_all(&dir)?;
        let copy = BenchStore { dir, owners: self.owners, each: self.each, ttl_ms: self.ttl_ms };
        for file in ["lapsed.redb", "log.0", "log.1"] {
            std::fs::copy(self.dir.join(file), copy.dir.join(file)).context("copying the store")?;
            // What the copy left for the disk to do is not to be done during the first commit.
            std::fs::File::open(copy.dir.join(file))?.sync_all()?;
        }
        Ok(copy)
    }

    pub fn open(&self) -> Result<OpenedRegistry> {
        self.open_with(Duration::from_millis(HEARTBEAT_TTL_MS))
    }

    pub fn open_with(&self, threshold: Duration) -> Result<OpenedRegistry> {
        let store = Embedded::open(&self.dir, Options::default())?;
        let registry = store.registry(id()?, threshold)?;
        Ok(OpenedRegistry { store, registry })
    }

    /// Every owner's claim, by number.
    pub async fn claims(&self, open: &OpenedRegistry) -> Result<Vec<Claim>> {
        let mut claims = Vec::with_capacity(self.owners);
        for i in 0..self.owners {
            let claim = Claim::newest(owner(i));
            let known = open.registry.owner(&claim).await?.context("every owner is there")?;
            claims.push(Claim::exact(claim.owner, known.incarnation));
        }
        Ok(claims)
    }
}

impl OpenedRegistry {
    /// The operations on it, as an application uses them.
    pub fn operations(&self) -> Result<Registry> {
        let ttl = Duration::from_millis(HEARTBEAT_TTL_MS);
        Ok(Registry::new(
            RegistryParts::new(self.registry.clone(), Arc::new(self.store.clone()), ttl)
                .timeout(Duration::from_secs(30))
                .batch(500)
                .sweeper("bench".to_owned()),
        ))
    }

    pub fn close(self) -> Result<()> {
        drop(self.registry);
        Ok(self.store.close()?)
    }
}

pub fn id() -> Result<SystemId> {
    Ok(SystemId::new(Kind::Registry, "default")?)
}

pub fn owner(number: usize) -> Name {
    name(&format!("instance-{number:06}"))
}

/// The `number`th key. Scattered; no two alike, since every step can be undone.
pub fn key(number: u64) -> Name {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    name(&format!("conn-{:016x}", z ^ (z >> 31)))
}

fn name(text: &str) -> Name {
    Name::new(text).expect("short and printable")
}
