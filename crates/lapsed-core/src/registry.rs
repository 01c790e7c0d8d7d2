//! `registry`: connections, and the instance that holds each.
//!
//! An entry lives as long as its owner's incarnation. What is written here once, for every store:
//! the rules ([`rules`]), the operations ([`Registry`]), why something is dead (`explain`), and the
//! conformance suite that every store must pass.

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
use crate::sweep::{Suspect, Sweep};
use crate::system::Restored;

pub use operations::{Registry, RegistryParts, RetiredOwner};

/// How long a beat lasts unless told: the heartbeat TTL of the original.
pub const HEARTBEAT_TTL_MS: u64 = 90_000;

/// The most keys in one batch call.
pub const KEYS_MAX: usize = 10_000;

/// Whether a registration may take a key from another living owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakePolicy {
    /// Yes: the newest connection wins. Not from a newer life of the same owner.
    #[default]
    Always,
    /// No: for re-asserting what one used to hold.
    IfFree,
}

/// Who holds, or held, a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub owner: Name,
    pub incarnation: Incarnation,
}

/// What became of one registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Registered {
    /// The key was free.
    New,
    /// This owner held it already.
    Kept,
    /// It was somebody else's, and left their index in the same step.
    Moved { from: Holder },
    /// It is somebody else's, and only a free one was wanted; or a newer life of the same owner
    /// holds it.
    Taken { by: Holder },
}

/// The answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterAnswer {
    /// The life that holds them now.
    pub incarnation: Incarnation,
    /// Whether this call began that life (a name never seen before).
    pub started: Option<Beat>,
    /// One a key, in order.
    pub keys: Vec<Registered>,
}

/// An entry, with what is needed to judge whether its owner lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    pub holder: Holder,
    /// When it was registered, on the store's clock, where the store remembers it.
    pub registered_ms: Option<u64>,
    /// Until when the owner lives, the store-away grace included.
    pub due_ms: u64,
    /// How and when the owner ended.
    pub ended: Option<(Ending, u64)>,
    pub now_ms: u64,
}

/// The seam that stores fill for `registry`.
#[async_trait]
pub trait RegistryStore: OwnerStore + Sweep {
    /// How many keys one call registers in one step. A store that others share is not to be held
    /// for long.
    fn atomic_keys(&self) -> usize {
        KEYS_MAX
    }

    /// Registers all keys for one owner. Durable when answered. All of them or none, up to
    /// [`atomic_keys`](Self::atomic_keys); more are registered part by part, and an error then
    /// leaves the parts before it registered: repeating is safe. `Lost` when that life has ended.
    async fn register(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer>;

    /// Removes the keys that are still this owner's; says for each whether it was.
    async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>>;

    /// What is stored under each key, whatever has become of the owner.
    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>>;

    /// What one life holds, by key, those after `after`, at most `limit`.
    async fn entries(&self, claim: &Claim, after: Option<&Name>, limit: usize)
    -> Result<Vec<Name>>;

    /// What one *ended* life still holds, as suspects, at most `limit`: what retiring removes.
    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>>;

    /// Puts back the entry of receipt `seq`, under the newest life of its owner, if the key is free
    /// and that life has not ended; marks the receipt in the same step.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
