//! Routes for decisions on transactions, each of which is made once.

use std::time::Duration;

use axum::extract::State;
use lapsed_core::leases::{DecisionInfo, txn};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::leases;
use super::shapes::DecideBody;
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path};
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner};
use crate::schemas;

/// The routes of decisions.
pub fn routes() -> OpenApiRouter<Shared> {
    // A decision is about the leases of everybody who staged something for the transaction.
    OpenApiRouter::new()
        .routes(for_owner(OwnerRule::Refused, routes!(decide)))
        .routes(routes!(decision))
}

/// Decides a transaction once.
/// Later calls get the first decision (`first` is false), whichever decision they ask for.
#[utoipa::path(post, path = "/v1/leases/{name}/decide", tag = "leases",
    request_body = DecideBody,
    responses((status = 200, body = schemas::Decided)))]
async fn decide(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<DecideBody>,
) -> HttpResult<JsonAnswer<DecisionInfo>> {
    let ttl = body.ttl_ms.map(Duration::from_millis);
    let decision = body.decision.into();
    Ok(JsonAnswer(leases(&app, &name)?.decide(&txn(&body.txn)?, decision, ttl).await?))
}

/// Returns the decision on a transaction.
#[utoipa::path(get, path = "/v1/leases/{name}/decision/{txn}", tag = "leases",
    responses((status = 200, body = schemas::Decided),
        (status = 404, description = "There is no decision, or it is no longer kept",
            body = schemas::Problem, content_type = "application/problem+json")))]
async fn decision(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<JsonAnswer<DecisionInfo>> {
    let found = leases(&app, &name)?.decision(&txn(&id)?).await?;
    let missing =
        || Problem::not_found(format!("there is no decision on {id:?}, or it is no longer kept"));
    found.map(JsonAnswer).ok_or_else(missing)
}
