//! Counts the requests to the store by kind, and keeps them within a budget.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Uri};
use lapsed_core::clock::{Clock, backoff, jittered};

/// The kinds of requests; each kind has its own price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    Get,
    Put,
    List,
    Delete,
    /// All other requests, mostly for credentials.
    Other,
}

impl RequestKind {
    /// All kinds of requests.
    pub const ALL: [RequestKind; 5] = [
        RequestKind::Get,
        RequestKind::Put,
        RequestKind::List,
        RequestKind::Delete,
        RequestKind::Other,
    ];

    /// The word used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestKind::Get => "get",
            RequestKind::Put => "put",
            RequestKind::List => "list",
            RequestKind::Delete => "delete",
            RequestKind::Other => "other",
        }
    }

    /// The kind of a request, by its method and address.
    pub(crate) fn of(method: &Method, uri: &Uri) -> RequestKind {
        let query = uri.query().unwrap_or_default();
        let has = |part: &str| query.split('&').any(|pair| pair.starts_with(part));
        match *method {
            Method::GET if has("list-type=") || has("comp=list") => RequestKind::List,
            Method::GET | Method::HEAD => RequestKind::Get,
            Method::PUT => RequestKind::Put,
            Method::DELETE => RequestKind::Delete,
            Method::POST if has("comp=batch") || has("delete") => RequestKind::Delete,
            _ => RequestKind::Other,
        }
    }
}

/// The number of requests of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    pub by_kind: BTreeMap<RequestKind, u64>,
    /// How many of these were throttled.
    pub throttled: u64,
    /// How many more were not sent, because the budget was used up.
    pub withheld: u64,
}

impl RequestCounts {
    pub fn total(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// The sum of both counts for each kind.
    pub(crate) fn and(mut self, other: RequestCounts) -> RequestCounts {
        for (kind, count) in other.by_kind {
            *self.by_kind.entry(kind).or_default() += count;
        }
        self.throttled += other.throttled;
        self.withheld += other.withheld;
        self
    }

    pub fn of(&self, kind: RequestKind) -> u64 {
        self.by_kind.get(&kind).copied().unwrap_or_default()
    }
}

/// The error for a request that was not sent, because the budget was used up.
#[derive(Debug, Clone)]
pub(crate) struct BudgetSpent {
    per_hour: u64,
}

impl fmt::Display for BudgetSpent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the budget of {} requests per hour is used up (`requests_per_hour`)",
            self.per_hour
        )
    }
}

impl std::error::Error for BudgetSpent {}

/// Counts requests, and refuses them when there were too many within an hour.
pub(crate) struct Meter {
    clock: Arc<dyn Clock>,
    counts: [AtomicU64; 5],
    throttled: AtomicU64,
    withheld: AtomicU64,
    per_hour: u64,
    /// How many were sent in each minute of the last hour, by the minute's number.
    minutes: Mutex<VecDeque<(u64, u64)>>,
}

impl Meter {
    pub(crate) fn new(clock: Arc<dyn Clock>, per_hour: u64) -> Self {
        Meter {
            clock,
            counts: Default::default(),
            throttled: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            per_hour,
            minutes: Mutex::default(),
        }
    }

    /// Counts a request before it is sent. Returns an error if it must not be sent.
    pub(crate) fn spend(&self, kind: RequestKind) -> Result<(), BudgetSpent> {
        let minute = self.clock.mono().as_secs() / 60;
        let mut minutes = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        minutes.retain(|(known, _)| known + 60 > minute);
        if minutes.iter().map(|(_, sent)| sent).sum::<u64>() >= self.per_hour {
            self.withheld.fetch_add(1, Ordering::Relaxed);
            return Err(BudgetSpent { per_hour: self.per_hour });
        }
        match minutes.back_mut() {
            Some((known, sent)) if *known == minute => *sent += 1,
            _ => minutes.push_back((minute, 1)),
        }
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn note_throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        let count = |kind: RequestKind| self.counts[kind as usize].load(Ordering::Relaxed);
        RequestCounts {
            by_kind: RequestKind::ALL.into_iter().map(|kind| (kind, count(kind))).collect(),
            throttled: self.throttled.load(Ordering::Relaxed),
            withheld: self.withheld.load(Ordering::Relaxed),
        }
    }
}

/// The pause before a throttled request is tried again.
pub(crate) fn back_off(clock: &dyn Clock, attempt: u32) -> Duration {
    let base = backoff(Duration::from_millis(100), 3, attempt, Duration::from_millis(8_100));
    jittered(clock, base, 0.5)
}

#[cfg(test)]
mod tests {
    use lapsed_core::clock::ManualClock;

    use super::*;

    #[test]
    fn the_budget_holds_for_an_hour_that_slides() {
        let clock = ManualClock::at(0);
        let meter = Meter::new(Arc::new(clock.clone()), 3);
        for _ in 0..2 {
            assert!(meter.spend(RequestKind::Get).is_ok());
        }
        clock.advance(Duration::from_secs(1_800));
        assert!(meter.spend(RequestKind::Put).is_ok());
        let refused = meter.spend(RequestKind::Put).unwrap_err();
        assert!(refused.to_string().contains("3 requests per hour"), "{refused}");
        clock.advance(Duration::from_secs(1_860));
        assert!(meter.spend(RequestKind::List).is_ok(), "the first two are over an hour ago");
        let counts = meter.counts();
        assert_eq!((counts.total(), counts.withheld), (4, 1));
        assert_eq!(counts.of(RequestKind::Get), 2);
    }

    #[test]
    fn request_kinds_are_derived_from_method_and_query() {
        let kind = |method: Method, uri: &str| RequestKind::of(&method, &uri.parse().unwrap());
        assert_eq!(kind(Method::GET, "http://h/b?list-type=2&prefix=x"), RequestKind::List);
        assert_eq!(kind(Method::GET, "http://h/b?restype=container&comp=list"), RequestKind::List);
        assert_eq!(kind(Method::GET, "http://h/b/k"), RequestKind::Get);
        assert_eq!(kind(Method::POST, "http://h/b?comp=batch"), RequestKind::Delete);
        assert_eq!(kind(Method::PUT, "http://h/b/k"), RequestKind::Put);
    }
}
