//! Owners: the processes that hold entries. An owner has a name, incarnations, and heartbeats; a
//! handle of an owner knows when the owner was lost.
//!
//! An incarnation is one run of an owner, from its start to its end. The store numbers them; each
//! number is larger than every earlier one, so that it is also the fencing token for all that its
//! owner writes. A name may have several live incarnations at once (a rolling restart). Each has
//! its own heartbeats, so that a new one neither keeps the old one's entries nor hides its death.

mod handle;
pub mod trust;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::Name;
use crate::request::{RequestId, not_repeatable};

pub use handle::{Owner, OwnerOptions, OwnerWatch};

/// Number of one run of an owner. It only grows within a system, and no number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who claims to act: an owner's name and, if the caller knows it, the incarnation.
///
/// Without an incarnation, the newest one of that name is meant. The first heartbeat or
/// registration of a new name starts it. If the newest incarnation has ended, the answer is `Lost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub owner: Name,
    /// The incarnation; `None`: the newest one.
    pub incarnation: Option<Incarnation>,
}

impl Claim {
    /// A claim of the newest incarnation of `owner`.
    pub fn newest(owner: Name) -> Self {
        Claim { owner, incarnation: None }
    }

    pub fn exact(owner: Name, incarnation: Incarnation) -> Self {
        Claim { owner, incarnation: Some(incarnation) }
    }
}

/// Answer to a heartbeat: the incarnation is alive until `deadline_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The incarnation that the heartbeat was for.
    pub incarnation: Incarnation,
    /// When the heartbeat runs out, in milliseconds of the store's clock. At that very millisecond
    /// the owner is overdue.
    pub deadline_ms: u64,
    /// The store's clock at the time of the call.
    pub now_ms: u64,
    /// How long one heartbeat lasts, in milliseconds.
    pub ttl_ms: u64,
    /// Whether this call started the incarnation.
    pub started: bool,
}

/// How an incarnation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ending {
    /// No heartbeat arrived for longer than its TTL.
    Dead,
    Retired,
}

/// Answer to an owner that no longer holds anything (P5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub owner: Name,
    /// The incarnation; `None` if the owner's name is not known.
    pub incarnation: Option<Incarnation>,
    /// How that incarnation ended; `None` if its record was already removed.
    pub ending: Option<Ending>,
    /// When it ended, in milliseconds of the store's clock.
    pub ended_ms: Option<u64>,
    /// The first keys that it held when it ended, in order, so that it can register them again.
    pub held: Vec<Name>,
    /// How many keys it held in total.
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

/// What a retired owner held and no longer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedHoldings {
    /// The incarnation that has ended.
    pub incarnation: Incarnation,
    /// How many entries were removed (or put back on their queues), each with its receipt.
    pub reclaimed: u64,
    /// How many references were dropped from entries that stay, without a receipt.
    pub released: u64,
}

impl ReleasedHoldings {
    pub(crate) fn none_of(incarnation: Incarnation) -> Self {
        ReleasedHoldings { incarnation, reclaimed: 0, released: 0 }
    }
}

/// What the store knows of one incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnerInfo {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub owner: Name,
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub incarnation: Incarnation,
    /// How long one heartbeat lasts, in milliseconds.
    pub ttl_ms: u64,
    /// When it was started, in milliseconds of the store's clock.
    pub started_ms: u64,
    /// When its heartbeat runs out, including the store-away grace.
    pub due_ms: u64,
    /// How many entries it holds. After its end: how many are not removed yet.
    pub held: u64,
    /// How and when it ended, if it did.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Object>>))]
    pub ended: Option<(Ending, u64)>,
}

/// What a store implements for owners.
#[async_trait]
pub trait OwnerStore: Send + Sync {
    /// Starts a new incarnation of `owner` that is alive for `ttl_ms` from now. Durable when the
    /// call returns.
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat>;

    /// Like [`start`](Self::start) for a request that may be repeated: all its attempts get the same
    /// incarnation, also if that has ended since. `KeyReused` if the key came before with another
    /// fingerprint.
    async fn start_once(&self, request: &RequestId, _owner: &Name, _ttl_ms: u64) -> Result<Beat> {
        Err(not_repeatable(None, "start", request))
    }

    /// Sends a heartbeat. O(1), however many entries are held. `Lost` if that incarnation has
    /// ended.
    async fn beat(&self, claim: &Claim) -> Result<Beat>;

    /// Ends an incarnation gracefully. O(1), and durable when the call returns. Its entries are
    /// invalid at once; the same guarded reclaim as for dead owners removes them. The answer says
    /// how many there are.
    async fn end(&self, claim: &Claim) -> Result<OwnerInfo>;

    /// Incarnations after `after`, oldest first, at most `limit`.
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>>;

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>>;

    /// Sends a heartbeat without waiting, if the store keeps heartbeats in memory. `None`: call
    /// [`beat`](Self::beat).
    fn beat_now(&self, _claim: &Claim) -> Option<Beat> {
        None
    }

    /// A handle that sends heartbeats without a lookup and without waiting, if the store keeps
    /// heartbeats in memory.
    fn beat_handle(&self, _owner: &Name, _incarnation: Incarnation) -> Option<Arc<dyn BeatHandle>> {
        None
    }
}

/// Sends heartbeats of one incarnation directly.
pub trait BeatHandle: Send + Sync {
    /// Sends a heartbeat and returns the new deadline; `None` if that incarnation has ended.
    fn beat(&self) -> Option<u64>;
}
