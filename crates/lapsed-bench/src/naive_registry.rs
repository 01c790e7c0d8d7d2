//! What a team writes first: a hash map of deadlines, and a `BTreeSet` of them, in order, so that
//! the overdue are found without looking at everybody. Every beat takes its old place out of the
//! set and puts its new one in.
//!
//! It is given every advantage: no lock, nothing durable, no incarnations, no entries to hold.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Names in the map and in the index, as one writes it down.
pub struct NaiveRegistry {
    origin: Instant,
    ttl_ms: u64,
    deadlines: HashMap<String, u64>,
    index: BTreeSet<(u64, String)>,
}

impl NaiveRegistry {
    pub fn new(names: &[String], ttl_ms: u64) -> Self {
        let mut peer = NaiveRegistry {
            origin: Instant::now(),
            ttl_ms,
            deadlines: HashMap::new(),
            index: BTreeSet::new(),
        };
        for name in names {
            peer.deadlines.insert(name.clone(), ttl_ms);
            peer.index.insert((ttl_ms, name.clone()));
        }
        peer
    }

    /// Life, until the answered deadline.
    pub fn beat(&mut self, name: &str) -> Option<u64> {
        let until = self.origin.elapsed().as_millis() as u64 + self.ttl_ms;
        let deadline = self.deadlines.get_mut(name)?;
        let place = (*deadline, name.to_owned());
        self.index.remove(&place);
        self.index.insert((until, place.1));
        *deadline = until;
        Some(until)
    }
}

/// An optimised version: the index holds a number instead of the name, so that a beat allocates
/// nothing and compares no text.
pub struct NumberedNaiveRegistry {
    origin: Instant,
    ttl_ms: u64,
    deadlines: HashMap<String, (u64, u32)>,
    index: BTreeSet<(u64, u32)>,
}

impl NumberedNaiveRegistry {
    pub fn new(names: &[String], ttl_ms: u64) -> Self {
        let mut peer = NumberedNaiveRegistry {
            origin: Instant::now(),
            ttl_ms,
            deadlines: HashMap::new(),
            index: BTreeSet::new(),
        };
        for (number, name) in (0..).zip(names) {
            peer.deadlines.insert(name.clone(), (ttl_ms, number));
            peer.index.insert((ttl_ms, number));
        }
        peer
    }

    pub fn beat(&mut self, name: &str) -> Option<u64> {
        let until = self.origin.elapsed().as_millis() as u64 + self.ttl_ms;
        let (deadline, number) = self.deadlines.get_mut(name)?;
        self.index.remove(&(*deadline, *number));
        self.index.insert((until, *number));
        *deadline = until;
        Some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_stands_in_the_index_once() {
        let names: Vec<String> = (0..100).map(|i| format!("owner-{i}")).collect();
        let (mut plain, mut numbered) =
            (NaiveRegistry::new(&names, 5), NumberedNaiveRegistry::new(&names, 5));
        for name in names.iter().cycle().take(1_000) {
            assert!(plain.beat(name).is_some() && numbered.beat(name).is_some());
        }
        assert_eq!((plain.index.len(), numbered.index.len()), (100, 100));
        assert_eq!(plain.beat("nobody"), None);
    }
}
