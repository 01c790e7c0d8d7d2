//! `/v1/brakes`: shows and sets the operator's setting of a system's brake.

use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::auth::Caller;
use super::extract::{Json, JsonAnswer, Path};
use super::problem::Problem;
use crate::config::units::SPAN_MAX;
use crate::node::BrakeOrder;
use crate::node::shapes::BrakeStatus;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(get, put))
}

/// The operator's setting of a brake.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The brake decides on its own, by its policy.
    Auto,
    /// The brake holds: nothing is reclaimed.
    Hold,
    /// The brake is released: everything that is dead is reclaimed.
    Release,
}

/// A new setting of the brake, and how long it lasts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BrakeBody {
    /// The new setting: `auto`, `hold` or `release`.
    pub setting: Word,
    /// How long a release lasts, in milliseconds. Default: the longer of ten minutes and one
    /// threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

impl BrakeBody {
    fn order(self) -> Result<BrakeOrder, Problem> {
        match (self.setting, self.for_ms.map(Duration::from_millis)) {
            (Word::Auto, None) => Ok(BrakeOrder::Auto),
            (Word::Hold, None) => Ok(BrakeOrder::Hold),
            (Word::Auto | Word::Hold, Some(_)) => {
                Err(Problem::invalid("`for_ms` goes with `release` only"))
            }
            (Word::Release, Some(span)) if span.is_zero() || span > SPAN_MAX => {
                Err(Problem::invalid("`for_ms` must be above 0, and at most ten years"))
            }
            (Word::Release, span) => Ok(BrakeOrder::Release(span)),
        }
    }
}

/// Shows the state of a system's brake.
#[utoipa::path(get, path = "/v1/brakes/{kind}/{name}", tag = "brakes",
    responses((status = 200, body = BrakeStatus)))]
async fn get(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<BrakeStatus>, Problem> {
    Ok(JsonAnswer(app.live(&kind, &name)?.brake_status().await?))
}

/// Sets a system's brake: hold it, release it, or let it decide on its own again.
#[utoipa::path(put, path = "/v1/brakes/{kind}/{name}", tag = "brakes",
    request_body = BrakeBody,
    responses((status = 200, body = BrakeStatus)))]
async fn put(
    State(app): State<Shared>,
    caller: Caller,
    Path((kind, name)): Path<(String, String)>,
    Json(body): Json<BrakeBody>,
) -> Result<JsonAnswer<BrakeStatus>, Problem> {
    let order = body.order()?;
    let live = app.live(&kind, &name)?.clone();
    let deed = caller.deed(order.what(), live.id());
    let work = async move { live.audited(deed, live.set_brake(order), BrakeStatus::told).await };
    Ok(JsonAnswer(app.finish(work).await??))
}
