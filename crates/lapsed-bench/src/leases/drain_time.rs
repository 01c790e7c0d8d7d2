//! How fast something goes away, seen from outside: its number is looked at again and again.

use std::time::{Duration, Instant};

pub struct RemainingCounts {
    seen: Vec<CountLevel>,
}

/// A number that was seen, when first and when last.
struct CountLevel {
    left: usize,
    first: Instant,
    last: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrainTime {
    pub count: usize,
    /// From the first that was seen to be gone to the last, without the pauses.
    pub seconds: f64,
    /// Stretches in which nothing went.
    pub pauses: f64,
}

impl DrainTime {
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }
}

impl RemainingCounts {
    pub fn new(all: usize) -> Self {
        let now = Instant::now();
        RemainingCounts { seen: vec![CountLevel { left: all, first: now, last: now }] }
    }

    /// Notes that `left` of them are left now.
    pub fn saw(&mut self, left: usize) {
        self.saw_at(Instant::now(), left);
    }

    fn saw_at(&mut self, now: Instant, left: usize) {
        match self.seen.last_mut() {
            Some(level) if level.left == left => level.last = now,
            _ => self.seen.push(CountLevel { left, first: now, last: now }),
        }
    }

    /// From the first to the last; `None` if nothing has gone.
    pub fn result(&self) -> Option<DrainTime> {
        self.result_without(Duration::MAX)
    }

    /// The same without stretches longer than `pause` in which every look saw the same: whoever works
    /// by ticks does not work between them. A look that takes long is no pause.
    pub fn result_without(&self, pause: Duration) -> Option<DrainTime> {
        let [all, between @ .., end] = &self.seen[..] else { return None };
        let still = between.iter().map(|level| level.last - level.first);
        let pauses: Duration = still.filter(|still| *still > pause).sum();
        let seconds = (end.first - all.last - pauses).as_secs_f64();
        Some(DrainTime { count: all.left - end.left, seconds, pauses: pauses.as_secs_f64() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_the_last_look_that_saw_all_and_without_the_pauses() {
        let (mut watched, zero) = (RemainingCounts::new(100), Instant::now());
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        for (second, left) in [(5, 100), (10, 100), (14, 60), (15, 50), (19, 50), (20, 10), (21, 0)]
        {
            watched.saw_at(at(second), left);
        }
        let all = watched.result().unwrap();
        assert_eq!((all.count, all.seconds, all.pauses), (100, 11.0, 0.0));
        // Five seconds from 15 to 20, of which four were seen to be still.
        let busy = watched.result_without(Duration::from_secs(2)).unwrap();
        assert_eq!((busy.seconds, busy.pauses), (7.0, 4.0));
        assert_eq!(RemainingCounts::new(3).result(), None);
    }
}
