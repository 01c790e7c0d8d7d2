//! What the routes of owners are given and answer.

use std::time::Duration;

use lapsed_core::owner::{Beat, Claim, OwnerInfo};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::claim;
use crate::config::units::SPAN_MAX;
use crate::http::problem::Problem;
use crate::http::schemas;

/// Who begins a life.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBody {
    /// 1 to 512 bytes, no control characters.
    #[schema(example = "ingest-1")]
    pub owner: String,
    /// How long a beat lasts, if not as configured.
    pub ttl_ms: Option<u64>,
}

impl StartBody {
    pub fn ttl(&self) -> Result<Option<Duration>, Problem> {
        match self.ttl_ms.map(Duration::from_millis) {
            Some(ttl) if ttl.is_zero() || ttl > SPAN_MAX => {
                Err(Problem::invalid("`ttl_ms` must be above 0, and at most ten years"))
            }
            ttl => Ok(ttl),
        }
    }
}

/// Who acts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    #[schema(example = "ingest-1")]
    pub owner: String,
    /// Which life of that name; the newest without it.
    pub incarnation: Option<u64>,
}

impl ClaimBody {
    pub fn claim(&self) -> Result<Claim, Problem> {
        claim(&self.owner, self.incarnation)
    }
}

/// Alive until `deadline_ms`.
#[derive(Serialize, ToSchema)]
pub struct BeatAnswer {
    pub owner: String,
    /// Which life: the fencing token of all that it writes.
    pub incarnation: u64,
    /// Until when it now lives, on the store's clock.
    pub deadline_ms: u64,
    /// The store's clock.
    pub now_ms: u64,
    pub ttl_ms: u64,
    /// Whether this call began the life.
    pub started: bool,
}

impl BeatAnswer {
    pub fn of(owner: String, beat: Beat) -> Self {
        let Beat { incarnation, deadline_ms, now_ms, ttl_ms, started } = beat;
        BeatAnswer { owner, incarnation: incarnation.0, deadline_ms, now_ms, ttl_ms, started }
    }
}

/// Many beats.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatsBody {
    pub beats: Vec<ClaimBody>,
}

/// One answer a beat, in order.
#[derive(Serialize, ToSchema)]
pub struct BeatsAnswer {
    pub results: Vec<OneBeat>,
}

/// Either a beat (`ok` is true) or a problem (`ok` is false).
#[derive(Serialize, ToSchema)]
pub struct OneBeat {
    pub ok: bool,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub answer: Value,
}

impl OneBeat {
    pub fn of(owner: String, answer: Result<Beat, Problem>) -> Self {
        let ok = answer.is_ok();
        let answer = match answer {
            Ok(beat) => serde_json::to_value(BeatAnswer::of(owner, beat)).unwrap_or_default(),
            Err(problem) => {
                let mut body = problem.body();
                body["owner"] = Value::String(owner);
                body
            }
        };
        OneBeat { ok, answer }
    }
}

/// Which owners.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OwnersQuery {
    /// Those after this incarnation: `next` of the page before.
    pub after: Option<u64>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// Which life.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LifeQuery {
    /// Which life of that name; the newest without it.
    pub incarnation: Option<u64>,
}

/// Which of what a life holds.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HeldQuery {
    /// Which life of that name; the newest without it.
    pub incarnation: Option<u64>,
    /// Those after this key: `next` of the page before.
    pub after: Option<String>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// A page of owners.
#[derive(Serialize, ToSchema)]
pub struct Owners {
    #[schema(value_type = Vec<schemas::OwnerInfo>)]
    pub owners: Vec<OwnerInfo>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<u64>,
}

/// A page of keys.
#[derive(Serialize, ToSchema)]
pub struct Keys {
    pub keys: Vec<String>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}
