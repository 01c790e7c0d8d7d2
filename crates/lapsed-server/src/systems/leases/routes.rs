//! The routes `/v1/leases/{name}/...`, one per operation and named after it.

mod acquiring;
mod decisions;
mod records;
mod shapes;
pub mod tickets;

use axum::extract::State;
use axum::http::StatusCode;
use futures::StreamExt;
use lapsed_core::leases::{
    Fenced, Grant, LeaseInfo, LeaseKey, LeaseTicket, Leases, Loss, Namespace, PAGE_MAX,
};
use lapsed_core::{Kind, Name};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::shapes::*;
use crate::http::Shared;
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::paging::page_limit;
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{OwnerRule, for_owner};
use crate::schemas;

pub use shapes::{AcquireBody, DecideBody, LeaseTicketBody, LeasesPage, Namespaces, RenewBody};

/// How many calls of a batch run concurrently.
const AT_ONCE: usize = 64;

/// The routes of all operations on leases.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(for_owner(OwnerRule::Holder, routes!(renew)))
        .routes(for_owner(OwnerRule::Holder, routes!(renew_many)))
        .routes(for_owner(OwnerRule::Holder, routes!(release)))
        .routes(for_owner(OwnerRule::Holder, routes!(release_many)))
        .routes(routes!(describe))
        .routes(routes!(list))
        .routes(routes!(namespaces))
        .merge(acquiring::routes())
        .merge(records::routes())
        .merge(decisions::routes())
}

fn leases<'a>(app: &'a Shared, name: &str) -> HttpResult<&'a Leases> {
    app.operations(Kind::Leases, name)
}

/// Turns the outcome of an operation by a holder into an answer: a lost lease is a problem.
fn held_by<T>(ticket: &LeaseTicket, answer: Fenced<T>) -> HttpResult<T> {
    match answer {
        Fenced::Done(done) => Ok(done),
        Fenced::Lost(loss) => Err(lost(ticket, &loss)),
    }
}

/// The problem `lost`: why the lease was lost, the newest token, and the current holder.
fn lost(ticket: &LeaseTicket, loss: &Loss) -> Problem {
    let title = "You no longer hold it";
    Problem::new(StatusCode::CONFLICT, "lost", title, loss.describe())
        .with("namespace", json!(ticket.key.namespace))
        .with("key", json!(ticket.key.key))
        .with("why", json!(loss.why))
        .with("token", json!(loss.token))
        .with("holder", json!(loss.holder))
}

/// The result of one call of a batch: its answer or its problem, with namespace and key.
fn one(what: Value, answer: HttpResult<Value>) -> OneOfMany {
    let ok = answer.is_ok();
    let mut answer = answer.unwrap_or_else(|problem| problem.body());
    for member in ["namespace", "key"] {
        if answer.get(member).is_none() {
            answer[member] = what[member].clone();
        }
    }
    OneOfMany { ok, answer }
}

/// Runs the calls of a batch independently and several at a time. The results are in the order of
/// the calls.
async fn many<B, F>(all: Vec<B>, what: &str, act: impl Fn(B) -> F) -> HttpResult<JsonAnswer<Many>>
where
    F: Future<Output = OneOfMany>,
{
    if all.len() > PAGE_MAX {
        let what = format!("at most {PAGE_MAX} {what} in one call, not {}", all.len());
        return Err(Problem::invalid(what));
    }
    let results = futures::stream::iter(all).map(act).buffered(AT_ONCE).collect().await;
    Ok(JsonAnswer(Many { results }))
}

/// Sets a lease's deadline to one TTL from now (`ttl_ms`, or the same as before).
#[utoipa::path(post, path = "/v1/leases/{name}/renew", tag = "leases",
    request_body = RenewBody,
    responses((status = 200, body = schemas::Grant),
        (status = 409, description = "This token no longer holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn renew(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RenewBody>,
) -> HttpResult<JsonAnswer<Grant>> {
    Ok(JsonAnswer(renew_one(leases(&app, &name)?, &body).await?))
}

async fn renew_one(leases: &Leases, body: &RenewBody) -> HttpResult<Grant> {
    let ticket = body.ticket.read()?;
    held_by(&ticket, leases.renew(&ticket, body.ttl()).await?)
}

/// Renews many leases; each has its own result, in order.
#[utoipa::path(post, path = "/v1/leases/{name}/renew_many", tag = "leases",
    request_body = RenewManyBody,
    responses((status = 200, body = Many)))]
async fn renew_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<RenewManyBody>,
) -> HttpResult<JsonAnswer<Many>> {
    let leases = leases(&app, &name)?;
    many(body.leases, "leases", async |body| {
        let grant = renew_one(leases, &body).await;
        one(body.ticket.named(), grant.map(|grant| json!(grant)))
    })
    .await
}

/// Ends a lease at once.
/// The next lease on the key gets a greater token. A staged state is committed or rolled back first.
#[utoipa::path(post, path = "/v1/leases/{name}/release", tag = "leases",
    request_body = LeaseTicketBody,
    responses((status = 200, body = Released),
        (status = 409, description = "This token no longer holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn release(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<LeaseTicketBody>,
) -> HttpResult<JsonAnswer<Released>> {
    Ok(JsonAnswer(release_one(leases(&app, &name)?, &body).await?))
}

async fn release_one(leases: &Leases, body: &LeaseTicketBody) -> HttpResult<Released> {
    let ticket = body.read()?;
    held_by(&ticket, leases.release(&ticket).await?)?;
    Ok(Released::of(ticket))
}

/// Ends many leases; each has its own result, in order.
#[utoipa::path(post, path = "/v1/leases/{name}/release_many", tag = "leases",
    request_body = ReleaseManyBody,
    responses((status = 200, body = Many)))]
async fn release_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<ReleaseManyBody>,
) -> HttpResult<JsonAnswer<Many>> {
    let leases = leases(&app, &name)?;
    many(body.leases, "leases", async |body| {
        let released = release_one(leases, &body).await;
        one(body.named(), released.map(|released| json!(released)))
    })
    .await
}

/// Returns the holder of a key, its token and its state.
/// An expired lease is cleared first.
#[utoipa::path(get, path = "/v1/leases/{name}/describe/{namespace}/{key}", tag = "leases",
    responses((status = 200, body = schemas::Described),
        (status = 404, description = "The key was never leased", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn describe(
    State(app): State<Shared>,
    Path((name, namespace, key)): Path<(String, String, String)>,
) -> HttpResult<JsonAnswer<LeaseInfo>> {
    let key = LeaseKey::new(&namespace, &key)?;
    let found = leases(&app, &name)?.describe(&key).await?;
    found.map(JsonAnswer).ok_or_else(|| never(&key))
}

fn never(key: &LeaseKey) -> Problem {
    Problem::not_found(format!("`{key}` was never leased"))
}

/// Lists the keys of a namespace, ordered by name.
/// Changes nothing: an expired lease is shown as `expired`.
#[utoipa::path(get, path = "/v1/leases/{name}/list/{namespace}", tag = "leases",
    params(("name" = String, Path), ("namespace" = String, Path), LeasePageQuery),
    responses((status = 200, body = LeasesPage)))]
async fn list(
    State(app): State<Shared>,
    Path((name, namespace)): Path<(String, String)>,
    Query(query): Query<LeasePageQuery>,
) -> HttpResult<JsonAnswer<LeasesPage>> {
    let limit = page_limit(query.limit)?.min(PAGE_MAX);
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let namespace = Namespace::new(&namespace)?;
    let leases = leases(&app, &name)?.list(&namespace, after.as_ref(), limit).await?;
    let next = leases.last().filter(|_| leases.len() == limit).map(|one| one.key.to_string());
    Ok(JsonAnswer(LeasesPage { leases, next }))
}

/// Lists all namespaces, ordered by name.
#[utoipa::path(get, path = "/v1/leases/{name}/namespaces", tag = "leases",
    params(("name" = String, Path), LeasePageQuery),
    responses((status = 200, body = Namespaces)))]
async fn namespaces(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<LeasePageQuery>,
) -> HttpResult<JsonAnswer<Namespaces>> {
    let limit = page_limit(query.limit)?.min(PAGE_MAX);
    let after = query.after.as_deref().map(Namespace::new).transpose()?;
    let found = leases(&app, &name)?.namespaces(after.as_ref(), limit).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|one| one.to_string());
    Ok(JsonAnswer(Namespaces { namespaces: found.into_iter().map(String::from).collect(), next }))
}
