//! The types of answers that the OpenAPI document describes: re-exports of the core's types, which
//! derive their schemas, and own definitions for the few types whose JSON a derived schema would
//! describe wrongly.

use serde::Serialize;
use utoipa::ToSchema;

pub use self::JobSchema as Job;
pub use self::ProblemSchema as Problem;
pub use self::RestoredSchema as Restored;
pub use lapsed_availability::rules::AvailabilitySettings;
pub use lapsed_core::inflight::JobCounts as Counts;
pub use lapsed_core::leases::rules::Lease;
pub use lapsed_core::leases::{DecisionInfo as Decided, Grant, LeaseInfo as Described, LeaseState};
pub use lapsed_core::owner::OwnerInfo;
pub use lapsed_core::receipt::Receipt;
pub use lapsed_core::reconcile::{IndexChange as Change, ReconcileReport};
pub use lapsed_core::store::StoreInfo;
pub use lapsed_core::sweep::{Census, PassReport};
pub use lapsed_core::system::Explanation;

/// An error, sent as `application/problem+json`. Problems of type `lost` also have `owner`,
/// `incarnation`, `ending`, `ended_ms`, `held` and `held_total`; for leases they also have `why`,
/// `token` and `holder`. Problems of type `held` have `holder`, `token`, `deadline_ms` and
/// `left_ms`.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemSchema {
    /// A stable word that clients may compare: `invalid`, `lost`, `unavailable`, ...
    #[schema(example = "lost")]
    r#type: String,
    title: String,
    status: u16,
    /// What happened, and what the client should do.
    detail: String,
}

/// One job. A job in flight has `owner`, `incarnation`, `token`, `since_ms`, `due_ms` and `ended`;
/// a dead letter has `why`, `at_ms` and sometimes `error` or `kept_in`.
// The core's type flattens an enum; a derived schema would not list the members of its variants as
// members of the job.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub struct JobSchema {
    id: String,
    queue: String,
    payload: String,
    /// How many workers died while they held this job, within the configured window.
    crashes: u32,
    entered_ms: u64,
    /// One of `queued`, `in_flight` and `dead`.
    state: String,
    owner: Option<String>,
    incarnation: Option<u64>,
    token: Option<u64>,
    since_ms: Option<u64>,
    /// When the owner's heartbeat expires, in milliseconds of the store's clock.
    due_ms: Option<u64>,
    /// How (`dead`, `retired`) and when the owner's incarnation ended.
    #[schema(value_type = Option<Vec<Object>>)]
    ended: Option<(String, u64)>,
    /// Why the job is a dead letter: `failed`, `crashes`, `too_old`, `asked` or `quarantined`.
    why: Option<String>,
    at_ms: Option<u64>,
    error: Option<String>,
    /// Where the dead letter is kept, in words, if the application keeps it itself.
    kept_in: Option<String>,
    now_ms: u64,
}

/// The entry that was restored.
// The core's type has a second variant, which is answered as a problem instead.
#[derive(Serialize, ToSchema)]
#[schema(as = Restored)]
pub struct RestoredSchema {
    /// Always `restored`; other outcomes are problems.
    outcome: String,
    key: String,
    owner: String,
    incarnation: u64,
}
