//! `/v1/leases/{name}/...`: one route per operation, named like it.

mod acquiring;
mod decisions;
mod records;
mod shapes;

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
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::owners::{HttpResult, page_limit};
use crate::http::problem::Problem;
use crate::http::{Shared, schemas};

pub use shapes::{AcquireBody, DecideBody, LeaseTicketBody, LeasesPage, Namespaces, RenewBody};

/// Acquiring waits for as long as it is told.
pub const SLOW: &[&str] = &["acquire"];

/// How many of a batch are under way at a time.
const AT_ONCE: usize = 64;

/// All of them.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(renew))
        .routes(routes!(renew_many))
        .routes(routes!(release))
        .routes(routes!(release_many))
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

/// The answer to whoever acts by a token.
fn held_by<T>(ticket: &LeaseTicket, answer: Fenced<T>) -> HttpResult<T> {
    match answer {
        Fenced::Done(done) => Ok(done),
        Fenced::Lost(loss) => Err(lost(ticket, &loss)),
    }
}

/// `lost`, with why, the newest token and who holds it now.
fn lost(ticket: &LeaseTicket, loss: &Loss) -> Problem {
    let title = "You no longer hold it";
    Problem::new(StatusCode::CONFLICT, "lost", title, loss.describe())
        .with("namespace", json!(ticket.key.namespace))
        .with("key", json!(ticket.key.key))
        .with("why", json!(loss.why))
        .with("token", json!(loss.token))
        .with("holder", json!(loss.holder))
}

/// One of many: its answer, or what is wrong with it.
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

/// Each by itself, several at a time; answers in order.
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

/// Moves the deadline on, for another TTL from now (`ttl_ms`, or as long as before).
#[utoipa::path(post, path = "/v1/leases/{name}/renew", tag = "leases",
    request_body = RenewBody,
    responses((status = 200, body = schemas::Grant),
        (status = 409, description = "This token holds nothing any more", body = schemas::Problem,
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

/// Renews many; each has its own answer, in order.
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

/// Ends the lease at once; its token lives on. StagedState work is decided first.
#[utoipa::path(post, path = "/v1/leases/{name}/release", tag = "leases",
    request_body = LeaseTicketBody,
    responses((status = 200, body = Released),
        (status = 409, description = "This token holds nothing any more", body = schemas::Problem,
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

/// Ends many; each has its own answer, in order.
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

/// One key: who holds it, by which token, and its state. What is over is cleared first.
#[utoipa::path(get, path = "/v1/leases/{name}/describe/{namespace}/{key}", tag = "leases",
    responses((status = 200, body = schemas::Described),
        (status = 404, description = "It was never leased", body = schemas::Problem,
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

/// Keys of a namespace, by name. Looks only: a lease that is over is shown as `expired`.
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

/// Namespaces that there are, by name.
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
