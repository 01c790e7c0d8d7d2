//! The limit on concurrent listeners (`server.listeners_max`), and its metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::metrics::EventSeries;

/// A fixed number of slots, one per concurrent listener.
pub struct ListenerSlots {
    taken: AtomicUsize,
    most: usize,
    series: EventSeries,
}

impl ListenerSlots {
    pub fn new(most: usize, series: EventSeries) -> Arc<ListenerSlots> {
        Arc::new(ListenerSlots { taken: AtomicUsize::new(0), most, series })
    }

    /// The number of slots, taken or not.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Takes a slot; `None` if all are taken.
    pub fn take(self: &Arc<Self>) -> Option<ListenerSlot> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        self.series.listeners.inc();
        Some(ListenerSlot { slots: self.clone() })
    }
}

/// The right to listen. Dropping it frees the slot.
pub struct ListenerSlot {
    slots: Arc<ListenerSlots>,
}

impl ListenerSlot {
    /// Counts that the listener of this slot was disconnected because it did not read what was
    /// sent.
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
