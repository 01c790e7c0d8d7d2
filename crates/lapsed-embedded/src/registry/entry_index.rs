//! Which incarnation holds which key, in memory. It never contains anything that is not durable on disk.
//!
//! On disk an entry is one row whose key begins with its holder, so that all entries of a dead owner are adjacent and removing
//! them does not touch those of live owners. This index leads from a key to its holder. A registry may have a hundred million
//! entries, so an entry is a few bytes in a buffer that it shares with others, and a slot of eight bytes that finds it.

use std::hash::BuildHasher;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use lapsed_core::Name;

use crate::holder_index::{Changes, Entry};

const SHARDS: usize = 64;

const LOCK: &str = "no holder of this lock panics";

/// Maps each key to its holder's incarnation, and when it was registered.
pub(crate) struct EntryIndex {
    hasher: RandomState,
    shards: Vec<RwLock<Shard>>,
    len: AtomicU64,
}

/// Entries that take the place of all others as soon as all of them are read.
pub(crate) struct LoadedEntries {
    shards: Vec<Shard>,
    len: u64,
}

impl EntryIndex {
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        EntryIndex { hasher: RandomState::default(), shards, len: AtomicU64::new(0) }
    }

    pub fn get(&self, key: &Name) -> Option<Entry> {
        let (shard, tag) = self.place(key.as_str());
        self.shards[shard].read().expect(LOCK).get(tag, key.as_str())
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Applies the changes of a durable batch.
    pub fn apply(&self, changes: Changes) {
        for (key, change) in changes {
            let (shard, tag) = self.place(key.as_str());
            let mut shard = self.shards[shard].write().expect(LOCK);
            match change {
                Some(entry) if shard.insert(tag, key.as_str(), entry) => {
                    self.len.fetch_add(1, Ordering::AcqRel);
                }
                None if shard.remove(tag, key.as_str()) => {
                    self.len.fetch_sub(1, Ordering::AcqRel);
                }
                _ => {}
            }
        }
    }

    pub fn load(&self) -> LoadedEntries {
        LoadedEntries { shards: (0..SHARDS).map(|_| Shard::default()).collect(), len: 0 }
    }

    /// Adds an entry that was read from disk to those that will be shown.
    pub fn add(&self, loaded: &mut LoadedEntries, key: &str, entry: Entry) {
        let (shard, tag) = self.place(key);
        loaded.len += u64::from(loaded.shards[shard].insert(tag, key, entry));
    }

    /// Replaces everything by what was read from disk.
    pub fn replace(&self, loaded: LoadedEntries) {
        for (shard, new) in self.shards.iter().zip(loaded.shards) {
            *shard.write().expect(LOCK) = new;
        }
        self.len.store(loaded.len, Ordering::Release);
    }

    /// The shard of a key and its tag there.
    fn place(&self, key: &str) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        ((hash % SHARDS as u64) as usize, hash >> (64 - TAG_BITS))
    }
}

/// Bits of a slot that say where its record begins, plus one. A slot of 0 is empty.
const OFFSET_BITS: u32 = 40;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;
/// The other bits of a slot are part of the key's hash. They decide in which slot the search for the key begins.
const TAG_BITS: u32 = u64::BITS - OFFSET_BITS;

/// Records that nobody refers to are removed when they are this many bytes and a quarter of all.
const GARBAGE_MIN: usize = 4 << 10;

/// An open-addressed table with linear probing, over records one after the other.
#[derive(Default)]
struct Shard {
    slots: Vec<u64>,
    /// Of each record: incarnation, time and length of the key as numbers of variable length, then the key.
    records: Vec<u8>,
    live: usize,
    garbage: usize,
}

fn tag_of(slot: u64) -> u64 {
    slot >> OFFSET_BITS
}

fn record_of(slot: u64) -> usize {
    (slot & OFFSET) as usize - 1
}

fn write_number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn read_number(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

impl Shard {
    fn get(&self, tag: u64, key: &str) -> Option<Entry> {
        self.find(tag, key).map(|slot| self.record(record_of(self.slots[slot])).0)
    }

    /// The entry and the key of a record, and where the next one begins.
    fn record(&self, mut at: usize) -> (Entry, &[u8], usize) {
        let incarnation = read_number(&self.records, &mut at);
        let registered_ms = read_number(&self.records, &mut at);
        let length = read_number(&self.records, &mut at) as usize;
        ((incarnation, registered_ms), &self.records[at..at + length], at + length)
    }

    fn home(&self, tag: u64) -> usize {
        ((tag * self.slots.len() as u64) >> TAG_BITS) as usize
    }

    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    fn find(&self, tag: u64, key: &str) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(tag);
        while self.slots[at] != 0 {
            let slot = self.slots[at];
            if tag_of(slot) == tag && self.record(record_of(slot)).1 == key.as_bytes() {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    /// Returns whether the key was not there.
    fn insert(&mut self, tag: u64, key: &str, (incarnation, registered_ms): Entry) -> bool {
        let found = self.find(tag, key);
        match found {
            Some(slot) => self.discard(slot),
            None => self.make_room(),
        }
        if self.records.capacity() - self.records.len() < key.len() + 30 {
            self.records.reserve_exact((self.records.len() / 8).max(key.len() + 64));
        }
        let begins = self.records.len() as u64;
        write_number(&mut self.records, incarnation);
        write_number(&mut self.records, registered_ms);
        write_number(&mut self.records, key.len() as u64);
        self.records.extend_from_slice(key.as_bytes());
        let slot = tag << OFFSET_BITS | (begins + 1);
        match found {
            Some(at) => self.slots[at] = slot,
            None => self.put(slot),
        }
        self.live += usize::from(found.is_none());
        self.collect_garbage();
        found.is_none()
    }

    /// Returns whether the key was there.
    fn remove(&mut self, tag: u64, key: &str) -> bool {
        let Some(mut hole) = self.find(tag, key) else { return false };
        self.discard(hole);
        self.live -= 1;
        // Later slots that were pushed away from the removed one move back, so that a search still finds them.
        let mut at = self.next(hole);
        while self.slots[at] != 0 {
            let home = self.home(tag_of(self.slots[at]));
            if self.distance(home, at) >= self.distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = 0;
        self.collect_garbage();
        true
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }

    fn put(&mut self, slot: u64) {
        let mut at = self.home(tag_of(slot));
        while self.slots[at] != 0 {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    /// At most four of five slots are used.
    fn make_room(&mut self) {
        if (self.live + 1) * 5 <= self.slots.len() * 4 {
            return;
        }
        let more = vec![0; self.slots.len() + (self.slots.len() / 4).max(8)];
        let before = std::mem::replace(&mut self.slots, more);
        before.into_iter().filter(|slot| *slot != 0).for_each(|slot| self.put(slot));
    }

    /// Counts the record of a slot as garbage.
    fn discard(&mut self, slot: usize) {
        let begins = record_of(self.slots[slot]);
        self.garbage += self.record(begins).2 - begins;
    }

    fn collect_garbage(&mut self) {
        if self.garbage < GARBAGE_MIN || self.garbage * 4 < self.records.len() {
            return;
        }
        let mut records = Vec::with_capacity(self.records.len() - self.garbage);
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            if slot != 0 {
                let begins = record_of(slot);
                let ends = self.record(begins).2;
                self.slots[at] = tag_of(slot) << OFFSET_BITS | (records.len() as u64 + 1);
                records.extend_from_slice(&self.records[begins..ends]);
            }
        }
        (self.records, self.garbage) = (records, 0);
        if self.live * 5 < self.slots.len() {
            let fewer = vec![0; self.live * 2 + 8];
            let before = std::mem::replace(&mut self.slots, fewer);
            before.into_iter().filter(|slot| *slot != 0).for_each(|slot| self.put(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(number: u16) -> Name {
        Name::new(&format!("{number}-{}", "x".repeat(number as usize % 300))).unwrap()
    }

    fn change(key: &Name, entry: Option<Entry>) -> Changes {
        [(key.clone(), entry)].into_iter().collect()
    }

    proptest! {
        /// Few tags, so that slots collide.
        #[test]
        fn a_shard_holds_what_a_map_holds(
            changes in proptest::collection::vec((0u16..200, any::<Option<(u64, u64)>>()), 0..600),
        ) {
            let (mut shard, mut model) = (Shard::default(), HashMap::new());
            let tag = |number: u16| u64::from(number % 7) << (TAG_BITS - 3);
            for (number, entry) in changes {
                let name = key(number);
                match entry {
                    Some(entry) => {
                        let is_new = shard.insert(tag(number), name.as_str(), entry);
                        prop_assert_eq!(is_new, model.insert(number, entry).is_none());
                    }
                    None => {
                        let was = shard.remove(tag(number), name.as_str());
                        prop_assert_eq!(was, model.remove(&number).is_some());
                    }
                }
                prop_assert_eq!(shard.live, model.len());
            }
            for number in 0..200 {
                let found = shard.get(tag(number), key(number).as_str());
                prop_assert_eq!(found, model.get(&number).copied());
            }
        }
    }

    #[test]
    fn many_entries_are_found_and_their_bytes_are_given_back() {
        let index = EntryIndex::new();
        let name = |number: u64| Name::new(&format!("imei-{number:015}")).unwrap();
        let bytes = |index: &EntryIndex| -> usize {
            let shards = index.shards.iter().map(|shard| shard.read().unwrap());
            shards.map(|shard| shard.records.capacity() + 8 * shard.slots.capacity()).sum()
        };
        for number in 0..100_000 {
            index.apply(change(&name(number), Some((number % 1_000, 1_700_000_000_000 + number))));
        }
        assert_eq!(index.len(), 100_000);
        assert!(bytes(&index) < 100_000 * 60, "{} bytes", bytes(&index));
        for number in (0..100_000).step_by(7) {
            let entry = Some((number % 1_000, 1_700_000_000_000 + number));
            assert_eq!(index.get(&name(number)), entry);
        }
        for number in 100..100_000 {
            index.apply(change(&name(number), None));
        }
        assert_eq!((index.len(), index.get(&name(100))), (100, None));
        assert!(index.get(&name(99)).is_some());
        assert!(bytes(&index) < 600_000, "{} bytes", bytes(&index));
    }

    #[test]
    fn what_is_loaded_takes_the_place_of_everything() {
        let index = EntryIndex::new();
        index.apply(change(&key(1), Some((1, 1))));
        let mut loaded = index.load();
        index.add(&mut loaded, key(2).as_str(), (2, 2));
        index.add(&mut loaded, key(2).as_str(), (3, 3));
        assert_eq!(index.get(&key(1)), Some((1, 1)), "not before all are read");
        index.replace(loaded);
        assert_eq!((index.get(&key(1)), index.get(&key(2)), index.len()), (None, Some((3, 3)), 1));
    }
}
