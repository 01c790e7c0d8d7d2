//! Where each job is, in memory. It never contains anything that is not durable on disk. Jobs of one
//! batch see each other's changes through [`Changes`]; all others see them after the commit.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::RwLock;

use foldhash::fast::RandomState;
use lapsed_core::Name;

const SHARDS: usize = 64;

/// The holder's incarnation, and when it was registered.
pub(crate) type Entry = (u64, u64);

/// Changes of a batch; `None`: the entry was removed.
pub(crate) type Changes<E = Entry> = HashMap<Name, Option<E>, RandomState>;

type Shard<E> = HashMap<Name, E, RandomState>;

/// Maps each key to what is known of it.
pub(crate) struct HolderIndex<E> {
    hasher: RandomState,
    shards: Vec<RwLock<Shard<E>>>,
}

const LOCK: &str = "no holder of this lock panics";

impl<E: Clone> HolderIndex<E> {
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        HolderIndex { hasher: RandomState::default(), shards }
    }

    pub fn get(&self, key: &Name) -> Option<E> {
        self.shards[self.shard(key)].read().expect(LOCK).get(key).cloned()
    }

    /// Applies one change and returns the previous entry.
    pub fn set(&self, key: Name, change: Option<E>) -> Option<E> {
        let mut shard = self.shards[self.shard(&key)].write().expect(LOCK);
        match change {
            Some(entry) => shard.insert(key, entry),
            None => shard.remove(&key),
        }
    }

    /// Replaces everything by what was read from disk.
    pub fn replace(&self, all: impl Iterator<Item = (Name, E)>) {
        let mut shards: Vec<Shard<E>> = (0..SHARDS).map(|_| Shard::default()).collect();
        for (key, entry) in all {
            shards[self.shard(&key)].insert(key, entry);
        }
        for (shard, new) in self.shards.iter().zip(shards) {
            *shard.write().expect(LOCK) = new;
        }
    }

    fn shard(&self, key: &Name) -> usize {
        (self.hasher.hash_one(key) >> 32) as usize % SHARDS
    }
}
