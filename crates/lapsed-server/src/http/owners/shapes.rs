//! The bodies, parameters and answers of the owners' routes.

use std::time::Duration;

use lapsed_core::owner::{Beat, Claim, OwnerInfo};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::claim;
use crate::config::units::SPAN_MAX;
use crate::http::problem::Problem;
use crate::http::schemas;

/// The owner for which a new incarnation is started.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBody {
    /// The owner's name: 1 to 512 bytes, no control characters.
    #[schema(example = "ingest-1")]
    pub owner: String,
    /// How long a heartbeat lasts, in milliseconds. Default: as configured.
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

/// The owner, and the incarnation of it, on whose behalf the request acts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    #[schema(example = "ingest-1")]
    pub owner: String,
    /// The incarnation of this owner. Default: the newest one.
    pub incarnation: Option<u64>,
}

impl ClaimBody {
    pub fn claim(&self) -> Result<Claim, Problem> {
        claim(&self.owner, self.incarnation)
    }
}

/// An accepted heartbeat: the owner counts as alive until `deadline_ms`.
#[derive(Serialize, ToSchema)]
pub struct BeatAnswer {
    pub owner: String,
    /// The owner's incarnation, which is also the fencing token of everything that it writes.
    pub incarnation: u64,
    /// When this heartbeat expires, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// The time of the store's clock, in milliseconds.
    pub now_ms: u64,
    pub ttl_ms: u64,
    /// Whether this call started the incarnation.
    pub started: bool,
}

impl BeatAnswer {
    pub fn of(owner: String, beat: Beat) -> Self {
        let Beat { incarnation, deadline_ms, now_ms, ttl_ms, started } = beat;
        BeatAnswer { owner, incarnation: incarnation.0, deadline_ms, now_ms, ttl_ms, started }
    }
}

/// The heartbeats of several owners.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatsBody {
    pub beats: Vec<ClaimBody>,
}

/// One answer per heartbeat, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct BeatsAnswer {
    pub results: Vec<OneBeat>,
}

/// The answer to one heartbeat: either its result (`ok` is true) or a problem (`ok` is false).
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

/// The parameters that select a page of owners.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OwnersQuery {
    /// Return owners after this incarnation: the value of `next` of the previous page.
    pub after: Option<u64>,
    /// Return at most this many owners. Default 1,000, at most 10,000.
    pub limit: Option<usize>,
}

/// The parameter that selects an incarnation of the owner.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LifeQuery {
    /// The incarnation of this owner. Default: the newest one.
    pub incarnation: Option<u64>,
}

/// The parameters that select a page of the keys that an incarnation holds.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HeldQuery {
    /// The incarnation of this owner. Default: the newest one.
    pub incarnation: Option<u64>,
    /// Return keys after this one: the value of `next` of the previous page.
    pub after: Option<String>,
    /// Return at most this many keys. Default 1,000, at most 10,000.
    pub limit: Option<usize>,
}

/// One page of owners.
#[derive(Serialize, ToSchema)]
pub struct Owners {
    #[schema(value_type = Vec<schemas::OwnerInfo>)]
    pub owners: Vec<OwnerInfo>,
    /// Where the next page begins: send it as `after`. Absent on the last page.
    pub next: Option<u64>,
}

/// One page of keys.
#[derive(Serialize, ToSchema)]
pub struct Keys {
    pub keys: Vec<String>,
    /// Where the next page begins: send it as `after`. Absent on the last page.
    pub next: Option<String>,
}
