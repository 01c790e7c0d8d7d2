//! Routes that return who can take work now. Clients call them thousands of times a minute.

use axum::extract::State;
use lapsed_availability::PAGE_MAX;
use lapsed_core::sweep::Cursor;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::*;
use super::{From, availability};
use crate::http::Shared;
use crate::http::extract::{Path, Query};
use crate::http::paging::page_limit;
use crate::http::problem::HttpResult;

/// The routes that return who can take work.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(available))
        .routes(routes!(count))
        .routes(routes!(beacon))
        .routes(routes!(online_count))
}

/// Lists the providers that can take work now.
/// These are online, not deactivated, not silent, and have capacity for another session. A page may
/// have a few more than `limit` providers; one with fewer is the last page only if `next` is null.
#[utoipa::path(get, path = "/v1/availability/{name}/available", tag = "availability",
    params(("name" = String, Path), AvailableQuery),
    responses((status = 200, body = AvailablePageResponse)))]
async fn available(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<AvailableQuery>,
) -> HttpResult<From<AvailablePageResponse>> {
    let limit = page_limit(query.limit)?.min(PAGE_MAX);
    let found = availability(&app, &name)?.available(&Cursor(query.after), limit).await?;
    Ok(From::of(found, |found| AvailablePageResponse {
        available: found.available.into_iter().map(AvailableProvider::of).collect(),
        next: found.next.and_then(|cursor| cursor.0),
    }))
}

/// Returns how many providers can take work now.
#[utoipa::path(get, path = "/v1/availability/{name}/count", tag = "availability",
    responses((status = 200, body = CountAnswer)))]
async fn count(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> HttpResult<From<CountAnswer>> {
    let count = availability(&app, &name)?.count_available().await?;
    Ok(From::of(count, |count| CountAnswer { count }))
}

/// Returns whether any provider can take work, and how many can, from the snapshot that all daemons
/// share.
#[utoipa::path(get, path = "/v1/availability/{name}/beacon", tag = "availability",
    responses((status = 200, body = Beacon)))]
async fn beacon(State(app): State<Shared>, Path(name): Path<String>) -> HttpResult<From<Beacon>> {
    let beacon = availability(&app, &name)?.beacon().await?;
    Ok(From::of(beacon, |beacon| Beacon { available: beacon.available, count: beacon.count }))
}

/// Returns how many providers are online and not deactivated.
#[utoipa::path(get, path = "/v1/availability/{name}/online/count", tag = "availability",
    responses((status = 200, body = CountAnswer)))]
async fn online_count(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> HttpResult<From<CountAnswer>> {
    let count = availability(&app, &name)?.count_online().await?;
    Ok(From::of(count, |count| CountAnswer { count }))
}
