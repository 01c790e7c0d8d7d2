//! Who holds what, in memory: as durable on disk, never ahead of it.
//!
//! On disk an entry is one row, filed under its holder, so that what a dead owner leaves lies
//! together and the living are not touched when it is removed. The way from a key to its holder is
//! here. Jobs of a batch see each other's changes through [`Changes`]; everybody else sees them
//! once they are committed.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use lapsed_core::Name;

const SHARDS: usize = 64;

/// The holder's incarnation, and when it was registered.
pub(crate) type Entry = (u64, u64);

/// What a batch changes; `None`: removed.
pub(crate) type Changes<E = Entry> = HashMap<Name, Option<E>, RandomState>;

type Shard<E> = HashMap<Name, E, RandomState>;

/// Of each key, what is known of it: of a registry, who holds it.
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

    /// What a batch has made durable.
    pub fn apply(&self, changes: Changes<E>) {
        for (key, change) in changes {
            self.set(key, change);
        }
    }

    /// One of these changes: what was there before it.
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

    /// Everything anew, as read from disk.
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
