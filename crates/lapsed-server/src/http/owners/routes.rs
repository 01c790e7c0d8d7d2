//! The routes of owners, which are the same for every kind of system: defined once, and mounted
//! under the path of each kind.

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use lapsed_core::Kind;
use lapsed_core::owner::{Incarnation, OwnerInfo};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::shapes::*;
use super::{HttpResult, bounded, claim, is_full, owners, page_limit};
use crate::http::extract::{Json, JsonAnswer, Path, Query};
use crate::http::idempotency::Repeatable;
use crate::http::problem::Problem;
use crate::http::route_rules::owner_in_body;
use crate::http::{Shared, schemas};

/// The owners' routes under the path of `kind`.
pub fn routes(kind: Kind) -> OpenApiRouter<Shared> {
    let all: [UtoipaMethodRouter<Shared>; 5] = [
        owner_in_body("owner", routes!(start)),
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

fn kind_of(path: &str) -> Option<Kind> {
    let word = path.strip_prefix("/v1/")?.split('/').next()?;
    Kind::ALL.iter().find(|kind| kind.as_str() == word).copied()
}

impl FromRequestParts<Shared> for Of {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> HttpResult<Self> {
        kind_of(parts.uri.path()).map(Of).ok_or_else(|| app.no_such_system())
    }
}

/// Starts a new incarnation of an owner. A repetition with the same `Idempotency-Key` starts nothing and
/// answers with the same incarnation.
#[utoipa::path(post, path = "/start",
    params(("name" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255,
            pattern = r#"^["-~][!-~]*$"#,
            description = "The same for all attempts of one request; at most 255 characters")),
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
    params(("name" = String, Path), ("owner" = String, Path), LifeQuery),
    responses((status = 200, body = schemas::OwnerInfo)))]
async fn one(
    State(app): State<Shared>,
    Of(kind): Of,
    Path((name, owner)): Path<(String, String)>,
    Query(query): Query<LifeQuery>,
) -> HttpResult<JsonAnswer<OwnerInfo>> {
    let claim = claim(&owner, query.incarnation)?;
    let info = owners(&app, kind, &name)?.owner_info(&claim).await?;
    info.map(JsonAnswer).ok_or_else(|| Problem::not_found(format!("no owner {owner:?} is known")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_in_the_path() {
        assert_eq!(kind_of("/v1/sessions/registry/beat"), Some(Kind::Sessions));
        assert_eq!(kind_of("/v1/nothing/registry/beat"), None);
        assert_eq!(kind_of("/registry"), None);
    }
}
