//! Deadlines of leases and decisions in memory, derived from the rows. It never contains anything
//! that is not durable on disk.

use std::collections::BTreeMap;
use std::ops::Bound;

use lapsed_core::Name;
use lapsed_core::leases::rules::{ClockReading, DecisionMarker, Lease, LeaseRecord};
use lapsed_core::leases::{DECISIONS, Decision, LeaseToken};

/// Position in the index: deadline, then kind and key. A decision sorts after leases of the same
/// instant, whose staged work may need it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DuePosition {
    pub deadline_ms: u64,
    is_decision: bool,
    pub subject: Name,
}

impl DuePosition {
    pub fn new(deadline_ms: u64, subject: Name) -> DuePosition {
        let is_decision = subject.as_str().starts_with(DECISIONS);
        DuePosition { deadline_ms, is_decision, subject }
    }
}

/// The rest of an entry: its owner, and what is needed to judge whether it has expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// A lease granted before the store was away has a whole TTL after the store came back.
    /// `is_plain`: this is all that the key's record contains.
    Lease { owner: Name, token: LeaseToken, ttl_ms: u64, acquired_ms: u64, is_plain: bool },
    /// Decisions are not renewed.
    Decision(Decision),
}

/// A place and a term: one row's.
pub(super) type Entry = (u64, Term);

pub(super) fn of_record(record: &LeaseRecord) -> Option<Entry> {
    let lease = record.lease.as_ref()?;
    let term = Term::Lease {
        owner: lease.owner.clone(),
        token: record.token,
        ttl_ms: lease.ttl_ms,
        acquired_ms: lease.acquired_ms,
        is_plain: record.state.is_none() && record.staged.is_none() && lease.request.is_none(),
    };
    Some((lease.deadline_ms, term))
}

pub(super) fn of_marker(marker: &DecisionMarker) -> Entry {
    (marker.deadline_ms, Term::Decision(marker.decision))
}

impl Term {
    fn is_lease(&self) -> bool {
        matches!(self, Term::Lease { .. })
    }

    fn is_over(&self, deadline_ms: u64, at: &ClockReading) -> bool {
        let due_ms = match self {
            Term::Lease { ttl_ms, acquired_ms, .. } if *acquired_ms < at.back_ms => {
                deadline_ms.max(at.back_ms + ttl_ms)
            }
            Term::Lease { .. } | Term::Decision(_) => deadline_ms,
        };
        at.is_over(due_ms)
    }
}

#[derive(Default)]
pub(super) struct Due {
    by_deadline: BTreeMap<DuePosition, Term>,
    leases: u64,
}

/// Number of leases and of expired entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub leases: u64,
    pub over: u64,
    pub spared: u64,
    pub oldest_ms: Option<u64>,
}

impl Due {
    /// Records that a row has changed.
    pub fn change(&mut self, subject: &Name, before: Option<Entry>, after: Option<Entry>) {
        if let Some((deadline_ms, term)) = before
            && self.by_deadline.remove(&DuePosition::new(deadline_ms, subject.clone())).is_some()
        {
            self.leases -= u64::from(term.is_lease());
        }
        if let Some((deadline_ms, term)) = after {
            self.leases += u64::from(term.is_lease());
            self.by_deadline.insert(DuePosition::new(deadline_ms, subject.clone()), term);
        }
    }

    /// Removes what a sweep has cleared.
    pub fn remove(&mut self, position: &DuePosition) {
        if let Some(term) = self.by_deadline.remove(position) {
            self.leases -= u64::from(term.is_lease());
        }
    }

    /// The record of a key that contains nothing but this lease; `None`: it contains more, or it is not known here.
    pub fn record(&self, position: &DuePosition) -> Option<LeaseRecord> {
        let term = self.by_deadline.get(position)?;
        let Term::Lease { owner, token, ttl_ms, acquired_ms, is_plain: true } = term else {
            return None;
        };
        let lease = Lease {
            owner: owner.clone(),
            ttl_ms: *ttl_ms,
            acquired_ms: *acquired_ms,
            deadline_ms: position.deadline_ms,
            request: None,
        };
        Some(LeaseRecord { token: *token, lease: Some(lease), ..LeaseRecord::default() })
    }

    /// Counts entries. The cost is proportional to those that have expired.
    pub fn count(&self, at: &ClockReading) -> Counts {
        let mut counts = Counts { leases: self.leases, ..Counts::default() };
        for (place, term) in self.past(None, at) {
            if term.is_over(place.deadline_ms, at) {
                counts.over += 1;
                counts.oldest_ms.get_or_insert(place.deadline_ms);
            } else {
                counts.spared += 1;
            }
        }
        counts
    }

    /// Up to `limit` expired entries after `after`, the oldest first.
    pub fn page(
        &self,
        after: Option<DuePosition>,
        at: &ClockReading,
        limit: usize,
    ) -> Vec<(DuePosition, Term)> {
        let over = self.past(after, at).filter(|(place, term)| term.is_over(place.deadline_ms, at));
        over.take(limit).map(|(place, term)| (place.clone(), term.clone())).collect()
    }

    /// All entries past their deadline, whether or not they are spared.
    fn past(
        &self,
        after: Option<DuePosition>,
        at: &ClockReading,
    ) -> impl Iterator<Item = (&DuePosition, &Term)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let at = *at;
        self.by_deadline
            .range((start, Bound::Unbounded))
            .take_while(move |(place, _)| at.is_over(place.deadline_ms))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lapsed_core::leases::LeaseState;
    use lapsed_core::leases::rules::StagedState;

    use super::*;

    #[test]
    fn the_record_of_a_key_with_nothing_but_a_lease_is_known() {
        let name = |text| Name::new(text).unwrap();
        let lease =
            Lease { owner: name("o"), ttl_ms: 50, acquired_ms: 10, deadline_ms: 60, request: None };
        let plain = LeaseRecord { token: LeaseToken(7), lease: Some(lease), ..Default::default() };
        let mut requested = plain.clone();
        requested.lease.as_mut().unwrap().request = Some(name("r"));
        let state = LeaseState::Bytes(vec![1]);
        let with_state = LeaseRecord { state: Some(state.clone()), ..plain.clone() };
        let staged = StagedState { txn: name("t"), state };
        let with_staged = LeaseRecord { staged: Some(staged), ..plain.clone() };
        for (record, known) in [
            (&plain, Some(plain.clone())),
            (&requested, None),
            (&with_state, None),
            (&with_staged, None),
        ] {
            let mut due = Due::default();
            due.change(&name("k"), None, of_record(record));
            assert_eq!(due.record(&DuePosition::new(60, name("k"))), known);
            assert_eq!(due.record(&DuePosition::new(61, name("k"))), None);
            due.remove(&DuePosition::new(60, name("k")));
            assert_eq!((due.leases, due.by_deadline.len()), (0, 0));
        }
    }

    #[test]
    fn after_an_absence_expired_leases_are_spared_and_counted() {
        let name = |text| Name::new(text).unwrap();
        let lease = |acquired_ms| {
            let (owner, token) = (name("o"), LeaseToken(1));
            Term::Lease { owner, token, ttl_ms: 50, acquired_ms, is_plain: true }
        };
        let mut due = Due::default();
        due.change(&name("old"), None, Some((100, lease(50))));
        due.change(&name("new"), None, Some((120, lease(400))));
        due.change(&name(".txn-decisions/t"), None, Some((110, Term::Decision(Decision::Commit))));
        due.change(&name("later"), None, Some((900, lease(400))));
        let at = ClockReading::exact(420, 400);
        let expected = Counts { leases: 3, over: 2, spared: 1, oldest_ms: Some(110) };
        assert_eq!(due.count(&at), expected);
        let page = |after, at: &ClockReading, limit| -> Vec<DuePosition> {
            due.page(after, at, limit).into_iter().map(|(place, _)| place).collect()
        };
        let place = |ms, text| DuePosition::new(ms, name(text));
        let (t, new) = (place(110, ".txn-decisions/t"), place(120, "new"));
        assert_eq!(page(None, &at, 9), [t.clone(), new.clone()]);
        assert_eq!(page(Some(t), &at, 9), [new]);
        assert_eq!(page(None, &ClockReading::exact(450, 400), 1), [place(100, "old")]);
        assert!(place(7, "z") < place(7, ".txn-decisions/a"));
        due.change(&name("old"), Some((100, lease(50))), None);
        assert_eq!((due.leases, due.count(&at).spared), (2, 0));
    }
}
