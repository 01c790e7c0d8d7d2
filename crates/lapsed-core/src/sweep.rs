//! Suspect → guard → outcome, one bounded page at a time.
//!
//! A [`Sweep`] is filled by a store for one system. The engine ([`Sweeper`]) knows nothing of
//! stores or systems: it asks for a page of suspects, hands batches back to be reclaimed, and
//! decides how much ([`policy`]) and whether ([`brake`]). The guard is not here: it is inside
//! [`Sweep::reclaim`], in the store's own atomic step, judged by the store's own clock.

pub mod brake;
mod pass;
pub mod policy;
mod report;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::{Name, SystemId};
use crate::owner::Incarnation;
use crate::receipt::{Reason, Receipt, Retention};

pub use pass::{PassMode, Sweeper, SweeperParts};
pub use report::{ListedSuspect, PassReport, Stopped};

/// Where a pass stands, as the store wrote it. Opaque to everybody else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub Option<String>);

/// Something that the index says may be dead. Possibly stale: only the guard decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub key: Name,
    pub owner: Name,
    /// Which life of that owner held it when the page was read.
    pub incarnation: Incarnation,
    /// When that life's time ran out, on the store's clock.
    pub deadline_ms: u64,
    /// Why it is suspected.
    pub reason: Reason,
}

#[derive(Clone, Debug)]
pub struct PageRequest {
    /// Those after this place.
    pub after: Cursor,
    /// At most so many.
    pub limit: usize,
    /// Of the owners that are overdue but not yet declared dead, only the so many most overdue:
    /// the brake's say. `None`: all. `Some(0)`: the brake holds, and what is dead by itself is
    /// spared as well.
    pub undeclared_max: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct SuspectPage {
    /// In the order of their deadlines.
    pub suspects: Vec<Suspect>,
    /// How many rows the store had to look at to find them.
    pub examined: u64,
    /// Whether the page ends because there is nothing more.
    pub last: bool,
}

/// Which batch: unique within one sweeper, so that receipts can settle what was in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// The sweeper's name: unique among all that run.
    pub sweeper: Arc<str>,
    pub number: u64,
}

/// What to reclaim, and on whose authority.
#[derive(Clone, Debug)]
pub struct Batch {
    pub id: BatchId,
    /// The suspects, at most `policy.batch` of them.
    pub suspects: Vec<Suspect>,
    /// Guard only, change nothing.
    pub act: PassMode,
    /// The leader's term, re-checked in the same step; `None` when sweeping is idempotent.
    pub term: Option<u64>,
}

/// Why the guard refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A beat arrived first: it is alive.
    Alive,
    /// It now belongs to another owner, or to another life of the same one.
    Moved,
    /// The store was away; its owners have not yet had a whole threshold to beat again.
    StoreAway,
    /// The sweeper's term as leader is over.
    NotLeader,
    /// Somebody is connected to it.
    Active,
    /// What is stored under its key is not what it should be: left for a person to look at.
    Unreadable,
    /// Somebody else is collecting: the application's own lock is held.
    Busy,
    /// Where it would go does not take it: it stays registered, for the next pass to try.
    NotTaken,
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
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What became of one suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, and here is the receipt. In a dry run: would be done, and nothing was written.
    Reclaimed(Option<Box<Receipt>>),
    /// What the dead held on to was let go, and nothing was removed: a reference, not the entry.
    Released,
    /// The guard said no.
    Refused(Refusal),
    /// Somebody else was first, or its owner let go of it.
    Gone,
    /// The store did not answer: it may or may not have been done.
    InDoubt,
}

impl Outcome {
    /// The receipt, if something was reclaimed.
    pub fn receipt(self) -> Option<Receipt> {
        match self {
            Outcome::Reclaimed(receipt) => receipt.map(|receipt| *receipt),
            Outcome::Released | Outcome::Refused(_) | Outcome::Gone | Outcome::InDoubt => None,
        }
    }
}

/// The store's answer to a batch: one outcome a suspect, in the same order.
#[derive(Clone, Debug, Default)]
pub struct BatchAnswer {
    pub outcomes: Vec<Outcome>,
    /// How many owners were declared dead on the way.
    pub owners_ended: u64,
    /// How long the store was held by this batch, as the store measured it. Zero: it cannot tell (on
    /// some servers the clock stands still during a script), and the time until the answer counts.
    pub held: Duration,
}

/// Who is there, cheaply: what the brake judges by and what `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    pub now_ms: u64,
    /// Which life of the store itself this is.
    pub store: String,
    /// When the store was back after an absence that somebody alive (or something that is spared for
    /// it) has lived through, if that was less than a threshold ago; 0 otherwise, or when the grace
    /// was waived.
    pub back_ms: u64,
    /// Whether nothing below was counted: that would mean to look at everything.
    #[serde(default)]
    pub uncounted: bool,
    pub population: u64,
    /// Entries of owners that are overdue or ended, and those that are dead by themselves.
    pub suspects: u64,
    /// Of them, those that are dead by themselves: no life of an owner decides about them.
    #[serde(default)]
    pub orphans: u64,
    /// Not among them: those that would be, and are spared because the store was away.
    #[serde(default)]
    pub orphans_spared: u64,
    /// Owners alive and in time.
    pub owners_live: u64,
    /// Owners past their deadline and not yet declared dead.
    pub owners_overdue: u64,
    /// Of those alive: past their deadline, and spared because the store was away.
    #[serde(default)]
    pub owners_spared: u64,
    /// Owners declared dead within the last threshold.
    pub owners_died_recently: u64,
    /// How late the longest overdue suspect is, in milliseconds.
    pub oldest_late_ms: u64,
}

/// What the bounded housekeeping after a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Overdue owners that held nothing, declared dead.
    pub owners_ended: u64,
    /// Records of owners that ended long ago, forgotten.
    pub owners_forgotten: u64,
    /// Receipts past their retention, removed.
    pub receipts_pruned: u64,
}

/// How far [`Sweep::tidy`] may go.
#[derive(Clone, Copy, Debug)]
pub struct TidyLimits {
    /// At most so many of each kind of row.
    pub rows: usize,
    /// Of overdue owners, at most so many may be declared dead (the brake's say).
    pub undeclared_max: Option<usize>,
    /// How long receipts are kept.
    pub retention: Retention,
    /// The leader's term, as in [`Batch::term`].
    pub term: Option<u64>,
}

/// One kind of cleanup, as a store fills it for one system.
#[async_trait]
pub trait Sweep: Send + Sync {
    /// Whose cleanup this is.
    fn system(&self) -> &SystemId;

    /// How long silence must last before it means death: what the store-away grace waits for.
    fn threshold(&self) -> Duration;

    async fn census(&self) -> Result<Census>;

    /// Where there is no index (keys that somebody else writes): the one look at everything that a
    /// pass begins with, in bounded pages that each have a time limit of their own; the pages of
    /// suspects then come from what it found. `None`: there is an index, and the census will do.
    async fn survey(&self) -> Result<Option<Census>> {
        Ok(None)
    }

    /// One page of the index, ordered by deadline. O(log M + page).
    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage>;

    /// The place just after `suspect`, for resuming in the middle of a page.
    fn after(&self, suspect: &Suspect) -> Cursor;

    /// The decisive step: re-checks each suspect and, in the same atomic step, acts and writes the
    /// receipt. All of the batch, or (on an error) perhaps none of it.
    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer>;

    /// The receipts that `batch` wrote, if it was carried out after all. If it was not, it must
    /// never be from now on: a request that is still on its way would be counted by nobody.
    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>>;

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied>;
}
