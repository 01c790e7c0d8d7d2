//! Receives every event of the systems in this process. Records it in the status history and in the
//! log, wakes the readers that follow the receipts, and forwards it to the next observer (the
//! metrics).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::receipt::{Observer, Reason, Receipt};
use lapsed_core::reconcile::{IndexChange, ReconcileEnd, ReconcileReport, Reconciled};
use lapsed_core::sweep::{PassMode, PassReport, Stopped};
use lapsed_core::{Error, SystemId};
use tokio::sync::watch;

use super::status_history::StatusHistory;
use super::store_outages::StoreOutages;

pub struct Journal {
    next: Arc<dyn Observer>,
    history: StatusHistory,
    outages: Arc<StoreOutages>,
    wake: watch::Sender<()>,
    /// How many entries of each system were reclaimed since its last pass ended.
    logged: Mutex<HashMap<SystemId, u64>>,
}

/// The most reclaims of one pass that have a line each in the log; the others are counted in one line.
const LOGGED_MAX: u64 = 100;

impl Journal {
    /// A journal that forwards every event to `next`.
    pub fn new(next: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Self {
        let outages = Arc::new(StoreOutages::new(clock.clone()));
        let (history, wake) = (StatusHistory::new(clock), watch::Sender::new(()));
        Journal { next, history, outages, wake, logged: Mutex::default() }
    }

    /// The report of the last pass of a system in this process, if there was one.
    pub fn last_pass(&self, system: &SystemId) -> Option<PassReport> {
        self.history.last_pass(system)
    }

    /// The stores that do not answer, and how many calls have failed.
    pub fn outages(&self) -> &Arc<StoreOutages> {
        &self.outages
    }

    /// The recent history of each system.
    pub fn status_history(&self) -> &StatusHistory {
        &self.history
    }

    /// Changes whenever there may be new receipts. The receipts themselves must be read from the
    /// store.
    pub fn wakeups(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }
}

impl Journal {
    fn log_reclaim(&self, receipt: &Receipt) {
        let system = &receipt.id.system;
        let number = {
            let mut logged = self.logged.lock().expect("no holder of this lock panics");
            let number = logged.entry(system.clone()).or_default();
            *number += 1;
            *number
        };
        if number > LOGGED_MAX {
            return;
        }
        let Receipt { id, key, owner, reason, .. } = receipt;
        let (kind, system, late_ms) = (system.kind, &system.name, receipt.evidence.late_ms);
        tracing::info!(%kind, %system, key = key.as_str(), owner = owner.as_str(), %reason, late_ms, receipt = %id, "reclaimed");
    }

    /// Ends the lines of one pass.
    fn log_rest(&self, report: &PassReport) {
        let PassReport { kind, system, .. } = report;
        let Ok(id) = SystemId::new(*kind, system) else { return };
        let logged = self.logged.lock().expect("no holder of this lock panics").remove(&id);
        let more = logged.unwrap_or(0).saturating_sub(LOGGED_MAX);
        if more > 0 {
            tracing::info!(%kind, %system, more, "reclaimed more, which have no line of their own; `lapsed receipts` lists them");
        }
    }
}

impl Observer for Journal {
    fn reclaimed(&self, receipt: &Receipt) {
        self.next.reclaimed(receipt);
        self.log_reclaim(receipt);
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
        if !report.dry_run {
            self.log_rest(report);
        }
        log_pass(report, self.outages.is_open(&report.system, &report.kind));
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
        self.outages.call_failed(system, error);
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

/// `counted`: the failure of the pass is counted among those of a store that does not answer.
fn log_pass(report: &PassReport, counted: bool) {
    let PassReport { system, kind, examined, suspects, reclaimed, stopped, took_ms, .. } = report;
    let detail = report.detail.as_deref().unwrap_or("");
    let left_alone = report.left_alone();
    match stopped {
        Stopped::Error if counted => {
            tracing::debug!(%kind, %system, examined, suspects, reclaimed, left_alone, %stopped, took_ms, detail, "pass failed");
        }
        Stopped::Error => {
            tracing::warn!(%kind, %system, examined, suspects, reclaimed, left_alone, %stopped, took_ms, detail, "pass failed");
        }
        Stopped::Done if *suspects == 0 && *reclaimed == 0 => {
            tracing::debug!(%kind, %system, examined, %stopped, took_ms, "pass");
        }
        _ => {
            let dry_run = report.dry_run;
            tracing::info!(%kind, %system, dry_run, examined, suspects, reclaimed, left_alone, %stopped, took_ms, detail, "pass");
        }
    }
}

fn log_reconciled(report: &ReconcileReport, ended: ReconcileEnd<'_>) {
    let ReconcileReport { system, kind, dry_run, examined, finished, took_ms, .. } = report;
    let drift = report.drift();
    match ended.error() {
        Some(error) => {
            tracing::warn!(%kind, %system, dry_run, examined, drift, took_ms, %error, "reconciliation failed before its end");
        }
        None => {
            tracing::info!(%kind, %system, dry_run, examined, drift, finished, took_ms, "reconciled");
        }
    }
}
