//! The series of orphan cleanup under the names that the original application uses: sums over all
//! systems of sessions. They are registered with the first such system.

use std::sync::Once;

use lapsed_core::receipt::Receipt;
use lapsed_core::reconcile::Reconciled;
use lapsed_core::sessions::Sessions;
use lapsed_core::sweep::PassReport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::labels::OfSystem;
use crate::metrics::{KindMetrics, Metrics};
use crate::node::OpenSystems;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BySkipped {
    reason: String,
}

/// Reasons whose series start at zero; other reasons appear when they first occur.
const SKIPPED: &[&str] = &[
    "active",
    "alive",
    "brake",
    "gone",
    "in_doubt",
    "moved",
    "not_leader",
    "store_away",
    "unreadable",
];

/// The series of the cleanup of orphaned sessions.
pub struct SessionSeries {
    shown: Once,
    disconnected: Gauge,
    seconds: Histogram,
    deleted: Counter,
    skipped: Family<BySkipped, Counter>,
    scanned: Counter,
}

impl Default for SessionSeries {
    fn default() -> SessionSeries {
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
}

impl KindMetrics for SessionSeries {
    fn introduce(&self, _of: &OfSystem, to: &mut Registry) {
        self.shown.call_once(|| {
            for reason in SKIPPED {
                drop(self.skipped.get_or_create(&BySkipped { reason: (*reason).to_owned() }));
            }
            let help = "Sessions that nobody is connected to";
            to.register("disconnected_sessions_count", help, self.disconnected.clone());
            let help = "How long passes over orphaned sessions took";
            to.register("orphan_cleanup_duration_seconds", help, self.seconds.clone());
            to.register("orphan_sessions_deleted", "Orphans deleted", self.deleted.clone());
            let help = "Suspects that turned out not to be orphans, by reason";
            to.register("orphan_sessions_skipped", help, self.skipped.clone());
            let help = "Keys that reconciling had to scan";
            to.register("orphan_cleanup_keys_scanned", help, self.scanned.clone());
        });
    }

    fn reclaimed(&self, _of: &OfSystem, _receipt: &Receipt) {
        self.deleted.inc();
    }

    fn healed(&self, page: &Reconciled) {
        self.scanned.inc_by(page.examined);
    }

    fn passed(&self, report: &PassReport) {
        self.seconds.observe(report.took_ms as f64 / 1e3);
        for (reason, count) in &report.skipped {
            let labels = BySkipped { reason: reason.clone() };
            self.skipped.get_or_create(&labels).inc_by(*count);
        }
    }
}

/// Counts the disconnected sessions of all systems of sessions. If a store does not answer, the
/// gauge keeps its value.
pub async fn scrape(metrics: &Metrics, systems: &OpenSystems) {
    let mut disconnected = 0;
    for sessions in systems.systems().iter().filter_map(|live| live.operations::<Sessions>()) {
        match sessions.disconnected_count().await {
            Ok(count) => disconnected += count,
            Err(_) => return,
        }
    }
    if let Some(series) = metrics.of::<SessionSeries>() {
        series.disconnected.set(disconnected as i64);
    }
}
