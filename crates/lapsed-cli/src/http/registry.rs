//! `/v1/registry/{name}/...`: one route per operation, named like it.

mod shapes;

use axum::extract::State;
use axum::http::StatusCode;
use lapsed::registry::{Registry, Take};
use lapsed::{Kind, Name};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::shapes::*;
use super::extract::{Answer, Json, Path, Query};
use super::owners::{
    self, BeatAnswer, BeatsAnswer, BeatsBody, ClaimBody, HeldQuery, Keys, LifeQuery, Owners,
    OwnersQuery, Result, StartBody, claim, names, page_limit,
};
use super::problem::Problem;
use super::{Shared, schemas};

/// Retiring removes everything that was held, however much that is.
pub const SLOW: &[&str] = &["retire"];

/// All of them.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(beat))
        .routes(routes!(beat_many))
        .routes(routes!(register))
        .routes(routes!(register_many))
        .routes(routes!(unregister))
        .routes(routes!(unregister_many))
        .routes(routes!(lookup))
        .routes(routes!(lookup_many))
        .routes(routes!(owners))
        .routes(routes!(owner))
        .routes(routes!(entries))
        .routes(routes!(retire))
}

fn registry<'a>(app: &'a Shared, name: &str) -> Result<&'a Registry> {
    app.operations(Kind::Registry, name)
}

/// Begins a new life of an owner.
#[utoipa::path(post, path = "/v1/registry/{name}/start", tag = "registry",
    request_body = StartBody,
    responses((status = 201, body = BeatAnswer)))]
async fn start(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<StartBody>,
) -> Result<(StatusCode, Answer<BeatAnswer>)> {
    owners::start(registry(&app, &name)?, body).await
}

/// Life. Without an incarnation the newest one of that name is meant; `lost` when that life ended.
#[utoipa::path(post, path = "/v1/registry/{name}/beat", tag = "registry",
    request_body = ClaimBody,
    responses((status = 200, body = BeatAnswer),
        (status = 409, description = "That life has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn beat(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> Result<Answer<BeatAnswer>> {
    let beat = registry(&app, &name)?.beat(&body.claim()?).await?;
    Ok(Answer(BeatAnswer::of(body.owner, beat)))
}

/// Many beats; each has its own answer, in order.
#[utoipa::path(post, path = "/v1/registry/{name}/beat_many", tag = "registry",
    request_body = BeatsBody,
    responses((status = 200, body = BeatsAnswer)))]
async fn beat_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<BeatsBody>,
) -> Result<Answer<BeatsAnswer>> {
    owners::beat_many(registry(&app, &name)?, body).await
}

/// Registers a key (or several) for an owner: all of them or none on the embedded store, on Redis a
/// hundred at a time (repeating is safe). The newest registration wins,
/// unless `if_free` is given. A name never seen before is started by it.
#[utoipa::path(post, path = "/v1/registry/{name}/register", tag = "registry",
    request_body = RegisterBody,
    responses((status = 200, body = RegisterAnswer),
        (status = 409, description = "That life has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn register(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RegisterBody>,
) -> Result<Answer<RegisterAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let take = if body.if_free { Take::IfFree } else { Take::Always };
    let (keys, single) = one_or_many(body.key, body.keys)?;
    let answer = registry(&app, &name)?.register_many(&claim, &keys, take).await?;
    Ok(Answer(RegisterAnswer::of(body.owner, answer, single)))
}

/// Registers many keys; one result a key, in order. All of them or none on the embedded store, on
/// Redis a hundred at a time (repeating is safe).
#[utoipa::path(post, path = "/v1/registry/{name}/register_many", tag = "registry",
    request_body = RegisterManyBody,
    responses((status = 200, body = RegisterAnswer),
        (status = 409, description = "That life has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn register_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RegisterManyBody>,
) -> Result<Answer<RegisterAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let take = if body.if_free { Take::IfFree } else { Take::Always };
    let keys = names(&body.keys)?;
    let answer = registry(&app, &name)?.register_many(&claim, &keys, take).await?;
    Ok(Answer(RegisterAnswer::of(body.owner, answer, false)))
}

/// Removes a key, if it is still this owner's.
#[utoipa::path(post, path = "/v1/registry/{name}/unregister", tag = "registry",
    request_body = UnregisterBody,
    responses((status = 200, body = UnregisterAnswer)))]
async fn unregister(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<UnregisterBody>,
) -> Result<Answer<UnregisterAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let key = Name::new(&body.key)?;
    let removed = registry(&app, &name)?.unregister(&claim, &[key]).await?;
    Ok(Answer(UnregisterAnswer { removed: removed.first() == Some(&true) }))
}

/// Removes those keys that are still this owner's; one result a key, in order.
#[utoipa::path(post, path = "/v1/registry/{name}/unregister_many", tag = "registry",
    request_body = UnregisterManyBody,
    responses((status = 200, body = UnregisterManyAnswer)))]
async fn unregister_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<UnregisterManyBody>,
) -> Result<Answer<UnregisterManyAnswer>> {
    let claim = claim(&body.owner, body.incarnation)?;
    let results = registry(&app, &name)?.unregister(&claim, &names(&body.keys)?).await?;
    let removed = results.iter().filter(|removed| **removed).count();
    Ok(Answer(UnregisterManyAnswer { removed, results }))
}

/// Who holds a key: never an owner that is dead.
#[utoipa::path(get, path = "/v1/registry/{name}/lookup/{key}", tag = "registry",
    responses((status = 200, body = Entry),
        (status = 404, description = "Nobody alive holds it", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn lookup(
    State(app): State<Shared>,
    Path((name, key)): Path<(String, String)>,
) -> Result<Answer<Entry>> {
    let found = registry(&app, &name)?.lookup(&Name::new(&key)?).await?;
    let nobody = || Problem::not_found(format!("nobody alive holds {key:?}"));
    let found = found.ok_or_else(nobody)?;
    Ok(Answer(Entry::of(key, found)))
}

/// Who holds each of many keys, in order; `null` where nobody alive does.
#[utoipa::path(post, path = "/v1/registry/{name}/lookup_many", tag = "registry",
    request_body = KeysBody,
    responses((status = 200, body = Entries)))]
async fn lookup_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<KeysBody>,
) -> Result<Answer<Entries>> {
    let found = registry(&app, &name)?.lookup_many(&names(&body.keys)?).await?;
    let pairs = body.keys.into_iter().zip(found);
    let results = pairs.map(|(key, found)| found.map(|found| Entry::of(key, found))).collect();
    Ok(Answer(Entries { results }))
}

/// Owners, oldest incarnation first.
#[utoipa::path(get, path = "/v1/registry/{name}/owners", tag = "registry",
    params(("name" = String, Path), OwnersQuery),
    responses((status = 200, body = Owners)))]
async fn owners(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<OwnersQuery>,
) -> Result<Answer<Owners>> {
    owners::owners(registry(&app, &name)?, query).await
}

/// The newest life of one owner.
#[utoipa::path(get, path = "/v1/registry/{name}/owners/{owner}", tag = "registry",
    params(("name" = String, Path), ("owner" = String, Path), LifeQuery),
    responses((status = 200, body = schemas::OwnerInfo)))]
async fn owner(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<LifeQuery>,
) -> Result<Answer<lapsed::owner::OwnerInfo>> {
    owners::owner(registry(&app, &name)?, &owner, query).await
}

/// What one life of an owner holds, by key.
#[utoipa::path(get, path = "/v1/registry/{name}/entries/{owner}", tag = "registry",
    params(("name" = String, Path), ("owner" = String, Path), HeldQuery),
    responses((status = 200, body = Keys)))]
async fn entries(
    State(app): State<Shared>,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<HeldQuery>,
) -> Result<Answer<Keys>> {
    let claim = claim(&owner, query.incarnation)?;
    let limit = page_limit(query.limit)?;
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let keys = registry(&app, &name)?.entries(&claim, after.as_ref(), limit).await?;
    let next = keys.last().filter(|_| keys.len() == limit).map(|k| k.to_string());
    Ok(Answer(Keys { keys: keys.into_iter().map(String::from).collect(), next }))
}

/// Ends a life gracefully: its entries are invalid at once and then removed, each with a receipt.
#[utoipa::path(post, path = "/v1/registry/{name}/retire", tag = "registry",
    request_body = ClaimBody,
    responses((status = 200, body = RetireAnswer),
        (status = 409, description = "That life had already ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn retire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> Result<Answer<RetireAnswer>> {
    let claim = body.claim()?;
    let live = app.live(Kind::Registry.as_str(), &name)?;
    let registry = live.share_operations::<Registry>().ok_or_else(|| app.no_such_system())?;
    let retired = app.finish(async move { registry.retire(&claim).await }).await??;
    let (incarnation, reclaimed) = (retired.incarnation.0, retired.reclaimed);
    Ok(Answer(RetireAnswer { owner: body.owner, incarnation, reclaimed }))
}

/// The keys, and whether there was just one.
fn one_or_many(key: Option<String>, keys: Option<Vec<String>>) -> Result<(Vec<Name>, bool)> {
    match (key, keys) {
        (Some(key), None) => Ok((vec![Name::new(&key)?], true)),
        (None, Some(keys)) => Ok((names(&keys)?, false)),
        _ => Err(Problem::invalid("give either `key` or `keys`")),
    }
}
