//! The store's clock, which also detects that the store was away.
//!
//! Deadlines are judged by one clock that never goes back: the wall clock at opening, moved on by
//! the monotonic clock. If this process is frozen or its host sleeps, heartbeats cannot arrive
//! either, so a gap between two readings counts as an absence of the store (P7). The guard itself
//! reads the clock, so that the first thread that runs after the gap detects it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lapsed_core::clock::Clock;

pub(crate) struct StoreClock {
    clock: Arc<dyn Clock>,
    /// Store time minus monotonic time, in milliseconds. Only grows.
    offset_ms: AtomicU64,
    /// The monotonic clock and the wall clock at the last reading.
    seen_mono_ms: AtomicU64,
    seen_wall_ms: AtomicU64,
    /// Since when the store has been serving without a gap.
    back_ms: AtomicU64,
    /// The longest gap that is not an absence; `u64::MAX` if nothing reads the clock regularly.
    gap_max_ms: AtomicU64,
}

/// Gaps up to this are never an absence, because schedulers and disks cause them.
const GAP_FLOOR_MS: u64 = 250;
/// Gaps longer than this are always an absence.
const GAP_CEILING_MS: u64 = 5_000;

impl StoreClock {
    /// `high_ms` is the latest time that this store has ever written to disk. The clock starts
    /// after it, so that everything older is recognised as from before the opening.
    pub fn new(clock: Arc<dyn Clock>, high_ms: u64, watched: bool) -> Self {
        let (mono, wall) = (clock.mono().as_millis() as u64, clock.wall_ms());
        let now = wall.max(high_ms + 1);
        StoreClock {
            offset_ms: AtomicU64::new(now.saturating_sub(mono)),
            seen_mono_ms: AtomicU64::new(mono),
            seen_wall_ms: AtomicU64::new(wall),
            back_ms: AtomicU64::new(now),
            gap_max_ms: AtomicU64::new(if watched { GAP_CEILING_MS } else { u64::MAX }),
            clock,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.offset_ms.load(Ordering::Relaxed) + self.clock.mono().as_millis() as u64
    }

    /// The time, rounded up.
    pub fn ceil_ms(&self) -> u64 {
        let mono_ms = self.clock.mono().as_nanos().div_ceil(1_000_000) as u64;
        self.offset_ms.load(Ordering::Relaxed) + mono_ms
    }

    /// The clock for granting a TTL: cheap to read, and at most a few milliseconds ahead, so that
    /// nobody gets less than the whole TTL. Never use it for judging.
    pub fn granting_ms(&self) -> u64 {
        self.offset_ms.load(Ordering::Relaxed) + self.clock.mono_ceil_ms()
    }

    /// Takes a TTL into account: gaps longer than half of it are absences. An owner that sends
    /// heartbeats at a third of its TTL is still in time after a shorter gap.
    pub fn mind_ttl(&self, ttl_ms: u64) {
        if self.gap_max_ms.load(Ordering::Relaxed) != u64::MAX {
            let gap = (ttl_ms / 2).clamp(GAP_FLOOR_MS, GAP_CEILING_MS);
            self.gap_max_ms.fetch_min(gap, Ordering::Relaxed);
        }
    }

    /// Reads the clock: the time, and since when the store has been serving without a gap.
    pub fn look(&self) -> (u64, u64) {
        let (mono, wall) = (self.clock.mono().as_millis() as u64, self.clock.wall_ms());
        let mono_gap = mono.saturating_sub(self.seen_mono_ms.fetch_max(mono, Ordering::AcqRel));
        let wall_gap = wall.saturating_sub(self.seen_wall_ms.swap(wall, Ordering::AcqRel));
        let gap_max = self.gap_max_ms.load(Ordering::Relaxed);
        if mono_gap.max(wall_gap) > gap_max {
            // Every owner gets a whole TTL from now, so the clock may catch up with the wall clock.
            self.offset_ms.fetch_max(wall.saturating_sub(mono), Ordering::AcqRel);
            let now = self.now_ms();
            self.back_ms.fetch_max(now, Ordering::AcqRel);
            tracing::warn!(gap_ms = mono_gap.max(wall_gap), "the store was away");
        }
        (self.now_ms(), self.back_ms.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapsed_core::clock::ManualClock;
    use std::time::Duration;

    #[test]
    fn a_gap_between_readings_is_an_absence() {
        let clock = ManualClock::at(1_000_000);
        let store_clock = StoreClock::new(Arc::new(clock.clone()), 0, true);
        store_clock.mind_ttl(2_000);
        for _ in 0..20 {
            clock.advance(Duration::from_millis(900));
            assert_eq!(store_clock.look().1, 1_000_000);
        }
        clock.advance(Duration::from_secs(30));
        let (now, back) = store_clock.look();
        assert_eq!((now, back), (1_048_000, 1_048_000));
    }

    #[test]
    fn trap_x8_a_sleeping_host_is_an_absence() {
        let clock = ManualClock::at(1_000_000);
        let store_clock = StoreClock::new(Arc::new(clock.clone()), 0, true);
        clock.jump_wall(3_600_000);
        let (now, back) = store_clock.look();
        assert_eq!(now, 4_600_000, "the clock catches up with the wall");
        assert_eq!(back, now);
        clock.jump_wall(-3_600_000);
        assert_eq!(store_clock.look().0, 4_600_000, "and never goes back");
    }

    #[test]
    fn the_clock_starts_after_every_stored_time() {
        let clock = ManualClock::at(1_000);
        let store_clock = StoreClock::new(Arc::new(clock.clone()), 5_000, true);
        assert_eq!(store_clock.now_ms(), 5_001);
        clock.advance(Duration::from_millis(7));
        assert_eq!(store_clock.now_ms(), 5_008);
    }
}
