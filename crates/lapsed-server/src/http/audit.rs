//! `/v1/audit`: who did what by hand. It holds no secrets: whoever may look may see it.

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

/// How many entries a page has unless told.
const PAGE_DEFAULT: usize = 100;

/// The one there is.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Which entries.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// `NAME` or `KIND/NAME`; all systems without it.
    system: Option<String>,
    /// Only those before this cursor.
    before: Option<String>,
    /// At most so many; 100 without it, 1,000 at the most.
    limit: Option<usize>,
}

/// Who did what by hand, newest first.
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
