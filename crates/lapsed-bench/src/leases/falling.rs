//! How fast something goes away, seen from outside: its number is looked at again and again.

use std::time::{Duration, Instant};

/// Looking on.
pub struct Watched {
    /// When it was looked at, and how many there were, whenever that had changed.
    seen: Vec<(Instant, usize)>,
    /// The last look, whatever it saw.
    last: Option<Instant>,
}

/// How they went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Falling {
    pub count: usize,
    /// From the first that was seen to be gone to the last, without the pauses.
    pub seconds: f64,
    /// Stretches in which nothing went.
    pub pauses: f64,
}

impl Falling {
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }
}

impl Watched {
    pub fn new(all: usize) -> Self {
        Watched { seen: vec![(Instant::now(), all)], last: None }
    }

    /// So many are left.
    pub fn saw(&mut self, left: usize) {
        self.saw_at(Instant::now(), left);
    }

    fn saw_at(&mut self, now: Instant, left: usize) {
        let changed = self.seen.last().is_none_or(|(_, before)| *before != left);
        if changed {
            // It began to go after the look before this one.
            if let (1, Some(last)) = (self.seen.len(), self.last) {
                self.seen[0].0 = last;
            }
            self.seen.push((now, left));
        }
        self.last = Some(now);
    }

    /// From the first to the last; `None` if there was nothing to see.
    pub fn result(&self) -> Option<Falling> {
        self.result_without(Duration::MAX)
    }

    /// The same without stretches that are longer than `pause`: whoever works by ticks does not
    /// work between them.
    pub fn result_without(&self, pause: Duration) -> Option<Falling> {
        let (&(first, all), &(last, left)) = (self.seen.first()?, self.seen.last()?);
        let steps = self.seen.windows(2).map(|two| two[1].0 - two[0].0);
        let pauses: Duration = steps.filter(|step| *step > pause).sum();
        let seconds = (last - first - pauses).as_secs_f64();
        let fell = Falling { count: all - left, seconds, pauses: pauses.as_secs_f64() };
        (seconds > 0.0).then_some(fell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_from_the_look_before_the_first_change_and_without_the_pauses() {
        let (mut watched, zero) = (Watched::new(100), Instant::now());
        let at = |seconds: u64| zero + Duration::from_secs(seconds);
        for (second, left) in [(5, 100), (10, 100), (11, 60), (12, 50), (19, 50), (20, 10), (21, 0)] {
            watched.saw_at(at(second), left);
        }
        let all = watched.result().unwrap();
        assert_eq!((all.count, all.seconds, all.pauses), (100, 11.0, 0.0));
        let busy = watched.result_without(Duration::from_secs(2)).unwrap();
        assert_eq!((busy.seconds, busy.pauses), (3.0, 8.0));
    }
}
