//! Reconciling one system: bounded pages, an exact account whatever happens, and the schedule.
//!
//! A page that fails ends the run but not the account: what was done before it is told, with the
//! cursor from which to go on.

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

/// Rows a page: what one store call looks at.
const PAGE: usize = 500;

/// The pause between two pages: others are served in between.
const PAUSE: Duration = Duration::from_millis(1);

/// Share of the interval by which a scheduled run is moved, so that replicas do not meet.
const JITTER: f64 = 0.1;

/// The longest wait after a run that broke off.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// How one run is wanted.
#[derive(Clone, Debug)]
pub struct ReconcileOrder {
    /// Whether to change anything.
    pub act: PassMode,
    pub after: Cursor,
    /// Name up to so many of the changes.
    pub list: usize,
}

/// What a reconciler is made of.
pub struct ReconcilerParts {
    /// Whose index it is.
    id: SystemId,
    index: Arc<dyn Reconcile>,
    clock: Arc<dyn Clock>,
    witness: Arc<dyn Observer>,
    /// How long one page may take.
    timeout: Duration,
    /// How often it runs by itself; never without it.
    every: Option<Duration>,
}

impl ReconcilerParts {
    /// A reconciler that runs only when it is asked.
    pub fn new(id: SystemId, index: Arc<dyn Reconcile>, clock: Arc<dyn Clock>) -> Self {
        let timeout = Policy::default().timeout;
        ReconcilerParts { id, index, clock, witness: Arc::new(NoObserver), timeout, every: None }
    }

    setters! {
        /// How long one page may take; by default 5 s.
        timeout: Duration;
        /// How often it runs without being asked.
        every: Option<Duration>;
    }

    /// Is shown what happens, for metrics and logs.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.witness = observer;
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

    /// About how many rows there are; none when the store does not say.
    pub async fn extent(&self) -> Option<u64> {
        self.call("extent", self.parts.index.extent()).await.ok()
    }

    /// About how many requests it takes, where each has a price; none where they have none.
    pub async fn cost(&self) -> Result<Option<u64>> {
        self.call("cost", self.parts.index.cost()).await
    }

    /// Runs to the end, until stopped, or until a page fails. `tell` hears how many rows each page
    /// had.
    pub async fn run(
        &self,
        order: ReconcileOrder,
        stop: &StopSignal,
        tell: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Reconciliation> {
        let (stopper, inner) = StopSignal::channel();
        if stop.is_told() {
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
        self.parts.witness.reconciled(&report, ended);
        let error = error.map(|error| error.to_string());
        Ok(Reconciliation { report, changes, changes_cut: cut, error })
    }

    /// Runs every interval until told to stop, the first time one interval from now. One that broke
    /// off is tried again soon. `may` says whether it is this process's turn.
    pub async fn keep(&self, stop: StopSignal, may: impl Fn() -> bool) {
        let Some(every) = self.parts.every else { return };
        let mut wait = every;
        loop {
            let nap = self.parts.clock.sleep(jittered(&*self.parts.clock, wait, JITTER));
            if let Either::Left(_) = select(Box::pin(stop.told()), nap).await {
                return;
            }
            wait = every;
            if !may() {
                continue;
            }
            let order =
                ReconcileOrder { act: PassMode::Reclaim, after: Cursor::default(), list: 0 };
            // What it found is in the log and in the metrics.
            let done = self.run(order, &stop, &mut |_| {}).await;
            if done.is_ok_and(|done| done.error.is_some()) {
                wait = (every / 10).min(RETRY_MAX);
            }
        }
    }

    /// Every store call has a time limit, and a failure is counted (X1).
    async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let ReconcilerParts { id, clock, timeout, witness, .. } = &self.parts;
        let answer = call_within(&**clock, *timeout, id, what, call).await;
        if let Err(error) = &answer {
            witness.store_error(id, error);
        }
        answer
    }
}

/// Adds `more` up to `limit`; whether some were left off.
fn list(changes: &mut Vec<IndexChange>, more: &[IndexChange], limit: usize) -> bool {
    let room = limit.saturating_sub(changes.len());
    changes.extend(more.iter().take(room).cloned());
    limit > 0 && more.len() > room
}

/// The index as the library's run sees it: an error ends the run instead of losing its account.
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
        parts.witness.healed(&parts.id, &page, act);
        if self.stop.is_told() {
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
