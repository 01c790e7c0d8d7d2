//! The routes `/v1/sessions/{name}/...`, one per operation and named after it. A request for a
//! session that does not exist is answered 404 and changes nothing.

mod owners;
mod references;
mod shapes;

use axum::extract::State;
use axum::http::StatusCode;
use lapsed_core::sessions::{Deleted, Sessions};
use lapsed_core::{Kind, Name};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::shapes::*;
use crate::config::token::Scope;
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::paging::{bounded, names, page_limit};
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner, with_scope};
use crate::print::plural;
use crate::schemas;

/// The routes of all operations on sessions.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        // A session belongs to all owners that refer to it.
        .routes(for_owner(OwnerRule::Refused, routes!(activate)))
        .routes(routes!(get))
        // It only reads, although it is called with a body.
        .routes(for_owner(OwnerRule::NotAnOwners, with_scope(Scope::Read, routes!(get_many))))
        .routes(for_owner(OwnerRule::Refused, routes!(update)))
        .routes(for_owner(OwnerRule::Refused, routes!(delete)))
        .routes(routes!(orphans))
        .routes(routes!(disconnected_count))
        .routes(routes!(broadcaster))
        .merge(references::routes())
        .merge(owners::routes())
}

fn sessions<'a>(app: &'a Shared, name: &str) -> HttpResult<&'a Sessions> {
    app.operations(Kind::Sessions, name)
}

fn missing(session: &str) -> Problem {
    Problem::not_found(format!("there is no session {session:?}"))
}

/// Creates a session, or reactivates an existing one.
/// The disconnection of an existing session is cleared, and the given fields are set. The grace
/// period runs until somebody connects.
#[utoipa::path(post, path = "/v1/sessions/{name}/activate", tag = "sessions",
    request_body = ProfileBody,
    responses((status = 201, description = "The session was created", body = ActivateAnswer),
        (status = 200, description = "The session existed", body = ActivateAnswer)))]
async fn activate(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ProfileBody>,
) -> HttpResult<(StatusCode, JsonAnswer<ActivateAnswer>)> {
    let (id, profile) = body.read()?;
    let activated = sessions(&app, &name)?.activate(&id, &profile).await?;
    let status = if activated.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, JsonAnswer(ActivateAnswer::of(activated))))
}

/// Returns one session and its data.
#[utoipa::path(get, path = "/v1/sessions/{name}/get/{session}", tag = "sessions",
    responses((status = 200, body = SessionAnswer),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn get(
    State(app): State<Shared>,
    Path((name, session)): Path<(String, String)>,
) -> HttpResult<JsonAnswer<SessionAnswer>> {
    let found = sessions(&app, &name)?.get(&Name::new(&session)?).await?;
    found.map(|found| JsonAnswer(SessionAnswer::of(found))).ok_or_else(|| missing(&session))
}

/// Returns many sessions in the order of the request; `null` for a session that does not exist.
#[utoipa::path(post, path = "/v1/sessions/{name}/get_many", tag = "sessions",
    request_body = SessionsBody,
    responses((status = 200, body = SessionsAnswer)))]
async fn get_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<SessionsBody>,
) -> HttpResult<JsonAnswer<SessionsAnswer>> {
    bounded(body.sessions.len(), "sessions")?;
    let all = names(&body.sessions)?;
    let sessions = sessions(&app, &name)?;
    let mut results = Vec::with_capacity(all.len());
    for some in all.chunks(references::AT_ONCE) {
        let found = futures::future::join_all(some.iter().map(|id| sessions.get(id))).await;
        for one in found {
            results.push(one?.map(SessionAnswer::of));
        }
    }
    Ok(JsonAnswer(SessionsAnswer { results }))
}

/// Sets the given fields of a session, and leaves the others as they are.
#[utoipa::path(post, path = "/v1/sessions/{name}/update", tag = "sessions",
    request_body = ProfileBody,
    responses((status = 200, body = SessionAnswer),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn update(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ProfileBody>,
) -> HttpResult<JsonAnswer<SessionAnswer>> {
    let (id, profile) = body.read()?;
    let updated = sessions(&app, &name)?.update(&id, &profile).await?;
    updated
        .map(|updated| JsonAnswer(SessionAnswer::of(updated)))
        .ok_or_else(|| missing(id.as_str()))
}

/// Deletes a session with all of its data, unless somebody is connected.
#[utoipa::path(post, path = "/v1/sessions/{name}/delete", tag = "sessions",
    request_body = SessionBody,
    responses((status = 200, body = DeleteAnswer),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "Somebody is connected: `active`, with `references`", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn delete(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<SessionBody>,
) -> HttpResult<JsonAnswer<DeleteAnswer>> {
    let session = body.session;
    match sessions(&app, &name)?.delete(&Name::new(&session)?).await? {
        Deleted::Deleted => Ok(JsonAnswer(DeleteAnswer { session, outcome: "deleted" })),
        Deleted::Active { references } => Err(active(&session, references)),
        Deleted::Missing => Err(missing(&session)),
        other => Err(Problem::internal(format!("{session:?} was not deleted: {other:?}"))),
    }
}

fn active(session: &str, references: u64) -> Problem {
    let held = plural(references, "reference", "references");
    let detail = format!("{session:?} has {held}; nothing was changed: disconnect first");
    Problem::new(StatusCode::CONFLICT, "active", "Somebody is connected", detail)
        .with("session", json!(session))
        .with("references", json!(references))
}

/// Lists sessions whose grace period is over, the longest overdue first.
#[utoipa::path(get, path = "/v1/sessions/{name}/orphans", tag = "sessions",
    params(("name" = String, Path), OrphansQuery),
    responses((status = 200, body = Orphans)))]
async fn orphans(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<OrphansQuery>,
) -> HttpResult<JsonAnswer<Orphans>> {
    let orphans = sessions(&app, &name)?.orphans(page_limit(query.limit)?).await?;
    Ok(JsonAnswer(Orphans { orphans: orphans.into_iter().map(String::from).collect() }))
}

/// Returns how many sessions are disconnected.
#[utoipa::path(get, path = "/v1/sessions/{name}/disconnected_count", tag = "sessions",
    responses((status = 200, body = DisconnectedCount)))]
async fn disconnected_count(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> HttpResult<JsonAnswer<DisconnectedCount>> {
    let disconnected_count = sessions(&app, &name)?.disconnected_count().await?;
    Ok(JsonAnswer(DisconnectedCount { disconnected_count }))
}

/// Returns the current session of a broadcaster.
#[utoipa::path(get, path = "/v1/sessions/{name}/broadcaster/{id}", tag = "sessions",
    responses((status = 200, body = BroadcasterAnswer),
        (status = 404, description = "The broadcaster has no session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn broadcaster(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<JsonAnswer<BroadcasterAnswer>> {
    let session = sessions(&app, &name)?.of_broadcaster(&Name::new(&id)?).await?;
    let none = || Problem::not_found(format!("the broadcaster {id:?} has no session"));
    let session = session.ok_or_else(none)?.into();
    Ok(JsonAnswer(BroadcasterAnswer { broadcaster_user_id: id, session }))
}
