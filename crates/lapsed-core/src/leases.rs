//! `leases`: the right to a key for a time, with a token that only grows; and the decisions of
//! transactions, each made once.
//!
//! A lease ends by its own deadline on the store's clock. Nobody has to notice: whoever touches the key
//! next clears what is over, in the same step as what it came for, and the sweep only tidies up
//! behind that. The record of a key outlives its leases, so that tokens never begin again.
//!
//! What is written here once, for every store: the rules ([`rules`]), the operations ([`Leases`]), a
//! handle that renews by itself ([`Hold`]), why a lease is, or is not, over (`explain`), and the
//! conformance suite that every store must pass.

mod base64;
#[cfg(feature = "conformance")]
pub mod conformance;
mod explain;
mod hold;
mod operations;
pub mod rules;
mod waiting;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::name::Name;
use crate::receipt::Reason;
use crate::sweep::Sweep;
use crate::system::Restored;
use rules::{Lease, LeaseRecord, StagedState};

pub use hold::{Hold, HoldAttempt, HoldOptions, LostLease};
pub use operations::{Leases, LeasesParts};

/// How long a lease lasts unless told.
pub const TTL_MS: u64 = 30_000;

/// The shortest lease: an object store tells its time in whole seconds.
pub const TTL_MS_MIN: u64 = 1_000;

/// The longest lease, and the longest that a decision is kept.
pub const TTL_MS_MAX: u64 = 30 * 24 * 3_600_000;

/// How long a decision is kept unless told.
pub const DECISION_TTL_MS: u64 = 24 * 3_600_000;

/// The longest key or transaction id, in bytes: escaped it must still fit the name of an object.
pub const KEY_BYTES_MAX: usize = 256;

/// The most bytes of a key's state.
pub const STATE_BYTES_MAX: usize = 64 << 10;

/// The most keys in one answer.
pub const PAGE_MAX: usize = 1_000;

/// What stands before the id of a transaction where a suspect or a receipt names a decision.
pub const DECISIONS: &str = ".txn-decisions";

/// A fencing token: within its key each is larger than every one before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LeaseToken(pub u64);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A namespace: 1 to 64 letters, digits, `_`, `-` and `.`, not beginning with `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks `text`; the error names the rule that it breaks.
    pub fn new(text: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let fits = (1..=64).contains(&text.len()) && !text.starts_with('.');
        if fits && text.chars().all(plain) {
            return Ok(Namespace(Arc::from(text)));
        }
        Err(Error::Invalid(format!(
            "the namespace {text:?} must be 1 to 64 letters, digits, `_`, `-` or `.`, and must not \
             begin with `.`"
        )))
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Namespace {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Namespace::new(&text)
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> String {
        namespace.0.as_ref().to_owned()
    }
}

/// The namespace that is meant where none is named.
pub const NAMESPACE: &str = "default";

/// What a lease is on. Written `namespace/key`, or `key` in the namespace [`NAMESPACE`]; the key may contain
/// anything but control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey {
    pub namespace: Namespace,
    pub key: Name,
}

impl LeaseKey {
    pub fn new(namespace: &str, key: &str) -> Result<Self> {
        Ok(LeaseKey { namespace: Namespace::new(namespace)?, key: short(key, "a key")? })
    }

    /// How suspects and receipts name it.
    pub fn subject(&self) -> Name {
        Name::new(&self.to_string()).expect("a namespace and a key of at most 256 bytes are a name")
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.key)
    }
}

impl FromStr for LeaseKey {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let (namespace, key) = text.split_once('/').unwrap_or((NAMESPACE, text));
        LeaseKey::new(namespace, key)
    }
}

/// The id of a transaction: a name of at most 256 bytes.
pub fn txn(text: &str) -> Result<Name> {
    short(text, "the id of a transaction")
}

fn short(text: &str, what: &str) -> Result<Name> {
    let name = Name::new(text)?;
    if text.len() <= KEY_BYTES_MAX {
        return Ok(name);
    }
    Err(Error::Invalid(format!(
        "{what} has at most {KEY_BYTES_MAX} bytes; this one has {}",
        text.len()
    )))
}

/// What a suspect or a receipt of this system is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Lease(LeaseKey),
    Decision(Name),
}

impl Subject {
    /// From the key of a suspect or a receipt.
    pub fn parse(key: &str) -> Result<Subject> {
        match key.split_once('/') {
            Some((DECISIONS, id)) => Ok(Subject::Decision(txn(id)?)),
            _ => Ok(Subject::Lease(key.parse()?)),
        }
    }

    /// As suspects and receipts have it.
    pub fn name(&self) -> Name {
        match self {
            Subject::Lease(key) => key.subject(),
            Subject::Decision(txn) => Name::new(&format!("{DECISIONS}/{txn}"))
                .expect("an id of at most 256 bytes with a prefix is a name"),
        }
    }

    /// Why it is reclaimed.
    pub fn reason(&self) -> Reason {
        match self {
            Subject::Lease(_) => Reason::LeaseExpired,
            Subject::Decision(_) => Reason::DecisionExpired,
        }
    }
}

/// The small state that may go with a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    Json(serde_json::Value),
    /// Any bytes; in JSON as base64.
    Bytes(#[serde(with = "crate::leases::base64")] Vec<u8>),
}

impl LeaseState {
    /// Refuses what is too large.
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
pub enum Decision {
    /// What was staged becomes true.
    Commit,
    /// What was staged is discarded.
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
    /// A name that only this request has: the same one again gets the same answer, so that a request
    /// whose answer was lost may be repeated.
    pub request: Option<Name>,
}

/// A lease in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub namespace: Namespace,
    pub key: Name,
    pub owner: Name,
    /// To be shown with whatever the holder does, here and elsewhere.
    pub token: LeaseToken,
    /// How long it lasts from each renewal.
    pub ttl_ms: u64,
    /// Until when, on the store's clock.
    pub deadline_ms: u64,
    pub now_ms: u64,
}

/// The answer to an attempt to acquire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Acquired {
    /// It is the caller's.
    Granted(Grant),
    /// It is somebody else's, by this grant.
    Held(Grant),
}

/// A claim to a lease, as its holder shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTicket {
    pub key: LeaseKey,
    pub token: LeaseToken,
}

/// The answer to whoever acts on a lease by its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fenced<T> {
    /// The token is the holder's, and it was done.
    Done(T),
    /// The token holds nothing, and nothing was changed.
    Lost(Loss),
}

/// Why a token holds nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub why: LossReason,
    /// The newest token of that key.
    pub token: LeaseToken,
    /// Who holds it now, if somebody does.
    pub holder: Option<Name>,
}

/// Why a token holds nothing, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReason {
    /// Its time ran out, or it was released; nobody has held the key since.
    Ended,
    /// Somebody has acquired the key since.
    Superseded,
    /// No such token was ever granted on that key.
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
    /// What happened, and what to do.
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

/// One key, as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    pub namespace: Namespace,
    pub key: Name,
    /// The newest token; it survives the lease.
    pub token: LeaseToken,
    /// Who holds it, if somebody does.
    pub lease: Option<Lease>,
    /// Whether that lease is over and not yet cleared: only in answers of those that just look.
    pub expired: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LeaseState>,
    /// What its holder has staged.
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

/// A decision, as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionInfo {
    pub txn: Name,
    pub decision: Decision,
    /// Whether this very call decided it.
    pub first: bool,
    /// When it was decided, on the store's clock.
    pub decided_ms: u64,
    /// Until when it is kept, on the store's clock.
    pub deadline_ms: u64,
    pub now_ms: u64,
}

/// What an operation met on its way and cleared, with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithCleared<T> {
    pub answer: T,
    /// What was over and is cleared now: each has its receipt, in the same step.
    pub cleared: Vec<Expiry>,
}

impl<T> WithCleared<T> {
    /// Nothing was in the way.
    pub fn clean(answer: T) -> WithCleared<T> {
        WithCleared { answer, cleared: Vec::new() }
    }
}

/// One thing that ran out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub subject: Subject,
    /// When its time ran out, on the store's clock.
    pub deadline_ms: u64,
    /// When it was cleared, on the store's clock.
    pub at_ms: u64,
}

/// What a receipt of this system says was removed: its `removed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum RemovedLease {
    Lease(rules::ClearedLease),
    Decision(rules::DecisionMarker),
}

/// The seam that stores fill for `leases`.
///
/// Every call is one atomic step, or a chain of them in which only the last decides. Whatever is over
/// and in the way is cleared in that step, with its receipt, before what was asked is done; a lease that
/// has staged work only after its transaction was decided ([`LeaseRecord::undecided`]). Answers say what was
/// cleared, so that it is counted.
///
/// The suspects of the sweep are leases (key `namespace/key`, the owner is the holder, the incarnation
/// the token) and decisions (key `.txn-decisions/ID`, the owner is the word of the decision, the
/// incarnation 0) that are over. A store whose index is coarse may list them later than that, but never
/// earlier. A lease that was renewed is [`Refusal::Alive`](crate::sweep::Refusal), one that has another
/// token `Moved`, one that was released or cleared `Gone`. The population of a census is the number of
/// keys that are held, where that is known without looking at all of them. While the brake holds
/// (`undeclared_max` is 0) nothing is listed.
#[async_trait]
pub trait LeasesStore: Sweep {
    /// Grants the next token of a key, unless somebody holds it. Durable when answered. To be safe to
    /// repeat it needs [`AcquireRequest::request`].
    async fn acquire(&self, acquire: &AcquireRequest) -> Result<WithCleared<Acquired>>;

    /// Rings when `key` may have become free; may ring for nothing. `None`: look again after a while.
    fn bell(&self, _key: &LeaseKey) -> Option<Arc<Notify>> {
        None
    }

    /// Moves the deadline on, for another TTL from now; repeating is safe.
    async fn renew(
        &self,
        ticket: &LeaseTicket,
        ttl_ms: Option<u64>,
    ) -> Result<WithCleared<Fenced<Grant>>>;

    /// Ends the lease; the token lives on. Repeated, it answers that the lease has ended.
    async fn release(&self, ticket: &LeaseTicket) -> Result<WithCleared<Fenced<()>>>;

    /// One key; `None`: it was never leased.
    async fn describe(&self, key: &LeaseKey) -> Result<WithCleared<Option<LeaseInfo>>>;

    /// The same for whoever only looks: nothing is cleared.
    async fn peek(&self, key: &LeaseKey) -> Result<Option<LeaseInfo>>;

    /// Keys of a namespace, by name, those after `after`, at most `limit`. Looks only.
    async fn list(
        &self,
        namespace: &Namespace,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<LeaseInfo>>;

    /// Namespaces that there are, by name, those after `after`, at most `limit`.
    async fn namespaces(&self, after: Option<&Namespace>, limit: usize) -> Result<Vec<Namespace>>;

    /// Sets or removes the state of a key, for its holder; repeating is safe.
    async fn set_state(
        &self,
        ticket: &LeaseTicket,
        state: Option<&LeaseState>,
    ) -> Result<WithCleared<Fenced<()>>>;

    /// Stages a state (or takes it back), for its holder; repeating is safe.
    async fn stage(
        &self,
        ticket: &LeaseTicket,
        staged: Option<&StagedState>,
    ) -> Result<WithCleared<Fenced<()>>>;

    /// Decides a transaction, unless it is decided: then the answer is how. Repeating is safe.
    async fn decide(
        &self,
        txn: &Name,
        decision: Decision,
        ttl_ms: u64,
    ) -> Result<WithCleared<DecisionInfo>>;

    /// The decision on a transaction; `None`: there is none, or it is no longer kept.
    async fn decision(&self, txn: &Name) -> Result<WithCleared<Option<DecisionInfo>>>;

    /// The same for whoever only looks: nothing is deleted; the second is whether it is over.
    async fn peek_decision(&self, txn: &Name) -> Result<Option<(DecisionInfo, bool)>>;

    /// Puts back what receipt `seq` removed. A lease: granted anew to the same owner with the next
    /// token and a whole TTL, if nobody has held the key since; the old token stays dead. A decision:
    /// made again for as long as it was kept, if there is none by now. Marks the receipt.
    async fn restore(&self, seq: u64) -> Result<Restored>;
}
