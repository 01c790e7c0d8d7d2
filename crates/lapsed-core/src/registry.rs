//! `registry`: keys, such as connections, and the owner that holds each.
//!
//! An entry is valid as long as its owner's incarnation. This module holds what is the same for
//! every store: the rules ([`rules`]), the operations ([`Registry`]), the explanation of an entry's
//! state (`explain`), and the conformance suite.

#[cfg(feature = "conformance")]
pub mod conformance;
mod explain;
mod operations;
pub mod rules;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::name::Name;
use crate::owner::{Beat, Claim, Ending, Incarnation, OwnerStore};
use crate::sweep::Sweep;
use crate::system::Restored;

pub use operations::{Registry, RegistryParts};

/// How long a heartbeat lasts unless the configuration says otherwise, in milliseconds.
pub const HEARTBEAT_TTL_MS: u64 = 90_000;

/// Largest number of keys in one batch call.
pub const KEYS_MAX: usize = 10_000;

/// Whether a registration may take a key from another owner that has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TakePolicy {
    /// It may: the newest connection wins. It never takes a key from a newer incarnation of the
    /// same owner.
    #[default]
    Always,
    /// It may not: for an owner that registers again what it held before. It takes a key from an
    /// older incarnation of the same owner, and from an owner that has ended and was not swept yet.
    IfFree,
}

/// The owner and the incarnation that hold, or held, a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub owner: Name,
    pub incarnation: Incarnation,
}

/// Result of one registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
#[non_exhaustive]
pub enum Registered {
    /// The key was free.
    New,
    /// This incarnation held the key already.
    Kept,
    /// Another owner, or an older incarnation of the same owner, held the key; it may have ended. The
    /// same step removed the key from that incarnation's index.
    Moved { from: Holder },
    /// Another owner that has not ended holds the key and the policy is [`TakePolicy::IfFree`], or a
    /// newer incarnation of the same owner holds it. Nothing changed.
    Taken { by: Holder },
}

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterAnswer {
    /// The incarnation that holds the keys.
    pub incarnation: Incarnation,
    /// Its first heartbeat, if this call started that incarnation because the owner's name was new.
    pub started: Option<Beat>,
    /// One result per key, in the order of the call.
    pub keys: Vec<Registered>,
}

/// An entry with what is needed to judge whether its owner is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    pub holder: Holder,
    /// When it was registered, in milliseconds of the store's clock, if the store keeps that.
    pub registered_ms: Option<u64>,
    /// When the owner's heartbeat runs out, including the store-away grace.
    pub due_ms: u64,
    /// How and when the owner's incarnation ended, if it did.
    pub ended: Option<(Ending, u64)>,
    pub now_ms: u64,
}

/// What is known of an owner whose application writes the heartbeat itself (adopt mode). All times
/// are of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
#[non_exhaustive]
pub enum AdoptedOwnerState {
    /// It has a heartbeat now.
    Alive,
    /// It had a heartbeat, and has none any more: it is dead.
    HeartbeatGone {
        /// How long ago its last known heartbeat ran out, at least.
        since_ms: u64,
    },
    /// It was never seen with a heartbeat, for a whole TTL since it was first seen: it is dead.
    NeverBeat {
        /// How long it has been known.
        known_for_ms: u64,
    },
    /// It was never seen with a heartbeat, but has been known for less than a TTL: it is spared.
    Newcomer {
        /// How long it is still spared.
        left_ms: u64,
    },
}

impl AdoptedOwnerState {
    /// The state as a sentence about the owner.
    pub fn describe(&self) -> String {
        let seconds = |ms: &u64| *ms as f64 / 1e3;
        match self {
            AdoptedOwnerState::Alive => "that owner has a heartbeat".to_owned(),
            AdoptedOwnerState::HeartbeatGone { since_ms } => format!(
                "that owner's heartbeat was seen and is gone, for {:.1} s at least",
                seconds(since_ms)
            ),
            AdoptedOwnerState::NeverBeat { known_for_ms } => format!(
                "that owner was never seen with a heartbeat in the {:.1} s since it was first seen, \
                 which is a whole TTL or more",
                seconds(known_for_ms)
            ),
            AdoptedOwnerState::Newcomer { left_ms } => format!(
                "that owner was never seen with a heartbeat; if none arrives it is dead in {:.1} s, a \
                 whole TTL after a pass first saw it (a dry run or `explain` does not count)",
                seconds(left_ms)
            ),
        }
    }
}

/// What a store implements for `registry`.
#[async_trait]
pub trait RegistryStore: OwnerStore + Sweep {
    /// Largest number of keys that one atomic step registers. A store that is shared with others
    /// limits it, so that no step occupies it for long.
    fn atomic_keys(&self) -> usize {
        KEYS_MAX
    }

    /// Registers keys for one owner. They are durable when the call returns. Up to
    /// [`atomic_keys`](Self::atomic_keys) keys are registered together or not at all. More keys are
    /// registered in parts, and an error leaves the earlier parts registered; repeating the call is
    /// safe. `Lost` if that incarnation has ended.
    async fn register(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer>;

    /// Removes the keys that this owner still holds; the answer says for each key whether it did.
    async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>>;

    /// What is stored under each key, whether or not the owner is alive.
    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>>;

    /// Why `owner` counts as alive or dead, where the application writes the heartbeats itself.
    /// `None` where owners send their heartbeats through lapsed. Writes nothing.
    async fn adopted_owner_state(&self, _owner: &Name) -> Result<Option<AdoptedOwnerState>> {
        Ok(None)
    }

    /// What one incarnation holds, ordered by key, only keys after `after`, at most `limit`.
    async fn entries(&self, claim: &Claim, after: Option<&Name>, limit: usize)
    -> Result<Vec<Name>>;

    /// Puts back the entry of receipt `seq` for the newest incarnation of its owner, if the key is
    /// free and that incarnation has not ended. Marks the receipt in the same step.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
