//! `leases`: the exclusive right to a key for a limited time, with a fencing token that only grows;
//! and the decisions of transactions, each made once.
//!
//! A lease ends at its deadline on the store's clock, without any action. The next operation on the
//! key clears an expired lease in the same atomic step as its own work; the sweep only removes what
//! no operation has touched. The record of a key outlives its leases, so that its tokens never
//! start again. The sweep deletes (*forgets*) the record of a key that nobody has used for long,
//! after the store's token floor was raised to its token.
//!
//! This module holds what is the same for every store: the rules ([`rules`]), the operations
//! ([`Leases`]), a handle that renews in the background ([`Hold`]), the explanation of a lease's
//! state (`explain`), and the conformance suite.

mod base64;
#[cfg(feature = "conformance")]
pub mod conformance;
mod explain;
mod hold;
mod key;
mod operations;
pub mod rules;
mod wait_queue;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::name::Name;
use crate::sweep::Sweep;
use crate::system::Restored;
use rules::{Lease, LeaseRecord, StagedState};

pub use hold::{Hold, HoldAttempt, HoldOptions, LostLease};
pub use key::{DECISIONS, KEY_BYTES_MAX, LeaseKey, LeaseToken, NAMESPACE, Namespace, Subject, txn};
pub use operations::{Leases, LeasesParts};

/// How long a lease lasts unless the request says otherwise, in milliseconds.
pub const TTL_MS: u64 = 30_000;

/// Shortest lease, in milliseconds: the clock of an object store has a resolution of one second.
pub const TTL_MS_MIN: u64 = 1_000;

/// Longest lease, and the longest time for which a decision is kept, in milliseconds.
pub const TTL_MS_MAX: u64 = 30 * 24 * 3_600_000;

/// How long a decision is kept unless the request says otherwise, in milliseconds.
pub const DECISION_TTL_MS: u64 = 24 * 3_600_000;

/// How long the record of a key that nobody uses is kept unless configured, in milliseconds.
pub const FORGET_AFTER_MS: u64 = 30 * 24 * 3_600_000;

/// Largest state of a key, in bytes.
pub const STATE_BYTES_MAX: usize = 64 << 10;

/// Largest number of keys in one answer.
pub const PAGE_MAX: usize = 1_000;

/// A small value that an application may store with a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LeaseState {
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    Json(serde_json::Value),
    /// Any bytes; in JSON as base64.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    Bytes(#[serde(with = "crate::leases::base64")] Vec<u8>),
}

impl LeaseState {
    /// Refuses a state larger than [`STATE_BYTES_MAX`].
    pub fn check(&self) -> Result<()> {
        let bytes = match self {
            LeaseState::Json(value) => value.to_string().len(),
            LeaseState::Bytes(bytes) => bytes.len(),
        };
        if bytes <= STATE_BYTES_MAX {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a state has at most {STATE_BYTES_MAX} bytes; this one has {bytes}"
        )))
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Decision {
    /// The staged state becomes the state of the key.
    Commit,
    /// The staged state is discarded.
    Rollback,
}

impl Decision {
    /// The word used in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Commit => "commit",
            Decision::Rollback => "rollback",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    pub key: LeaseKey,
    pub owner: Name,
    pub ttl_ms: u64,
    /// A name that is unique to this request. The same request sent again gets the same answer, so
    /// that a request whose answer was lost can be repeated.
    pub request: Option<Name>,
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub namespace: Namespace,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: Name,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub owner: Name,
    /// Fencing token, which the holder presents with every operation here and with every write
    /// elsewhere.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: LeaseToken,
    /// How long the lease lasts from each renewal, in milliseconds.
    pub ttl_ms: u64,
    /// When the lease ends, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    pub now_ms: u64,
}

/// Answer to an attempt to acquire a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Acquired {
    /// The caller holds the lease.
    Granted(Grant),
    /// Another holder has the lease, by this grant.
    Held(Grant),
}

/// Proof of a lease, which its holder presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTicket {
    pub key: LeaseKey,
    pub token: LeaseToken,
}

/// Answer to an operation that presents a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fenced<T> {
    /// The token was valid and the operation was carried out.
    Done(T),
    /// The token is not valid any more. Nothing changed.
    Lost(Loss),
}

/// Why a token is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub why: LossReason,
    /// The newest token of that key.
    pub token: LeaseToken,
    /// The current holder, if there is one.
    pub holder: Option<Name>,
}

/// Why a token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// The lease expired or was released, and the key was not acquired again since.
    Ended,
    /// The key was acquired again since.
    Superseded,
    /// This token was never granted for that key.
    Unknown,
}

impl LossReason {
    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            LossReason::Ended => "ended",
            LossReason::Superseded => "superseded",
            LossReason::Unknown => "unknown",
        }
    }
}

impl Loss {
    /// A sentence that says what happened and what the holder should do.
    pub fn describe(&self) -> String {
        match self.why {
            LossReason::Ended => {
                "the lease ran out or was released, and nobody has held it since; \
                                  acquire it again before going on"
                    .to_owned()
            }
            LossReason::Superseded => {
                let who = match &self.holder {
                    Some(holder) => format!("`{holder}` holds it by token {}", self.token),
                    None => format!("it has been held since by token {}", self.token),
                };
                format!("the lease ran out or was released, and {who}; discard what was done")
            }
            LossReason::Unknown => "no such token was ever granted on this key; \
                                    check the namespace, the key and the token"
                .to_owned(),
        }
    }
}

/// State of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Described))]
pub struct LeaseInfo {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub namespace: Namespace,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: Name,
    /// The newest token. It is kept after the lease has ended.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub token: LeaseToken,
    /// The current lease, if there is one.
    pub lease: Option<Lease>,
    /// Whether that lease has expired but is not cleared yet. Only operations that do not write
    /// return such a lease.
    pub expired: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LeaseState>,
    /// State that the holder has staged for a transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<StagedState>,
    pub now_ms: u64,
}

impl LeaseInfo {
    pub fn new(key: &LeaseKey, record: LeaseRecord, at: &rules::ClockReading) -> LeaseInfo {
        let expired = record.expired(at).is_some();
        let lease = record.lease.map(|lease| {
            let deadline_ms = lease.due_ms(at.back_ms);
            Lease { deadline_ms, ..lease }
        });
        LeaseInfo {
            namespace: key.namespace.clone(),
            key: key.key.clone(),
            token: record.token,
            lease,
            expired,
            state: record.state,
            staged: record.staged,
            now_ms: at.judging_ms,
        }
    }
}

/// The decision on a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Decided))]
pub struct DecisionInfo {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub txn: Name,
    pub decision: Decision,
    /// Whether this call made the decision.
    pub first: bool,
    /// When it was decided, in milliseconds of the store's clock.
    pub decided_ms: u64,
    /// Until when it is kept, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    pub now_ms: u64,
}

/// An operation's answer, together with the expired leases and decisions that it cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithCleared<T> {
    pub answer: T,
    /// What the operation cleared. Each receipt was written in the same atomic step.
    pub cleared: Vec<Expiry>,
}

impl<T> WithCleared<T> {
    /// An answer of an operation that cleared nothing.
    pub fn clean(answer: T) -> WithCleared<T> {
        WithCleared { answer, cleared: Vec::new() }
    }
}

/// An expired lease or decision that was cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub subject: Subject,
    /// When it expired, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// When it was cleared, in milliseconds of the store's clock.
    pub at_ms: u64,
}

/// The `removed` field of this system's receipts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum RemovedLease {
    Lease(rules::ClearedLease),
    Decision(rules::DecisionMarker),
}

/// What a store implements for `leases`.
///
/// Every call is one atomic step, or a chain of steps of which only the last one decides. That step
/// first clears what has expired and is in the way, with its receipt, and then does what was asked.
/// A lease with staged work is cleared only after its transaction was decided
/// ([`LeaseRecord::undecided`]). Answers contain what was cleared, so that it is counted.
///
/// The suspects of a sweep are expired leases (key `namespace/key`, owner = holder, incarnation =
/// token) and expired decisions (key `.txn-decisions/ID`, owner = the word of the decision,
/// incarnation 0). A store with a coarse index may list them late, but never early. A lease that
/// was renewed is [`Refusal::Alive`](crate::sweep::Refusal), one with another token is `Moved`, one
/// that was released or cleared is `Gone`. The population of a census is the number of leases, if
/// the store knows it without reading all of them. While the brake holds (`undeclared_max` is 0)
/// nothing is listed.
///
/// A pass also forgets keys that were unused for as long as the store is configured
/// ([`LeaseRecord::idle`]): the record is deleted, without a receipt, and counted in
/// [`keys_forgotten`](Self::keys_forgotten). No later token of such a key is smaller than an
/// earlier one.
#[async_trait]
pub trait LeasesStore: Sweep {
    /// Grants the next token of a key unless the key is held. The grant is durable when the call
    /// returns. Repeating the call is safe only with [`AcquireRequest::request`].
    async fn acquire(&self, acquire: &AcquireRequest) -> Result<WithCleared<Acquired>>;

    /// Is notified when `key` may have become free; may also be notified for nothing. `None`: the
    /// store cannot notify, and the caller polls.
    fn waiter(&self, _key: &LeaseKey) -> Option<Arc<Notify>> {
        None
    }

    /// Sets the deadline to one TTL from now. Repeating it is safe.
    async fn renew(
        &self,
        ticket: &LeaseTicket,
        ttl_ms: Option<u64>,
    ) -> Result<WithCleared<Fenced<Grant>>>;

    /// Ends the lease; the key keeps its token. A repeated call answers that the lease has ended.
    async fn release(&self, ticket: &LeaseTicket) -> Result<WithCleared<Fenced<()>>>;

    /// State of one key; `None`: the key was never leased, or it is forgotten. Clears an expired
    /// lease.
    async fn describe(&self, key: &LeaseKey) -> Result<WithCleared<Option<LeaseInfo>>>;

    /// State of one key, without clearing anything.
    async fn peek(&self, key: &LeaseKey) -> Result<Option<LeaseInfo>>;

    /// Keys of a namespace after `after`, ordered by name, at most `limit`. Clears nothing.
    async fn list(
        &self,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>>;

    /// Namespaces after `after`, ordered by name, at most `limit`.
    async fn namespaces(&self, after: Option<&Namespace>, limit: usize) -> Result<Vec<Namespace>>;

    /// Sets or removes the state of a key on behalf of its holder. Repeating it is safe.
    async fn set_state(
        &self,
        ticket: &LeaseTicket,
        state: Option<&LeaseState>,
    ) -> Result<WithCleared<Fenced<()>>>;

    /// Stages a state, or removes the staged state, on behalf of the key's holder. Repeating it is
    /// safe.
    async fn stage(
        &self,
        ticket: &LeaseTicket,
        staged: Option<&StagedState>,
    ) -> Result<WithCleared<Fenced<()>>>;

    /// Decides a transaction, or returns the decision that was made before. Repeating it is safe.
    async fn decide(
        &self,
        txn: &Name,
        decision: Decision,
        ttl_ms: u64,
    ) -> Result<WithCleared<DecisionInfo>>;

    /// The decision on a transaction; `None`: there is none, or it is no longer kept.
    async fn decision(&self, txn: &Name) -> Result<WithCleared<Option<DecisionInfo>>>;

    /// The decision on a transaction and whether it has expired, without deleting anything.
    async fn peek_decision(&self, txn: &Name) -> Result<Option<(DecisionInfo, bool)>>;

    /// Number of keys that this process has forgotten since it opened the system.
    fn keys_forgotten(&self) -> u64;

    /// Puts back what receipt `seq` removed and marks the receipt. A lease is granted again to the
    /// same owner, with the next token and a whole TTL, if the key was not acquired since; the old
    /// token stays invalid. A decision is made again for its original time if there is none by now.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
