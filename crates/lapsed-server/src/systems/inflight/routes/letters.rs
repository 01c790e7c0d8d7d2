//! Routes for dead letters: list, read, put back, delete.

use std::sync::Arc;

use axum::extract::State;
use lapsed_core::inflight::{Inflight, Job, JobPlace};
use lapsed_core::{Error, Kind, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::inflight;
use super::shapes::*;
use crate::config::token::Scope;
use crate::http::Shared;
use crate::http::caller::Caller;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::with_scope;
use crate::node::LiveSystem;
use crate::node::audit::outcome;
use crate::schemas;

/// The routes of dead letters.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(dead))
        .routes(routes!(dead_letter))
        // Only an operator may change dead letters.
        .routes(with_scope(Scope::Act, routes!(put_back)))
        .routes(with_scope(Scope::Act, routes!(delete)))
}

fn missing(id: &str) -> Problem {
    Problem::not_found(format!("there is no dead letter {id:?}"))
}

/// Lists the dead letters, ordered by id.
#[utoipa::path(get, path = "/v1/inflight/{name}/dead", tag = "inflight",
    params(("name" = String, Path), JobPageQuery),
    responses((status = 200, body = DeadLetters)))]
async fn dead(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<JobPageQuery>,
) -> HttpResult<JsonAnswer<DeadLetters>> {
    let (after, limit) = query.read()?;
    let dead = inflight(&app, &name)?.dead(after.as_ref(), limit).await?;
    let next = dead.last().filter(|_| dead.len() == limit).map(|job| job.id.to_string());
    Ok(JsonAnswer(DeadLetters { dead, next }))
}

/// Returns one dead letter.
#[utoipa::path(get, path = "/v1/inflight/{name}/dead/{id}", tag = "inflight",
    responses((status = 200, body = schemas::Job),
        (status = 404, description = "There is no such dead letter", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn dead_letter(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<JsonAnswer<Job>> {
    let found = inflight(&app, &name)?.job(&Name::new(&id)?).await?;
    let found = found.filter(|job| matches!(job.place, JobPlace::Dead { .. }));
    found.map(JsonAnswer).ok_or_else(|| missing(&id))
}

fn letters(app: &Shared, name: &str) -> HttpResult<Arc<LiveSystem>> {
    Ok(app.live(Kind::Inflight.as_str(), name)?.clone())
}

fn jobs(live: &LiveSystem) -> lapsed_core::Result<&Inflight> {
    live.operations().ok_or_else(|| Error::Invalid(format!("`{}` has no jobs", live.id())))
}

/// Puts a dead letter back on its queue and resets its number of crashes.
#[utoipa::path(post, path = "/v1/inflight/{name}/dead/put_back", tag = "inflight",
    request_body = PutBackBody,
    responses((status = 200, body = LetterAnswer),
        (status = 404, description = "There is no such dead letter", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn put_back(
    State(app): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<PutBackBody>,
) -> HttpResult<JsonAnswer<LetterAnswer>> {
    let (end, id) = (body.end.into(), Name::new(&body.id)?);
    let (live, action) = (letters(&app, &name)?, caller.audit_action("dead put_back", &body.id));
    let work = async move {
        let work = async { jobs(&live)?.put_back(&id, end).await };
        live.audited(action, work, |found| outcome(*found, "queued")).await
    };
    match app.finish(work).await?? {
        true => Ok(JsonAnswer(LetterAnswer { id: body.id, outcome: "queued" })),
        false => Err(missing(&body.id)),
    }
}

/// Deletes a dead letter permanently.
#[utoipa::path(post, path = "/v1/inflight/{name}/dead/delete", tag = "inflight",
    request_body = JobBody,
    responses((status = 200, body = LetterAnswer),
        (status = 404, description = "There is no such dead letter", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<JobBody>,
) -> HttpResult<JsonAnswer<LetterAnswer>> {
    let id = Name::new(&body.id)?;
    let (live, action) = (letters(&app, &name)?, caller.audit_action("dead delete", &body.id));
    let work = async move {
        let work = async { jobs(&live)?.delete(&id).await };
        live.audited(action, work, |found| outcome(*found, "deleted")).await
    };
    match app.finish(work).await?? {
        true => Ok(JsonAnswer(LetterAnswer { id: body.id, outcome: "deleted" })),
        false => Err(missing(&body.id)),
    }
}
