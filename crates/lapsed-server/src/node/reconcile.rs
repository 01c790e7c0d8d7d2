//! Reconciles the index of one system with its truth, in bounded pages, on demand or on a schedule.
//!
//! A page that fails ends the run, but the report stays exact: it counts what was done before the
//! failure, and has the cursor from which to resume.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{Either, select};
use lapsed_core::clock::{Clock, call_within, jittered};
use lapsed_core::receipt::{NoObserver, Observer};
use lapsed_core::reconcile::{
    self, IndexChange, Reconcile, ReconcileEnd, ReconcilePlan, Reconciled,
};
use lapsed_core::schedule::{StopHandle, StopSignal};
use lapsed_core::setters;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_core::{Error, Result, SystemId};

use super::live::LIST_MAX;
use super::shapes::Reconciliation;

/// How many rows one page has, which one store call examines.
const PAGE: usize = 500;

/// The pause between two pages, in which the store can serve other callers.
const PAUSE: Duration = Duration::from_millis(1);

/// The share of the interval by which scheduled runs are moved at random, so that replicas do not
/// run at the same time.
const JITTER: f64 = 0.1;

/// The longest wait before a run that failed is repeated.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// The parameters of one run.
#[derive(Clone, Debug)]
pub struct ReconcileOrder {
    /// Whether to repair the index or only to report the differences.
    pub act: PassMode,
    pub after: Cursor,
    /// How many changes the report lists at most.
    pub list: usize,
}

/// The parameters of a [`Reconciler`].
pub struct ReconcilerParts {
    /// The system whose index is reconciled.
    id: SystemId,
    index: Arc<dyn Reconcile>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    /// The time limit of one page.
    timeout: Duration,
    /// The interval of scheduled runs; `None`: only on demand.
    every: Option<Duration>,
}

impl ReconcilerParts {
    /// A reconciler without a schedule: it runs only on demand.
    pub fn new(id: SystemId, index: Arc<dyn Reconcile>, clock: Arc<dyn Clock>) -> Self {
        let timeout = Policy::default().timeout;
        ReconcilerParts { id, index, clock, observer: Arc::new(NoObserver), timeout, every: None }
    }

    setters! {
        /// The time limit of one page; by default 5 s.
        timeout: Duration;
        /// The interval of scheduled runs; by default there are none.
        every: Option<Duration>;
    }

    /// The observer that every page and every run is reported to, for metrics and logs.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }
}

/// Makes one index agree with its truth.
pub struct Reconciler {
    parts: ReconcilerParts,
}

impl Reconciler {
    pub fn new(parts: ReconcilerParts) -> Reconciler {
        Reconciler { parts }
    }

    /// Estimates how many rows there are; `None` if the store does not say.
    pub async fn extent(&self) -> Option<u64> {
        self.call("extent", self.parts.index.extent()).await.ok()
    }

    /// Estimates how many requests a whole run takes; `None` where requests cost nothing.
    pub async fn cost(&self) -> Result<Option<u64>> {
        self.call("cost", self.parts.index.cost()).await
    }

    /// Runs until all rows were examined, until `stop` is signalled, or until a page fails. Calls
    /// `tell` after each page with the number of rows that it had.
    pub async fn run(
        &self,
        order: ReconcileOrder,
        stop: &StopSignal,
        tell: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Reconciliation> {
        let (stopper, inner) = StopSignal::channel();
        if stop.is_stopped() {
            stopper.stop();
        }
        let whole = order.after == Cursor::default();
        let pages = Pages { of: self, stopper, stop, error: Mutex::default() };
        let plan = ReconcilePlan { after: order.after, page: PAGE, pause: PAUSE, act: order.act };
        let mut changes = Vec::new();
        let mut cut = false;
        let limit = order.list.min(LIST_MAX);
        let mut note = |page: &Reconciled| {
            cut |= list(&mut changes, &page.changes, limit);
            tell(page.examined);
        };
        let clock = &*self.parts.clock;
        let report = reconcile::run(&self.parts.id, &pages, clock, plan, &inner, &mut note).await?;
        let error = pages.error();
        let ended = match &error {
            Some(error) => ReconcileEnd::Failed(error),
            None if whole && report.finished => ReconcileEnd::Whole,
            None => ReconcileEnd::Part,
        };
        self.parts.observer.reconciled(&report, ended);
        let error = error.map(|error| error.to_string());
        Ok(Reconciliation { report, changes, changes_cut: cut, error })
    }

    /// Runs on the schedule until `stop` is signalled; the first run is one interval from now. A
    /// run that failed is repeated earlier. Runs are skipped while `may` returns false, because
    /// another process is responsible.
    pub async fn keep(&self, stop: StopSignal, may: impl Fn() -> bool) {
        let Some(every) = self.parts.every else { return };
        let mut wait = every;
        loop {
            let nap = self.parts.clock.sleep(jittered(&*self.parts.clock, wait, JITTER));
            if let Either::Left(_) = select(Box::pin(stop.stopped()), nap).await {
                return;
            }
            wait = every;
            if !may() {
                continue;
            }
            let act = self.parts.index.scheduled_mode();
            let order = ReconcileOrder { act, after: Cursor::default(), list: 0 };
            // The observer has already put the result into the log and the metrics.
            let done = self.run(order, &stop, &mut |_| {}).await;
            if done.is_ok_and(|done| done.error.is_some()) {
                wait = (every / 10).min(RETRY_MAX);
            }
        }
    }

    /// Runs a store call with a time limit, and reports a failure to the observer (trap X1).
    async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let ReconcilerParts { id, clock, timeout, observer, .. } = &self.parts;
        let answer = call_within(&**clock, *timeout, id, what, call).await;
        if let Err(error) = &answer {
            observer.store_error(id, error);
        }
        answer
    }
}

/// Appends `more` to `changes` up to `limit` elements. Returns whether some were left out.
fn list(changes: &mut Vec<IndexChange>, more: &[IndexChange], limit: usize) -> bool {
    let room = limit.saturating_sub(changes.len());
    changes.extend(more.iter().take(room).cloned());
    limit > 0 && more.len() > room
}

/// Wraps the index for the library's run: an error stops the run in an orderly way, so that the
/// report of what was done is not lost.
struct Pages<'r> {
    of: &'r Reconciler,
    stopper: StopHandle,
    stop: &'r StopSignal,
    error: Mutex<Option<Error>>,
}

impl Pages<'_> {
    fn error(&self) -> Option<Error> {
        self.error.lock().expect("no holder of this lock panics").take()
    }
}

#[async_trait]
impl Reconcile for Pages<'_> {
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled> {
        let parts = &self.of.parts;
        let page = parts.index.reconcile(after.clone(), limit, act);
        let page = match self.of.call("reconcile", page).await {
            Ok(page) => page,
            Err(error) => {
                *self.error.lock().expect("no holder of this lock panics") = Some(error);
                self.stopper.stop();
                return Ok(Reconciled { next: Some(after), ..Reconciled::default() });
            }
        };
        parts.observer.healed(&parts.id, &page, act);
        if self.stop.is_stopped() {
            self.stopper.stop();
        }
        Ok(page)
    }

    async fn extent(&self) -> Result<u64> {
        self.of.parts.index.extent().await
    }
}

#[cfg(test)]
mod tests;
