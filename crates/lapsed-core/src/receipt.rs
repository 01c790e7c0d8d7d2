//! Receipts: what happened, written in the same step as the reclaim itself.
//!
//! A receipt is an outcome's only way out. Metrics, the event feed, the audit trail and `restore`
//! all read receipts; nothing counts a reclaim by any other means.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::name::{Kind, Name, SystemId};
use crate::owner::{Ending, Incarnation};
use crate::reconcile::{ReconcileEnd, ReconcileReport, Reconciled};
use crate::sweep::{PassMode, PassReport};

/// Which receipt: the system's kind and name, and a number that only grows within it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReceiptId {
    /// The system it belongs to.
    pub system: SystemId,
    /// Number of the receipt within its system; the cursor of the event feed.
    pub seq: u64,
}

impl fmt::Display for ReceiptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.system.kind, self.system.name, self.seq)
    }
}

impl FromStr for ReceiptId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::Invalid(format!(
                "{text:?} is not a receipt id; they look like `registry-default-42` \
                 (see `lapsed receipts`)"
            ))
        };
        let (kind, rest) = text.split_once('-').ok_or_else(wrong)?;
        let (name, seq) = rest.rsplit_once('-').ok_or_else(wrong)?;
        let kind = Kind::ALL.iter().find(|k| k.as_str() == kind).ok_or_else(wrong)?;
        let seq = seq.parse().map_err(|_| wrong())?;
        Ok(ReceiptId { system: SystemId::new(*kind, name).map_err(|_| wrong())?, seq })
    }
}

impl TryFrom<String> for ReceiptId {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ReceiptId> for String {
    fn from(id: ReceiptId) -> String {
        id.to_string()
    }
}

/// Why something was reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub enum Reason {
    /// Its owner's heartbeats stopped.
    OwnerDead,
    /// Its owner left gracefully.
    OwnerRetired,
    /// A session had no reference for longer than its grace period.
    Orphaned,
    /// A session was created, and nobody connected to it within its grace period.
    NeverConnected,
    /// A lease that its holder did not renew in time.
    LeaseExpired,
    /// A decision whose time to be kept is over.
    DecisionExpired,
    /// A provider whose heartbeats stopped.
    HeartbeatStale,
}

impl Reason {
    /// Every reason, in the order of the documentation.
    pub const ALL: &[Reason] = &[
        Reason::OwnerDead,
        Reason::OwnerRetired,
        Reason::Orphaned,
        Reason::NeverConnected,
        Reason::LeaseExpired,
        Reason::DecisionExpired,
        Reason::HeartbeatStale,
    ];

    /// The word used in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::OwnerDead => "owner_dead",
            Reason::OwnerRetired => "owner_retired",
            Reason::Orphaned => "orphaned",
            Reason::NeverConnected => "never_connected",
            Reason::LeaseExpired => "lease_expired",
            Reason::DecisionExpired => "decision_expired",
            Reason::HeartbeatStale => "heartbeat_stale",
        }
    }
}

impl From<Ending> for Reason {
    /// The reason for which a pass reclaims what an incarnation held that has ended like this.
    fn from(ending: Ending) -> Reason {
        match ending {
            Ending::Dead => Reason::OwnerDead,
            Ending::Retired => Reason::OwnerRetired,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The facts on which a reclaim was decided: the clock, and how late it was by that clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evidence {
    /// Name of the clock; always the store's own.
    pub clock: String,
    /// When the owner's heartbeat ran out, in milliseconds of that clock.
    pub deadline_ms: u64,
    /// When it was judged, on the same clock.
    pub judged_ms: u64,
    /// `judged_ms - deadline_ms`: the reclaim lag.
    pub late_ms: u64,
}

/// The record of one reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Receipt {
    /// Kind and name of the system, and the number of the receipt.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "registry-default-42"))]
    pub id: ReceiptId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: Name,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub owner: Name,
    /// The incarnation that held it.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub incarnation: Incarnation,
    pub reason: Reason,
    pub evidence: Evidence,
    /// What was removed, as the system stored it; `restore` reads it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub removed: serde_json::Value,
    /// The sweeper that reclaimed it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sweeper: Arc<str>,
    /// Number of the sweeper's batch; settles a batch whose answer was lost.
    pub batch: u64,
    /// When it was reclaimed, in milliseconds of the store's clock.
    pub at_ms: u64,
    /// When it was restored, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_ms: Option<u64>,
}

/// How long receipts, and the records of owners that have ended, are kept: whichever limit is reached
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Oldest age kept, in milliseconds.
    pub age_ms: u64,
    /// Most receipts kept for one system.
    pub count: u64,
    /// Most records of ended owners kept for one system. An owner whose record is gone and that names
    /// no incarnation counts as new; one that names its incarnation is `Lost` for ever.
    pub owners: u64,
    /// The record of an owner that ended less than this many milliseconds ago is kept, however many
    /// there are, so that a process that stood still for a while learns that it was declared dead.
    pub owners_age_ms: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            age_ms: 30 * 24 * 3_600_000,
            count: 1_000_000,
            owners: 100_000,
            owners_age_ms: 3_600_000,
        }
    }
}

/// Which receipts to read. Always bounded by `limit`.
#[derive(Clone, Debug, Default)]
pub struct ReceiptQuery {
    /// Return only receipts after this number, oldest first. Without it: the newest receipts,
    /// newest first.
    pub after: Option<u64>,
    /// Without `after`: return only receipts before this number.
    pub before: Option<u64>,
    /// Largest number of results.
    pub limit: usize,
}

/// Receives what happens, for metrics, events and logs. Called after the store has answered, never
/// before.
pub trait Observer: Send + Sync {
    fn reclaimed(&self, _receipt: &Receipt) {}
    /// An operation cleared something that had expired `late_ms` milliseconds before. Its receipt
    /// was written in the same step, and may get its number later.
    fn cleared(&self, _system: &SystemId, _reason: Reason, _late_ms: u64) {}
    /// One batch of a pass was answered, with its number of suspects and its duration.
    fn batched(&self, _system: &SystemId, _suspects: usize, _took: Duration) {}
    fn passed(&self, _report: &PassReport) {}
    /// An owner that was declared dead made a call and was refused.
    fn zombie_rejected(&self, _system: &SystemId) {}
    /// A store call failed or was not answered.
    fn store_error(&self, _system: &SystemId, _error: &Error) {}
    /// One page of an index was compared with the data, and corrected unless it was a dry run.
    fn healed(&self, _system: &SystemId, _page: &Reconciled, _act: PassMode) {}
    fn reconciled(&self, _report: &ReconcileReport, _ended: ReconcileEnd<'_>) {}
}

#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipt_ids_survive_dashes_in_names() {
        let id: ReceiptId = "registry-a-b-7".parse().unwrap();
        assert_eq!((&*id.system.name, id.seq), ("a-b", 7));
        assert_eq!(id.to_string(), "registry-a-b-7");
        for bad in ["", "7", "registry-7", "nothing-a-7", "registry-a-x"] {
            assert!(bad.parse::<ReceiptId>().is_err(), "{bad}");
        }
    }
}
