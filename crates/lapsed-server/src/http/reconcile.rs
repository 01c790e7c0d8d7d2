//! `/v1/reconcile`: compares a system's index with its truth, and repairs the index or reports the
//! differences.

use axum::extract::State;
use lapsed_core::sweep::{Cursor, PassMode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::caller::Caller;
use super::extract::{JsonAnswer, MaybeJson, Path, Query};
use super::problem::Problem;
use super::route_rules::{OwnerRule, for_owner, slow, with_scope};
use crate::config::token::Scope;
use crate::node::ReconcileOrder;
use crate::node::shapes::{Estimate, Reconciliation};

pub fn routes() -> OpenApiRouter<Shared> {
    // A dry run needs `read` only. The body says whether it is one, so the handler demands the higher scope.
    let reconcile =
        for_owner(OwnerRule::Refused, slow(with_scope(Scope::Read, routes!(reconcile))));
    // The estimate counts all entries, which may take long.
    OpenApiRouter::new().routes(slow(routes!(estimate))).routes(reconcile)
}

/// Estimates the cost of a reconciliation: about how many requests it takes, on stores where every
/// request costs money.
#[utoipa::path(get, path = "/v1/reconcile/{kind}/{name}", tag = "sweeps",
    responses((status = 200, body = Estimate),
        (status = 501, description = "This system has no index", body = crate::schemas::Problem,
            content_type = "application/problem+json")))]
async fn estimate(
    State(app): State<Shared>,
    Path((kind, name)): Path<(String, String)>,
) -> Result<JsonAnswer<Estimate>, Problem> {
    let reconciler = app.live(&kind, &name)?.reconciler()?;
    Ok(JsonAnswer(Estimate { requests: reconciler.cost().await? }))
}

/// The options of a reconciliation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ReconcileOptions {
    /// Report the differences, and change nothing.
    pub dry_run: Option<bool>,
    /// Resume here: the value of `next` from a run that did not finish.
    pub from: Option<String>,
    /// List at most this many of the changes in the report; at most 100,000.
    pub list: Option<usize>,
}

/// Compares a system's index with its truth and repairs the index. The run continues to its end
/// even if the client disconnects. A dry run needs the scope `read` only, a repair needs `act`.
#[utoipa::path(post, path = "/v1/reconcile/{kind}/{name}", tag = "sweeps",
    params(("kind" = String, Path), ("name" = String, Path), ReconcileOptions),
    request_body = Option<ReconcileOptions>,
    responses((status = 200, body = Reconciliation),
        (status = 501, description = "This system has no index", body = crate::schemas::Problem,
            content_type = "application/problem+json")))]
async fn reconcile(
    State(app): State<Shared>,
    caller: Caller,
    Path((kind, name)): Path<(String, String)>,
    Query(query): Query<ReconcileOptions>,
    MaybeJson(body): MaybeJson<ReconcileOptions>,
) -> Result<JsonAnswer<Reconciliation>, Problem> {
    let live = app.live(&kind, &name)?.clone();
    let reconciler = live.reconciler()?.clone();
    let body = body.unwrap_or_default();
    let dry_run = body.dry_run.or(query.dry_run).unwrap_or(false);
    let order = ReconcileOrder {
        act: if dry_run { PassMode::DryRun } else { PassMode::Reclaim },
        after: Cursor(body.from.or(query.from)),
        list: body.list.or(query.list).unwrap_or(0),
    };
    let stop = app.stop.clone();
    if dry_run {
        let work = async move { reconciler.run(order, &stop, &mut |_| {}).await };
        return Ok(JsonAnswer(app.finish(work).await??));
    }
    caller.demand(Scope::Act)?;
    let action = caller.audit_action("reconcile", live.id());
    let work = async move {
        let run = async { reconciler.run(order, &stop, &mut |_| {}).await };
        live.audited(action, run, Reconciliation::audit_outcome).await
    };
    Ok(JsonAnswer(app.finish(work).await??))
}
