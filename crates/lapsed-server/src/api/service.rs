//! The routes for health, readiness and metrics.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::Shared;
use crate::http::extract::JsonAnswer;
use crate::http::problem::Problem;
use crate::metrics::CONTENT_TYPE;
use crate::metrics::labels::OfSystem;
use crate::node::LiveSystem;
use crate::stores::OpenObject;
use crate::systems;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// Answers `ok` as long as the process serves requests.
#[utoipa::path(get, path = "/healthz", tag = "service",
    responses((status = 200, body = String, example = "ok")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// The readiness of the daemon: every store answers.
#[derive(Serialize, ToSchema)]
struct Ready {
    ready: bool,
}

/// Says whether every store answers.
#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200, body = Ready), (status = 503, description = "A store does not answer")))]
async fn readyz(State(app): State<Shared>) -> Result<JsonAnswer<Ready>, Problem> {
    if app.stop.is_told() {
        return Err(not_ready("shutting down".to_owned()));
    }
    for live in app.node.systems() {
        if let Err(error) = live.store_info().await {
            // This route needs no token, so the answer does not name the store or its error; the
            // log does.
            tracing::debug!(store = live.store_name(), %error, "not ready");
            return Err(not_ready(
                "a store does not answer; the log and `lapsed status` say which".to_owned(),
            ));
        }
    }
    Ok(JsonAnswer(Ready { ready: true }))
}

fn not_ready(detail: String) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", "Not ready", detail)
        .header(header::RETRY_AFTER, "1")
}

/// Serves all metrics in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "service",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics(State(app): State<Shared>) -> impl IntoResponse {
    for live in app.node.systems() {
        count(&app, live).await;
    }
    for kind in systems::KINDS {
        kind.scrape(&app.metrics, &app.node).await;
    }
    for (name, object) in app.node.objects() {
        show_requests(&app, name, object);
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], app.metrics.encode())
}

/// Updates the gauges of one system, and measures how long its store takes to answer.
async fn count(app: &Shared, live: &LiveSystem) {
    let (census, took) = live.timed_census().await;
    app.metrics.store_answered(live.id(), census.is_ok(), took);
    app.metrics.stand(live.id(), live.brake_setting(), live.sweeper().leads());
    if let Ok(census) = census {
        app.metrics.gauge(live.id(), &census, &live.verdict(&census));
    }
}

/// Updates the metrics of an object store: the requests so far, and the time of its clock.
fn show_requests(app: &Shared, name: &str, object: &OpenObject) {
    let (store, requests) = (object.store(), app.metrics.requests());
    requests.show(name, &store.requests(), store.offset());
    for (system, entries) in object.entries_deleted() {
        requests.show_deleted(&OfSystem::of(&system), entries);
    }
}
