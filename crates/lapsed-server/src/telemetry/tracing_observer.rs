//! Passes and reconciliations as spans, created from the events that an observer receives. A span
//! is created when its work has ended, and is dated back to the beginning.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lapsed_core::receipt::{Observer, Reason, Receipt};
use lapsed_core::reconcile::{ReconcileEnd, ReconcileReport, Reconciled};
use lapsed_core::sweep::{PassMode, PassReport, Stopped};
use lapsed_core::{Error, SystemId};
use opentelemetry::trace::{Span, SpanBuilder, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};

use super::Telemetry;

/// How many batches of one pass get a span of their own; the span of the pass has the total number.
const BATCHES_MAX: usize = 200;

/// An observer that creates spans and forwards every event to the next observer.
pub struct TracingObserver {
    next: Arc<dyn Observer>,
    telemetry: Arc<Telemetry>,
    /// The batches of passes that have not ended yet.
    batches: Mutex<HashMap<SystemId, Batches>>,
}

#[derive(Default)]
struct Batches {
    count: i64,
    kept: Vec<Batch>,
}

struct Batch {
    suspects: usize,
    took: Duration,
    ended: SystemTime,
}

impl TracingObserver {
    /// Forwards every event to `next`.
    pub fn new(next: Arc<dyn Observer>, telemetry: Arc<Telemetry>) -> Arc<TracingObserver> {
        Arc::new(TracingObserver { next, telemetry, batches: Mutex::default() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SystemId, Batches>> {
        self.batches.lock().expect("no holder of this lock panics")
    }

    /// Creates a span that began `took_ms` ago; the caller ends it.
    fn begin(&self, name: &'static str, took_ms: u64, attributes: Vec<KeyValue>) -> Context {
        let began = SystemTime::now() - Duration::from_millis(took_ms);
        let span = SpanBuilder::from_name(name).with_start_time(began).with_attributes(attributes);
        let parent = Context::current();
        let span = span.start_with_context(&self.telemetry.tracer, &parent);
        parent.with_span(span)
    }

    fn tell_batch(&self, pass: &Context, batch: &Batch) {
        let suspects = KeyValue::new("lapsed.suspects", batch.suspects as i64);
        let mut span = SpanBuilder::from_name("batch")
            .with_start_time(batch.ended - batch.took)
            .with_attributes([suspects])
            .start_with_context(&self.telemetry.tracer, pass);
        span.end_with_timestamp(batch.ended);
    }
}

fn of_pass(report: &PassReport, batches: i64) -> Vec<KeyValue> {
    vec![
        KeyValue::new("lapsed.system", report.system.clone()),
        KeyValue::new("lapsed.kind", report.kind.as_str()),
        KeyValue::new("lapsed.dry_run", report.dry_run),
        KeyValue::new("lapsed.stopped", report.stopped.to_string()),
        KeyValue::new("lapsed.examined", report.examined as i64),
        KeyValue::new("lapsed.suspects", report.suspects as i64),
        KeyValue::new("lapsed.reclaimed", report.reclaimed as i64),
        KeyValue::new("lapsed.batches", batches),
    ]
}

fn of_reconciliation(report: &ReconcileReport) -> Vec<KeyValue> {
    vec![
        KeyValue::new("lapsed.system", report.system.clone()),
        KeyValue::new("lapsed.kind", report.kind.as_str()),
        KeyValue::new("lapsed.dry_run", report.dry_run),
        KeyValue::new("lapsed.examined", report.examined as i64),
        KeyValue::new("lapsed.drift", report.drift() as i64),
    ]
}

impl Observer for TracingObserver {
    fn reclaimed(&self, receipt: &Receipt) {
        self.next.reclaimed(receipt);
    }

    fn cleared(&self, system: &SystemId, reason: Reason, late_ms: u64) {
        self.next.cleared(system, reason, late_ms);
    }

    fn batched(&self, system: &SystemId, suspects: usize, took: Duration) {
        self.next.batched(system, suspects, took);
        let mut all = self.lock();
        let batches = all.entry(system.clone()).or_default();
        batches.count += 1;
        if batches.kept.len() < BATCHES_MAX {
            batches.kept.push(Batch { suspects, took, ended: SystemTime::now() });
        }
    }

    fn passed(&self, report: &PassReport) {
        self.next.passed(report);
        let id = SystemId::new(report.kind, &report.system).ok();
        let batches = id.and_then(|id| self.lock().remove(&id)).unwrap_or_default();
        let pass = self.begin("pass", report.took_ms, of_pass(report, batches.count));
        batches.kept.iter().for_each(|batch| self.tell_batch(&pass, batch));
        if report.stopped == Stopped::Error {
            let why = report.detail.clone().unwrap_or_default();
            pass.span().set_status(Status::error(why));
        }
        pass.span().end();
    }

    fn zombie_rejected(&self, system: &SystemId) {
        self.next.zombie_rejected(system);
    }

    fn store_error(&self, system: &SystemId, error: &Error) {
        self.next.store_error(system, error);
    }

    fn healed(&self, system: &SystemId, page: &Reconciled, act: PassMode) {
        self.next.healed(system, page, act);
    }

    fn reconciled(&self, report: &ReconcileReport, ended: ReconcileEnd<'_>) {
        self.next.reconciled(report, ended);
        let span = self.begin("reconcile", report.took_ms, of_reconciliation(report));
        if let ReconcileEnd::Failed(error) = ended {
            span.span().set_status(Status::error(error.to_string()));
        }
        span.span().end();
    }
}
