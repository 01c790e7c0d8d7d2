//! Routes that end the claim on a job: completed, failed or given back, for one job or many.

mod shapes;

use axum::extract::State;
use axum::http::StatusCode;
use lapsed_core::inflight::{Finish, Finished, Inflight, JobTicket};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::shapes::*;
use super::inflight;
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path};
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner};
use crate::schemas;

/// The routes that end claims.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(for_owner(OwnerRule::Holder, routes!(complete)))
        .routes(for_owner(OwnerRule::Holder, routes!(complete_many)))
        .routes(for_owner(OwnerRule::Holder, routes!(fail)))
        .routes(for_owner(OwnerRule::Holder, routes!(fail_many)))
        .routes(for_owner(OwnerRule::Holder, routes!(give_back)))
        .routes(for_owner(OwnerRule::Holder, routes!(give_back_many)))
}

/// Completes a job, which is then deleted.
/// The problem `lost` means that the caller no longer holds the job; nothing was changed.
#[utoipa::path(post, path = "/v1/inflight/{name}/complete", tag = "inflight",
    request_body = JobTicketBody,
    responses((status = 200, body = FinishAnswer),
        (status = 409, description = "Another owner holds the job, or it no longer exists", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn complete(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<JobTicketBody>,
) -> HttpResult<JsonAnswer<FinishAnswer>> {
    one(inflight(&app, &name)?, body.read()?, &Finish::Complete).await
}

/// Completes many jobs; each has its own result, in order.
#[utoipa::path(post, path = "/v1/inflight/{name}/complete_many", tag = "inflight",
    request_body = TicketsBody,
    responses((status = 200, body = FinishManyAnswer)))]
async fn complete_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<TicketsBody>,
) -> HttpResult<JsonAnswer<FinishManyAnswer>> {
    many(inflight(&app, &name)?, body.jobs, &Finish::Complete).await
}

/// Fails a job, which becomes a dead letter.
/// The problem `lost` means that the caller no longer holds the job; nothing was changed.
#[utoipa::path(post, path = "/v1/inflight/{name}/fail", tag = "inflight",
    request_body = FailBody,
    responses((status = 200, body = FinishAnswer),
        (status = 409, description = "Another owner holds the job, or it no longer exists", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn fail(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<FailBody>,
) -> HttpResult<JsonAnswer<FinishAnswer>> {
    let ticket = ticket(body.id, body.token, body.incarnation)?;
    one(inflight(&app, &name)?, ticket, &Finish::Fail { error: body.error }).await
}

/// Fails many jobs; each has its own result, in order.
#[utoipa::path(post, path = "/v1/inflight/{name}/fail_many", tag = "inflight",
    request_body = FailManyBody,
    responses((status = 200, body = FinishManyAnswer)))]
async fn fail_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<FailManyBody>,
) -> HttpResult<JsonAnswer<FinishManyAnswer>> {
    many(inflight(&app, &name)?, body.jobs, &Finish::Fail { error: body.error }).await
}

/// Gives a job back to its queue without counting a crash.
/// The problem `lost` means that the caller no longer holds the job; nothing was changed.
#[utoipa::path(post, path = "/v1/inflight/{name}/give_back", tag = "inflight",
    request_body = GiveBackBody,
    responses((status = 200, body = FinishAnswer),
        (status = 409, description = "Another owner holds the job, or it no longer exists", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn give_back(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<GiveBackBody>,
) -> HttpResult<JsonAnswer<FinishAnswer>> {
    let ticket = ticket(body.id, body.token, body.incarnation)?;
    one(inflight(&app, &name)?, ticket, &Finish::GiveBack(body.end.into())).await
}

/// Gives many jobs back; each has its own result, in order.
#[utoipa::path(post, path = "/v1/inflight/{name}/give_back_many", tag = "inflight",
    request_body = GiveBackManyBody,
    responses((status = 200, body = FinishManyAnswer)))]
async fn give_back_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<GiveBackManyBody>,
) -> HttpResult<JsonAnswer<FinishManyAnswer>> {
    many(inflight(&app, &name)?, body.jobs, &Finish::GiveBack(body.end.into())).await
}

async fn one(
    inflight: &Inflight,
    ticket: JobTicket,
    how: &Finish,
) -> HttpResult<JsonAnswer<FinishAnswer>> {
    let finished = inflight.finish(std::slice::from_ref(&ticket), how).await?;
    match finished.first() {
        Some(Finished::Done) => {
            Ok(JsonAnswer(FinishAnswer { id: ticket.id.into(), outcome: Finished::Done }))
        }
        Some(lost) => Err(lost_claim(&ticket, *lost)),
        None => Err(Problem::internal("the store did not say what became of it")),
    }
}

async fn many(
    inflight: &Inflight,
    jobs: Vec<JobTicketBody>,
    how: &Finish,
) -> HttpResult<JsonAnswer<FinishManyAnswer>> {
    let tickets: Vec<JobTicket> =
        jobs.iter().map(JobTicketBody::read).collect::<HttpResult<_>>()?;
    let finished = inflight.finish(&tickets, how).await?;
    let results = tickets.into_iter().zip(finished).map(|(ticket, outcome)| OneFinish {
        ok: !outcome.is_lost(),
        id: ticket.id.into(),
        outcome,
        detail: outcome.is_lost().then(|| outcome.describe()),
    });
    Ok(JsonAnswer(FinishManyAnswer { results: results.collect() }))
}

fn lost_claim(ticket: &JobTicket, lost: Finished) -> Problem {
    let title = "You no longer hold it";
    Problem::new(StatusCode::CONFLICT, "lost", title, lost.describe())
        .with("id", json!(ticket.id))
        .with("token", json!(ticket.token))
        .with("outcome", json!(lost))
}
