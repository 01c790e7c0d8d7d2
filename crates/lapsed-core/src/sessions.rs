//! `sessions`: sessions that many connect to, deleted when nobody has been for a grace period.
//!
//! A session is held by references. A reference belongs to one incarnation of an owner (the server
//! that somebody is connected to) and dies with it. When the last one goes the session is
//! *disconnected* and its grace runs; at its end it is an *orphan*, and is reclaimed: deleted with
//! what hangs on it, with a receipt from which it can be put back.
//!
//! What is written here once, for every store: the rules ([`rules`]), the operations ([`Sessions`]),
//! why something is dead (`explain`), and the conformance suite that every store must pass.

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
use crate::sweep::{Suspect, Sweep};
use crate::system::Restored;

pub use operations::{RetiredSessionOwner, Sessions, SessionsParts};

/// How long a disconnected session is kept unless told: `ORPHAN_MAX_AGE` of the original.
pub const GRACE_MS: u64 = 30_000;

/// How long an owner's beat lasts unless told.
pub const HEARTBEAT_TTL_MS: u64 = 90_000;

/// The most sessions in one answer.
pub const PAGE_MAX: usize = 10_000;

/// What a session carries. In an update, what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionProfile {
    /// The application's own value, as it writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Whose session it is; one session a broadcaster is the current one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcaster_user_id: Option<Name>,
    /// The application's configuration, as it writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_json: Option<String>,
}

/// The most bytes of a profile's value and configuration together.
pub const PROFILE_BYTES_MAX: usize = 64 << 10;

/// Refuses a profile that is too large: a receipt carries it, and batches carry receipts.
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
    /// When the last of them went, on the store's clock; none while it is active.
    pub disconnected_ms: Option<u64>,
    /// When it was last updated, on the store's clock, where that is known.
    pub updated_ms: Option<u64>,
    /// When it is an orphan, the store-away grace included; none while somebody is connected.
    pub due_ms: Option<u64>,
    pub now_ms: u64,
}

/// The answer to an activation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activated {
    /// Whether it was made; otherwise an existing one was brought back.
    pub created: bool,
    /// As it is now.
    pub session: Session,
}

/// How a session stands after a reference came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceChange {
    /// How many references there are now.
    pub references: u64,
    /// How many of them are the caller's.
    pub yours: u64,
    /// Whether this call changed anything: a disconnect without a reference does not.
    pub changed: bool,
    /// When the last reference went; none while it is active.
    pub disconnected_ms: Option<u64>,
    /// The life that was meant; none where references have no owner.
    pub incarnation: Option<Incarnation>,
    /// Whether this call began that life (a name never seen before).
    pub started: Option<Beat>,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Deleted {
    /// It is gone, with what hung on it.
    Deleted,
    /// Refused: somebody is connected.
    Active {
        /// How many references there are.
        references: u64,
    },
    /// There was no such session.
    Missing,
}

/// The seam that stores fill for `sessions`.
///
/// Whatever names a session that does not exist answers `None` and changes nothing (B6).
///
/// References are counted, so `connect` and `disconnect` are the two operations that are not the same
/// when repeated. A call that fails with [`Error::Unavailable`] may have counted all the same. Whoever
/// repeats a `connect` then has perhaps one reference too many, which keeps a session too long and
/// never too short; whoever repeats a `disconnect` has perhaps one too few, which is the dangerous
/// side. So: repeat a doubtful `connect`, never a doubtful `disconnect`, and compare
/// [`ReferenceChange::yours`] in the next answer with how many are really connected here; give back what is
/// too many. What leaks all the same dies with its owner's incarnation.
///
/// A sweep has two kinds of suspects. References of a life that is overdue or ended: the key is the
/// session's id, owner and incarnation are that life's; all references of that life to that session
/// are dropped ([`Outcome::Released`](crate::sweep::Outcome), no receipt), and with the last of all
/// the session's grace begins in the same step. And sessions whose grace is over: the owner is the
/// broadcaster (or, without one, the session's id), the incarnation 0; the session is deleted, with
/// a receipt. While the brake holds (`undeclared_max` is 0) the second kind is not listed. The
/// threshold is the longer of TTL and grace.
#[async_trait]
pub trait SessionsStore: OwnerStore + Sweep {
    /// Makes it, or brings an existing one back: its disconnection is forgotten, and what `profile`
    /// gives is set. It becomes its broadcaster's current session. Without a reference its grace
    /// runs from now.
    async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated>;

    /// One more reference, of the claimed life; the disconnection is forgotten in the same step.
    /// `Lost` when that life has ended. Not idempotent: see above.
    async fn connect(&self, claim: Option<&Claim>, id: &Name) -> Result<Option<ReferenceChange>>;

    /// One reference of the claimed life less; when it was the last of all, the grace begins in the
    /// same step. Never below zero. `Lost` when that life has ended. Not idempotent: see above.
    async fn disconnect(&self, claim: Option<&Claim>, id: &Name)
    -> Result<Option<ReferenceChange>>;

    /// Forgets the disconnection without adding a reference: the grace begins anew.
    async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>>;

    async fn get(&self, id: &Name) -> Result<Option<Session>>;

    /// Sets what `profile` gives.
    async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>>;

    /// Removes it with what hangs on it, unless somebody is connected.
    async fn delete(&self, id: &Name) -> Result<Deleted>;

    /// The current session of a broadcaster.
    async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>>;

    /// Sessions whose grace is over, the longest overdue first, at most `limit` (B9).
    async fn orphans(&self, limit: usize) -> Result<Vec<Name>>;

    /// How many sessions are disconnected.
    async fn disconnected_count(&self) -> Result<u64>;

    /// The sessions that one life refers to, by id, those after `after`, at most `limit`.
    async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>>;

    /// What one *ended* life still refers to, as suspects, at most `limit`: what retiring lets go.
    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>>;

    /// Puts back the session of receipt `seq`, if there is none of that id; marks the receipt in the
    /// same step. It comes back disconnected, with a whole grace before it; its broadcaster points
    /// to it again unless that points to another session by now.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
