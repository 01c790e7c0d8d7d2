//! Routes for providers: which ones exist, are online and may work, and their heartbeats.

use axum::extract::State;
use lapsed_availability::{
    PAGE_MAX, ProviderBeat, ProviderChange, ProviderProfile, ProviderQuery, Written,
};
use lapsed_core::{Error, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::*;
use super::{From, WriteResponse, availability, deactivated, nobody, not_online};
use crate::http::Shared;
use crate::http::extract::{Json, MaybeJson, Path, Query};
use crate::http::paging::page_limit;
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, batch_of, for_owner, owner_in_body};
use crate::schemas;

/// The routes of providers.
pub fn routes() -> OpenApiRouter<Shared> {
    // Which providers exist, and which may work, is decided by the application and not by a provider.
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(for_owner(OwnerRule::Refused, routes!(describe, put)))
        .routes(for_owner(OwnerRule::Path("id".to_owned()), routes!(online)))
        .routes(for_owner(OwnerRule::Path("id".to_owned()), routes!(offline)))
        .routes(for_owner(OwnerRule::Refused, routes!(activate)))
        .routes(for_owner(OwnerRule::Refused, routes!(deactivate)))
        .routes(for_owner(OwnerRule::Path("id".to_owned()), routes!(heartbeat)))
        .routes(batch_of("heartbeat", owner_in_body("providers/*", routes!(heartbeats))))
        .routes(routes!(status))
        .routes(routes!(reachable))
}

/// Lists providers with their names and numbers of sessions, ordered by id, for a dashboard.
#[utoipa::path(get, path = "/v1/availability/{name}/providers", tag = "availability",
    params(("name" = String, Path), ProvidersQuery),
    responses((status = 200, body = ProviderList)))]
async fn list(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<ProvidersQuery>,
) -> HttpResult<From<ProviderList>> {
    let limit = page_limit(query.limit)?.min(PAGE_MAX);
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let listing = ProviderQuery { after, limit, online_only: query.online.unwrap_or(false) };
    let listed = availability(&app, &name)?.list(&listing).await?;
    let next = listed.last().filter(|_| listed.len() == limit).map(|last| last.id.to_string());
    let providers = listed.into_iter().map(ProviderResponse::of).collect();
    Ok(From::truth(ProviderList { providers, next }))
}

/// Returns one provider from the truth.
#[utoipa::path(get, path = "/v1/availability/{name}/providers/{id}", tag = "availability",
    responses((status = 200, body = ProviderResponse),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn describe(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<From<ProviderResponse>> {
    let id = Name::new(&id)?;
    let found = availability(&app, &name)?.describe(&id).await?;
    let found = found.ok_or_else(|| nobody(&id))?;
    Ok(From::truth(ProviderResponse::of(found)))
}

/// Creates a provider (active, offline), or changes its name.
#[utoipa::path(put, path = "/v1/availability/{name}/providers/{id}", tag = "availability",
    request_body = Option<ProviderBody>,
    responses((status = 200, body = ProviderChanged)))]
async fn put(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
    MaybeJson(body): MaybeJson<ProviderBody>,
) -> HttpResult<WriteResponse<ProviderChanged>> {
    let body = body.unwrap_or_default();
    let profile = ProviderProfile { id: Name::new(&id)?, display_name: body.display_name };
    let written = availability(&app, &name)?.put_provider(&profile).await?;
    Ok(WriteResponse::of(written, ProviderChanged::of))
}

fn changed(
    id: &Name,
    written: Option<Written<ProviderChange>>,
) -> HttpResult<WriteResponse<ProviderChanged>> {
    let written = written.ok_or_else(|| nobody(id))?;
    Ok(WriteResponse::of(written, ProviderChanged::of))
}

/// Sets a provider online, which also counts as a heartbeat.
#[utoipa::path(post, path = "/v1/availability/{name}/providers/{id}/online", tag = "availability",
    responses((status = 200, body = ProviderChanged),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn online(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<ProviderChanged>> {
    let id = Name::new(&id)?;
    changed(&id, availability(&app, &name)?.set_online(&id).await?)
}

/// Sets a provider offline.
#[utoipa::path(post, path = "/v1/availability/{name}/providers/{id}/offline", tag = "availability",
    responses((status = 200, body = ProviderChanged),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn offline(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<ProviderChanged>> {
    let id = Name::new(&id)?;
    changed(&id, availability(&app, &name)?.set_offline(&id).await?)
}

/// Activates a provider, so that it may take work.
#[utoipa::path(post, path = "/v1/availability/{name}/providers/{id}/activate", tag = "availability",
    responses((status = 200, body = ProviderChanged),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn activate(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<ProviderChanged>> {
    let id = Name::new(&id)?;
    changed(&id, availability(&app, &name)?.activate(&id).await?)
}

/// Deactivates a provider, so that it may not take work.
/// Its logins are revoked in the same transaction, its heartbeats are refused from now on, and it
/// is not returned as available.
#[utoipa::path(post, path = "/v1/availability/{name}/providers/{id}/deactivate", tag = "availability",
    responses((status = 200, body = ProviderChanged),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn deactivate(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<WriteResponse<ProviderChanged>> {
    let id = Name::new(&id)?;
    changed(&id, availability(&app, &name)?.deactivate(&id).await?)
}

/// Records a heartbeat with one round trip to the mirror and none to the truth.
#[utoipa::path(post, path = "/v1/availability/{name}/providers/{id}/heartbeat", tag = "availability",
    responses((status = 200, body = HeartbeatAnswer),
        (status = 403, description = "The provider is deactivated: no heartbeat was recorded", body = schemas::Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "The provider is not online: no heartbeat was recorded", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn heartbeat(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<From<HeartbeatAnswer>> {
    let ids = [Name::new(&id)?];
    let beats = availability(&app, &name)?.heartbeat(&ids).await?;
    match beats.answer.first() {
        Some(ProviderBeat::Noted) => {
            let outcome = ProviderBeat::Noted.as_str();
            Ok(From::of(beats, |_| HeartbeatAnswer { provider: id, outcome }))
        }
        Some(ProviderBeat::Deactivated) => Err(deactivated(&ids[0])),
        Some(ProviderBeat::Unavailable) => {
            let what = "only it can judge this heartbeat, and it does not answer".to_owned();
            Err(Error::Unavailable { store: "the truth".to_owned(), what }.into())
        }
        _ => Err(not_online(&ids[0])),
    }
}

/// Records many heartbeats at once; one result per provider, in order.
/// A provider whose heartbeat cannot be recorded does not keep the others from being recorded.
#[utoipa::path(post, path = "/v1/availability/{name}/heartbeats", tag = "availability",
    request_body = HeartbeatsBody,
    responses((status = 200, body = HeartbeatsAnswer)))]
async fn heartbeats(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<HeartbeatsBody>,
) -> HttpResult<From<HeartbeatsAnswer>> {
    if body.providers.len() > PAGE_MAX {
        let count = body.providers.len();
        return Err(Problem::invalid(format!("at most {PAGE_MAX} beats in one call, not {count}")));
    }
    let valid = body.providers.iter().filter_map(|id| Name::new(id).ok());
    let ids: Vec<Name> = valid.collect();
    let beats = availability(&app, &name)?.heartbeat(&ids).await?;
    Ok(From::of(beats, |beats| HeartbeatsAnswer::of(body.providers, &ids, &beats)))
}

/// Returns the status of one provider: flags as readers see them, times from the truth.
#[utoipa::path(get, path = "/v1/availability/{name}/providers/{id}/status", tag = "availability",
    responses((status = 200, body = ProviderStatus),
        (status = 404, description = "There is no such provider", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn status(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<From<ProviderStatus>> {
    let id = Name::new(&id)?;
    let status = availability(&app, &name)?.status(&id).await?;
    let status = status.ok_or_else(|| nobody(&id))?;
    Ok(From::of(status, ProviderStatus::of))
}

/// Returns whether a provider is online, not deactivated, and not silent; false for an unknown
/// provider.
#[utoipa::path(get, path = "/v1/availability/{name}/providers/{id}/reachable", tag = "availability",
    responses((status = 200, body = Reachable)))]
async fn reachable(
    State(app): State<Shared>,
    Path((name, id)): Path<(String, String)>,
) -> HttpResult<From<Reachable>> {
    let reachable = availability(&app, &name)?.is_reachable(&Name::new(&id)?).await?;
    Ok(From::of(reachable, |reachable| Reachable { provider: id, reachable }))
}
