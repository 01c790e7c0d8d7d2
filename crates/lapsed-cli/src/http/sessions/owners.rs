//! The owners of references: the same as everywhere, under their own paths.

use axum::extract::State;
use axum::http::StatusCode;
use lapsed::owner::OwnerInfo;
use lapsed::sessions::Sessions;
use lapsed::{Kind, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::sessions;
use super::shapes::{Referred, SessionsRetireAnswer};
use crate::http::extract::{Answer, Json, Path, Query};
use crate::http::owners::{
    self, BeatAnswer, BeatsAnswer, BeatsBody, ClaimBody, HeldQuery, LifeQuery, Owners, OwnersQuery,
    Result, StartBody, claim, page_limit,
};
use crate::http::{Shared, schemas};

/// All of them.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(beat))
        .routes(routes!(beat_many))
        .routes(routes!(all))
        .routes(routes!(one))
        .routes(routes!(referred))
        .routes(routes!(retire))
}

/// Begins a new life of an owner.
#[utoipa::path(post, path = "/v1/sessions/{name}/start", tag = "sessions",
    request_body = StartBody,
    responses((status = 201, body = BeatAnswer)))]
async fn start(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<StartBody>,
) -> Result<(StatusCode, Answer<BeatAnswer>)> {
    owners::start(sessions(&app, &name)?, body).await
}

/// Life. Without an incarnation the newest one of that name is meant; `lost` when that life ended.
#[utoipa::path(post, path = "/v1/sessions/{name}/beat", tag = "sessions",
    request_body = ClaimBody,
    responses((status = 200, body = BeatAnswer),
        (status = 409, description = "That life has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn beat(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> Result<Answer<BeatAnswer>> {
    let beat = sessions(&app, &name)?.beat(&body.claim()?).await?;
    Ok(Answer(BeatAnswer::of(body.owner, beat)))
}

/// Many beats; each has its own answer, in order.
#[utoipa::path(post, path = "/v1/sessions/{name}/beat_many", tag = "sessions",
    request_body = BeatsBody,
    responses((status = 200, body = BeatsAnswer)))]
async fn beat_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<BeatsBody>,
) -> Result<Answer<BeatsAnswer>> {
    owners::beat_many(sessions(&app, &name)?, body).await
}

/// Owners, oldest incarnation first.
#[utoipa::path(get, path = "/v1/sessions/{name}/owners", tag = "sessions",
    params(("name" = String, Path), OwnersQuery),
    responses((status = 200, body = Owners)))]
async fn all(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<OwnersQuery>,
) -> Result<Answer<Owners>> {
    owners::owners(sessions(&app, &name)?, query).await
}

/// The newest life of one owner.
#[utoipa::path(get, path = "/v1/sessions/{name}/owners/{owner}", tag = "sessions",
    params(("name" = String, Path), ("owner" = String, Path), LifeQuery),
    responses((status = 200, body = schemas::OwnerInfo)))]
async fn one(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<LifeQuery>,
) -> Result<Answer<OwnerInfo>> {
    owners::owner(sessions(&app, &name)?, &owner, query).await
}

/// The sessions that one life of an owner refers to, by id.
#[utoipa::path(get, path = "/v1/sessions/{name}/sessions/{owner}", tag = "sessions",
    params(("name" = String, Path), ("owner" = String, Path), HeldQuery),
    responses((status = 200, body = Referred)))]
async fn referred(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<HeldQuery>,
) -> Result<Answer<Referred>> {
    let claim = claim(&owner, query.incarnation)?;
    let limit = page_limit(query.limit)?;
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let ids = sessions(&app, &name)?.referred(&claim, after.as_ref(), limit).await?;
    let next = ids.last().filter(|_| ids.len() == limit).map(|id| id.to_string());
    Ok(Answer(Referred { sessions: ids.into_iter().map(String::from).collect(), next }))
}

/// Ends a life gracefully: its references go, and sessions that nobody else refers to begin their
/// grace.
#[utoipa::path(post, path = "/v1/sessions/{name}/retire", tag = "sessions",
    request_body = ClaimBody,
    responses((status = 200, body = SessionsRetireAnswer),
        (status = 409, description = "That life had already ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn retire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> Result<Answer<SessionsRetireAnswer>> {
    let claim = body.claim()?;
    let live = app.live(Kind::Sessions.as_str(), &name)?;
    let sessions = live.share_operations::<Sessions>().ok_or_else(|| app.no_such_system())?;
    let retired = app.finish(async move { sessions.retire(&claim).await }).await??;
    let (incarnation, released) = (retired.incarnation.0, retired.released);
    Ok(Answer(SessionsRetireAnswer { owner: body.owner, incarnation, released }))
}
