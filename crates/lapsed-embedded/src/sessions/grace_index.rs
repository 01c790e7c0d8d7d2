//! Sessions without references, in memory, ordered by when the last one ended. It never contains
//! anything that is not durable on disk.
//!
//! It is derived from the sessions' rows, so that nothing on disk can disagree with them. Orphans
//! are counted once, when their time comes, and not again at every read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

use lapsed_core::Name;

/// Whether a session has references and, if not, since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStanding {
    Absent,
    Active,
    Waiting { since_ms: u64, disconnected: bool },
}

/// The sessions of one system, as far as a sweep needs them.
#[derive(Default)]
pub(crate) struct GraceIndex {
    index: Mutex<Index>,
}

/// Time, then session id; `None` sorts before every session of that millisecond.
type GracePosition = (u64, Option<Name>);

#[derive(Default)]
pub(crate) struct Index {
    sessions: u64,
    /// Sessions without references, and whether each is disconnected.
    by_since: BTreeMap<GracePosition, bool>,
    disconnected: u64,
    /// Sessions before this time are counted in `orphans`.
    counted_to: u64,
    orphans: u64,
}

impl GraceIndex {
    pub fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("no holder of this lock panics")
    }

    /// Replaces everything by what was read from disk.
    pub fn replace(&self, all: impl Iterator<Item = (Name, SessionStanding)>) {
        let mut index = Index::default();
        for (id, stand) in all {
            index.apply(&id, SessionStanding::Absent, stand);
        }
        *self.lock() = index;
    }
}

impl Index {
    /// Applies a durable change of one session.
    pub fn apply(&mut self, id: &Name, before: SessionStanding, after: SessionStanding) {
        if let SessionStanding::Waiting { since_ms, .. } = before
            && let Some(was) = self.by_since.remove(&(since_ms, Some(id.clone())))
        {
            self.disconnected -= u64::from(was);
            self.orphans -= u64::from(since_ms < self.counted_to);
        }
        if let SessionStanding::Waiting { since_ms, disconnected } = after
            && self.by_since.insert((since_ms, Some(id.clone())), disconnected).is_none()
        {
            self.disconnected += u64::from(disconnected);
            self.orphans += u64::from(since_ms < self.counted_to);
        }
        match (before, after) {
            (SessionStanding::Absent, SessionStanding::Absent) => {}
            (SessionStanding::Absent, _) => self.sessions += 1,
            (_, SessionStanding::Absent) => self.sessions = self.sessions.saturating_sub(1),
            _ => {}
        }
    }

    pub fn sessions(&self) -> u64 {
        self.sessions
    }

    pub fn disconnected(&self) -> u64 {
        self.disconnected
    }

    /// How many sessions have had no reference since before `due_before`, and the earliest such
    /// time. The cost is proportional to those that came due since the last call.
    pub fn orphans(&mut self, due_before: u64) -> (u64, Option<u64>) {
        let between =
            |low: u64, high: u64| self.by_since.range((low, None)..(high, None)).count() as u64;
        if due_before >= self.counted_to {
            self.orphans += between(self.counted_to, due_before);
        } else {
            self.orphans -= between(due_before, self.counted_to);
        }
        self.counted_to = due_before;
        let oldest = self.by_since.keys().next().map(|(since_ms, _)| *since_ms);
        (self.orphans, oldest.filter(|_| self.orphans > 0))
    }

    /// Up to `limit` of the sessions without references since before `due_before`, after `after`,
    /// the oldest first.
    pub fn page(
        &self,
        due_before: u64,
        after: Option<(u64, Name)>,
        limit: usize,
    ) -> Vec<(u64, Name, bool)> {
        let start = after.map_or(Bound::Unbounded, |(ms, id)| Bound::Excluded((ms, Some(id))));
        let range = (start, Bound::Excluded((due_before, None)));
        // A start after the end is not a valid range.
        if matches!(&range.0, Bound::Excluded((ms, _)) if *ms >= due_before) {
            return Vec::new();
        }
        let one = |((since_ms, id), disconnected): (&GracePosition, &bool)| {
            Some((*since_ms, id.clone()?, *disconnected))
        };
        self.by_since.range(range).take(limit).filter_map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(number: u8) -> Name {
        Name::new(&format!("s{number}")).expect("a good name")
    }

    fn stand() -> impl Strategy<Value = SessionStanding> {
        let waiting = (0u64..50, any::<bool>()).prop_map(|(since_ms, disconnected)| {
            SessionStanding::Waiting { since_ms, disconnected }
        });
        prop_oneof![Just(SessionStanding::Absent), Just(SessionStanding::Active), waiting]
    }

    proptest! {
        /// For random changes and clock jumps, the counts equal those of a full recount.
        #[test]
        fn counts_agree_with_a_recount(
            steps in proptest::collection::vec((0u8..6, stand(), 0u64..60), 1..60)) {
            let mut index = Index::default();
            let mut truth = BTreeMap::new();
            for (number, after, due_before) in steps {
                let id = name(number);
                let before = truth.insert(number, after).unwrap_or(SessionStanding::Absent);
                index.apply(&id, before, after);
                let waits = |stand: &&SessionStanding| {
                    matches!(stand, SessionStanding::Waiting { since_ms, .. } if *since_ms < due_before)
                };
                let disconnected =
                    |stand: &&SessionStanding| matches!(stand, SessionStanding::Waiting { disconnected: true, .. });
                let there = |stand: &&SessionStanding| **stand != SessionStanding::Absent;
                let count = |n: usize| n as u64;
                let orphans = count(truth.values().filter(waits).count());
                prop_assert_eq!(index.orphans(due_before).0, orphans);
                prop_assert_eq!(count(index.page(due_before, None, 100).len()), orphans);
                prop_assert_eq!(index.disconnected(), count(truth.values().filter(disconnected).count()));
                prop_assert_eq!(index.sessions(), count(truth.values().filter(there).count()));
            }
        }
    }
}
