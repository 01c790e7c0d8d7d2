//! `/v1/events`: receipts as they come, as server-sent events. What is sent, and how nobody misses
//! anything, is told in `crate::feed`.

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
use crate::feed::ListenerSlot;
use crate::node::page::ReceiptCursor;
use crate::write_timeout::WasCut;

/// The stream.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Where to go on; from now without it. `Last-Event-ID` does the same.
    cursor: Option<String>,
    /// `NAME` or `KIND/NAME`; all systems without it.
    system: Option<String>,
}

/// Receipts as they come. The first event, `cursor`, says where the stream begins; then each
/// `receipt`. The `id` of each is the cursor to come back with. Whoever does not take what is sent
/// is dropped, and comes back with its cursor.
#[utoipa::path(get, path = "/v1/events", tag = "receipts", params(EventsQuery),
    responses(
        (status = 200, description = "A stream that does not end",
            body = String, content_type = "text/event-stream"),
        (status = 503, description = "As many listen as may")))]
async fn events(
    State(app): State<Shared>,
    Query(query): Query<EventsQuery>,
    Extension(cut): Extension<WasCut>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let systems = app.chosen(query.system.as_deref())?;
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let cursor = last.filter(|id| !id.is_empty()).or(query.cursor);
    let cursor = cursor.map(|text| ReceiptCursor::parse(&text, &systems)).transpose()?;
    let seat = take_seat(&app)?;
    let listener = app.feeds.listen(systems, cursor, seat, cut).await?;
    let first = listener.greeting();
    let rest = stream::unfold(listener, |mut listener| async move {
        let bytes = listener.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), listener))
    });
    let body = Body::from_stream(stream::iter([Ok(first)]).chain(rest));
    Ok((HEADERS, body).into_response())
}

/// The last one is for proxies that would collect answers before they pass them on.
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "text/event-stream"),
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

fn take_seat(app: &Shared) -> Result<ListenerSlot, Problem> {
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
