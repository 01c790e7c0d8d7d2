//! The routes `/v1/inflight/{name}/...`, one per operation and named after it.

mod claims;
pub mod letters;
mod shapes;
mod taking;
pub mod tickets;

use std::sync::Arc;

use axum::extract::State;
use lapsed_core::inflight::{Inflight, Job, JobCounts, NewJob};
use lapsed_core::owner::Claim;
use lapsed_core::request::RequestId;
use lapsed_core::{Kind, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::shapes::*;
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::idempotency::{Repeatable, made_up_id};
use crate::http::owners::{self, ClaimBody, HeldQuery, claim};
use crate::http::paging::page_limit;
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner, keeps_requests, owner_in_body, slow};
use crate::schemas;

pub use shapes::{DeadLetters, JobBody, PutBackBody};

/// The routes of all operations on jobs.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        // A job on a queue has no owner yet.
        .routes(keeps_requests(for_owner(OwnerRule::NotAnOwners, routes!(enqueue))))
        .routes(keeps_requests(for_owner(OwnerRule::NotAnOwners, routes!(enqueue_many))))
        .routes(owner_in_body("owner", routes!(register)))
        .routes(owner_in_body("owner", routes!(register_many)))
        .routes(routes!(job))
        .routes(routes!(in_flight))
        .routes(routes!(counts))
        .routes(routes!(queues))
        // It puts back all jobs of the worker, which may take long.
        .routes(owner_in_body("owner", slow(routes!(retire))))
        .merge(taking::routes())
        .merge(claims::routes())
        .merge(letters::routes())
        .merge(owners::routes(Kind::Inflight))
}

fn inflight<'a>(app: &'a Shared, name: &str) -> HttpResult<&'a Inflight> {
    app.operations(Kind::Inflight, name)
}

fn missing(id: &str) -> Problem {
    Problem::not_found(format!("there is no job {id:?}; it may have been completed"))
}

/// Puts a job on its queue.
/// The outcome is `exists` if there is already a job with this id, which then stays as it is. A job
/// without an id gets a new one. A repetition with the same `Idempotency-Key` has the same answer, also
/// if the job was completed since.
#[utoipa::path(post, path = "/v1/inflight/{name}/enqueue", tag = "inflight",
    params(("name" = String, Path)),
    request_body = EnqueueBody,
    responses((status = 200, body = EnqueueAnswer)))]
async fn enqueue(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<EnqueueBody>,
) -> HttpResult<JsonAnswer<EnqueueAnswer>> {
    let inflight = inflight(&app, &name)?;
    let mut answers = enqueue_all(inflight, &request, vec![body]).await?;
    let unanswered = || Problem::internal("the store did not say what became of it");
    Ok(JsonAnswer(answers.pop().ok_or_else(unanswered)?))
}

/// Puts many jobs on their queues; one result per job, in order.
#[utoipa::path(post, path = "/v1/inflight/{name}/enqueue_many", tag = "inflight",
    params(("name" = String, Path)),
    request_body = EnqueueManyBody,
    responses((status = 200, body = EnqueueManyAnswer)))]
async fn enqueue_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<EnqueueManyBody>,
) -> HttpResult<JsonAnswer<EnqueueManyAnswer>> {
    let results = enqueue_all(inflight(&app, &name)?, &request, body.jobs).await?;
    Ok(JsonAnswer(EnqueueManyAnswer { results }))
}

async fn enqueue_all(
    inflight: &Inflight,
    request: &RequestId,
    jobs: Vec<EnqueueBody>,
) -> HttpResult<Vec<EnqueueAnswer>> {
    // Without an id a job gets one that follows from the request, so that all attempts name the same.
    let id = |index: usize| made_up_id(request, index);
    let jobs = jobs.into_iter().enumerate().map(|(index, job)| job.read(|| id(index)));
    let jobs: Vec<NewJob> = jobs.collect::<HttpResult<_>>()?;
    let outcomes = match request.is_repeatable() {
        true => inflight.enqueue_once(request, &jobs).await?,
        false => inflight.enqueue(&jobs).await?,
    };
    let pairs = jobs.into_iter().zip(outcomes);
    Ok(pairs.map(|(job, outcome)| EnqueueAnswer { id: job.id.into(), outcome }).collect())
}

/// Tracks a job that the caller has popped from its queue itself.
/// An owner that was never seen before is started by the call.
#[utoipa::path(post, path = "/v1/inflight/{name}/register", tag = "inflight",
    request_body = RegisterJobBody,
    responses((status = 200, body = RegisterJobAnswer),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn register(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RegisterJobBody>,
) -> HttpResult<JsonAnswer<RegisterJobAnswer>> {
    let (claim, job) = body.read()?;
    let answer = inflight(&app, &name)?.register(&claim, &[job]).await?;
    Ok(JsonAnswer(RegisterJobAnswer::of(claim.owner, answer)))
}

/// Tracks many jobs that the caller has popped from their queues itself; one result per job, in
/// order.
#[utoipa::path(post, path = "/v1/inflight/{name}/register_many", tag = "inflight",
    request_body = RegisterJobsBody,
    responses((status = 200, body = RegisterJobsAnswer),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn register_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RegisterJobsBody>,
) -> HttpResult<JsonAnswer<RegisterJobsAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let jobs: Vec<NewJob> =
        body.jobs.into_iter().map(JobToTrack::read).collect::<HttpResult<_>>()?;
    let answer = inflight(&app, &name)?.register(&claim, &jobs).await?;
    Ok(JsonAnswer(RegisterJobsAnswer::of(claim.owner, jobs, answer)))
}

/// Returns one job in any state: `queued`, `in_flight` or `dead`.
#[utoipa::path(get, path = "/v1/inflight/{name}/jobs/{id}", tag = "inflight",
    responses((status = 200, body = schemas::Job),
        (status = 404, description = "There is no such job", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn job(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<JsonAnswer<Job>> {
    let found = inflight(&app, &name)?.job(&Name::new(&id)?).await?;
    found.map(JsonAnswer).ok_or_else(|| missing(&id))
}

/// Lists the jobs that one incarnation of an owner holds, ordered by id.
#[utoipa::path(get, path = "/v1/inflight/{name}/in_flight/{owner}", tag = "inflight",
    params(("name" = String, Path), ("owner" = String, Path), HeldQuery),
    responses((status = 200, body = HeldJobs),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn in_flight(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<HeldQuery>,
) -> HttpResult<JsonAnswer<HeldJobs>> {
    let inflight = inflight(&app, &name)?;
    let page = async |claim: Claim, after: Option<Name>, limit| {
        inflight.in_flight(&claim, after.as_ref(), limit).await
    };
    let (jobs, next) = owners::held(&owner, query, page).await?;
    Ok(JsonAnswer(HeldJobs { jobs, next }))
}

/// Returns the numbers of jobs by state; `entered` is the sum of all others.
#[utoipa::path(get, path = "/v1/inflight/{name}/counts", tag = "inflight",
    responses((status = 200, body = schemas::Counts)))]
async fn counts(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> HttpResult<JsonAnswer<JobCounts>> {
    Ok(JsonAnswer(inflight(&app, &name)?.counts().await?))
}

/// Lists the queues that are not empty, ordered by name, each with its number of jobs.
#[utoipa::path(get, path = "/v1/inflight/{name}/queues", tag = "inflight",
    params(("name" = String, Path), JobPageQuery),
    responses((status = 200, body = Queues)))]
async fn queues(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<JobPageQuery>,
) -> HttpResult<JsonAnswer<Queues>> {
    let (after, limit) = query.read()?;
    let found = inflight(&app, &name)?.queues(after.as_ref(), limit).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|(name, _)| name.to_string());
    let queue = |(name, jobs): (Name, u64)| Queue { queue: name.into(), jobs };
    Ok(JsonAnswer(Queues { queues: found.into_iter().map(queue).collect(), next }))
}

/// Ends an incarnation of an owner gracefully.
/// Its jobs go back to their queues, each with a receipt, and no crash is counted.
#[utoipa::path(post, path = "/v1/inflight/{name}/retire", tag = "inflight",
    request_body = ClaimBody,
    responses((status = 200, body = JobsRetireAnswer),
        (status = 409, description = "The incarnation had already ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn retire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> HttpResult<JsonAnswer<JobsRetireAnswer>> {
    let end = async |inflight: Arc<Inflight>, claim: Claim| inflight.retire(&claim).await;
    let retired = owners::retire(&app, Kind::Inflight, &name, body.claim()?, end).await?;
    let (incarnation, put_back) = (retired.incarnation.0, retired.reclaimed);
    Ok(JsonAnswer(JobsRetireAnswer { owner: body.owner, incarnation, put_back }))
}
