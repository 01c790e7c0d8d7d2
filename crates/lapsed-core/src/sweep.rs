//! The engine: suspect → guard → outcome, one bounded page at a time.
//!
//! A store implements [`Sweep`] for each system. The engine ([`Sweeper`]) knows nothing of stores
//! or systems: it reads pages of suspects, sends batches to be reclaimed, and decides how many
//! ([`policy`]) and whether at all ([`brake`]). The guard is deliberately not here:
//! [`Sweep::reclaim`] evaluates it inside the store's atomic step, by the store's own clock.

pub mod brake;
mod observation;
mod pass;
pub mod policy;
mod report;
mod sweeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::{Name, SystemId};
use crate::owner::{Claim, Incarnation};
use crate::receipt::{Reason, Receipt, Retention};

pub use observation::AdoptObservation;
pub use report::{ListedSuspect, PassReport, Stopped};
pub use sweeper::{PassMode, Sweeper, SweeperParts};

/// Position of a pass in the store's index of suspects. Only the store that wrote it can read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub Option<String>);

/// Something that the index reports as possibly dead. The report may be stale; only the guard
/// decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub key: Name,
    pub owner: Name,
    /// The incarnation of that owner that held the key when the page was read.
    pub incarnation: Incarnation,
    /// When that incarnation's heartbeat ran out, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// Why it is suspected.
    pub reason: Reason,
}

#[derive(Clone, Debug)]
pub struct PageRequest {
    /// Return only suspects after this position.
    pub after: Cursor,
    /// Largest number of suspects in the page.
    pub limit: usize,
    /// How many owners that are overdue but not yet declared dead may be reported, the most overdue
    /// first; the brake sets it. `None`: all. `Some(0)`: the brake holds, and entries that expire
    /// without an owner are spared too.
    pub undeclared_max: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct SuspectPage {
    /// The suspects, ordered by deadline.
    pub suspects: Vec<Suspect>,
    /// How many rows the store read to find them.
    pub examined: u64,
    /// Whether there are no more suspects after this page.
    pub last: bool,
}

/// Identifies one batch of one sweeper, so that receipts can settle a batch whose answer was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// Name of the sweeper, unique among all running sweepers.
    pub sweeper: Arc<str>,
    pub number: u64,
}

/// Suspects to reclaim, and the term under which the sweeper acts.
#[derive(Clone, Debug)]
pub struct Batch {
    pub id: BatchId,
    /// The suspects, at most `policy.batch` of them.
    pub suspects: Vec<Suspect>,
    /// Whether to reclaim, or only to evaluate the guard and change nothing.
    pub act: PassMode,
    /// The leader's term, which the store checks in the same step; `None` if any sweeper may act.
    pub term: Option<u64>,
}

/// Why the guard refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// A heartbeat arrived first: the owner is alive.
    Alive,
    /// The key now belongs to another owner, or to another incarnation of the same owner.
    Moved,
    /// The store was away, and its owners have not yet had a whole threshold to send a heartbeat
    /// again.
    StoreAway,
    /// The sweeper's term as leader is over.
    NotLeader,
    /// A client is connected to it.
    Active,
    /// What is stored under its key cannot be read. It is left for a person to look at.
    Unreadable,
    /// The application's own lock is held: its own collector is running.
    Busy,
    /// The destination does not accept it. It stays where it is, and the next pass tries again.
    NotTaken,
    /// Its owner has never sent a heartbeat, and has been known for less than a threshold (adopt
    /// mode).
    Newcomer,
}

impl Refusal {
    /// The word used in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Alive => "alive",
            Refusal::Moved => "moved",
            Refusal::StoreAway => "store_away",
            Refusal::NotLeader => "not_leader",
            Refusal::Active => "active",
            Refusal::Unreadable => "unreadable",
            Refusal::Busy => "busy",
            Refusal::NotTaken => "not_taken",
            Refusal::Newcomer => "newcomer",
        }
    }
}

impl Refusal {
    /// What a word under which a pass counts what it left alone means, as a clause for people. `None` for a word that a
    /// newer version wrote.
    pub fn meaning(word: &str) -> Option<&'static str> {
        Some(match word {
            "alive" => "a heartbeat arrived first",
            "moved" => "another owner holds it by now",
            "store_away" => {
                "the store was away, and everybody has a whole threshold to send a heartbeat again"
            }
            "not_leader" => "this process is no longer the leader",
            "active" => "somebody is connected to it",
            "unreadable" => {
                "what is stored of it cannot be read; it has to be mended or removed by hand"
            }
            "busy" => "the application's own collector is at work",
            "not_taken" => "its destination does not accept it; the next pass tries again",
            "newcomer" => {
                "its owner never sent a heartbeat, and has not been known for a whole threshold"
            }
            "gone" => "it was released, or another pass was first",
            "in_doubt" => "the store did not answer; the next pass finds out what became of it",
            "brake" => "the brake spares it",
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Result for one suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was reclaimed, with this receipt. In a dry run: it would be reclaimed, and nothing was
    /// written.
    Reclaimed(Option<Box<Receipt>>),
    /// A reference of a dead owner was released, but the entry that it referred to stays.
    Released,
    /// The guard refused, and nothing changed.
    Refused(Refusal),
    /// Another sweeper was first, or its owner released it.
    Gone,
    /// The store did not answer, so it may or may not have been reclaimed.
    InDoubt,
}

impl Outcome {
    /// The receipt, if there is one.
    pub fn receipt(self) -> Option<Receipt> {
        match self {
            Outcome::Reclaimed(receipt) => receipt.map(|receipt| *receipt),
            Outcome::Released | Outcome::Refused(_) | Outcome::Gone | Outcome::InDoubt => None,
        }
    }
}

/// A store's answer to a batch: one outcome per suspect, in the same order.
#[derive(Clone, Debug, Default)]
pub struct BatchAnswer {
    pub outcomes: Vec<Outcome>,
    /// How many owners this batch declared dead.
    pub owners_ended: u64,
    /// How long this batch occupied the store, as the store measured it. Zero if the store cannot
    /// measure it (on some servers the clock stands still during a script); the time until the
    /// answer is used then.
    pub held: Duration,
}

/// Counts of owners and suspects. The brake judges by them and `status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Census {
    pub now_ms: u64,
    /// Identifies the current run of the store; changes when the store restarts.
    pub store: String,
    /// When the store came back from an absence, if that was less than a threshold ago and some
    /// owner was alive before it. 0 otherwise, and 0 while the operator has waived the grace.
    pub back_ms: u64,
    /// Whether nothing below was counted, because counting would mean reading everything.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub uncounted: bool,
    pub population: u64,
    /// Entries of owners that are overdue or ended, and entries that have expired without an owner.
    pub suspects: u64,
    /// The part of `suspects` that expired without an owner, such as orphaned sessions.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub orphans: u64,
    /// Entries that would be in `orphans` but are spared because the store was away. Not part of
    /// `suspects`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub orphans_spared: u64,
    /// Owners whose heartbeat has not run out.
    pub owners_live: u64,
    /// Owners past their deadline and not yet declared dead.
    pub owners_overdue: u64,
    /// Owners whose heartbeat has run out, but who are spared because the store was away. They are
    /// included in `owners_live`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub owners_spared: u64,
    /// Owners declared dead within the last threshold.
    pub owners_died_recently: u64,
    /// Entries by which the brake recognises a mass death, where the application's keys show no
    /// owners. 0 where owners are counted.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub entries_tracked: u64,
    /// Whether every tracked entry becomes due unless somebody comes back to it, as disconnected
    /// sessions do. Most of them are then due at every pass, unless passes are frequent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub entries_run_out: bool,
    /// The part of `entries_tracked` that became due within the last threshold.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub entries_due_recently: u64,
    /// Entries that became due within the last threshold and are already reclaimed. They are not part
    /// of `entries_tracked`; the brake counts them together with those. 0 where owners are counted.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub entries_died_recently: u64,
    /// The part of `entries_died_recently` that became due within the last half of the threshold.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub entries_died_last_half: u64,
    /// How late the most overdue suspect is, in milliseconds.
    pub oldest_late_ms: u64,
    /// Who was seen alive, for an adopted system whose layout shows life. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<AdoptObservation>,
}

impl Census {
    /// Whether the system is adopted and only observes.
    pub fn is_observing(&self) -> bool {
        self.observation.as_ref().is_some_and(AdoptObservation::is_observing)
    }
}

/// What the bounded housekeeping after a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Overdue owners without entries that were declared dead.
    pub owners_ended: u64,
    /// Records of owners that ended long ago and were removed.
    pub owners_forgotten: u64,
    /// Receipts beyond their retention that were removed.
    pub receipts_pruned: u64,
    /// Something was removed or ended, and the next call finds more.
    pub has_more: bool,
}

/// Limits of one call of [`Sweep::tidy`].
#[derive(Clone, Copy, Debug)]
pub struct TidyLimits {
    /// Largest number of rows of each kind.
    pub rows: usize,
    /// How many overdue owners may be declared dead; the brake sets it. `None`: all.
    pub undeclared_max: Option<usize>,
    /// How long receipts and the records of ended owners are kept.
    pub retention: Retention,
    /// The leader's term, as in [`Batch::term`].
    pub term: Option<u64>,
}

/// The cleanup of one system, implemented by its store.
#[async_trait]
pub trait Sweep: Send + Sync {
    /// The system that this sweep belongs to.
    fn system(&self) -> &SystemId;

    /// How long an owner must be silent before it counts as dead. The store-away grace lasts as
    /// long.
    fn threshold(&self) -> Duration;

    async fn census(&self) -> Result<Census>;

    /// For stores without an index (the application writes the keys): reads everything once at the
    /// beginning of a pass, in bounded pages that each have their own time limit. Later pages of
    /// suspects come from the result. `None`: the store has an index, and [`census`](Self::census)
    /// is enough. For a dry run nothing is written, not even who was seen alive.
    async fn survey(&self, _act: PassMode) -> Result<Option<Census>> {
        Ok(None)
    }

    /// Records in the store that an adopted configuration is right, so that observing ends
    /// (see [`AdoptObservation`]). Returns when it was confirmed, in milliseconds of the store's
    /// clock; confirming twice keeps the first time.
    async fn confirm_adoption(&self) -> Result<u64> {
        Err(Error::Unsupported {
            operation:
                "confirming an adopted configuration: this system does not observe, so there \
                        is nothing to confirm"
                    .to_owned(),
            store: self.system().to_string(),
        })
    }

    /// One page of suspects from the index, ordered by deadline. O(log n + page).
    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage>;

    /// The position just after `suspect`, to resume in the middle of a page.
    fn after(&self, suspect: &Suspect) -> Cursor;

    /// What one *ended* incarnation still holds, as suspects, at most `limit`. Retiring an owner
    /// reclaims them. Empty if only a pass finds what an ended owner left.
    async fn held_by(&self, _claim: &Claim, _limit: usize) -> Result<Vec<Suspect>> {
        Ok(Vec::new())
    }

    /// Checks each suspect again and, in the same atomic step, reclaims it and writes the receipt.
    /// An error means that none of the batch, or all of it, may have been carried out.
    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer>;

    /// The receipts that `batch` wrote, if it was carried out. If it was not, the store must refuse
    /// it from now on: receipts of a late request would not be counted.
    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>>;

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied>;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_word_of_a_report_has_a_meaning_of_its_own() {
        let refusals = [
            Refusal::Alive,
            Refusal::Moved,
            Refusal::StoreAway,
            Refusal::NotLeader,
            Refusal::Active,
            Refusal::Unreadable,
            Refusal::Busy,
            Refusal::NotTaken,
            Refusal::Newcomer,
        ];
        let words: BTreeSet<&str> = refusals
            .map(Refusal::as_str)
            .into_iter()
            .chain(["gone", "in_doubt", "brake"])
            .collect();
        let meanings: BTreeSet<&str> =
            words.iter().map(|word| Refusal::meaning(word).expect(word)).collect();
        assert_eq!((words.len(), meanings.len()), (12, 12), "{meanings:?}");
        assert_eq!(Refusal::meaning("of a newer version"), None);
    }
}
