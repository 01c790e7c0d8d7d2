//! Requests with an `Idempotency-Key`: carried out once, and answered again from what the store has kept.
//!
//! This is done here for every route that changes something, so that no route can forget it. The races:
//! - *The answer is lost behind the daemon.* It is in the system's store, and the repetition gets it from there,
//!   through any daemon and after a restart.
//! - *The client disconnects, or the request takes longer than its time limit.* The work runs to its end in a task
//!   of its own and keeps its answer.
//! - *Two attempts at the same time.* In one process the second waits for the first. Between processes the store
//!   decides, in the atomic step of the change: see `lapsed_core::request`.
//! - *The daemon is killed between the change and keeping its answer.* What the store noted with the change tells:
//!   the repetition gets the answer of that step, or `in_doubt`, and changes nothing.
//!
//! Routes whose operations keep their requests themselves ([`keeps_requests`](crate::http::route_rules::keeps_requests))
//! are passed on.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lapsed_core::receipt::ReceiptId;
use lapsed_core::request::{CurrentRequest, KeptRequest, RequestId};
use serde::{Deserialize, Serialize};
use tower_service::Service;

use super::bearer_check::{OwnerCheck, param, params};
use super::route_table::{TableRoute, route_of};
use crate::http::extract::read;
use crate::http::idempotency::{IDEMPOTENCY_KEY, request_id};
use crate::http::problem::{HttpResult, Problem};
use crate::http::{App, Shared};
use crate::node::LiveSystem;
use crate::systems;

/// The largest answer that is kept, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Marks an answer that was kept from an earlier attempt.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// An answer as the store keeps it.
#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    content_type: String,
    /// `None`: it was too large to be kept.
    body: Option<String>,
}

/// Whether the answer of this request is to be kept here: it has a key and changes something.
pub fn is_kept(request: &Request) -> bool {
    request.headers().contains_key(IDEMPOTENCY_KEY)
        && route_of(request.method(), request.uri().path())
            .is_some_and(|route| route.changes() && !route.keeps_requests())
}

/// Carries out a request once, or answers what is kept of it. `owners` is what is left to check of its bearer.
pub async fn answer(
    app: Shared,
    router: Router,
    owners: Option<OwnerCheck>,
    request: Request,
) -> Response {
    let shared = app.clone();
    let work = async move { carry_out(&app, router, owners, request).await };
    let answer = shared.finish(work).await.and_then(|answer| answer);
    answer.unwrap_or_else(IntoResponse::into_response)
}

async fn carry_out(
    app: &Shared,
    mut router: Router,
    owners: Option<OwnerCheck>,
    request: Request,
) -> HttpResult<Response> {
    let (parts, body) = request.into_parts();
    let bytes = read(body, app).await?;
    let id = request_id(&parts.method, &parts.uri, &parts.headers, &bytes)?;
    let live = keeper(app, &parts.method, parts.uri.path());
    let mut request = Request::from_parts(parts, Body::from(bytes));
    let Some(live) = live else {
        // The route says what is missing.
        if let Some(owners) = owners {
            request = owners.pass(app, request).await?;
        }
        return Ok(router.call(request).await.unwrap_or_else(|never| match never {}));
    };
    let _turn = app.request_turns.wait(format!("{} {}", live.id(), id.key)).await;
    let kept = live.kept_request(&id).await?;
    if let Some(owners) = owners {
        request = match (owners.pass(app, request).await, &kept) {
            (Ok(request), _) => request,
            // What the bearer held when the request was carried out it may not hold any more. Whoever repeats
            // it knows the key and the content, and may call this operation of this system.
            (Err(problem), KeptRequest::Answered(text)) if problem.is_lost() => {
                return replayed(text);
            }
            (Err(problem), _) => return Err(problem),
        };
    }
    match kept {
        KeptRequest::Answered(text) => return replayed(&text),
        KeptRequest::Begun => return Err(in_doubt()),
        KeptRequest::Unknown => {}
    }
    let current = CurrentRequest::new(live.id().clone(), id.clone());
    let answer = current.carry_out(router.call(request)).await;
    keep(&live, &id, answer.unwrap_or_else(|never| match never {})).await
}

/// Keeps the answer of a request that was carried out. One that changed nothing is forgotten; of one that
/// failed it is not known whether it changed something.
async fn keep(live: &LiveSystem, id: &RequestId, answer: Response) -> HttpResult<Response> {
    let status = answer.status();
    if !status.is_success() {
        if status.is_client_error()
            && let Err(error) = live.forget_request(id).await
        {
            tracing::debug!(system = %live.id(), %error, "a request that changed nothing could not be forgotten");
        }
        return Ok(answer);
    }
    let (parts, body) = answer.into_parts();
    let broken = |error: axum::Error| Problem::internal(format!("the answer broke off: {error}"));
    let bytes = to_bytes(body, usize::MAX).await.map_err(broken)?;
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let body = std::str::from_utf8(&bytes).ok().filter(|text| text.len() <= ANSWER_BYTES_MAX);
    let kept = KeptAnswer {
        status: status.as_u16(),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: body.map(str::to_owned),
    };
    let text =
        serde_json::to_string(&kept).map_err(|error| Problem::internal(error.to_string()))?;
    if let Err(error) = live.keep_answer(id, &text).await {
        tracing::warn!(system = %live.id(), %error,
            "the answer of a request with an idempotency key could not be kept; a repetition may not get it");
    }
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

fn replayed(text: &str) -> HttpResult<Response> {
    let wrong = || Problem::internal("the answer that was kept cannot be read");
    let KeptAnswer { status, content_type, body } =
        serde_json::from_str(text).map_err(|_| wrong())?;
    let status = StatusCode::from_u16(status).map_err(|_| wrong())?;
    let body = body.ok_or_else(too_large)?;
    let mut answer = (status, body).into_response();
    let headers = answer.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    if let Ok(content_type) = HeaderValue::from_str(&content_type)
        && !content_type.is_empty()
    {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(answer)
}

fn in_doubt() -> Problem {
    let detail = "an earlier attempt of this request has changed something, and its answer is not known: it is \
                  under way, or its daemon was killed. Nothing was changed now. Repeat it in a moment; if this \
                  stays, look at what became of it";
    Problem::new(StatusCode::CONFLICT, "in_doubt", "It was carried out before", detail)
        .header(header::RETRY_AFTER, "1")
}

fn too_large() -> Problem {
    let detail = format!(
        "this request was carried out before, and its answer was larger than {ANSWER_BYTES_MAX} bytes, so that it \
         was not kept; nothing was changed now"
    );
    Problem::new(StatusCode::CONFLICT, "answer_not_kept", "It was carried out before", detail)
}

/// The system whose store keeps the requests to this path.
fn keeper(app: &App, method: &Method, path: &str) -> Option<Arc<LiveSystem>> {
    let route: &TableRoute = route_of(method, path)?;
    let params = params(route, path)?;
    let name = param(&params, "name");
    if route.path.starts_with("/v1/webhooks/") {
        return app.webhooks.find(name?)?.lives().first().cloned();
    }
    if let Some(id) = param(&params, "id").filter(|_| route.path.starts_with("/v1/receipts/")) {
        let system = id.parse::<ReceiptId>().ok()?.system;
        return app.node.find(system.kind, &system.name).cloned();
    }
    let kind =
        route.kind.or_else(|| systems::named(param(&params, "kind")?).map(|kind| kind.kind()))?;
    app.node.find(kind, name?).cloned()
}
