//! The store's time, from the `Date` of its answers.
//!
//! An answer says a whole second, and was made between sending and receiving. So each one bounds how far
//! the store's clock is ahead of this host's monotonic one; the bounds of many answers are intersected,
//! age with the drift that two clocks may have, and begin anew when they contradict each other: then a
//! slack is kept for a while, because several machines may serve one address. Nothing has expired
//! before it has by the earliest possible time, and leases are granted from the latest possible time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::leases::rules::ClockReading;
use lapsed_core::{Error, Result};

/// The largest drift between two clocks, in parts per million.
const DRIFT_PPM: i64 = 200;
/// A server may compute its `Date` once a second and send it up to this many milliseconds later.
const STALE_MS: i64 = 50;
/// A contradiction below this is taken for machines that differ; above it for a clock that was set.
const DIFFER_MS_MAX: i64 = 5_000;
/// The wall clock may stray so far from the monotonic one between two answers; beyond it the host slept,
/// or its clock was set, and what was known is forgotten.
const STRAY_MS_MAX: i64 = 2_000;
/// How long the slack of a contradiction is kept.
const SLACK_FOR: Duration = Duration::from_secs(600);

/// Bounds of the difference between the store's clock and this host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// The store's clock is ahead by at least this many milliseconds.
    lo: i64,
    /// The store's clock is ahead by less than this many milliseconds.
    hi: i64,
    /// When the bounds were computed, in milliseconds of the monotonic clock.
    at: i64,
    /// The wall clock minus the monotonic clock at that moment, in milliseconds.
    stray: i64,
    /// How many milliseconds both bounds are widened by, because answers contradicted each other.
    slack: i64,
    slack_until: i64,
}

/// How far the store's clock is ahead of this host's wall clock, for status and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The store's clock is ahead of this host's by at least this many milliseconds.
    pub lo_ms: i64,
    /// The store's clock is ahead of this host's by at most this many milliseconds.
    pub hi_ms: i64,
}

/// The store's clock, as far as the answers of the store bound it.
pub struct StoreClock {
    clock: Arc<dyn Clock>,
    bounds: Mutex<Option<Bounds>>,
}

impl StoreClock {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        StoreClock { clock, bounds: Mutex::new(None) }
    }

    /// This host's monotonic clock, in milliseconds.
    pub fn mono_ms(&self) -> i64 {
        self.clock.mono().as_millis() as i64
    }

    /// Narrows the bounds by an answer whose `Date` is `date_ms`, to a request that was sent at `sent_ms`.
    pub fn learn(&self, sent_ms: i64, date_ms: i64) {
        let now = self.mono_ms();
        let fresh = Bounds {
            lo: date_ms - now,
            // Both readings are whole milliseconds, rounded down.
            hi: date_ms + 1_000 + STALE_MS - sent_ms + 1,
            at: now,
            stray: self.stray(),
            slack: 0,
            slack_until: 0,
        };
        let mut bounds = self.lock();
        *bounds = Some(match self.aged(*bounds, now) {
            Some(known) => known.meet(fresh),
            None => fresh,
        });
    }

    /// The earliest and the latest time that it can be now. `None`: no answer has had a `Date` yet.
    pub fn now(&self) -> Option<(u64, u64)> {
        let now = self.mono_ms();
        let known = self.aged(*self.lock(), now)?;
        let lo = now + known.lo - known.slack;
        let hi = now + known.hi + known.slack;
        Some((lo.max(0) as u64, hi.max(0) as u64))
    }

    /// The time to judge by (the earliest possible) and the time to grant by (the latest possible).
    pub fn clock_reading(&self, store: &str) -> Result<ClockReading> {
        let (judging_ms, granting_ms) = self.now().ok_or_else(|| Error::Unavailable {
            store: store.to_owned(),
            what: "no answer has had a Date header yet".to_owned(),
        })?;
        Ok(ClockReading { judging_ms, granting_ms, back_ms: 0 })
    }

    /// The earliest time that the store's clock can have shown when this host's monotonic clock showed
    /// `mono_ms`. `None`: no answer has had a `Date` yet.
    pub fn earliest_at(&self, mono_ms: i64) -> Option<u64> {
        let known = (*self.lock())?;
        Some((mono_ms + known.lo).max(0) as u64)
    }

    /// How far the store's clock is ahead of this host's wall clock; `None`: that is not known yet.
    pub fn offset(&self) -> Option<Offset> {
        let (lo, hi) = self.now()?;
        let wall = self.clock.wall_ms() as i64;
        Some(Offset { lo_ms: lo as i64 - wall, hi_ms: hi as i64 - wall })
    }

    /// The bounds at `now`, widened by drift. `None` if the host slept, because its monotonic clock stood
    /// still.
    fn aged(&self, known: Option<Bounds>, now: i64) -> Option<Bounds> {
        let known = known?;
        if (self.stray() - known.stray).abs() > STRAY_MS_MAX {
            return None;
        }
        let drift = (now - known.at).max(0) * DRIFT_PPM / 1_000_000;
        let slack = if now < known.slack_until { known.slack } else { 0 };
        // With a newer time here, many small steps would round the drift away.
        let at = if drift > 0 { now } else { known.at };
        Some(Bounds { lo: known.lo - drift, hi: known.hi + drift, at, slack, ..known })
    }

    fn stray(&self) -> i64 {
        self.clock.wall_ms() as i64 - self.mono_ms()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Bounds>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bounds {
    /// The intersection of both bounds; if it is empty, the newer bounds with a slack.
    fn meet(self, fresh: Bounds) -> Bounds {
        let (lo, hi) = (self.lo.max(fresh.lo), self.hi.min(fresh.hi));
        if lo < hi {
            return Bounds { lo, hi, stray: fresh.stray, ..self };
        }
        let gap = (fresh.lo - self.hi).max(self.lo - fresh.hi);
        if gap > DIFFER_MS_MAX {
            return fresh;
        }
        let slack_until = fresh.at + SLACK_FOR.as_millis() as i64;
        // The slack spans everything that both answers allowed.
        let slack = self.slack.max(gap + (self.hi - self.lo));
        Bounds { slack, slack_until, ..fresh }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lapsed_core::clock::ManualClock;

    use super::*;

    fn made() -> (ManualClock, StoreClock) {
        let clock = ManualClock::at(50_000);
        (clock.clone(), StoreClock::new(Arc::new(clock)))
    }

    #[test]
    fn a_whole_second_bounds_the_time_and_many_bound_it_better() {
        let (clock, store) = made();
        assert!(store.now().is_none() && store.clock_reading("s").is_err());
        // The store's clock is 7,300 ms ahead of the monotonic one.
        let date = |mono: i64| (mono + 7_300) / 1_000 * 1_000;
        store.learn(0, date(0));
        assert_eq!(store.now(), Some((7_000, 8_051)));
        for _ in 0..40 {
            clock.advance(Duration::from_millis(130));
            let sent = store.mono_ms();
            store.learn(sent, date(sent));
            let (lo, hi) = store.now().unwrap();
            let truth = sent as u64 + 7_300;
            assert!(lo <= truth && truth <= hi, "{lo} <= {truth} <= {hi}");
        }
        let (lo, hi) = store.now().unwrap();
        assert!(hi - lo < 200, "{lo} {hi}");
        assert!(store.offset().unwrap().lo_ms < 0);
    }

    #[test]
    fn a_slow_answer_widens_and_never_lies() {
        let (clock, store) = made();
        let sent = store.mono_ms();
        clock.advance(Duration::from_secs(3));
        store.learn(sent, 9_000);
        assert_eq!(store.now(), Some((9_000, 9_000 + 1_051 + 3_000)));
    }

    #[test]
    fn clock_bounds_widen_with_age() {
        let (clock, store) = made();
        store.learn(0, 7_000);
        clock.advance(Duration::from_secs(10_000));
        let (lo, hi) = store.now().unwrap();
        assert_eq!((lo, hi), (10_007_000 - 2_000, 10_008_051 + 2_000));
    }

    #[test]
    fn machines_that_differ_are_both_believed_for_a_while() {
        let (clock, store) = made();
        store.learn(0, 7_000);
        store.learn(0, 10_000);
        let (lo, hi) = store.now().unwrap();
        assert!(lo <= 7_000 && hi >= 11_000, "{lo} {hi}");
        clock.advance(SLACK_FOR + Duration::from_secs(1));
        let (lo, hi) = store.now().unwrap();
        assert!(hi - lo < 1_500, "{lo} {hi}");
    }

    #[test]
    fn a_host_that_slept_knows_nothing() {
        let (clock, store) = made();
        store.learn(0, 7_000);
        clock.jump_wall(3_600_000);
        assert!(store.now().is_none());
        store.learn(store.mono_ms(), 3_607_000);
        assert_eq!(store.now(), Some((3_607_000, 3_608_051)));
    }

    #[test]
    fn a_clock_that_was_set_is_believed() {
        let (_clock, store) = made();
        store.learn(0, 7_000);
        store.learn(0, 3_607_000);
        assert_eq!(store.now(), Some((3_607_000, 3_608_051)));
    }
}
