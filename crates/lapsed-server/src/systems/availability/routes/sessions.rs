//! Routes for the sessions of providers. A provider's number of sessions is derived from them in
//! the same transaction.

use axum::extract::State;
use axum::http::StatusCode;
use lapsed_availability::{SessionChange, SessionOutcome, SessionRefusal, Written};
use lapsed_core::{Kind, Name};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::*;
use super::{From, WriteResponse, availability, nobody};
use crate::http::Shared;
use crate::http::extract::{Json, Path};
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner, owner_in_body};
use crate::schemas;
use crate::systems::availability::AvailabilityOperations;

/// The routes of providers' sessions.
pub fn routes() -> OpenApiRouter<Shared> {
    // A session may move to another provider between a look at its provider and the change, and has
    // no token by which the change would notice: only `accept` names the provider itself.
    OpenApiRouter::new()
        .routes(routes!(session))
        .routes(owner_in_body("provider", routes!(accept)))
        .routes(for_owner(OwnerRule::Refused, routes!(extend)))
        .routes(for_owner(OwnerRule::Refused, routes!(resume)))
        .routes(for_owner(OwnerRule::Refused, routes!(end)))
        .routes(for_owner(OwnerRule::Refused, routes!(expire)))
        .routes(for_owner(OwnerRule::Refused, routes!(cancel)))
        .routes(for_owner(OwnerRule::Refused, routes!(reroute)))
}

/// Returns one session of a provider.
#[utoipa::path(get, path = "/v1/availability/{name}/sessions/{id}", tag = "availability",
    responses((status = 200, body = ProviderSession),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn session(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<From<ProviderSession>> {
    let id = Name::new(&id)?;
    let found = availability(&app, &name)?.session(&id).await?;
    let found = found.ok_or_else(|| no_session(&id))?;
    Ok(From::truth(ProviderSession::of(found)))
}

/// Assigns a session to a provider; an unknown session is created by the call. Repeating the call
/// is safe.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/accept", tag = "availability",
    request_body = AcceptBody,
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "`full`, `taken`, `over` or `deactivated`: nothing was changed",
            body = schemas::Problem, content_type = "application/problem+json")))]
async fn accept(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
    Json(body): Json<AcceptBody>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    let (session, provider) = (Name::new(&id)?, Name::new(&body.provider)?);
    change(&app, &name, SessionChange::Accept { session, provider }).await
}

/// Marks a session as waiting for another payment; its provider stays occupied.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/extend", tag = "availability",
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "`over` or `not_accepted`", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn extend(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    change(&app, &name, SessionChange::Extend { session: Name::new(&id)? }).await
}

/// Marks a session as paid for, so that it is active again.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/resume", tag = "availability",
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "`over` or `not_accepted`", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn resume(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    change(&app, &name, SessionChange::Resume { session: Name::new(&id)? }).await
}

/// Ends a session. A session that has already ended, expired or been cancelled keeps that status.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/end", tag = "availability",
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn end(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    change(&app, &name, SessionChange::End { session: Name::new(&id)? }).await
}

/// Marks a session as expired, because its time ran out.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/expire", tag = "availability",
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn expire(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    change(&app, &name, SessionChange::Expire { session: Name::new(&id)? }).await
}

/// Marks a session as cancelled.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/cancel", tag = "availability",
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such session", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn cancel(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    change(&app, &name, SessionChange::Cancel { session: Name::new(&id)? }).await
}

/// Moves a session to another provider. Both providers' numbers of sessions change in the same
/// transaction.
#[utoipa::path(post, path = "/v1/availability/{name}/sessions/{id}/reroute", tag = "availability",
    request_body = RerouteBody,
    responses((status = 200, body = SessionChanged),
        (status = 404, description = "There is no such session, or provider", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "`full`, `over`, `not_accepted` or `deactivated`: nothing was changed",
            body = schemas::Problem, content_type = "application/problem+json")))]
async fn reroute(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
    Json(body): Json<RerouteBody>,
) -> HttpResult<WriteResponse<SessionChanged>> {
    let (session, to) = (Name::new(&id)?, Name::new(&body.to)?);
    change(&app, &name, SessionChange::Reroute { session, to }).await
}

async fn change(
    app: &Shared,
    name: &str,
    change: SessionChange,
) -> HttpResult<WriteResponse<SessionChanged>> {
    let system = app.operations::<AvailabilityOperations>(Kind::Availability, name)?.system.clone();
    let wanted = change.clone();
    // This runs to its end even if the client disconnects, so that the mirror is updated too.
    let work = async move { system.change_session(&wanted).await };
    let Written { answer, mirrored } = app.finish(work).await??;
    match answer {
        SessionOutcome::Done { session, changed, .. } => {
            Ok(WriteResponse { mirrored, answer: SessionChanged::of(session, changed) })
        }
        SessionOutcome::Refused(refusal) => Err(refused(&change, refusal)),
    }
}

fn no_session(id: &Name) -> Problem {
    Problem::not_found(format!("there is no session {:?}", id.as_str())).with("session", json!(id))
}

/// The problem for a refused change: why nothing was changed, and what the caller can do.
fn refused(change: &SessionChange, refusal: SessionRefusal) -> Problem {
    let id = change.session();
    let conflict = |kind, title, detail: String| {
        Problem::new(StatusCode::CONFLICT, kind, title, detail).with("session", json!(id))
    };
    let provider = || change.provider().map_or("its provider", Name::as_str);
    match refusal {
        SessionRefusal::NoSuchSession => no_session(id),
        SessionRefusal::NoSuchProvider => change.provider().map_or_else(|| no_session(id), nobody),
        SessionRefusal::NotAccepted => conflict(
            "not_accepted",
            "No provider has accepted the session",
            format!(
                "no provider has accepted {:?} yet; POST sessions/ID/accept first",
                id.as_str()
            ),
        ),
        SessionRefusal::Over(status) => conflict(
            "over",
            "The session is over",
            format!("{:?} is {status}, and stays so; begin another session", id.as_str()),
        )
        .with("session_status", json!(status)),
        SessionRefusal::Taken(holder) => conflict(
            "taken",
            "Another provider has the session",
            format!("{holder:?} has it; to hand it on: POST sessions/ID/reroute"),
        )
        .with("provider", json!(holder)),
        SessionRefusal::Full { sessions, max } => conflict(
            "full",
            "The provider has no capacity",
            format!("{:?} has {sessions} of {max} sessions; ask another", provider()),
        )
        .with("sessions", json!(sessions))
        .with("max", json!(max)),
        SessionRefusal::Deactivated => conflict(
            "deactivated",
            "The provider is deactivated",
            format!("{:?} is deactivated; ask another", provider()),
        ),
        other => conflict("refused", "The session was not changed", format!("{other:?}")),
    }
}
