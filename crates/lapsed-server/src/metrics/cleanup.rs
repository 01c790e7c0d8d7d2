//! The original's own series of orphan cleanup, by its names: sums over all systems of sessions.
//! They appear with the first such system.

use std::sync::Once;

use lapsed_core::sweep::PassReport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BySkipped {
    reason: String,
}

/// What is shown at zero from the start; others appear when they happen.
const SKIPPED: &[&str] = &["active", "gone", "store_away", "unreadable", "brake", "in_doubt"];

/// The series of orphan cleanup.
pub struct SessionSeries {
    shown: Once,
    disconnected: Gauge,
    seconds: Histogram,
    deleted: Counter,
    skipped: Family<BySkipped, Counter>,
    scanned: Counter,
}

impl SessionSeries {
    pub fn new() -> SessionSeries {
        let buckets =
            [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
        SessionSeries {
            shown: Once::new(),
            disconnected: Gauge::default(),
            seconds: Histogram::new(buckets),
            deleted: Counter::default(),
            skipped: Family::default(),
            scanned: Counter::default(),
        }
    }

    /// The encoder appends `_total` to the name of a counter by itself.
    pub fn introduce(&self, to: &mut Registry) {
        self.shown.call_once(|| {
            for reason in SKIPPED {
                drop(self.skipped.get_or_create(&BySkipped { reason: (*reason).to_owned() }));
            }
            let help = "Sessions that nobody is connected to";
            to.register("disconnected_sessions_count", help, self.disconnected.clone());
            let help = "How long passes over orphaned sessions took";
            to.register("orphan_cleanup_duration_seconds", help, self.seconds.clone());
            to.register("orphan_sessions_deleted", "Orphans deleted", self.deleted.clone());
            let help = "Suspects that were no orphans after all, by why";
            to.register("orphan_sessions_skipped", help, self.skipped.clone());
            let help = "Keys that reconciling had to scan";
            to.register("orphan_cleanup_keys_scanned", help, self.scanned.clone());
        });
    }

    pub fn gauge(&self, disconnected: u64) {
        self.disconnected.set(disconnected as i64);
    }

    pub fn deleted(&self) {
        self.deleted.inc();
    }

    pub fn scanned(&self, keys: u64) {
        self.scanned.inc_by(keys);
    }

    pub fn passed(&self, report: &PassReport) {
        self.seconds.observe(report.took_ms as f64 / 1e3);
        for (reason, count) in &report.skipped {
            let labels = BySkipped { reason: reason.clone() };
            self.skipped.get_or_create(&labels).inc_by(*count);
        }
    }
}
