//! `/v1/history` and `/v1/stores`: the recent activity of each system, and the health of each
//! store.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::extract::{JsonAnswer, Path};
use super::problem::Problem;
use crate::node::status_history::HistoryResponse;
use crate::node::store_monitor::StoreHealth;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(histories)).routes(routes!(history)).routes(routes!(stores))
}

/// The recent activity of every system.
#[derive(Serialize, ToSchema)]
struct Histories {
    /// One element per system, in the order of the configuration.
    systems: Vec<HistoryResponse>,
}

/// The health of the stores.
#[derive(Serialize, ToSchema)]
struct Stores {
    /// The stores that at least one system uses.
    stores: Vec<StoreHealth>,
}

/// Shows what every system did lately in this process: reclaims and their lag in slices of ten
/// seconds over the last hour, and the last passes.
#[utoipa::path(get, path = "/v1/history", tag = "sweeps",
    responses((status = 200, body = Histories)))]
async fn histories(State(app): State<Shared>) -> JsonAnswer<Histories> {
    let history = app.node.journal().status_history();
    let systems = app.node.systems().iter();
    JsonAnswer(Histories { systems: systems.map(|live| history.history(live.id())).collect() })
}

/// Shows what one system did lately in this process.
#[utoipa::path(get, path = "/v1/history/{kind}/{name}", tag = "sweeps",
    responses((status = 200, body = HistoryResponse)))]
async fn history(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<HistoryResponse>, Problem> {
    let live = app.live(&kind, &name)?;
    Ok(JsonAnswer(app.node.journal().status_history().history(live.id())))
}

/// Shows the health of the stores: whether each one answers, how fast, and how far its clock is
/// from this host's. The values are at most one second old, or 15 seconds where every request to
/// the store costs money.
#[utoipa::path(get, path = "/v1/stores", tag = "service",
    responses((status = 200, body = Stores)))]
async fn stores(State(app): State<Shared>) -> JsonAnswer<Stores> {
    let taken = app.node.store_monitors().iter().map(|monitor| monitor.take());
    JsonAnswer(Stores { stores: futures::future::join_all(taken).await })
}
