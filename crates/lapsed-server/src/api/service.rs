//! The routes for health, readiness and metrics.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::Shared;
use crate::http::extract::{JsonAnswer, Path};
use crate::http::problem::Problem;
use crate::metrics::CONTENT_TYPE;
use crate::metrics::labels::OfSystem;
use crate::node::LiveSystem;
use crate::node::readiness::SystemReadiness;
use crate::stores::OpenObject;
use crate::systems;

pub fn routes() -> OpenApiRouter<Shared> {
    let health = OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz));
    health.routes(routes!(readyz_of)).routes(routes!(metrics))
}

/// Answers `ok` as long as the process serves requests.
#[utoipa::path(get, path = "/healthz", tag = "service",
    responses((status = 200, body = String, example = "ok")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// The readiness of the daemon, and of each system.
#[derive(Serialize, ToSchema)]
struct Ready {
    /// Whether the store of at least one system answers.
    ready: bool,
    /// The state of each system, in the order of the configuration.
    systems: Vec<SystemReadiness>,
}

/// Says whether the daemon can serve: 200 while the store of at least one system answers, 503 while
/// no store answers (also at the start, before the first answer) and while the daemon stops. The
/// body has the state of each system.
#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200, body = Ready),
        (status = 503, description = "No store answers, or the daemon is shutting down")))]
async fn readyz(State(app): State<Shared>) -> Result<JsonAnswer<Ready>, Problem> {
    if app.stop.is_stopped() {
        return Err(not_ready("shutting down"));
    }
    let systems = app.node.readiness().await;
    match systems.iter().any(|system| system.ready) {
        true => Ok(JsonAnswer(Ready { ready: true, systems })),
        // This route needs no token, so the answer does not name a store or its error; the log does.
        false => Err(not_ready("no store answers; the log and `lapsed status` say why")
            .with("systems", json!(systems))),
    }
}

/// Says whether one system can be served: 200 while its store answers, 503 while it does not.
#[utoipa::path(get, path = "/readyz/{kind}/{name}", tag = "service",
    responses((status = 200, body = SystemReadiness),
        (status = 503, description = "The store of this system does not answer, or the daemon is shutting down"),
        (status = 404, description = "There is no such system")))]
async fn readyz_of(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<SystemReadiness>, Problem> {
    let live = app.live(&kind, &name)?;
    if app.stop.is_stopped() {
        return Err(not_ready("shutting down"));
    }
    let system = app.node.readiness_of(live).await;
    match system.ready {
        true => Ok(JsonAnswer(system)),
        false => Err(not_ready("its store does not answer; the log and `lapsed status` say why")),
    }
}

fn not_ready(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", "Not ready", detail)
        .header(header::RETRY_AFTER, "1")
}

/// Serves all metrics in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "service",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics(State(app): State<Shared>) -> impl IntoResponse {
    // At the same time, so that a store that hangs does not delay the others beyond one time limit.
    let systems = app.node.systems().iter();
    futures::future::join_all(systems.map(|live| count(&app, live))).await;
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
