//! Makes an index agree with the data that it was derived from, while both are in use.
//!
//! It works page by page. A page is read without a lock, and every change is made by an atomic step
//! that checks the data once more; no new index is built aside and renamed. Changes are counted
//! from the store's answers, never from sizes that other writers change meanwhile.

mod resumable;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::{Kind, SystemId};
use crate::stop::StopSignal;
use crate::sweep::{Cursor, PassMode};

pub use resumable::ResumableReconcile;

/// Implemented by stores whose systems have an index besides their data.
#[async_trait]
pub trait Reconcile: Send + Sync {
    /// Compares about `limit` rows from `after` on and corrects what differs; in a dry run it only
    /// reports the differences. Bounded, and safe to run beside all other operations.
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled>;

    /// Approximate number of rows to compare, for the progress bar.
    async fn extent(&self) -> Result<u64>;

    /// Approximate number of requests, for stores that charge for requests; `None`: requests cost
    /// nothing.
    async fn cost(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether a scheduled run corrects what differs. If not, it only reports, and correcting is for people to ask for.
    fn heals_on_schedule(&self) -> bool {
        true
    }

    /// What is compared, in words, if it is not an index with its truth.
    fn subject(&self) -> Option<String> {
        None
    }

    /// What a scheduled run does.
    fn scheduled_mode(&self) -> PassMode {
        if self.heals_on_schedule() { PassMode::Reclaim } else { PassMode::DryRun }
    }

    /// Number of requests that reconciling has sent so far, for stores that charge for requests.
    fn requests_sent(&self) -> u64 {
        0
    }
}

/// Result of one page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    pub examined: u64,
    /// The differences that were corrected or, in a dry run, would be.
    pub changes: Vec<IndexChange>,
    /// Number of rows that were left as they are, by reason: `active`, `indexed`, `unreadable`, ...
    pub left: BTreeMap<String, u64>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// One difference between data and index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Change))]
pub struct IndexChange {
    /// The key whose index entry differed.
    pub key: String,
    /// How it was corrected.
    pub what: Healed,
    pub why: String,
}

/// Kinds of corrections of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ChangeKind))]
#[non_exhaustive]
pub enum Healed {
    /// The entry was missing in the index.
    Added,
    /// The index had an entry for something that does not belong there.
    Removed,
    /// The entry in the index had a wrong value.
    Corrected,
}

impl Healed {
    /// Every kind of correction.
    pub const ALL: &[Healed] = &[Healed::Added, Healed::Removed, Healed::Corrected];

    /// The word used in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Healed::Added => "added",
            Healed::Removed => "removed",
            Healed::Corrected => "corrected",
        }
    }
}

/// Result of one reconciliation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReconcileReport {
    pub system: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: Kind,
    /// Whether it was a dry run, which changes nothing.
    pub dry_run: bool,
    pub examined: u64,
    /// Entries added to the index.
    pub added: u64,
    /// Entries removed from the index.
    pub removed: u64,
    /// Entries of the index that were corrected.
    pub corrected: u64,
    /// Rows that were left as they are, by reason.
    pub left: BTreeMap<String, u64>,
    /// Whether no difference was found in the rows that were compared.
    pub agree: bool,
    /// Whether all rows were compared; otherwise `next` says where to continue.
    pub finished: bool,
    /// Where to continue, if it did not finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub next: Option<Cursor>,
    /// What was compared, in words, if it is not an index with its truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// How long the reconciliation took, in milliseconds.
    pub took_ms: u64,
}

impl ReconcileReport {
    /// Number of differences found.
    pub fn drift(&self) -> u64 {
        self.added + self.removed + self.corrected
    }
}

/// How much of the index one run has covered. Only a whole run knows the total drift.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ReconcileEnd<'e> {
    /// All rows were compared.
    Whole,
    /// The run started in the middle or was stopped before the end.
    Part,
    /// The run ended because of this error.
    Failed(&'e Error),
}

impl<'e> ReconcileEnd<'e> {
    pub fn is_whole(self) -> bool {
        matches!(self, ReconcileEnd::Whole)
    }

    pub fn error(self) -> Option<&'e Error> {
        match self {
            ReconcileEnd::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Options of a reconciliation.
#[derive(Clone, Debug)]
pub struct ReconcilePlan {
    pub after: Cursor,
    pub page: usize,
    /// Pause between two pages.
    pub pause: Duration,
    /// Whether to correct differences or only to report them.
    pub act: PassMode,
}

/// Runs to the end, or until `stop` says so. `tell` is called after every page.
pub async fn run(
    system: &SystemId,
    index: &dyn Reconcile,
    clock: &dyn Clock,
    plan: ReconcilePlan,
    stop: &StopSignal,
    tell: &mut (dyn FnMut(&Reconciled) + Send),
) -> Result<ReconcileReport> {
    let began = clock.mono();
    let mut report = ReconcileReport::new(system, plan.act, plan.after);
    report.subject = index.subject();
    while let Some(after) = report.next.clone().filter(|_| !stop.is_stopped()) {
        let page = index.reconcile(after, plan.page, plan.act).await?;
        tell(&page);
        report.count(&page);
        report.next = page.next;
        if report.next.is_some() {
            clock.sleep(plan.pause).await;
        }
    }
    report.finished = report.next.is_none();
    report.agree = report.drift() == 0;
    report.took_ms = (clock.mono() - began).as_millis() as u64;
    Ok(report)
}

impl ReconcileReport {
    fn new(system: &SystemId, act: PassMode, after: Cursor) -> ReconcileReport {
        ReconcileReport {
            system: system.name.to_string(),
            kind: system.kind,
            dry_run: act == PassMode::DryRun,
            examined: 0,
            added: 0,
            removed: 0,
            corrected: 0,
            left: BTreeMap::new(),
            agree: true,
            finished: false,
            next: Some(after),
            subject: None,
            took_ms: 0,
        }
    }

    fn count(&mut self, page: &Reconciled) {
        self.examined += page.examined;
        for change in &page.changes {
            match change.what {
                Healed::Added => self.added += 1,
                Healed::Removed => self.removed += 1,
                Healed::Corrected => self.corrected += 1,
            }
        }
        for (why, count) in &page.left {
            *self.left.entry(why.clone()).or_default() += count;
        }
    }
}
