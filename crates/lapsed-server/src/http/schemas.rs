//! The types of the answers that are described in the OpenAPI document under one roof: the core's own
//! types, which derive their schemas, and the few whose JSON a derived schema would describe wrongly.

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

/// `application/problem+json`. `lost` problems also have `owner`, `incarnation`, `ending`,
/// `ended_ms`, `held` and `held_total`; those of leases `why`, `token` and `holder`. `held` problems
/// have `holder`, `token`, `deadline_ms` and `left_ms`.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemSchema {
    /// A stable word: `invalid`, `lost`, `unavailable`, ...
    #[schema(example = "lost")]
    r#type: String,
    title: String,
    status: u16,
    /// What happened and what to do.
    detail: String,
}

/// One job. In flight it has `owner`, `incarnation`, `token`, `since_ms`, `due_ms` and `ended`; a
/// dead letter `why`, `at_ms` and perhaps `error`.
// The core's type flattens an enum; derived, the members of its variants would not be members of the job.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub struct JobSchema {
    id: String,
    queue: String,
    payload: String,
    /// How many workers died with it within the window.
    crashes: u32,
    entered_ms: u64,
    /// `queued`, `in_flight` or `dead`.
    state: String,
    owner: Option<String>,
    incarnation: Option<u64>,
    token: Option<u64>,
    since_ms: Option<u64>,
    /// Until when its owner lives unless it beats.
    due_ms: Option<u64>,
    /// How (`dead`, `retired`) and when its owner ended.
    #[schema(value_type = Option<Vec<Object>>)]
    ended: Option<(String, u64)>,
    /// `failed`, `crashes`, `too_old` or `asked`.
    why: Option<String>,
    at_ms: Option<u64>,
    error: Option<String>,
    now_ms: u64,
}

/// What was put back.
// The core's type has a second variant, which is answered as a problem.
#[derive(Serialize, ToSchema)]
#[schema(as = Restored)]
pub struct RestoredSchema {
    /// `restored`
    outcome: String,
    key: String,
    owner: String,
    incarnation: u64,
}
