//! `/v1/brakes`: shows and sets the operator's setting of a system's brake.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::caller::Caller;
use super::extract::{Json, JsonAnswer, Path};
use super::problem::Problem;
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
    /// The next pass reclaims everything that is dead, whatever the brake would decide. The pass that
    /// begins first, in whichever process, uses the override up; the setting is `auto` from then on.
    Override,
}

/// A new setting of the brake.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BrakeBody {
    /// The new setting: `auto`, `hold` or `override`.
    pub setting: Word,
    /// Why the brake is overridden: one line of at most 300 characters, kept in the audit log.
    /// Required with `override`, and only allowed with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl BrakeBody {
    fn order(self) -> Result<BrakeOrder, Problem> {
        match (self.setting, self.reason) {
            (Word::Auto, None) => Ok(BrakeOrder::Auto),
            (Word::Hold, None) => Ok(BrakeOrder::Hold),
            (Word::Auto | Word::Hold, Some(_)) => {
                Err(Problem::invalid("`reason` goes with `override` only"))
            }
            (Word::Override, None) => Err(Problem::invalid("`override` needs a `reason`")),
            (Word::Override, Some(reason)) => Ok(BrakeOrder::Override { reason }),
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

/// Sets a system's brake: hold it, let one pass through, or let it decide on its own again.
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
    let action = caller.audit_action(order.what(), live.id());
    let work = async move {
        live.audited(action, live.set_brake(order), BrakeStatus::audit_outcome).await
    };
    Ok(JsonAnswer(app.finish(work).await??))
}
