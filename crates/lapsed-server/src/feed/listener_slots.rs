//! How many may listen at a time, and the account of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::metrics::EventSeries;

/// As many slots as there are.
pub struct ListenerSlots {
    taken: AtomicUsize,
    most: usize,
    series: EventSeries,
}

impl ListenerSlots {
    pub fn new(most: usize, series: EventSeries) -> Arc<ListenerSlots> {
        Arc::new(ListenerSlots { taken: AtomicUsize::new(0), most, series })
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most
    }

    /// One of them; none when all are taken.
    pub fn take(self: &Arc<Self>) -> Option<ListenerSlot> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        self.series.listeners.inc();
        Some(ListenerSlot { slots: self.clone() })
    }
}

/// The right to listen, until it is dropped.
pub struct ListenerSlot {
    slots: Arc<ListenerSlots>,
}

impl ListenerSlot {
    /// Whoever had it did not take what was sent.
    pub fn count_dropped(&self) {
        self.slots.series.dropped.inc();
    }
}

impl Drop for ListenerSlot {
    fn drop(&mut self) {
        self.slots.taken.fetch_sub(1, Ordering::AcqRel);
        self.slots.series.listeners.dec();
    }
}
