//! Owners: who holds things. A name, an incarnation, beats, and a handle that knows when it was lost.
//!
//! An incarnation is one life of an owner. The store hands them out, each larger than every one
//! before it, so an incarnation is also the fencing token of all that its owner writes. A name may
//! have several incarnations alive at once (a rolling restart): each lives and dies by its own
//! beats, so that the new one never keeps the old one's entries, nor hides its death.

mod handle;
pub mod trust;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::Name;

pub use handle::{Owner, OwnerOptions};

/// One life of an owner. Only grows within a system, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who claims to act: a name and, if the caller knows it, which life of that name.
///
/// Without an incarnation the newest one of that name is meant. A name never seen before is
/// started by its first beat or registration; one whose newest life has ended is answered `Lost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub owner: Name,
    /// Which of its lives.
    pub incarnation: Option<Incarnation>,
}

impl Claim {
    /// The newest life of `owner`.
    pub fn newest(owner: Name) -> Self {
        Claim { owner, incarnation: None }
    }

    pub fn exact(owner: Name, incarnation: Incarnation) -> Self {
        Claim { owner, incarnation: Some(incarnation) }
    }
}

/// The answer to a beat: alive until `deadline_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Which life was meant.
    pub incarnation: Incarnation,
    /// Until when it now lives, on the store's clock. At that very millisecond it is overdue.
    pub deadline_ms: u64,
    /// The store's clock when it judged.
    pub now_ms: u64,
    /// How long one beat lasts.
    pub ttl_ms: u64,
    /// Whether this call began the life.
    pub started: bool,
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Its beats stopped for longer than its TTL.
    Dead,
    Retired,
}

/// Told to a holder that is no longer one (P5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub owner: Name,
    /// Which life; none when the name is not known at all.
    pub incarnation: Option<Incarnation>,
    /// How that life ended; none when it is not remembered any more.
    pub ending: Option<Ending>,
    /// When, on the store's clock.
    pub ended_ms: Option<u64>,
    /// What it held when it ended, so that it can re-assert: the first of them, by key.
    pub held: Vec<Name>,
    /// How many it held in all.
    pub held_total: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner `{}`", self.owner)?;
        if let Some(incarnation) = self.incarnation {
            write!(f, " (incarnation {incarnation})")?;
        }
        match self.ending {
            Some(Ending::Dead) => f.write_str(" was declared dead")?,
            Some(Ending::Retired) => f.write_str(" has retired")?,
            None => f.write_str(" is not known")?,
        }
        if self.held_total > 0 {
            write!(f, " and lost what it held ({} in all)", self.held_total)?;
        }
        f.write_str("; start a new incarnation, then register again what it still holds")
    }
}

/// What is known of one life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInfo {
    pub owner: Name,
    pub incarnation: Incarnation,
    /// How long one beat lasts.
    pub ttl_ms: u64,
    /// When it was started.
    pub started_ms: u64,
    /// Until when it lives, the store-away grace included.
    pub due_ms: u64,
    /// How many entries it holds (those not yet removed, for one that ended).
    pub held: u64,
    /// How and when it ended.
    pub ended: Option<(Ending, u64)>,
}

/// The seam that stores fill for owners.
#[async_trait]
pub trait OwnerStore: Send + Sync {
    /// Begins a new life of `owner`, alive for `ttl_ms` from now. Durable when answered.
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat>;

    /// Life. O(1), however much is held. `Lost` when that life has ended.
    async fn beat(&self, claim: &Claim) -> Result<Beat>;

    /// Ends a life gracefully: O(1), durable when answered; its entries are invalid at once and
    /// are removed by the same guarded reclaim as those of the dead. Answers how many there are.
    async fn end(&self, claim: &Claim) -> Result<OwnerInfo>;

    /// Owners, oldest incarnation first, those after `after`, at most `limit`.
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>>;

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>>;

    /// A beat without a search and without waiting, if the store keeps beats in memory.
    fn pulse(&self, _owner: &Name, _incarnation: Incarnation) -> Option<Arc<dyn BeatHandle>> {
        None
    }
}

/// Beats one life directly.
pub trait BeatHandle: Send + Sync {
    /// Life, until the answered deadline. `None` when that life has ended.
    fn beat(&self) -> Option<u64>;
}
