//! What the registry's routes are given and answer.

use lapsed_core::registry::{FoundEntry, Registered};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to register: `key` or `keys`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterBody {
    #[schema(example = "ingest-1")]
    pub owner: String,
    pub incarnation: Option<u64>,
    #[schema(example = "356307042441013")]
    pub key: Option<String>,
    pub keys: Option<Vec<String>>,
    /// Leave alone what another living owner holds.
    #[serde(default)]
    pub if_free: bool,
}

/// Many keys to register.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterManyBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub keys: Vec<String>,
    /// Leave alone what another living owner holds.
    #[serde(default)]
    pub if_free: bool,
}

/// Who holds, or held, a key.
#[derive(Serialize, ToSchema)]
pub struct HolderShape {
    pub owner: String,
    pub incarnation: u64,
}

/// What became of one key: `new`, `kept`, `moved` (then `from`) or `taken` (then `by`).
#[derive(Serialize, ToSchema)]
pub struct RegisterOutcome {
    #[serde(flatten)]
    #[schema(inline, value_type = OutcomeShape)]
    pub outcome: Registered,
}

/// The same, for the document.
#[derive(Serialize, ToSchema)]
pub struct OutcomeShape {
    pub outcome: String,
    pub from: Option<HolderShape>,
    pub by: Option<HolderShape>,
}

/// The same where there may be none.
#[derive(Serialize, ToSchema)]
pub struct SingleOutcome {
    pub outcome: Option<String>,
    pub from: Option<HolderShape>,
    pub by: Option<HolderShape>,
}

/// For a single key its outcome stands at the top; for many there is `results`, in order.
#[derive(Serialize, ToSchema)]
#[schema(as = RegisterAnswer)]
pub struct RegisterResponse {
    pub owner: String,
    pub incarnation: u64,
    /// Whether this call began the life.
    pub started: bool,
    /// Until when that life lives, if this call began it.
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

/// What to let go of.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnregisterBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub key: String,
}

/// Many keys to let go of.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnregisterManyBody {
    pub owner: String,
    pub incarnation: Option<u64>,
    pub keys: Vec<String>,
}

/// Whether it was still this owner's.
#[derive(Serialize, ToSchema)]
pub struct UnregisterAnswer {
    pub removed: bool,
}

/// How many were, and which.
#[derive(Serialize, ToSchema)]
pub struct UnregisterManyAnswer {
    pub removed: usize,
    pub results: Vec<bool>,
}

/// Many keys.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeysBody {
    pub keys: Vec<String>,
}

/// An entry of a living owner.
#[derive(Serialize, ToSchema)]
pub struct Entry {
    pub key: String,
    pub owner: String,
    pub incarnation: u64,
    pub registered_ms: Option<u64>,
    /// Until when its owner lives unless it beats.
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

/// One a key, in order.
#[derive(Serialize, ToSchema)]
pub struct Entries {
    pub results: Vec<Option<Entry>>,
}

/// What a graceful end did.
#[derive(Serialize, ToSchema)]
pub struct RetireAnswer {
    pub owner: String,
    pub incarnation: u64,
    /// How many entries were removed, each with its receipt.
    pub reclaimed: u64,
}
