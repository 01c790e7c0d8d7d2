//! `sessions`: sessions with many connected clients, deleted when no client was connected for a
//! grace period.
//!
//! A session is held by references. A reference belongs to one incarnation of an owner (the server
//! that a client is connected to) and ends with it. When the last reference ends, the session is
//! *disconnected* and its grace period runs. After that it is an *orphan* and is reclaimed: deleted
//! together with its index entries, with a receipt from which it can be restored.
//!
//! This module holds what is the same for every store: the rules ([`rules`]), the operations
//! ([`Sessions`]), the explanation of a session's state (`explain`), and the conformance suite.

#[cfg(feature = "conformance")]
pub mod conformance;
mod explain;
mod operations;
pub mod rules;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{Beat, Claim, Incarnation, OwnerStore};
use crate::request::{RequestId, not_repeatable};
use crate::sweep::Sweep;
use crate::system::Restored;

pub use operations::{Sessions, SessionsParts};

/// Grace period of a disconnected session unless the configuration says otherwise, in milliseconds.
pub const GRACE_MS: u64 = 30_000;

/// How long an owner's heartbeat lasts unless the configuration says otherwise, in milliseconds.
pub const HEARTBEAT_TTL_MS: u64 = 90_000;

/// Largest number of sessions in one answer.
pub const PAGE_MAX: usize = 10_000;

/// Data of a session. In an update, absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionProfile {
    /// A value of the application; lapsed does not interpret it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The broadcaster of the session. Each broadcaster has one current session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcaster_user_id: Option<Name>,
    /// Configuration of the application; lapsed does not interpret it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_json: Option<String>,
}

/// Largest sum of a profile's value and configuration, in bytes.
pub const PROFILE_BYTES_MAX: usize = 64 << 10;

/// Refuses a profile that is too large. Receipts contain profiles, and batches contain receipts.
fn check(profile: &SessionProfile) -> Result<()> {
    let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let bytes = len(&profile.value) + len(&profile.config_json);
    if bytes <= PROFILE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "value and config_json together have at most {PROFILE_BYTES_MAX} bytes; these have {bytes}"
    )))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub id: Name,
    #[serde(flatten)]
    pub profile: SessionProfile,
    /// How many references there are.
    pub references: u64,
    /// When the last reference ended, in milliseconds of the store's clock; `None` while the
    /// session is active.
    pub disconnected_ms: Option<u64>,
    /// When the session was last updated, in milliseconds of the store's clock, if the store keeps
    /// that.
    pub updated_ms: Option<u64>,
    /// When the grace period ends, including the store-away grace; `None` while the session is
    /// active.
    pub due_ms: Option<u64>,
    pub now_ms: u64,
}

/// Answer to an activation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activated {
    /// Whether the session was created. Otherwise an existing session was reactivated.
    pub created: bool,
    /// The session after the call.
    pub session: Session,
}

/// Whether a reference is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceStep {
    Connect,
    Disconnect,
}

impl ReferenceStep {
    /// The name of the operation.
    pub fn as_str(self) -> &'static str {
        match self {
            ReferenceStep::Connect => "connect",
            ReferenceStep::Disconnect => "disconnect",
        }
    }
}

/// State of a session after a reference was added or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceChange {
    /// How many references there are now.
    pub references: u64,
    /// How many of the references belong to the calling incarnation.
    pub yours: u64,
    /// Whether this call changed anything. A disconnect without a reference changes nothing.
    pub changed: bool,
    /// When the last reference ended; `None` while the session is active.
    pub disconnected_ms: Option<u64>,
    /// The incarnation that the claim referred to; `None` if references have no owner in this
    /// store.
    pub incarnation: Option<Incarnation>,
    /// Its first heartbeat, if this call started that incarnation because the owner's name was new.
    pub started: Option<Beat>,
}

/// Result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
#[non_exhaustive]
pub enum Deleted {
    /// The session was deleted together with its index entries.
    Deleted,
    /// The session has references, so it was not deleted.
    Active {
        /// How many references there are.
        references: u64,
    },
    /// The session does not exist.
    Missing,
}

/// What a store implements for `sessions`.
///
/// A call that names a session that does not exist returns `None` and changes nothing (B6).
///
/// References are counted, so `connect` and `disconnect` are the only operations that are not
/// idempotent. A call that fails with [`Error::Unavailable`] may have been counted. A repeated
/// `connect` may add one reference too many, which keeps a session for too long, but never for too
/// short. A repeated `disconnect` may remove one too many, which is dangerous. So repeat a doubtful
/// `connect`, never a doubtful `disconnect`; compare [`ReferenceChange::yours`] of the next answer
/// with the number of clients that are connected, and disconnect the surplus. A reference that
/// leaks nevertheless ends with its owner's incarnation. `change_once` has none of these problems: all
/// attempts of one request count once.
///
/// A sweep has two kinds of suspects. (1) References of an incarnation that is overdue or ended:
/// the key is the session's id; owner and incarnation are those of the reference. All references of
/// that incarnation to that session are removed ([`Outcome::Released`](crate::sweep::Outcome), no
/// receipt). If they were the last ones, the grace period begins in the same step. (2) Sessions
/// whose grace period is over: the owner is the broadcaster or, without one, the session's id; the
/// incarnation is 0. The session is deleted with a receipt. While the brake holds (`undeclared_max`
/// is 0), the second kind is not listed. The threshold is the longer of TTL and grace period.
#[async_trait]
pub trait SessionsStore: OwnerStore + Sweep {
    /// Creates a session or reactivates an existing one: clears its disconnection and sets the
    /// fields that `profile` contains. It becomes its broadcaster's current session. Without a
    /// reference, its grace period runs from now.
    async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated>;

    /// Adds one reference of the claimed incarnation and clears the disconnection in the same step.
    /// `Lost` if that incarnation has ended. Not idempotent, see above.
    async fn connect(&self, claim: Option<&Claim>, id: &Name) -> Result<Option<ReferenceChange>>;

    /// Removes one reference of the claimed incarnation; if it was the session's last one, the
    /// grace period begins in the same step. Never goes below zero. `Lost` if that incarnation has
    /// ended. Not idempotent, see above.
    async fn disconnect(&self, claim: Option<&Claim>, id: &Name)
    -> Result<Option<ReferenceChange>>;

    /// [`connect`](Self::connect) or [`disconnect`](Self::disconnect) for a request that may be
    /// repeated: all its attempts change the count once and get the same answer. A call that changed
    /// nothing because there is no such session is not kept. `KeyReused` if the key came before with
    /// another fingerprint.
    async fn change_once(
        &self,
        request: &RequestId,
        change: ReferenceStep,
        _claim: Option<&Claim>,
        _id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        Err(not_repeatable(Some(self.system()), change.as_str(), request))
    }

    /// Clears the disconnection without adding a reference: the grace period starts again.
    async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>>;

    async fn get(&self, id: &Name) -> Result<Option<Session>>;

    /// Sets the fields that `profile` contains.
    async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>>;

    /// Deletes a session and its index entries, unless it has references.
    async fn delete(&self, id: &Name) -> Result<Deleted>;

    /// The id of a broadcaster's current session.
    async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>>;

    /// Sessions whose grace period is over, the most overdue first, at most `limit` (B9).
    async fn orphans(&self, limit: usize) -> Result<Vec<Name>>;

    /// How many sessions are disconnected.
    async fn disconnected_count(&self) -> Result<u64>;

    /// Ids of the sessions that one incarnation refers to, in order, those after `after`, at most
    /// `limit`.
    async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>>;

    /// Restores the session of receipt `seq`, if no session has that id, and marks the receipt in
    /// the same step. The session comes back disconnected, with a whole grace period. It becomes
    /// its broadcaster's current session unless that has another one by now.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
