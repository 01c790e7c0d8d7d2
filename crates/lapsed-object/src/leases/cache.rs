//! A cache of the records as this process last wrote them, which saves reading them again. It may be outdated,
//! so nothing is refused because of it; the conditional write detects the difference.
//!
//! It also has one lock for each share of the keys: tasks of this process that change the same key wait for
//! each other, because losing a conditional write costs requests.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lapsed_core::leases::LeaseKey;

use crate::system_context::StoredObject;

const LOCKS: usize = 256;

pub(crate) struct Cache {
    max: usize,
    held: Mutex<HashMap<LeaseKey, StoredObject>>,
    key_locks: Vec<tokio::sync::Mutex<()>>,
    /// A hasher without a random seed, so that a simulation repeats exactly.
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Cache {
    pub(crate) fn new(max: usize) -> Self {
        let key_locks = (0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect();
        Cache { max, held: Mutex::default(), key_locks, hasher: BuildHasherDefault::default() }
    }

    /// Waits until no other task of this process works on a key of the same share.
    pub(crate) async fn lock_key(&self, key: &LeaseKey) -> tokio::sync::MutexGuard<'_, ()> {
        let slot = self.hasher.hash_one(key) as usize % LOCKS;
        self.key_locks[slot].lock().await
    }

    pub(crate) fn get(&self, key: &LeaseKey) -> Option<StoredObject> {
        self.lock().get(key).cloned()
    }

    pub(crate) fn put(&self, key: &LeaseKey, held: StoredObject) {
        let mut all = self.lock();
        if all.len() >= self.max && !all.contains_key(key) {
            // Any half of the entries may go: the cache only saves requests.
            let mut nth = 0;
            all.retain(|_, _| {
                nth += 1;
                nth % 2 == 0
            });
        }
        if self.max > 0 {
            all.insert(key.clone(), held);
        }
    }

    pub(crate) fn forget(&self, key: &LeaseKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseKey, StoredObject>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
