//! What a pass says of itself.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{Kind, Name};
use crate::owner::Incarnation;
use crate::receipt::{Reason, ReceiptId};
use crate::sweep::{Outcome, Suspect};

/// Why a pass stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// Nothing more to do.
    Done,
    Ops,
    /// `max_runtime` was reached, or the daemon is shutting down.
    Runtime,
    /// Somebody used the system, and it sweeps only when idle.
    Activity,
    /// The brake held back what was left.
    Brake,
    /// The store failed, or the leader's term could not be trusted any more.
    Error,
}

impl Stopped {
    /// The word used in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Stopped::Done => "done",
            Stopped::Ops => "ops",
            Stopped::Runtime => "runtime",
            Stopped::Activity => "activity",
            Stopped::Brake => "brake",
            Stopped::Error => "error",
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One reclaimed entry, or one that a real pass would reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedSuspect {
    pub key: Name,
    pub owner: Name,
    pub incarnation: Incarnation,
    /// Why it is dead.
    pub reason: Reason,
    /// When its owner's time ran out.
    pub deadline_ms: u64,
    /// How late that is by now.
    pub late_ms: u64,
    /// The receipt, after a real pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptId>,
}

/// The account of one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassReport {
    pub system: String,
    pub kind: Kind,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Rows that the store looked at.
    pub examined: u64,
    /// Of them, those that looked dead.
    pub suspects: u64,
    /// Of them, those that the store says it reclaimed (or, in a dry run, would reclaim).
    pub reclaimed: u64,
    /// Of them, those of which only a dead owner's hold was let go.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: u64,
    /// The others, by why.
    pub skipped: BTreeMap<String, u64>,
    /// Store calls that failed.
    pub errors: u64,
    pub stopped: Stopped,
    /// How long it took.
    pub took_ms: u64,
    /// When it began, on this process's wall clock.
    #[serde(default)]
    pub started_ms: u64,
    /// Owners declared dead on the way.
    #[serde(default)]
    pub owners_ended: u64,
    /// Of `reclaimed`: done by an earlier pass whose answer was lost, settled by its receipts.
    #[serde(default)]
    pub settled: u64,
    /// What went wrong, or what the brake holds back and until when, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What was reclaimed (or would be), if the caller asked for the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<ListedSuspect>,
    /// Whether `entries` was cut off at its limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entries_cut: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl PassReport {
    pub(super) fn tally(&mut self, outcome: &Outcome) {
        let why = match outcome {
            Outcome::Reclaimed(_) => {
                self.reclaimed += 1;
                return;
            }
            Outcome::Released => {
                self.released += 1;
                return;
            }
            Outcome::Refused(why) => why.as_str(),
            Outcome::Gone => "gone",
            Outcome::InDoubt => "in_doubt",
        };
        *self.skipped.entry(why.to_owned()).or_default() += 1;
    }

    /// Lists one suspect that was reclaimed, up to `limit` of them.
    pub(super) fn list(&mut self, suspect: &Suspect, outcome: &Outcome, now_ms: u64, limit: usize) {
        let Outcome::Reclaimed(receipt) = outcome else { return };
        if self.entries.len() >= limit {
            self.entries_cut = limit > 0;
            return;
        }
        let receipt = receipt.as_deref();
        self.entries.push(ListedSuspect {
            key: suspect.key.clone(),
            owner: suspect.owner.clone(),
            incarnation: suspect.incarnation,
            reason: receipt.map_or(suspect.reason, |r| r.reason),
            deadline_ms: receipt.map_or(suspect.deadline_ms, |r| r.evidence.deadline_ms),
            late_ms: receipt
                .map_or(now_ms.saturating_sub(suspect.deadline_ms), |r| r.evidence.late_ms),
            receipt: receipt.map(|r| r.id.clone()),
        });
    }
}
