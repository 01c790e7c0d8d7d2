//! Routes for references: connecting, disconnecting and resuming, for one session or many.

use axum::extract::State;
use futures::future::join_all;
use lapsed_core::owner::Claim;
use lapsed_core::request::RequestId;
use lapsed_core::sessions::{ReferenceChange, ReferenceStep, Sessions};
use lapsed_core::{Error, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::*;
use super::{missing, sessions};
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path};
use crate::http::idempotency::Repeatable;
use crate::http::paging::{bounded, names};
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner, keeps_requests, owner_in_body};
use crate::schemas;

/// How many calls of a batch run concurrently; the store commits them together.
pub const AT_ONCE: usize = 256;

/// The routes that change references.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(keeps_requests(owner_in_body("owner", routes!(connect))))
        .routes(keeps_requests(owner_in_body("owner", routes!(connect_many))))
        .routes(keeps_requests(owner_in_body("owner", routes!(disconnect))))
        .routes(keeps_requests(owner_in_body("owner", routes!(disconnect_many))))
        .routes(for_owner(OwnerRule::Refused, routes!(resume)))
}

/// Adds a reference to a session.
/// The disconnection of the session is cleared in the same step. An owner that was never seen
/// before is started by the call.
#[utoipa::path(post, path = "/v1/sessions/{name}/connect", tag = "sessions",
    params(("name" = String, Path)),
    request_body = ReferenceBody,
    responses((status = 200, body = StandingAnswer),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn connect(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<ReferenceBody>,
) -> HttpResult<JsonAnswer<StandingAnswer>> {
    one(sessions(&app, &name)?, ReferenceStep::Connect, &request, body).await
}

/// Removes a reference from a session; when it was the last one, the grace period begins in the
/// same step.
#[utoipa::path(post, path = "/v1/sessions/{name}/disconnect", tag = "sessions",
    params(("name" = String, Path)),
    request_body = ReferenceBody,
    responses((status = 200, body = StandingAnswer),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn disconnect(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<ReferenceBody>,
) -> HttpResult<JsonAnswer<StandingAnswer>> {
    one(sessions(&app, &name)?, ReferenceStep::Disconnect, &request, body).await
}

/// Connects one owner to many sessions; each has its own result, in order.
/// If the owner's incarnation has ended or the store does not answer, the remaining sessions are
/// not tried and get the same result.
#[utoipa::path(post, path = "/v1/sessions/{name}/connect_many", tag = "sessions",
    params(("name" = String, Path)),
    request_body = ReferencesBody,
    responses((status = 200, body = StandingsAnswer)))]
async fn connect_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<ReferencesBody>,
) -> HttpResult<JsonAnswer<StandingsAnswer>> {
    many(sessions(&app, &name)?, ReferenceStep::Connect, &request, body).await
}

/// Disconnects one owner from many sessions, with results and failures as in `connect_many`.
#[utoipa::path(post, path = "/v1/sessions/{name}/disconnect_many", tag = "sessions",
    params(("name" = String, Path)),
    request_body = ReferencesBody,
    responses((status = 200, body = StandingsAnswer)))]
async fn disconnect_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<ReferencesBody>,
) -> HttpResult<JsonAnswer<StandingsAnswer>> {
    many(sessions(&app, &name)?, ReferenceStep::Disconnect, &request, body).await
}

/// Clears the disconnection of a session without adding a reference: the grace period starts again.
#[utoipa::path(post, path = "/v1/sessions/{name}/resume", tag = "sessions",
    request_body = SessionBody,
    responses((status = 200, body = StandingAnswer),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn resume(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<SessionBody>,
) -> HttpResult<JsonAnswer<StandingAnswer>> {
    let standing = sessions(&app, &name)?.resume(&Name::new(&body.session)?).await?;
    let standing = standing.ok_or_else(|| missing(&body.session))?;
    Ok(JsonAnswer(StandingAnswer::of(body.session, standing)))
}

/// Adds or removes a reference; once for all attempts of a request that has a key.
async fn change(
    sessions: &Sessions,
    step: ReferenceStep,
    request: &RequestId,
    claim: Option<&Claim>,
    id: &Name,
) -> lapsed_core::Result<Option<ReferenceChange>> {
    match step {
        _ if request.is_repeatable() => sessions.change_once(request, step, claim, id).await,
        ReferenceStep::Connect => sessions.connect(claim, id).await,
        ReferenceStep::Disconnect => sessions.disconnect(claim, id).await,
    }
}

async fn one(
    sessions: &Sessions,
    step: ReferenceStep,
    request: &RequestId,
    body: ReferenceBody,
) -> HttpResult<JsonAnswer<StandingAnswer>> {
    let (claim, id) = (body.claim()?, Name::new(&body.session)?);
    let standing = change(sessions, step, request, claim.as_ref(), &id).await?;
    let standing = standing.ok_or_else(|| missing(&body.session))?;
    Ok(JsonAnswer(StandingAnswer::of(body.session, standing)))
}

async fn many(
    sessions: &Sessions,
    step: ReferenceStep,
    request: &RequestId,
    body: ReferencesBody,
) -> HttpResult<JsonAnswer<StandingsAnswer>> {
    bounded(body.sessions.len(), "sessions")?;
    let claim = body.claim()?;
    let mut results = Vec::with_capacity(body.sessions.len());
    let mut over: Option<Error> = None;
    for (chunk, some) in names(&body.sessions)?.chunks(AT_ONCE).enumerate() {
        if let Some(error) = &over {
            let left = |id: &Name| OneStanding::of(id.to_string(), Err(error.clone().into()));
            results.extend(some.iter().map(left));
            continue;
        }
        // Each session is a step of its own, so that a repetition continues where the first attempt ended.
        let claim = claim.as_ref();
        let steps = some.iter().enumerate().map(async |(index, id)| {
            let request = match request.is_repeatable() {
                true => request.step(1 + chunk * AT_ONCE + index)?,
                false => request.clone(),
            };
            change(sessions, step, &request, claim, id).await
        });
        for (id, answer) in some.iter().zip(join_all(steps).await) {
            if let Err(error @ (Error::Lost(_) | Error::Unavailable { .. })) = &answer {
                over = Some(error.clone());
            }
            let answer = answer.map_err(Problem::from);
            let answer = answer.and_then(|found| found.ok_or_else(|| missing(id.as_str())));
            results.push(OneStanding::of(id.to_string(), answer));
        }
    }
    Ok(JsonAnswer(StandingsAnswer { results }))
}
