//! Making an index agree with the truth it was derived from, while both are in use.
//!
//! Page by page: each page is read without a lock, and every change is made by a step that checks
//! the truth once more (nothing is built aside and renamed over what changed meanwhile). What was
//! done is counted as the store answered it, never compared with a size that live traffic moves.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::{Kind, SystemId};
use crate::schedule::StopSignal;
use crate::sweep::{Cursor, PassMode};

/// What a store offers where a system has an index besides its truth.
#[async_trait]
pub trait Reconcile: Send + Sync {
    /// Looks at about `limit` rows from `after` on, and heals what differs (or, in a dry run, only
    /// says so). Bounded, and safe beside everything else.
    async fn reconcile(&self, after: Cursor, limit: usize, act: PassMode) -> Result<Reconciled>;

    /// About how many rows there are to look at: for the progress bar.
    async fn extent(&self) -> Result<u64>;

    /// About how many requests it takes, where each of them has a price. `None`: none to speak of.
    async fn cost(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What one page of it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    pub examined: u64,
    /// What differed, and was (or would be) changed.
    pub changes: Vec<IndexChange>,
    /// Rows left as they are, by why: `active`, `indexed`, `unreadable`, ...
    pub left: BTreeMap<String, u64>,
    /// Where to go on; none at the end.
    pub next: Option<Cursor>,
}

/// One difference between truth and index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexChange {
    /// What it is about.
    pub key: String,
    /// What was done about it.
    pub what: Healed,
    pub why: String,
}

/// What was done to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Healed {
    /// It was missing there.
    Added,
    /// It had no business there.
    Removed,
    /// It was there with something wrong.
    Corrected,
}

impl Healed {
    /// Every one there is.
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

/// The exact account of one reconciliation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileReport {
    pub system: String,
    pub kind: Kind,
    /// Whether nothing was changed.
    pub dry_run: bool,
    pub examined: u64,
    /// Put into the index.
    pub added: u64,
    /// Taken out of it.
    pub removed: u64,
    /// Set right in it.
    pub corrected: u64,
    /// Left as they are, by why.
    pub left: BTreeMap<String, u64>,
    /// Whether index and truth agreed wherever they were looked at.
    pub agree: bool,
    /// Whether all was looked at; otherwise `next` says where to go on.
    pub finished: bool,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Cursor>,
    /// How long it took.
    pub took_ms: u64,
}

impl ReconcileReport {
    /// Differences found: the drift.
    pub fn drift(&self) -> u64 {
        self.added + self.removed + self.corrected
    }
}

/// How much of it one run has seen: only a whole one knows how far index and truth had drifted.
#[derive(Clone, Copy, Debug)]
pub enum ReconcileEnd<'e> {
    /// Everything, from the first row to the last.
    Whole,
    /// It went on from somewhere, or was stopped before the end.
    Part,
    /// It broke off: this call failed.
    Failed(&'e Error),
}

/// How to go about it.
#[derive(Clone, Debug)]
pub struct ReconcilePlan {
    pub after: Cursor,
    pub page: usize,
    /// The pause between two pages.
    pub pause: Duration,
    /// Whether to change anything.
    pub act: PassMode,
}

/// Runs to the end, or until stopped. `tell` hears of every page.
pub async fn run(
    system: &SystemId,
    index: &dyn Reconcile,
    clock: &dyn Clock,
    plan: ReconcilePlan,
    stop: &StopSignal,
    tell: &mut (dyn FnMut(&Reconciled) + Send),
) -> Result<ReconcileReport> {
    let began = clock.mono();
    let mut report = ReconcileReport {
        system: system.name.to_string(),
        kind: system.kind,
        dry_run: plan.act == PassMode::DryRun,
        examined: 0,
        added: 0,
        removed: 0,
        corrected: 0,
        left: BTreeMap::new(),
        agree: true,
        finished: false,
        next: Some(plan.after),
        took_ms: 0,
    };
    while let Some(after) = report.next.clone().filter(|_| !stop.is_told()) {
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
