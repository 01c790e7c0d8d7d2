//! The routes `/v1/registry/{name}/...`, one per operation and named after it.

mod shapes;

use std::sync::Arc;

use axum::extract::State;
use lapsed_core::owner::Claim;
use lapsed_core::registry::{Registry, TakePolicy};
use lapsed_core::{Kind, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::shapes::*;
use crate::config::token::Scope;
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::owners::{self, ClaimBody, HeldQuery, Keys, claim};
use crate::http::paging::names;
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::OwnerRule::NotAnOwners;
use crate::http::route_rules::{for_owner, owner_in_body, slow, with_scope};
use crate::schemas;

/// The routes of all operations on a registry.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(owner_in_body("owner", routes!(register)))
        .routes(owner_in_body("owner", routes!(register_many)))
        .routes(owner_in_body("owner", routes!(unregister)))
        .routes(owner_in_body("owner", routes!(unregister_many)))
        .routes(routes!(lookup))
        // It only reads, although it is called with a body.
        .routes(for_owner(NotAnOwners, with_scope(Scope::Read, routes!(lookup_many))))
        .routes(routes!(entries))
        // It removes all entries of the owner, which may take long.
        .routes(owner_in_body("owner", slow(routes!(retire))))
        .merge(owners::routes(Kind::Registry))
}

fn registry<'a>(app: &'a Shared, name: &str) -> HttpResult<&'a Registry> {
    app.operations(Kind::Registry, name)
}

/// Registers one or several keys for an owner.
/// The embedded store registers all of them or none; Redis registers a hundred at a time, and
/// repeating the call is safe. The newest registration of a key wins, unless `if_free` is given. An
/// owner that was never seen before is started by the call.
#[utoipa::path(post, path = "/v1/registry/{name}/register", tag = "registry",
    request_body = RegisterBody,
    responses((status = 200, body = RegisterResponse),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn register(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RegisterBody>,
) -> HttpResult<JsonAnswer<RegisterResponse>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let take = if body.if_free { TakePolicy::IfFree } else { TakePolicy::Always };
    let (keys, single) = one_or_many(body.key, body.keys)?;
    let answer = registry(&app, &name)?.register_many(&claim, &keys, take).await?;
    app.metrics.owner_started(Kind::Registry, &claim.owner);
    Ok(JsonAnswer(RegisterResponse::of(body.owner, answer, single)))
}

/// Registers many keys for an owner; one result per key, in order.
/// The embedded store registers all of them or none; Redis registers a hundred at a time, and
/// repeating the call is safe.
#[utoipa::path(post, path = "/v1/registry/{name}/register_many", tag = "registry",
    request_body = RegisterManyBody,
    responses((status = 200, body = RegisterResponse),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn register_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RegisterManyBody>,
) -> HttpResult<JsonAnswer<RegisterResponse>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let take = if body.if_free { TakePolicy::IfFree } else { TakePolicy::Always };
    let keys = names(&body.keys)?;
    let answer = registry(&app, &name)?.register_many(&claim, &keys, take).await?;
    app.metrics.owner_started(Kind::Registry, &claim.owner);
    Ok(JsonAnswer(RegisterResponse::of(body.owner, answer, false)))
}

/// Removes a key, if this owner still holds it.
#[utoipa::path(post, path = "/v1/registry/{name}/unregister", tag = "registry",
    request_body = UnregisterBody,
    responses((status = 200, body = UnregisterAnswer)))]
async fn unregister(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<UnregisterBody>,
) -> HttpResult<JsonAnswer<UnregisterAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let key = Name::new(&body.key)?;
    let removed = registry(&app, &name)?.unregister(&claim, &[key]).await?;
    Ok(JsonAnswer(UnregisterAnswer { removed: removed.first() == Some(&true) }))
}

/// Removes the keys that this owner still holds; one result per key, in order.
#[utoipa::path(post, path = "/v1/registry/{name}/unregister_many", tag = "registry",
    request_body = UnregisterManyBody,
    responses((status = 200, body = UnregisterManyAnswer)))]
async fn unregister_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<UnregisterManyBody>,
) -> HttpResult<JsonAnswer<UnregisterManyAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let results = registry(&app, &name)?.unregister(&claim, &names(&body.keys)?).await?;
    let removed = results.iter().filter(|removed| **removed).count();
    Ok(JsonAnswer(UnregisterManyAnswer { removed, results }))
}

/// Returns the owner of a key, never an owner that is dead.
#[utoipa::path(get, path = "/v1/registry/{name}/lookup/{key}", tag = "registry",
    responses((status = 200, body = Entry),
        (status = 404, description = "No living owner holds the key", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn lookup(
    State(app): State<Shared>,
    Path((name, key)): Path<(String, String)>,
) -> HttpResult<JsonAnswer<Entry>> {
    let found = registry(&app, &name)?.lookup(&Name::new(&key)?).await?;
    let nobody = || Problem::not_found(format!("nobody alive holds {key:?}"));
    let found = found.ok_or_else(nobody)?;
    Ok(JsonAnswer(Entry::of(key, found)))
}

/// Returns the owners of many keys in order; `null` for a key that no living owner holds.
#[utoipa::path(post, path = "/v1/registry/{name}/lookup_many", tag = "registry",
    request_body = KeysBody,
    responses((status = 200, body = Entries)))]
async fn lookup_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<KeysBody>,
) -> HttpResult<JsonAnswer<Entries>> {
    let found = registry(&app, &name)?.lookup_many(&names(&body.keys)?).await?;
    let pairs = body.keys.into_iter().zip(found);
    let results = pairs.map(|(key, found)| found.map(|found| Entry::of(key, found))).collect();
    Ok(JsonAnswer(Entries { results }))
}

/// Lists the keys that one incarnation of an owner holds, ordered by key.
#[utoipa::path(get, path = "/v1/registry/{name}/entries/{owner}", tag = "registry",
    params(("name" = String, Path), ("owner" = String, Path), HeldQuery),
    responses((status = 200, body = Keys)))]
async fn entries(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<HeldQuery>,
) -> HttpResult<JsonAnswer<Keys>> {
    let registry = registry(&app, &name)?;
    let page = async |claim: Claim, after: Option<Name>, limit| {
        registry.entries(&claim, after.as_ref(), limit).await
    };
    let (keys, next) = owners::held(&owner, query, page).await?;
    Ok(JsonAnswer(Keys { keys, next }))
}

/// Ends an incarnation of an owner gracefully.
/// Its entries become invalid at once and are then removed, each with a receipt.
#[utoipa::path(post, path = "/v1/registry/{name}/retire", tag = "registry",
    request_body = ClaimBody,
    responses((status = 200, body = RetireAnswer),
        (status = 409, description = "The incarnation had already ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn retire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> HttpResult<JsonAnswer<RetireAnswer>> {
    let end = async |registry: Arc<Registry>, claim: Claim| registry.retire(&claim).await;
    let retired = owners::retire(&app, Kind::Registry, &name, body.claim()?, end).await?;
    let (incarnation, reclaimed) = (retired.incarnation.0, retired.reclaimed);
    Ok(JsonAnswer(RetireAnswer { owner: body.owner, incarnation, reclaimed }))
}

/// The given keys, and whether the caller gave a single `key` instead of `keys`.
fn one_or_many(key: Option<String>, keys: Option<Vec<String>>) -> HttpResult<(Vec<Name>, bool)> {
    match (key, keys) {
        (Some(key), None) => Ok((vec![Name::new(&key)?], true)),
        (None, Some(keys)) => Ok((names(&keys)?, false)),
        _ => Err(Problem::invalid("give either `key` or `keys`")),
    }
}
