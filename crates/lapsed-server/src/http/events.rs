//! `/v1/events`: a stream of new receipts as server-sent events. `crate::feed` describes what is
//! sent and why no receipt is missed.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::extract::Query;
use super::problem::Problem;
use super::route_rules::slow;
use crate::connections::CutFlag;
use crate::feed::ListenerSlot;
use crate::node::page::ReceiptCursor;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(slow(routes!(events)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// The cursor after which the stream begins. Default: only receipts that are written from now
    /// on. The header `Last-Event-ID` has the same effect.
    cursor: Option<String>,
    /// `NAME` or `KIND/NAME` of one system. Default: all systems.
    system: Option<String>,
}

/// Streams receipts as they are written. The first event, `cursor`, says where the stream begins;
/// each further event is a `receipt`. An event `missing` names the systems whose stores do not answer
/// at present; its list is empty when all are back. The `id` of an event is the cursor with which a client
/// resumes after it. A client that does not read what is sent is disconnected, and can resume with
/// its cursor.
#[utoipa::path(get, path = "/v1/events", tag = "receipts", params(EventsQuery),
    responses(
        (status = 200, description = "A stream that does not end",
            body = String, content_type = "text/event-stream"),
        (status = 503, description = "The limit on concurrent listeners is reached")))]
async fn events(
    State(app): State<Shared>,
    Query(query): Query<EventsQuery>,
    Extension(cut): Extension<CutFlag>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let systems = app.chosen(query.system.as_deref())?;
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let cursor = last.filter(|id| !id.is_empty()).or(query.cursor);
    let cursor = cursor.map(|text| ReceiptCursor::parse(&text, &systems)).transpose()?;
    let slot = take_slot(&app)?;
    let listener = app.feeds.listen(systems, cursor, slot, cut).await?;
    let first = listener.greeting();
    let rest = stream::unfold(listener, |mut listener| async move {
        let bytes = listener.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), listener))
    });
    let body = Body::from_stream(stream::iter([Ok(first)]).chain(rest));
    Ok((HEADERS, body).into_response())
}

/// The headers of the stream. The last one asks proxies not to buffer it.
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "text/event-stream"),
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

fn take_slot(app: &Shared) -> Result<ListenerSlot, Problem> {
    app.listener_slots.take().ok_or_else(|| {
        let detail = format!(
            "{} listen already, as many as `server.listeners_max` allows; come back later",
            app.listener_slots.most()
        );
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_listeners",
            "Too many listeners",
            detail,
        )
        .header(header::RETRY_AFTER, "10")
    })
}
