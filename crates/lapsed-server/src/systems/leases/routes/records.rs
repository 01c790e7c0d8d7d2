//! Routes for the data of a key: its state, and the state that is staged for a transaction.

use axum::extract::State;
use lapsed_core::leases::rules::StagedState;
use lapsed_core::leases::{LeaseKey, LeaseTicket, Leases};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::*;
use super::{held_by, leases, never};
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::problem::HttpResult;
use crate::http::route_rules::{OwnerRule, for_owner};
use crate::schemas;

/// The routes of states and staged states.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(for_owner(OwnerRule::Holder, routes!(state, set_state, delete_state)))
        .routes(for_owner(OwnerRule::Holder, routes!(stage)))
        .routes(for_owner(OwnerRule::Holder, routes!(unstage)))
}

/// Returns the state of a key, which outlives the leases on it.
#[utoipa::path(get, path = "/v1/leases/{name}/state/{namespace}/{key}", tag = "leases",
    responses((status = 200, body = StateAnswer),
        (status = 404, description = "The key was never leased", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn state(
    State(app): State<Shared>,
    Path((name, namespace, key)): Path<(String, String, String)>,
) -> HttpResult<JsonAnswer<StateAnswer>> {
    let wanted = LeaseKey::new(&namespace, &key)?;
    let found = leases(&app, &name)?.describe(&wanted).await?.ok_or_else(|| never(&wanted))?;
    Ok(JsonAnswer(StateAnswer { namespace, key, token: found.token.0, state: found.state }))
}

/// Sets the state of a key, which only its holder may.
#[utoipa::path(put, path = "/v1/leases/{name}/state/{namespace}/{key}", tag = "leases",
    request_body = StateBody,
    responses((status = 200, body = StateAnswer),
        (status = 409, description = "This token no longer holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn set_state(
    State(app): State<Shared>,
    Path((name, namespace, key)): Path<(String, String, String)>,
    Json(body): Json<StateBody>,
) -> HttpResult<JsonAnswer<StateAnswer>> {
    let ticket = LeaseTicketBody { namespace, key, token: body.token }.read()?;
    write(leases(&app, &name)?, ticket, Some(body.state)).await
}

/// Removes the state of a key, which only its holder may.
#[utoipa::path(delete, path = "/v1/leases/{name}/state/{namespace}/{key}", tag = "leases",
    params(("name" = String, Path), ("namespace" = String, Path), ("key" = String, Path), TokenQuery),
    responses((status = 200, body = StateAnswer),
        (status = 409, description = "This token no longer holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn delete_state(
    State(app): State<Shared>,
    Path((name, namespace, key)): Path<(String, String, String)>,
    Query(query): Query<TokenQuery>,
) -> HttpResult<JsonAnswer<StateAnswer>> {
    let ticket = LeaseTicketBody { namespace, key, token: query.token }.read()?;
    write(leases(&app, &name)?, ticket, None).await
}

async fn write(
    leases: &Leases,
    ticket: LeaseTicket,
    state: Option<lapsed_core::leases::LeaseState>,
) -> HttpResult<JsonAnswer<StateAnswer>> {
    held_by(&ticket, leases.set_state(&ticket, state.as_ref()).await?)?;
    let LeaseTicketBody { namespace, key, token } = LeaseTicketBody::of(&ticket);
    Ok(JsonAnswer(StateAnswer { namespace, key, token, state }))
}

/// Stages a state for a transaction, in place of what was staged before.
/// When the lease ends, in whichever way, the decision on the transaction applies: `commit` makes
/// the staged state the key's state, `rollback` discards it. An undecided transaction is rolled
/// back.
#[utoipa::path(post, path = "/v1/leases/{name}/stage", tag = "leases",
    request_body = StageBody,
    responses((status = 200, body = StageAnswer),
        (status = 409, description = "This token no longer holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn stage(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<StageBody>,
) -> HttpResult<JsonAnswer<StageAnswer>> {
    let (ticket, staged) = body.read()?;
    put(leases(&app, &name)?, ticket, Some(staged)).await
}

/// Removes the staged state of a key.
#[utoipa::path(post, path = "/v1/leases/{name}/unstage", tag = "leases",
    request_body = LeaseTicketBody,
    responses((status = 200, body = StageAnswer),
        (status = 409, description = "This token no longer holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn unstage(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<LeaseTicketBody>,
) -> HttpResult<JsonAnswer<StageAnswer>> {
    put(leases(&app, &name)?, body.read()?, None).await
}

async fn put(
    leases: &Leases,
    ticket: LeaseTicket,
    staged: Option<StagedState>,
) -> HttpResult<JsonAnswer<StageAnswer>> {
    held_by(&ticket, leases.stage(&ticket, staged.as_ref()).await?)?;
    let LeaseTicketBody { namespace, key, token } = LeaseTicketBody::of(&ticket);
    Ok(JsonAnswer(StageAnswer {
        namespace,
        key,
        token,
        txn: staged.map(|staged| staged.txn.into()),
    }))
}
