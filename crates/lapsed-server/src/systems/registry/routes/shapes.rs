//! The bodies and answers of the routes of a registry.

use lapsed_core::registry::{FoundEntry, Registered};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The keys to register for an owner: either `key` or `keys`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterBody {
    #[schema(example = "ingest-1")]
    pub owner: String,
    pub incarnation: Option<u64>,
    #[schema(example = "356307042441013")]
    pub key: Option<String>,
    pub keys: Option<Vec<String>>,
    /// Leave keys to another owner that holds them and has not ended.
    #[serde(default)]
    pub if_free: bool,
}

/// Many keys to register for an owner.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterManyBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub keys: Vec<String>,
    /// Leave keys to another owner that holds them and has not ended.
    #[serde(default)]
    pub if_free: bool,
}

/// The owner that holds, or held, a key.
#[derive(Serialize, ToSchema)]
pub struct HolderShape {
    pub owner: String,
    pub incarnation: u64,
}

/// The result of one registration: `new`, `kept`, `moved` (with the previous holder in `from`) or
/// `taken` (with the current holder in `by`).
#[derive(Serialize, ToSchema)]
pub struct RegisterOutcome {
    #[serde(flatten)]
    #[schema(inline, value_type = OutcomeShape)]
    pub outcome: Registered,
}

/// The result of one registration: `new`, `kept`, `moved` (with the previous holder in `from`) or
/// `taken` (with the current holder in `by`).
#[derive(Serialize, ToSchema)]
pub struct OutcomeShape {
    pub outcome: String,
    pub from: Option<HolderShape>,
    pub by: Option<HolderShape>,
}

/// The result of a single registration; absent when `keys` was given.
#[derive(Serialize, ToSchema)]
pub struct SingleOutcome {
    pub outcome: Option<String>,
    pub from: Option<HolderShape>,
    pub by: Option<HolderShape>,
}

/// The result of a registration. For a single `key` the outcome is at the top level; for `keys`
/// there is `results`, in order.
#[derive(Serialize, ToSchema)]
#[schema(as = RegisterAnswer)]
pub struct RegisterResponse {
    pub owner: String,
    pub incarnation: u64,
    /// Whether this call started the incarnation.
    pub started: bool,
    /// The deadline of the incarnation's next heartbeat, if this call started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    #[serde(flatten)]
    #[schema(value_type = SingleOutcome)]
    pub outcome: Option<RegisterOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<OutcomeShape>>)]
    pub results: Option<Vec<RegisterOutcome>>,
}

impl RegisterResponse {
    pub fn of(owner: String, answer: lapsed_core::registry::RegisterAnswer, single: bool) -> Self {
        let mut outcomes: Vec<_> =
            answer.keys.into_iter().map(|outcome| RegisterOutcome { outcome }).collect();
        let (outcome, results) = match single {
            true => (outcomes.pop(), None),
            false => (None, Some(outcomes)),
        };
        RegisterResponse {
            owner,
            incarnation: answer.incarnation.0,
            started: answer.started.is_some(),
            deadline_ms: answer.started.map(|beat| beat.deadline_ms),
            ttl_ms: answer.started.map(|beat| beat.ttl_ms),
            outcome,
            results,
        }
    }
}

/// A key that its owner removes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnregisterBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub key: String,
}

/// Many keys that their owner removes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnregisterManyBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub keys: Vec<String>,
}

/// Whether the key was removed: it was not if this owner no longer held it.
#[derive(Serialize, ToSchema)]
pub struct UnregisterAnswer {
    pub removed: bool,
}

/// How many of the keys were removed, and for each key whether it was.
#[derive(Serialize, ToSchema)]
pub struct UnregisterManyAnswer {
    pub removed: usize,
    pub results: Vec<bool>,
}

/// The keys to look up.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeysBody {
    pub keys: Vec<String>,
}

/// A key and the living owner that holds it.
#[derive(Serialize, ToSchema)]
pub struct Entry {
    pub key: String,
    pub owner: String,
    pub incarnation: u64,
    pub registered_ms: Option<u64>,
    /// When the owner counts as dead unless it sends a heartbeat, in milliseconds on the store's
    /// clock.
    pub due_ms: u64,
}

impl Entry {
    pub fn of(key: String, found: FoundEntry) -> Self {
        Entry {
            key,
            owner: found.holder.owner.into(),
            incarnation: found.holder.incarnation.0,
            registered_ms: found.registered_ms,
            due_ms: found.due_ms,
        }
    }
}

/// One result per key, in the order of the request; `null` for a key that no living owner holds.
#[derive(Serialize, ToSchema)]
pub struct Entries {
    pub results: Vec<Option<Entry>>,
}

/// What the graceful end of an owner did.
#[derive(Serialize, ToSchema)]
pub struct RetireAnswer {
    pub owner: String,
    pub incarnation: u64,
    /// How many entries were removed, each with a receipt.
    pub reclaimed: u64,
}
