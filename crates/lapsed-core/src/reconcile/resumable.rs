//! Scheduled runs on a store whose requests are paid: by the leader, while nobody uses the system,
//! slowly, and in as many parts as it takes. The position is kept in the store, so that a run goes on
//! where it stopped, in this process or in another one.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};

use super::{Reconcile, ReconcileEnd, ReconcileReport};
use crate::clock::{Clock, call_within, jittered};
use crate::error::Result;
use crate::name::SystemId;
use crate::receipt::Observer;
use crate::stop::StopSignal;
use crate::store::Store;
use crate::sweep::Cursor;
use crate::upkeep::{IdleRule, ReconcileState};

/// How often the leader looks whether a run is due or unfinished.
const LOOK_EVERY: Duration = Duration::from_secs(5 * 60);

/// How many rows are compared before the position is kept.
const PAGE: usize = 100;

const HOUR: Duration = Duration::from_secs(3_600);

/// Compares an index with its data on a schedule that all processes share.
pub struct ResumableReconcile {
    pub system: SystemId,
    pub index: Arc<dyn Reconcile>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub observer: Arc<dyn Observer>,
    /// When the system counts as idle; `None`: always.
    pub idle: Option<IdleRule>,
    /// Time from the start of one run to the start of the next.
    pub every: Duration,
    /// How many requests a run sends per hour on average. They do not count towards the budget of
    /// the system's users.
    pub requests_per_hour: u64,
    /// Time limit of every store call.
    pub timeout: Duration,
}

impl ResumableReconcile {
    /// Runs until `stop` is signalled. `leads` says whether this process is responsible. The very
    /// first run begins one interval after the first look.
    pub async fn keep(&self, stop: StopSignal, leads: impl Fn() -> bool) {
        loop {
            let nap = jittered(&*self.clock, LOOK_EVERY.min(self.every), 0.1);
            if self.is_stopped_within(nap, &stop).await {
                return;
            }
            if !leads() {
                continue;
            }
            if let Err(error) = self.look(&stop, &leads).await {
                self.observer.store_error(&self.system, &error);
            }
        }
    }

    async fn is_stopped_within(&self, nap: Duration, stop: &StopSignal) -> bool {
        let nap = self.clock.sleep(nap);
        matches!(select(Box::pin(stop.stopped()), nap).await, Either::Left(_))
    }

    /// Goes on with an unfinished run, or begins one if it is due.
    async fn look(&self, stop: &StopSignal, leads: &impl Fn() -> bool) -> Result<()> {
        let Some(upkeep) = self.store.upkeep() else { return Ok(()) };
        if !self.is_idle().await? {
            return Ok(());
        }
        let read = self.call("reconcile state", upkeep.reconcile_state(&self.system));
        let (state, now_ms) = read.await?;
        let unfinished = state.is_some();
        let state = match state {
            Some(state) if state.unfinished => state,
            Some(state) if now_ms < state.began_ms + self.every.as_millis() as u64 => return Ok(()),
            Some(_) | None => ReconcileState { began_ms: now_ms, unfinished, next: None },
        };
        self.save(&state).await?;
        match state.unfinished {
            true => self.run(state, stop, leads).await,
            false => Ok(()),
        }
    }

    async fn run(
        &self,
        mut state: ReconcileState,
        stop: &StopSignal,
        leads: &impl Fn() -> bool,
    ) -> Result<()> {
        let (began, whole) = (self.clock.mono(), state.next.is_none());
        let act = self.index.scheduled_mode();
        let mut report = ReconcileReport::new(&self.system, act, Cursor::default());
        report.subject = self.index.subject();
        let ended = loop {
            let sent = self.index.requests_sent();
            let after = Cursor(state.next.clone());
            let page = self.index.reconcile(after, PAGE, act);
            let page = match self.call("reconcile", page).await {
                Ok(page) => page,
                Err(error) => break Some(error),
            };
            self.observer.healed(&self.system, &page, act);
            report.count(&page);
            state.unfinished = page.next.is_some();
            state.next = page.next.and_then(|next| next.0);
            self.save(&state).await?;
            if !state.unfinished {
                break None;
            }
            let sent = self.index.requests_sent() - sent;
            let rest = HOUR.mul_f64(sent as f64 / self.requests_per_hour as f64);
            if self.is_stopped_within(rest, stop).await || !leads() || !self.is_idle().await? {
                break None;
            }
        };
        report.finished = !state.unfinished;
        report.agree = report.drift() == 0;
        report.next = state.unfinished.then_some(Cursor(state.next));
        report.took_ms = (self.clock.mono() - began).as_millis() as u64;
        let how = match &ended {
            Some(error) => ReconcileEnd::Failed(error),
            None if whole && report.finished => ReconcileEnd::Whole,
            None => ReconcileEnd::Part,
        };
        self.observer.reconciled(&report, how);
        ended.map_or(Ok(()), Err)
    }

    async fn is_idle(&self) -> Result<bool> {
        match &self.idle {
            Some(rule) => rule.is_idle().await,
            None => Ok(true),
        }
    }

    async fn save(&self, state: &ReconcileState) -> Result<()> {
        let Some(upkeep) = self.store.upkeep() else { return Ok(()) };
        self.call("reconcile state", upkeep.keep_reconcile_state(&self.system, state)).await
    }

    async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        call_within(&*self.clock, self.timeout, &self.system, what, call).await
    }
}
