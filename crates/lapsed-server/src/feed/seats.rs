//! How many may listen at a time, and the account of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::metrics::EventSeries;

/// As many seats as there are.
pub struct Seats {
    taken: AtomicUsize,
    most: usize,
    series: EventSeries,
}

impl Seats {
    pub fn new(most: usize, series: EventSeries) -> Arc<Seats> {
        Arc::new(Seats { taken: AtomicUsize::new(0), most, series })
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most
    }

    /// One of them; none when all are taken.
    pub fn take(self: &Arc<Self>) -> Option<Seat> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        self.series.listeners.inc();
        Some(Seat { seats: self.clone() })
    }
}

/// The right to listen, until it is dropped.
pub struct Seat {
    seats: Arc<Seats>,
}

impl Seat {
    /// Whoever had it did not take what was sent.
    pub fn count_dropped(&self) {
        self.seats.series.dropped.inc();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::AcqRel);
        self.seats.series.listeners.dec();
    }
}
