//! `/v1/audit`: the operators' actions. Audit entries contain no secrets, so the scope `read` is
//! enough to see them.

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::extract::{JsonAnswer, Query};
use super::problem::Problem;
use crate::node::audit::{self, AUDIT_PAGE_MAX, AuditPage};
use crate::node::page::ReceiptCursor;

/// Entries per page if the request has no `limit`.
const PAGE_DEFAULT: usize = 100;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list))
}

/// The parameters that select audit entries.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// `NAME` or `KIND/NAME` of one system. Default: all systems.
    system: Option<String>,
    /// Return only entries before this cursor.
    before: Option<String>,
    /// Return at most this many entries. Default 100, at most 1,000.
    limit: Option<usize>,
}

/// Lists the operators' actions, newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "service", params(AuditQuery),
    responses((status = 200, body = AuditPage)))]
async fn list(
    State(app): State<Shared>,
    Query(query): Query<AuditQuery>,
) -> Result<JsonAnswer<AuditPage>, Problem> {
    let systems = app.chosen(query.system.as_deref())?;
    let limit = match query.limit.unwrap_or(PAGE_DEFAULT) {
        0 => return Err(Problem::malformed("`limit` must be above 0")),
        limit => limit.min(AUDIT_PAGE_MAX),
    };
    let before = query.before.map(|text| ReceiptCursor::parse(&text, &systems)).transpose()?;
    Ok(JsonAnswer(audit::read(&systems, before.as_ref(), limit).await?))
}
