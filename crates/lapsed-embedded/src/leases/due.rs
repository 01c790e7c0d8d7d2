//! When each lease and each decision is over: in memory, derived from the rows, never ahead of them.

use std::collections::BTreeMap;
use std::ops::Bound;

use lapsed::Name;
use lapsed::leases::rules::{Lease, Marker, Moment};

/// What is over when: its deadline, then what it is.
pub(super) type Place = (u64, Name);

/// What else decides when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// A lease has a whole TTL since the store was back, if it was acquired before.
    Lease { ttl_ms: u64, acquired_ms: u64 },
    /// Nobody renews a decision.
    Decision,
}

/// A place and a term: one row's.
pub(super) type Entry = (u64, Term);

pub(super) fn of_lease(lease: &Lease) -> Entry {
    (lease.deadline_ms, Term::Lease { ttl_ms: lease.ttl_ms, acquired_ms: lease.acquired_ms })
}

pub(super) fn of_marker(marker: &Marker) -> Entry {
    (marker.deadline_ms, Term::Decision)
}

impl Term {
    fn is_over(self, deadline_ms: u64, at: &Moment) -> bool {
        let due_ms = match self {
            Term::Lease { ttl_ms, acquired_ms } if acquired_ms < at.back_ms => {
                deadline_ms.max(at.back_ms + ttl_ms)
            }
            Term::Lease { .. } | Term::Decision => deadline_ms,
        };
        at.is_over(due_ms)
    }
}

#[derive(Default)]
pub(super) struct Due {
    by_deadline: BTreeMap<Place, Term>,
    leases: u64,
}

/// A count of what there is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub leases: u64,
    pub over: u64,
    pub spared: u64,
    pub oldest_ms: Option<u64>,
}

impl Due {
    /// A row has changed.
    pub fn change(&mut self, subject: &Name, before: Option<Entry>, after: Option<Entry>) {
        if let Some((deadline_ms, term)) = before
            && self.by_deadline.remove(&(deadline_ms, subject.clone())).is_some()
        {
            self.leases -= u64::from(term != Term::Decision);
        }
        if let Some((deadline_ms, term)) = after {
            self.by_deadline.insert((deadline_ms, subject.clone()), term);
            self.leases += u64::from(term != Term::Decision);
        }
    }

    /// Costs what is over, not what there is.
    pub fn count(&self, at: &Moment) -> Counts {
        let mut counts = Counts { leases: self.leases, ..Counts::default() };
        for ((deadline_ms, _), term) in self.past(None, at) {
            if term.is_over(*deadline_ms, at) {
                counts.over += 1;
                counts.oldest_ms.get_or_insert(*deadline_ms);
            } else {
                counts.spared += 1;
            }
        }
        counts
    }

    /// Up to `limit` that are over, after `after`, the longest first.
    pub fn page(&self, after: Option<Place>, at: &Moment, limit: usize) -> Vec<Place> {
        let over = self.past(after, at).filter(|((ms, _), term)| term.is_over(*ms, at));
        over.take(limit).map(|(place, _)| place.clone()).collect()
    }

    /// Whatever is past its deadline, spared or not.
    fn past(&self, after: Option<Place>, at: &Moment) -> impl Iterator<Item = (&Place, &Term)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let at = *at;
        self.by_deadline
            .range((start, Bound::Unbounded))
            .take_while(move |((ms, _), _)| at.is_over(*ms))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_the_store_was_away_for_is_spared_and_counted() {
        let name = |text| Name::new(text).unwrap();
        let lease = |acquired_ms| Term::Lease { ttl_ms: 50, acquired_ms };
        let mut due = Due::default();
        due.change(&name("old"), None, Some((100, lease(50))));
        due.change(&name("new"), None, Some((120, lease(400))));
        due.change(&name("t"), None, Some((110, Term::Decision)));
        due.change(&name("later"), None, Some((900, lease(400))));
        let at = Moment::exact(420, 400);
        let expected = Counts { leases: 3, over: 2, spared: 1, oldest_ms: Some(110) };
        assert_eq!(due.count(&at), expected);
        assert_eq!(due.page(None, &at, 9), [(110, name("t")), (120, name("new"))]);
        assert_eq!(due.page(Some((110, name("t"))), &at, 9), [(120, name("new"))]);
        assert_eq!(due.page(None, &Moment::exact(450, 400), 1), [(100, name("old"))]);
        due.change(&name("old"), Some((100, lease(50))), None);
        assert_eq!((due.leases, due.count(&at).spared), (2, 0));
    }
}
