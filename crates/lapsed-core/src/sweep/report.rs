//! The report of one pass.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{Kind, Name};
use crate::owner::Incarnation;
use crate::receipt::{Reason, ReceiptId};
use crate::sweep::brake::HeldBy;
use crate::sweep::{Outcome, Suspect};

/// Why a pass stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = StopReason))]
#[non_exhaustive]
pub enum Stopped {
    /// There was nothing more to do.
    Done,
    Ops,
    /// `max_runtime` was reached, or the daemon is shutting down.
    Runtime,
    /// The system was used, and it sweeps only while idle.
    Activity,
    /// The brake spared what was left.
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

/// One entry that was reclaimed or, in a dry run, would be or is spared by the brake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Listed))]
pub struct ListedSuspect {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: Name,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub owner: Name,
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub incarnation: Incarnation,
    /// Why it was reclaimed.
    pub reason: Reason,
    /// When its owner's heartbeat ran out, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// How late the reclaim was, in milliseconds.
    pub late_ms: u64,
    /// Its receipt; `None` after a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub receipt: Option<ReceiptId>,
}

/// Result of one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PassReport {
    pub system: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: Kind,
    /// Whether it was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Rows that the store read.
    pub examined: u64,
    /// Suspects among those rows.
    pub suspects: u64,
    /// Suspects that were reclaimed or, in a dry run, would be.
    pub reclaimed: u64,
    /// Suspects of which only the reference of a dead owner was released.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: u64,
    /// Suspects that were not reclaimed, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Number of store calls that failed.
    pub errors: u64,
    pub stopped: Stopped,
    /// How long the pass took, in milliseconds.
    pub took_ms: u64,
    /// When it began, in milliseconds of this process's wall clock.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub started_ms: u64,
    /// Owners that this pass declared dead.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub owners_ended: u64,
    /// The part of `reclaimed` that an earlier pass did whose answer was lost, and that its
    /// receipts settled.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub settled: u64,
    /// A sentence that says what failed, or what the brake spares and until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why the brake holds, if `detail` is about the brake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<HeldBy>,
    /// The reclaimed entries, if the caller asked for a list. In a dry run: those that would be
    /// reclaimed; while the brake holds, those that it spares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<ListedSuspect>,
    /// Whether `entries` was truncated at its limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entries_cut: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl PassReport {
    /// Whether the pass has begun. One that found its system in use before it looked at anything has not.
    pub fn has_begun(&self) -> bool {
        self.stopped != Stopped::Activity || self.examined > 0
    }

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

    /// What the pass left alone, as `1 (alive), 2 (gone)`; empty if there is nothing.
    pub fn left_alone(&self) -> String {
        let one = |(why, number): (&String, &u64)| format!("{number} ({why})");
        self.skipped.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Counts a suspect that is dead, but that the brake spares.
    pub(super) fn tally_spared(&mut self) {
        *self.skipped.entry("brake".to_owned()).or_default() += 1;
    }

    /// Adds one reclaimed suspect to `entries`, up to `limit`.
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
