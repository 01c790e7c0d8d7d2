//! Dead letters: listed, looked at, put back, deleted.

use axum::extract::State;
use lapsed::Name;
use lapsed::inflight::{Job, Place};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::inflight;
use super::shapes::*;
use crate::http::extract::{Answer, Json, Path, Query};
use crate::http::owners::Result;
use crate::http::problem::Problem;
use crate::http::{Shared, schemas};

/// All of them.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(dead))
        .routes(routes!(dead_letter))
        .routes(routes!(put_back))
        .routes(routes!(delete))
}

fn missing(id: &str) -> Problem {
    Problem::not_found(format!("there is no dead letter {id:?}"))
}

/// Dead letters, by id.
#[utoipa::path(get, path = "/v1/inflight/{name}/dead", tag = "inflight",
    params(("name" = String, Path), PageQuery),
    responses((status = 200, body = DeadLetters)))]
async fn dead(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Answer<DeadLetters>> {
    let (after, limit) = query.read()?;
    let dead = inflight(&app, &name)?.dead(after.as_ref(), limit).await?;
    let next = dead.last().filter(|_| dead.len() == limit).map(|job| job.id.to_string());
    Ok(Answer(DeadLetters { dead, next }))
}

/// One dead letter.
#[utoipa::path(get, path = "/v1/inflight/{name}/dead/{id}", tag = "inflight",
    responses((status = 200, body = schemas::Job),
        (status = 404, description = "There is no such dead letter", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn dead_letter(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Answer<Job>> {
    let found = inflight(&app, &name)?.job(&Name::new(&id)?).await?;
    let found = found.filter(|job| matches!(job.place, Place::Dead { .. }));
    found.map(Answer).ok_or_else(|| missing(&id))
}

/// Puts a dead letter back on its queue, its crashes forgotten.
#[utoipa::path(post, path = "/v1/inflight/{name}/dead/put_back", tag = "inflight",
    request_body = PutBackBody,
    responses((status = 200, body = LetterAnswer),
        (status = 404, description = "There is no such dead letter", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn put_back(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<PutBackBody>,
) -> Result<Answer<LetterAnswer>> {
    let end = body.end.into();
    match inflight(&app, &name)?.put_back(&Name::new(&body.id)?, end).await? {
        true => Ok(Answer(LetterAnswer { id: body.id, outcome: "queued" })),
        false => Err(missing(&body.id)),
    }
}

/// Deletes a dead letter for good.
#[utoipa::path(post, path = "/v1/inflight/{name}/dead/delete", tag = "inflight",
    request_body = JobBody,
    responses((status = 200, body = LetterAnswer),
        (status = 404, description = "There is no such dead letter", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn delete(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<JobBody>,
) -> Result<Answer<LetterAnswer>> {
    match inflight(&app, &name)?.delete(&Name::new(&body.id)?).await? {
        true => Ok(Answer(LetterAnswer { id: body.id, outcome: "deleted" })),
        false => Err(missing(&body.id)),
    }
}
