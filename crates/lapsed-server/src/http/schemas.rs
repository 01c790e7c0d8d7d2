//! The shapes of the library's own types, for the OpenAPI document. They are never constructed: a
//! test holds them against what the library really writes.
#![allow(dead_code)]

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// `application/problem+json`. `lost` problems also have `owner`, `incarnation`, `ending`,
/// `ended_ms`, `held` and `held_total`; those of leases `why`, `token` and `holder`. `held` problems
/// have `holder`, `token`, `deadline_ms` and `left_ms`.
#[derive(Serialize, ToSchema)]
pub struct Problem {
    /// A stable word: `invalid`, `lost`, `unavailable`, ...
    #[schema(example = "lost")]
    pub r#type: String,
    pub title: String,
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
}

/// What a store says of itself.
#[derive(Serialize, ToSchema)]
pub struct StoreInfo {
    pub engine: String,
    pub place: String,
    /// Which life of the store this is.
    pub incarnation: String,
    pub now_ms: u64,
    /// Since when it has been serving without a gap.
    pub back_ms: u64,
}

/// Who is there.
#[derive(Serialize, ToSchema)]
pub struct Census {
    pub now_ms: u64,
    pub store: String,
    pub back_ms: u64,
    /// Whether nothing below was counted: that would mean to look at everything.
    pub uncounted: bool,
    pub population: u64,
    pub suspects: u64,
    /// Of them, those that are dead by themselves: no life of an owner decides about them.
    pub orphans: u64,
    /// Not among them: those that would be, and are spared because the store was away.
    pub orphans_spared: u64,
    pub owners_live: u64,
    pub owners_overdue: u64,
    /// Of those alive: past their deadline, and spared because the store was away.
    pub owners_spared: u64,
    pub owners_died_recently: u64,
    pub oldest_late_ms: u64,
}

/// One reclaimed entry, or one that a real pass would reclaim.
#[derive(Serialize, ToSchema)]
pub struct Listed {
    pub key: String,
    pub owner: String,
    pub incarnation: u64,
    pub reason: String,
    pub deadline_ms: u64,
    pub late_ms: u64,
    pub receipt: Option<String>,
}

/// The account of one pass.
#[derive(Serialize, ToSchema)]
pub struct PassReport {
    pub system: String,
    pub kind: String,
    pub dry_run: bool,
    pub examined: u64,
    pub suspects: u64,
    pub reclaimed: u64,
    /// Of them, those of which only a dead owner's hold was let go; absent when none.
    pub released: Option<u64>,
    /// The others, by why.
    pub skipped: BTreeMap<String, u64>,
    pub errors: u64,
    /// `done`, `ops`, `runtime`, `activity`, `brake` or `error`.
    pub stopped: String,
    pub took_ms: u64,
    pub started_ms: u64,
    pub owners_ended: u64,
    pub settled: u64,
    pub detail: Option<String>,
    pub entries: Option<Vec<Listed>>,
    pub entries_cut: Option<bool>,
}

/// The account of one reconciliation.
#[derive(Serialize, ToSchema)]
pub struct ReconcileReport {
    pub system: String,
    pub kind: String,
    pub dry_run: bool,
    /// Rows looked at.
    pub examined: u64,
    pub added: u64,
    pub removed: u64,
    pub corrected: u64,
    /// Left as they are, by why.
    pub left: BTreeMap<String, u64>,
    /// Whether index and truth agreed wherever they were looked at.
    pub agree: bool,
    pub finished: bool,
    /// Where to go on, if it did not finish: give it as `from`.
    pub next: Option<String>,
    pub took_ms: u64,
}

/// One difference between truth and index.
#[derive(Serialize, ToSchema)]
pub struct Change {
    pub key: String,
    /// `added`, `removed` or `corrected`.
    pub what: String,
    pub why: String,
}

/// On what grounds.
#[derive(Serialize, ToSchema)]
pub struct Evidence {
    pub clock: String,
    pub deadline_ms: u64,
    pub judged_ms: u64,
    pub late_ms: u64,
}

/// The record of one reclaim.
#[derive(Serialize, ToSchema)]
pub struct Receipt {
    #[schema(example = "registry-default-42")]
    pub id: String,
    pub key: String,
    pub owner: String,
    pub incarnation: u64,
    /// `owner_dead`, `owner_retired`, `orphaned`, `never_connected`, `lease_expired`,
    /// `decision_expired` or `heartbeat_stale`.
    pub reason: String,
    pub evidence: Evidence,
    #[schema(value_type = Object)]
    pub removed: serde_json::Value,
    pub sweeper: String,
    pub batch: u64,
    pub at_ms: u64,
    pub restored_ms: Option<u64>,
}

/// Why something is, or is not, dead.
#[derive(Serialize, ToSchema)]
pub struct Explanation {
    pub system: String,
    pub kind: String,
    pub key: String,
    /// `live`, `overdue`, `spared`, `dead`, `retired`, `reclaimed` or `unknown`; of a session also
    /// `active`, `grace` or `orphan`, of a job `queued` or `dead_letter`, of a lease `free`,
    /// of a provider `available`, `full`, `offline`, `deactivated` or `unreadable`.
    pub verdict: String,
    pub because: Vec<String>,
    #[schema(value_type = Object)]
    pub facts: serde_json::Value,
}

/// What is known of one life of an owner.
#[derive(Serialize, ToSchema)]
pub struct OwnerInfo {
    pub owner: String,
    pub incarnation: u64,
    pub ttl_ms: u64,
    pub started_ms: u64,
    pub due_ms: u64,
    pub held: u64,
    /// How (`dead`, `retired`) and when it ended.
    #[schema(value_type = Option<Vec<Object>>)]
    pub ended: Option<(String, u64)>,
}

/// One job. In flight it has `owner`, `incarnation`, `token`, `since_ms`, `due_ms` and `ended`; a
/// dead letter `why`, `at_ms` and perhaps `error`.
#[derive(Serialize, ToSchema)]
pub struct Job {
    pub id: String,
    pub queue: String,
    pub payload: String,
    /// How many workers died with it within the window.
    pub crashes: u32,
    pub entered_ms: u64,
    /// `queued`, `in_flight` or `dead`.
    pub state: String,
    pub owner: Option<String>,
    pub incarnation: Option<u64>,
    pub token: Option<u64>,
    pub since_ms: Option<u64>,
    /// Until when its owner lives unless it beats.
    pub due_ms: Option<u64>,
    /// How (`dead`, `retired`) and when its owner ended.
    #[schema(value_type = Option<Vec<Object>>)]
    pub ended: Option<(String, u64)>,
    /// `failed`, `crashes`, `too_old` or `asked`.
    pub why: Option<String>,
    pub at_ms: Option<u64>,
    pub error: Option<String>,
    pub now_ms: u64,
}

/// The account of a system of jobs: `entered` is the sum of all others.
#[derive(Serialize, ToSchema)]
pub struct Counts {
    pub entered: u64,
    pub completed: u64,
    pub queued: u64,
    pub in_flight: u64,
    /// Dead letters.
    pub dead: u64,
    /// Dropped with a receipt, and dead letters that were deleted.
    pub dropped: u64,
}

/// The settings of the configuration table.
#[derive(Serialize, ToSchema)]
pub struct AvailabilitySettings {
    pub stale_after_seconds: u64,
    pub require_ping: bool,
    pub max_customers_per_mitra: u64,
    pub heartbeat_cadence_seconds: u64,
}

/// A lease in somebody's hands.
#[derive(Serialize, ToSchema)]
pub struct Grant {
    pub namespace: String,
    pub key: String,
    pub owner: String,
    /// To be shown with whatever its holder does, here and elsewhere: within a key it only grows.
    pub token: u64,
    /// How long it lasts from each renewal.
    pub ttl_ms: u64,
    /// Until when, on the store's clock.
    pub deadline_ms: u64,
    pub now_ms: u64,
}

/// Who holds a key.
#[derive(Serialize, ToSchema)]
pub struct Lease {
    pub owner: String,
    pub ttl_ms: u64,
    pub acquired_ms: u64,
    pub deadline_ms: u64,
    /// The name of the request that acquired it, if it had one.
    pub request: Option<String>,
}

/// A small state: any JSON, or bytes as base64; at most 64 KiB.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    #[schema(value_type = Object)]
    Json(serde_json::Value),
    Bytes(String),
}

/// A state that waits for the decision of its transaction.
#[derive(Serialize, ToSchema)]
pub struct Staged {
    pub txn: String,
    pub state: LeaseState,
}

/// One key, as it is.
#[derive(Serialize, ToSchema)]
pub struct Described {
    pub namespace: String,
    pub key: String,
    /// The newest token; it survives the lease.
    pub token: u64,
    pub lease: Option<Lease>,
    /// Whether that lease is over and not yet cleared: only in lists.
    pub expired: bool,
    pub state: Option<LeaseState>,
    pub staged: Option<Staged>,
    pub now_ms: u64,
}

/// A decision, as it stands.
#[derive(Serialize, ToSchema)]
pub struct Decided {
    pub txn: String,
    /// `commit` or `rollback`.
    pub decision: String,
    /// Whether this very call decided it.
    pub first: bool,
    pub decided_ms: u64,
    /// Until when it is kept, on the store's clock.
    pub deadline_ms: u64,
    pub now_ms: u64,
}

/// What was put back.
#[derive(Serialize, ToSchema)]
pub struct Restored {
    /// `restored`
    pub outcome: String,
    pub key: String,
    pub owner: String,
    pub incarnation: u64,
}
