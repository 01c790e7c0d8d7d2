//! `/v1/sweeps` and `/v1/explain`: the status of each system, a pass on demand, and why a key is or
//! is not dead.

use axum::extract::State;
use lapsed_core::sweep::{PassMode, PassReport};
use lapsed_core::system::Explanation;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::caller::Caller;
use super::extract::{JsonAnswer, MaybeJson, Path, Query};
use super::problem::Problem;
use super::route_rules::{OwnerRule, for_owner, slow, with_scope};
use crate::config::token::Scope;
use crate::node::shapes::{Sweeps, SystemStatus};
use crate::schemas;

pub fn routes() -> OpenApiRouter<Shared> {
    // A dry run needs `read` only. The body says whether it is one, so the handler demands the higher scope.
    let pass = for_owner(OwnerRule::Refused, slow(with_scope(Scope::Read, routes!(pass))));
    let shown = OpenApiRouter::new().routes(routes!(all)).routes(routes!(one));
    shown.routes(pass).routes(routes!(explain))
}

/// The options of a pass.
#[derive(Clone, Copy, Default, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct PassOptions {
    /// Do everything except the change itself.
    dry_run: Option<bool>,
    /// List at most this many of the entries in the report; at most 100,000.
    list: Option<usize>,
}

/// Shows the status of every system.
#[utoipa::path(get, path = "/v1/sweeps", tag = "sweeps",
    responses((status = 200, body = Sweeps)))]
async fn all(State(app): State<Shared>) -> JsonAnswer<Sweeps> {
    // At the same time, so that a store that hangs does not delay the others beyond one time limit.
    let all = app.node.systems().iter().map(|live| live.status());
    JsonAnswer(Sweeps { systems: futures::future::join_all(all).await })
}

/// Shows the status of one system.
#[utoipa::path(get, path = "/v1/sweeps/{kind}/{name}", tag = "sweeps",
    responses((status = 200, body = SystemStatus)))]
async fn one(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<SystemStatus>, Problem> {
    Ok(JsonAnswer(app.live(&kind, &name)?.status().await))
}

/// Runs one pass now. The pass continues to its end even if the client disconnects. A dry run needs
/// the scope `read` only, a real pass needs `act`.
#[utoipa::path(post, path = "/v1/sweeps/{kind}/{name}", tag = "sweeps",
    params(("kind" = String, Path), ("name" = String, Path), PassOptions),
    request_body = Option<PassOptions>,
    responses((status = 200, body = schemas::PassReport)))]
async fn pass(
    State(app): State<Shared>,
    caller: Caller,
    Path((kind, name)): Path<(String, String)>,
    Query(query): Query<PassOptions>,
    MaybeJson(body): MaybeJson<PassOptions>,
) -> Result<JsonAnswer<PassReport>, Problem> {
    let live = app.live(&kind, &name)?.clone();
    let body = body.unwrap_or_default();
    let dry_run = body.dry_run.or(query.dry_run).unwrap_or(false);
    let list = body.list.or(query.list).unwrap_or(0);
    let act = if dry_run { PassMode::DryRun } else { PassMode::Reclaim };
    let stop = app.stop.clone();
    if act == PassMode::DryRun {
        return Ok(JsonAnswer(app.finish(async move { live.pass(act, list, &stop).await }).await?));
    }
    caller.demand(Scope::Act)?;
    let action = caller.audit_action("sweep", live.id());
    let work = async move {
        let pass = async { Ok(live.pass(act, list, &stop).await) };
        live.audited(action, pass, audit_outcome).await
    };
    Ok(JsonAnswer(app.finish(work).await??))
}

/// The outcome of a pass in words, for the audit.
pub fn audit_outcome(report: &PassReport) -> String {
    format!("{}, {} reclaimed", report.stopped, report.reclaimed)
}

/// Explains why a key (or an owner) is, or is not, dead.
#[utoipa::path(get, path = "/v1/explain/{kind}/{name}/{key}", tag = "sweeps",
    responses((status = 200, body = schemas::Explanation)))]
async fn explain(
    State(app): State<Shared>,
    Path((kind, name, key)): Path<(String, String, String)>,
) -> Result<JsonAnswer<Explanation>, Problem> {
    Ok(JsonAnswer(app.live(&kind, &name)?.explain(&key).await?))
}
