//! `/v1/adopt`: what was seen of the owners of an adopted system, and the operator's confirmation.

use axum::extract::State;
use lapsed_core::Error;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::caller::Caller;
use super::extract::{JsonAnswer, Path};
use super::problem::Problem;
use crate::node::LiveSystem;
use crate::node::shapes::AdoptStatus;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(get, post))
}

/// Shows how many owners of an adopted system were seen alive, and whether it only observes.
#[utoipa::path(get, path = "/v1/adopt/{kind}/{name}", tag = "adopt",
    responses((status = 200, body = AdoptStatus)))]
async fn get(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<AdoptStatus>, Problem> {
    let live = app.live(&kind, &name)?;
    let status = live.adoption().await?.ok_or_else(|| does_not_observe(live))?;
    Ok(JsonAnswer(status))
}

/// Confirms that the configuration of an adopted system is right, so that observing ends.
#[utoipa::path(post, path = "/v1/adopt/{kind}/{name}", tag = "adopt",
    responses((status = 200, body = AdoptStatus)))]
async fn post(
    State(app): State<Shared>,
    caller: Caller,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<AdoptStatus>, Problem> {
    let live = app.live(&kind, &name)?.clone();
    if live.adoption().await?.is_none() {
        return Err(does_not_observe(&live).into());
    }
    let action = caller.audit_action("adopt", live.id());
    let work = async move {
        live.audited(action, live.confirm_adoption(), AdoptStatus::audit_outcome).await
    };
    Ok(JsonAnswer(app.finish(work).await??))
}

fn does_not_observe(live: &LiveSystem) -> Error {
    Error::Unsupported {
        operation: "adopting: it does not observe, so there is nothing to confirm".to_owned(),
        store: format!("{} on store `{}`", live.id(), live.store_name()),
    }
}
