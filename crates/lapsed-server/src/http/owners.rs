//! Owners over HTTP, the same for every kind of system that has owners: their routes, defined once and
//! mounted under the path of each kind, with parameters and answers. A kind adds its own routes for the
//! entries that its owners hold, and for retiring an owner.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo};
use lapsed_core::system::OwnerService;
use lapsed_core::{Kind, Name};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::extract::{Json, JsonAnswer, Path, Query};
use super::idempotency::Repeatable;
use super::paging::{bounded, is_full, page_limit};
use super::problem::{HttpResult, Problem};
use super::route_rules::{keeps_requests, owner_in_body};
use super::{App, Shared, kind_of};
use crate::config::units::SPAN_MAX;
use crate::schemas;

/// The owners' routes under the path of `kind`.
pub fn routes(kind: Kind) -> OpenApiRouter<Shared> {
    let all: [UtoipaMethodRouter<Shared>; 5] = [
        keeps_requests(owner_in_body("owner", routes!(start))),
        owner_in_body("owner", routes!(beat)),
        owner_in_body("beats/*/owner", routes!(beat_many)),
        routes!(all),
        routes!(one),
    ];
    let hang = |router: OpenApiRouter<Shared>, routes| router.routes(under(kind, routes));
    all.into_iter().fold(OpenApiRouter::new(), hang)
}

/// Moves the routes under the path of `kind`, and into its group in the OpenAPI document.
fn under(
    kind: Kind,
    (schemas, mut paths, router): UtoipaMethodRouter<Shared>,
) -> UtoipaMethodRouter<Shared> {
    let hung = std::mem::take(&mut paths.paths).into_iter().map(|(path, mut item)| {
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            operation.tags = Some(vec![kind.to_string()]);
        }
        (format!("/v1/{kind}/{{name}}{path}"), item)
    });
    paths.paths = hung.collect();
    (schemas, paths, router)
}

/// The kind of system that a request is for. It is read from the request's path, because the
/// handlers are the same for all kinds.
struct Of(Kind);

impl FromRequestParts<Shared> for Of {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> HttpResult<Self> {
        kind_of(parts.uri.path()).map(Of).ok_or_else(|| app.no_such_system())
    }
}

/// Starts a new incarnation of an owner. A repetition with the same `Idempotency-Key` starts nothing and
/// answers with the same incarnation.
#[utoipa::path(post, path = "/start",
    params(("name" = String, Path)),
    request_body = StartBody,
    responses((status = 201, body = BeatAnswer)))]
async fn start(
    State(app): State<Shared>,
    Of(kind): Of,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<StartBody>,
) -> HttpResult<(StatusCode, JsonAnswer<BeatAnswer>)> {
    let owner = lapsed_core::Name::new(&body.owner)?;
    let (owners, ttl) = (owners(&app, kind, &name)?, body.ttl()?);
    let beat = match request.is_repeatable() {
        true => owners.start_once(&request, &owner, ttl).await?,
        false => owners.start(&owner, ttl).await?,
    };
    app.metrics.owner_started(kind, &owner);
    Ok((StatusCode::CREATED, JsonAnswer(BeatAnswer::of(body.owner, beat))))
}

/// Records a heartbeat. Without `incarnation` it is for the newest incarnation of that owner. The
/// answer is a `lost` problem if the incarnation has ended.
#[utoipa::path(post, path = "/beat", params(("name" = String, Path)),
    request_body = ClaimBody,
    responses((status = 200, body = BeatAnswer),
        (status = 409, description = "That incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn beat(
    State(app): State<Shared>,
    Of(kind): Of,
    Path(name): Path<String>,
    Json(body): Json<ClaimBody>,
) -> HttpResult<JsonAnswer<BeatAnswer>> {
    let beat = owners(&app, kind, &name)?.beat(&body.claim()?).await?;
    Ok(JsonAnswer(BeatAnswer::of(body.owner, beat)))
}

/// Records many heartbeats. Each has its own answer, in the order of the request.
#[utoipa::path(post, path = "/beat_many", params(("name" = String, Path)),
    request_body = BeatsBody,
    responses((status = 200, body = BeatsAnswer)))]
async fn beat_many(
    State(app): State<Shared>,
    Of(kind): Of,
    Path(name): Path<String>,
    Json(body): Json<BeatsBody>,
) -> HttpResult<JsonAnswer<BeatsAnswer>> {
    bounded(body.beats.len(), "beats")?;
    let owners = owners(&app, kind, &name)?;
    let mut results = Vec::with_capacity(body.beats.len());
    for one in body.beats {
        let answer = match one.claim() {
            Ok(claim) => owners.beat(&claim).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        results.push(OneBeat::of(one.owner, answer));
    }
    Ok(JsonAnswer(BeatsAnswer { results }))
}

/// Lists owners by incarnation, oldest first.
#[utoipa::path(get, path = "/owners", params(("name" = String, Path), OwnersQuery),
    responses((status = 200, body = Owners)))]
async fn all(
    State(app): State<Shared>,
    Of(kind): Of,
    Path(name): Path<String>,
    Query(query): Query<OwnersQuery>,
) -> HttpResult<JsonAnswer<Owners>> {
    let limit = page_limit(query.limit)?;
    let owners = owners(&app, kind, &name)?.owners(query.after.map(Incarnation), limit).await?;
    let next = owners.last().filter(|_| is_full(owners.len(), limit)).map(|o| o.incarnation.0);
    Ok(JsonAnswer(Owners { owners, next }))
}

/// Shows one incarnation of an owner: the given one, or the newest.
#[utoipa::path(get, path = "/owners/{owner}",
    params(("name" = String, Path), ("owner" = String, Path), IncarnationQuery),
    responses((status = 200, body = schemas::OwnerInfo)))]
async fn one(
    State(app): State<Shared>,
    Of(kind): Of,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<IncarnationQuery>,
) -> HttpResult<JsonAnswer<OwnerInfo>> {
    let claim = claim(&owner, query.incarnation)?;
    let info = owners(&app, kind, &name)?.owner_info(&claim).await?;
    info.map(JsonAnswer).ok_or_else(|| Problem::not_found(format!("no owner {owner:?} is known")))
}

/// The owners of one system; a `not_found` problem if its kind has no owners.
fn owners<'a>(app: &'a App, kind: Kind, name: &str) -> HttpResult<&'a OwnerService> {
    let live = app.node.find(kind, name).ok_or_else(|| app.no_such_system())?;
    live.owners.as_ref().ok_or_else(|| Problem::not_found(format!("{kind} has no owners")))
}

/// Retires an incarnation by calling `retire`, which releases everything that the incarnation
/// holds. The work runs to its end even if the client disconnects.
pub async fn retire<T, R, F>(
    app: &App,
    kind: Kind,
    name: &str,
    claim: Claim,
    retire: impl FnOnce(Arc<T>, Claim) -> F,
) -> HttpResult<R>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
    F: Future<Output = lapsed_core::Result<R>> + Send + 'static,
{
    let live = app.live(kind.as_str(), name)?;
    let system = live.share_operations::<T>().ok_or_else(|| app.no_such_system())?;
    Ok(app.finish(retire(system, claim)).await??)
}

/// One page of the names of the entries that an incarnation holds, and the key after which the next
/// page begins.
pub async fn held<F>(
    owner: &str,
    query: HeldQuery,
    page: impl FnOnce(Claim, Option<Name>, usize) -> F,
) -> HttpResult<(Vec<String>, Option<String>)>
where
    F: Future<Output = lapsed_core::Result<Vec<Name>>>,
{
    let claim = claim(owner, query.incarnation)?;
    let limit = page_limit(query.limit)?;
    let after = query.after.as_deref().map(Name::new).transpose()?;
    let names = page(claim, after, limit).await?;
    let next = names.last().filter(|_| is_full(names.len(), limit)).map(|name| name.to_string());
    Ok((names.into_iter().map(String::from).collect(), next))
}

pub fn claim(owner: &str, incarnation: Option<u64>) -> HttpResult<Claim> {
    let incarnation = incarnation.map(Incarnation);
    Ok(Claim { owner: Name::new(owner)?, incarnation })
}

/// The owner for which a new incarnation is started.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBody {
    /// The owner's name: 1 to 512 bytes, no control characters.
    #[schema(example = "ingest-1")]
    pub owner: String,
    /// How long a heartbeat lasts, in milliseconds. Default: as configured.
    pub ttl_ms: Option<u64>,
}

impl StartBody {
    pub fn ttl(&self) -> Result<Option<Duration>, Problem> {
        match self.ttl_ms.map(Duration::from_millis) {
            Some(ttl) if ttl.is_zero() || ttl > SPAN_MAX => {
                Err(Problem::invalid("`ttl_ms` must be above 0, and at most ten years"))
            }
            ttl => Ok(ttl),
        }
    }
}

/// The owner, and the incarnation of it, on whose behalf the request acts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    #[schema(example = "ingest-1")]
    pub owner: String,
    /// The incarnation of this owner. Default: the newest one.
    pub incarnation: Option<u64>,
}

impl ClaimBody {
    pub fn claim(&self) -> Result<Claim, Problem> {
        claim(&self.owner, self.incarnation)
    }
}

/// An accepted heartbeat: the owner counts as alive until `deadline_ms`.
#[derive(Serialize, ToSchema)]
pub struct BeatAnswer {
    pub owner: String,
    /// The owner's incarnation, which is also the fencing token of everything that it writes.
    pub incarnation: u64,
    /// When this heartbeat expires, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// The time of the store's clock, in milliseconds.
    pub now_ms: u64,
    pub ttl_ms: u64,
    /// Whether this call started the incarnation.
    pub started: bool,
}

impl BeatAnswer {
    pub fn of(owner: String, beat: Beat) -> Self {
        let Beat { incarnation, deadline_ms, now_ms, ttl_ms, started } = beat;
        BeatAnswer { owner, incarnation: incarnation.0, deadline_ms, now_ms, ttl_ms, started }
    }
}

/// The heartbeats of several owners.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeatsBody {
    pub beats: Vec<ClaimBody>,
}

/// One answer per heartbeat, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct BeatsAnswer {
    pub results: Vec<OneBeat>,
}

/// The answer to one heartbeat: either its result (`ok` is true) or a problem (`ok` is false).
#[derive(Serialize, ToSchema)]
pub struct OneBeat {
    pub ok: bool,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub answer: Value,
}

impl OneBeat {
    pub fn of(owner: String, answer: Result<Beat, Problem>) -> Self {
        let ok = answer.is_ok();
        let answer = match answer {
            Ok(beat) => serde_json::to_value(BeatAnswer::of(owner, beat)).unwrap_or_default(),
            Err(problem) => {
                let mut body = problem.body();
                body["owner"] = Value::String(owner);
                body
            }
        };
        OneBeat { ok, answer }
    }
}

/// The parameters that select a page of owners.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OwnersQuery {
    /// Return owners after this incarnation: the value of `next` of the previous page.
    pub after: Option<u64>,
    /// Return at most this many owners. Default 1,000, at most 10,000.
    pub limit: Option<usize>,
}

/// The parameter that selects an incarnation of the owner.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct IncarnationQuery {
    /// The incarnation of this owner. Default: the newest one.
    pub incarnation: Option<u64>,
}

/// The parameters that select a page of the keys that an incarnation holds.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HeldQuery {
    /// The incarnation of this owner. Default: the newest one.
    pub incarnation: Option<u64>,
    /// Return keys after this one: the value of `next` of the previous page.
    pub after: Option<String>,
    /// Return at most this many keys. Default 1,000, at most 10,000.
    pub limit: Option<usize>,
}

/// One page of owners.
#[derive(Serialize, ToSchema)]
pub struct Owners {
    #[schema(value_type = Vec<schemas::OwnerInfo>)]
    pub owners: Vec<OwnerInfo>,
    /// Where the next page begins: send it as `after`. Absent on the last page.
    pub next: Option<u64>,
}

/// One page of keys.
#[derive(Serialize, ToSchema)]
pub struct Keys {
    pub keys: Vec<String>,
    /// Where the next page begins: send it as `after`. Absent on the last page.
    pub next: Option<String>,
}
