//! `/v1/history` and `/v1/stores`: what each system did lately, and how each store is.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::extract::{JsonAnswer, Path};
use super::problem::Problem;
use crate::node::chronicle::HistoryResponse;
use crate::node::pulse::{StoreHealth, StoreMonitor};

/// All of them.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(histories)).routes(routes!(history)).routes(routes!(stores))
}

/// What every system did lately.
#[derive(Serialize, ToSchema)]
struct Histories {
    /// In the order of the configuration.
    systems: Vec<HistoryResponse>,
}

/// How the stores are.
#[derive(Serialize, ToSchema)]
struct Stores {
    /// Those that a system uses.
    stores: Vec<StoreHealth>,
}

/// What every system did lately in this process: reclaims and their lag in slices of ten seconds over
/// an hour, and the last passes.
#[utoipa::path(get, path = "/v1/history", tag = "sweeps",
    responses((status = 200, body = Histories)))]
async fn histories(State(app): State<Shared>) -> JsonAnswer<Histories> {
    let chronicle = app.node.journal().chronicle();
    let systems = app.node.systems().iter();
    JsonAnswer(Histories { systems: systems.map(|live| chronicle.history(live.id())).collect() })
}

/// What one system did lately in this process.
#[utoipa::path(get, path = "/v1/history/{kind}/{name}", tag = "sweeps",
    responses((status = 200, body = HistoryResponse)))]
async fn history(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<HistoryResponse>, Problem> {
    let live = app.live(&kind, &name)?;
    Ok(JsonAnswer(app.node.journal().chronicle().history(live.id())))
}

/// How the stores are: whether each answers, how fast, and how far its clock is from this host's. A
/// second old at the most; fifteen where every request has a price.
#[utoipa::path(get, path = "/v1/stores", tag = "service",
    responses((status = 200, body = Stores)))]
async fn stores(State(app): State<Shared>) -> JsonAnswer<Stores> {
    let taken = app.node.pulses().iter().map(StoreMonitor::take);
    JsonAnswer(Stores { stores: futures::future::join_all(taken).await })
}
