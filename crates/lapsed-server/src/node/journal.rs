//! Receives every event of the systems in this process. Records it in the status history and in the
//! log, wakes the readers that follow the receipts, and forwards it to the next observer (the
//! metrics).

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::receipt::{Observer, Reason, Receipt};
use lapsed_core::reconcile::{IndexChange, ReconcileEnd, ReconcileReport, Reconciled};
use lapsed_core::sweep::{PassMode, PassReport, Stopped};
use lapsed_core::{Error, SystemId};
use tokio::sync::watch;

use super::status_history::StatusHistory;

pub struct Journal {
    next: Arc<dyn Observer>,
    history: StatusHistory,
    wake: watch::Sender<()>,
}

impl Journal {
    /// A journal that forwards every event to `next`.
    pub fn new(next: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Self {
        Journal { next, history: StatusHistory::new(clock), wake: watch::Sender::new(()) }
    }

    /// The report of the last pass of a system in this process, if there was one.
    pub fn last_pass(&self, system: &SystemId) -> Option<PassReport> {
        self.history.last_pass(system)
    }

    /// The recent history of each system.
    pub fn chronicle(&self) -> &StatusHistory {
        &self.history
    }

    /// Changes whenever there may be new receipts. The receipts themselves must be read from the
    /// store.
    pub fn wakeups(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }
}

impl Observer for Journal {
    fn reclaimed(&self, receipt: &Receipt) {
        self.next.reclaimed(receipt);
        self.history.reclaimed(&receipt.id.system, receipt.reason, receipt.evidence.late_ms);
        self.wake.send_replace(());
    }

    fn cleared(&self, system: &SystemId, reason: Reason, late_ms: u64) {
        self.next.cleared(system, reason, late_ms);
        self.history.reclaimed(system, reason, late_ms);
        self.wake.send_replace(());
    }

    fn batched(&self, system: &SystemId, suspects: usize, took: Duration) {
        self.next.batched(system, suspects, took);
    }

    fn passed(&self, report: &PassReport) {
        self.next.passed(report);
        log_pass(report);
        if report.dry_run {
            return;
        }
        let mut kept = report.clone();
        kept.entries = Vec::new();
        self.history.passed(kept);
    }

    fn zombie_rejected(&self, system: &SystemId) {
        self.next.zombie_rejected(system);
    }

    fn store_error(&self, system: &SystemId, error: &Error) {
        self.next.store_error(system, error);
        tracing::warn!(%system, %error, "store call failed");
    }

    fn healed(&self, system: &SystemId, page: &Reconciled, act: PassMode) {
        self.next.healed(system, page, act);
        for IndexChange { key, what, why } in &page.changes {
            let what = what.as_str();
            tracing::debug!(%system, key, what, why, dry_run = act == PassMode::DryRun, "drift");
        }
    }

    fn reconciled(&self, report: &ReconcileReport, ended: ReconcileEnd<'_>) {
        self.next.reconciled(report, ended);
        log_reconciled(report, ended);
    }
}

fn log_pass(report: &PassReport) {
    let PassReport { system, kind, examined, suspects, reclaimed, stopped, took_ms, .. } = report;
    let detail = report.detail.as_deref().unwrap_or("");
    match stopped {
        Stopped::Error => {
            tracing::warn!(%kind, %system, examined, suspects, reclaimed, %stopped, took_ms, detail, "pass failed");
        }
        Stopped::Done if *suspects == 0 && *reclaimed == 0 => {
            tracing::debug!(%kind, %system, examined, %stopped, took_ms, "pass");
        }
        _ => {
            let dry_run = report.dry_run;
            tracing::info!(%kind, %system, dry_run, examined, suspects, reclaimed, %stopped, took_ms, detail, "pass");
        }
    }
}

fn log_reconciled(report: &ReconcileReport, ended: ReconcileEnd<'_>) {
    let ReconcileReport { system, kind, dry_run, examined, finished, took_ms, .. } = report;
    let drift = report.drift();
    match ended {
        ReconcileEnd::Failed(error) => {
            tracing::warn!(%kind, %system, dry_run, examined, drift, took_ms, %error, "reconciliation failed before its end");
        }
        ReconcileEnd::Whole | ReconcileEnd::Part => {
            tracing::info!(%kind, %system, dry_run, examined, drift, finished, took_ms, "reconciled");
        }
    }
}
