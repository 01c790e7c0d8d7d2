//! Routes for the owners of references: which sessions they refer to, and their graceful end. The
//! other routes of owners are the same for all kinds.

use std::sync::Arc;

use axum::extract::State;
use lapsed_core::owner::Claim;
use lapsed_core::sessions::Sessions;
use lapsed_core::{Kind, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::sessions;
use super::shapes::{Referred, SessionsRetireAnswer};
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::owners::{self, ClaimBody, HeldQuery};
use crate::http::problem::HttpResult;
use crate::http::route_rules::{owner_in_body, slow};
use crate::schemas;

/// The routes for owners that only sessions have.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(referred))
        // It releases all references of the owner, which may take long.
        .routes(owner_in_body("owner", slow(routes!(retire))))
        .merge(owners::routes(Kind::Sessions))
}

/// Lists the sessions that one incarnation of an owner refers to, ordered by id.
#[utoipa::path(get, path = "/v1/sessions/{name}/sessions/{owner}", tag = "sessions",
    params(("name" = String, Path), ("owner" = String, Path), HeldQuery),
    responses((status = 200, body = Referred)))]
async fn referred(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<HeldQuery>,
) -> HttpResult<JsonAnswer<Referred>> {
    let sessions = sessions(&app, &name)?;
    let page = async |claim: Claim, after: Option<Name>, limit| {
        sessions.referred(&claim, after.as_ref(), limit).await
    };
    let (sessions, next) = owners::held(&owner, query, page).await?;
    Ok(JsonAnswer(Referred { sessions, next }))
}

/// Ends an incarnation of an owner gracefully.
/// Its references are released, and the grace period of sessions without other references begins.
#[utoipa::path(post, path = "/v1/sessions/{name}/retire", tag = "sessions",
    request_body = ClaimBody,
    responses((status = 200, body = SessionsRetireAnswer),
        (status = 409, description = "The incarnation had already ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn retire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> HttpResult<JsonAnswer<SessionsRetireAnswer>> {
    let end = async |sessions: Arc<Sessions>, claim: Claim| sessions.retire(&claim).await;
    let retired = owners::retire(&app, Kind::Sessions, &name, body.claim()?, end).await?;
    let (incarnation, released) = (retired.incarnation.0, retired.released);
    Ok(JsonAnswer(SessionsRetireAnswer { owner: body.owner, incarnation, released }))
}
