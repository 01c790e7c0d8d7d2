//! The series of object stores: requests that were sent, and the offset of the store's clock. They
//! are registered with the first object store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use lapsed_object::{Offset, RequestCounts, RequestKind};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::labels::OfSystem;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByRequest {
    store: String,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfStore {
    store: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByBound {
    store: String,
    bound: &'static str,
}

/// The series of object stores. The stores do the counting; the series copy their counts at each
/// scrape.
#[derive(Default)]
pub struct Requests {
    shown: OnceLock<()>,
    requests: Family<ByRequest, Counter>,
    throttled: Family<OfStore, Counter>,
    withheld: Family<OfStore, Counter>,
    offset_seconds: Family<ByBound, Gauge<f64, AtomicU64>>,
    entries_deleted: Family<OfSystem, Counter>,
}

impl Requests {
    /// Makes the series of one store appear at zero. The encoder appends `_total` to the names of
    /// counters, and the unit to those of gauges.
    pub fn introduce(&self, store: &str, to: &mut Registry) {
        self.shown.get_or_init(|| {
            let help = "Requests sent to object stores, by kind";
            to.register("lapsed_store_requests", help, self.requests.clone());
            let help = "Requests that the store refused because there were too many";
            to.register("lapsed_store_throttled", help, self.throttled.clone());
            let help = "Requests that were not sent, because the budget of the hour was used up";
            to.register("lapsed_store_withheld", help, self.withheld.clone());
            let help = "How far the store's clock is ahead of this host's, at least and at most";
            let offset = self.offset_seconds.clone();
            to.register_with_unit("lapsed_store_clock_offset", help, Unit::Seconds, offset);
            let help = "Entries of the index of leases and decisions that were deleted";
            to.register("lapsed_index_entries_deleted", help, self.entries_deleted.clone());
        });
        self.show(store, &RequestCounts::default(), None);
    }

    pub fn show(&self, store: &str, counts: &RequestCounts, offset: Option<Offset>) {
        for kind in RequestKind::ALL {
            let labels = ByRequest { store: store.to_owned(), kind: kind.as_str() };
            let counter = self.requests.get_or_create(&labels);
            counter.inner().store(counts.of(kind), Ordering::Relaxed);
        }
        let of = OfStore { store: store.to_owned() };
        self.throttled.get_or_create(&of).inner().store(counts.throttled, Ordering::Relaxed);
        self.withheld.get_or_create(&of).inner().store(counts.withheld, Ordering::Relaxed);
        let Offset { lo_ms, hi_ms } = offset.unwrap_or(Offset { lo_ms: 0, hi_ms: 0 });
        for (bound, ms) in [("least", lo_ms), ("most", hi_ms)] {
            let labels = ByBound { store: store.to_owned(), bound };
            self.offset_seconds.get_or_create(&labels).set(ms as f64 / 1e3);
        }
    }

    pub fn show_deleted(&self, of: &OfSystem, entries: u64) {
        self.entries_deleted.get_or_create(of).inner().store(entries, Ordering::Relaxed);
    }
}
