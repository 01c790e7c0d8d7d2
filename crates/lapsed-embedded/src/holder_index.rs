//! Which incarnation holds which key, in memory. It never contains anything that is not durable on
//! disk.
//!
//! On disk an entry is one row whose key begins with its holder, so that all entries of a dead
//! owner are adjacent and removing them does not touch those of live owners. This index leads from
//! a key to its holder. Jobs of one batch see each other's changes through [`Changes`]; all others
//! see them after the commit.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use lapsed_core::Name;

const SHARDS: usize = 64;

/// The holder's incarnation, and when it was registered.
pub(crate) type Entry = (u64, u64);

/// Changes of a batch; `None`: the entry was removed.
pub(crate) type Changes<E = Entry> = HashMap<Name, Option<E>, RandomState>;

type Shard<E> = HashMap<Name, E, RandomState>;

/// Maps each key to its entry; in a registry, to its holder.
pub(crate) struct HolderIndex<E = Entry> {
    hasher: RandomState,
    shards: Vec<RwLock<Shard<E>>>,
    len: AtomicU64,
}

const LOCK: &str = "no holder of this lock panics";

impl<E: Clone> HolderIndex<E> {
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        HolderIndex { hasher: RandomState::default(), shards, len: AtomicU64::new(0) }
    }

    pub fn get(&self, key: &Name) -> Option<E> {
        self.shards[self.shard(key)].read().expect(LOCK).get(key).cloned()
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Applies the changes of a durable batch.
    pub fn apply(&self, changes: Changes<E>) {
        for (key, change) in changes {
            self.set(key, change);
        }
    }

    /// Applies one change and returns the previous entry.
    pub fn set(&self, key: Name, change: Option<E>) -> Option<E> {
        let mut shard = self.shards[self.shard(&key)].write().expect(LOCK);
        let after = change.is_some();
        let before = match change {
            Some(entry) => shard.insert(key, entry),
            None => shard.remove(&key),
        };
        match (before.is_some(), after) {
            (false, true) => self.len.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.len.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
        before
    }

    /// Replaces everything by what was read from disk.
    pub fn replace(&self, all: impl Iterator<Item = (Name, E)>) {
        let mut shards: Vec<Shard<E>> = (0..SHARDS).map(|_| Shard::default()).collect();
        let mut len = 0;
        for (key, entry) in all {
            len += u64::from(shards[self.shard(&key)].insert(key, entry).is_none());
        }
        for (shard, new) in self.shards.iter().zip(shards) {
            *shard.write().expect(LOCK) = new;
        }
        self.len.store(len, Ordering::Release);
    }

    fn shard(&self, key: &Name) -> usize {
        (self.hasher.hash_one(key) >> 32) as usize % SHARDS
    }
}
