//! The series of reconciliation: how far indexes and their truths had drifted apart, and what was
//! repaired.

use lapsed_core::reconcile::{Healed, ReconcileEnd, ReconcileReport, Reconciled};
use lapsed_core::sweep::PassMode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::{ByChange, ByEnded, OfSystem};

/// The values of the label `ended`: how a reconciliation can end.
const ENDED: &[&str] = &["agree", "drift", "part", "error"];

/// The series of the reconciliation of all systems.
#[derive(Default)]
pub struct ReconcileSeries {
    drift: Family<OfSystem, Gauge>,
    changes: Family<ByChange, Counter>,
    runs: Family<ByEnded, Counter>,
}

impl ReconcileSeries {
    pub fn register(&self, to: &mut Registry) {
        let help = "Differences between index and truth that the last whole run found";
        to.register("lapsed_drift", help, self.drift.clone());
        to.register("lapsed_reconciled", "Changes made to indexes", self.changes.clone());
        to.register("lapsed_reconcile", "Reconciliations, by how they ended", self.runs.clone());
    }

    /// Makes the series appear at zero, for a system that has an index.
    pub fn introduce(&self, of: &OfSystem) {
        drop(self.drift.get_or_create(of));
        for change in Healed::ALL {
            drop(self.changes.get_or_create(&of.by_change(*change)));
        }
        for ended in ENDED {
            drop(self.runs.get_or_create(&of.by_ended(ended)));
        }
    }

    /// Counts one page. Dry runs change nothing and are not counted.
    pub fn page(&self, of: &OfSystem, page: &Reconciled, act: PassMode) {
        if !act.reclaims() {
            return;
        }
        for change in &page.changes {
            self.changes.get_or_create(&of.by_change(change.what)).inc();
        }
    }

    /// Counts a run that ended. Only a run that examined everything sets the gauge of the drift.
    pub fn ended(&self, of: &OfSystem, report: &ReconcileReport, ended: ReconcileEnd<'_>) {
        let word = match (ended.is_whole(), report.agree) {
            (true, true) => "agree",
            (true, false) => "drift",
            (false, _) if ended.error().is_some() => "error",
            (false, _) => "part",
        };
        self.runs.get_or_create(&of.by_ended(word)).inc();
        if ended.is_whole() {
            self.drift.get_or_create(of).set(report.drift() as i64);
        }
    }
}
