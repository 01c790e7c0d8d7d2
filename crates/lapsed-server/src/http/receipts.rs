//! `/v1/receipts`: lists what was reclaimed, and restores it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use lapsed_core::receipt::{Reason, Receipt, ReceiptId};
use lapsed_core::system::Restored;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::caller::Caller;
use super::extract::{JsonAnswer, Path, Query};
use super::problem::Problem;
use super::{App, Shared};
use crate::node::LiveSystem;
use crate::node::page::{self, PAGE_MAX, ReceiptCursor, ReceiptFilter};
use crate::node::shapes::ReceiptPage;
use crate::schemas;

/// Receipts per page if the request has no `limit`.
const PAGE_DEFAULT: usize = 100;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(one)).routes(routes!(restore))
}

/// The parameters that select receipts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// `NAME` or `KIND/NAME` of one system. Default: all systems.
    system: Option<String>,
    /// Return only receipts after this cursor, oldest first.
    after: Option<String>,
    /// Return only receipts before this cursor, newest first.
    before: Option<String>,
    /// Return at most this many receipts. Default 100, at most 1,000.
    limit: Option<usize>,
    /// Return only receipts of the entry with this key.
    key: Option<String>,
    /// Return only receipts of entries that this owner held.
    owner: Option<String>,
    /// Return only receipts whose key or owner contains this text; upper and lower case are the
    /// same.
    search: Option<String>,
    /// Return only receipts with this reason: `owner_dead`, `orphaned`, ...
    reason: Option<String>,
    /// Return only receipts written at this time or later, in milliseconds of the store's clock.
    since_ms: Option<u64>,
    /// Return only receipts written before this time, in milliseconds of the store's clock.
    until_ms: Option<u64>,
}

impl ListQuery {
    fn reason(&self) -> Result<Option<Reason>, Problem> {
        let Some(word) = self.reason.as_deref() else { return Ok(None) };
        let known = Reason::ALL.iter().find(|reason| reason.as_str() == word);
        known.map(|reason| Some(*reason)).ok_or_else(|| {
            let all: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
            Problem::malformed(format!("`reason` is one of {}", all.join(", ")))
        })
    }
}

impl App {
    /// The systems that the parameter `system` selects; all systems if it is absent.
    pub(super) fn chosen(&self, system: Option<&str>) -> Result<Vec<Arc<LiveSystem>>, Problem> {
        let all = self.node.systems();
        let Some(wanted) = system else { return Ok(all.to_vec()) };
        let fits =
            |live: &&Arc<LiveSystem>| *live.id().name == *wanted || live.id().to_string() == wanted;
        let chosen: Vec<_> = all.iter().filter(fits).cloned().collect();
        if chosen.is_empty() { Err(self.no_such_system()) } else { Ok(chosen) }
    }
}

/// Lists receipts, newest first, or oldest first after a cursor.
#[utoipa::path(get, path = "/v1/receipts", tag = "receipts", params(ListQuery),
    responses((status = 200, body = ReceiptPage)))]
async fn list(
    State(app): State<Shared>,
    Query(query): Query<ListQuery>,
) -> Result<JsonAnswer<ReceiptPage>, Problem> {
    let systems = app.chosen(query.system.as_deref())?;
    if query.after.is_some() && query.before.is_some() {
        return Err(Problem::malformed("give `after` or `before`, not both"));
    }
    let limit = match query.limit.unwrap_or(PAGE_DEFAULT) {
        0 => return Err(Problem::malformed("`limit` must be above 0")),
        limit => limit.min(PAGE_MAX),
    };
    let cursor =
        |text: Option<String>| text.map(|t| ReceiptCursor::parse(&t, &systems)).transpose();
    let reason = query.reason()?;
    let wanted = ReceiptFilter {
        after: cursor(query.after)?,
        before: cursor(query.before)?,
        limit,
        key: query.key,
        owner: query.owner,
        search: query.search.filter(|text| !text.is_empty()),
        reason,
        since_ms: query.since_ms,
        until_ms: query.until_ms,
    };
    Ok(JsonAnswer(page::read(&systems, &wanted).await?))
}

/// Shows the receipt with this id.
#[utoipa::path(get, path = "/v1/receipts/{id}", tag = "receipts",
    responses((status = 200, body = schemas::Receipt)))]
async fn one(
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<JsonAnswer<Receipt>, Problem> {
    let (live, id) = find(&app, &id)?;
    let receipt = live.receipt(id.seq).await?;
    receipt.map(JsonAnswer).ok_or_else(|| missing(&id))
}

/// Restores the entry that a receipt removed, if its key is still free.
#[utoipa::path(post, path = "/v1/receipts/{id}/restore", tag = "receipts",
    responses((status = 200, body = schemas::Restored),
        (status = 409, description = "Its key is taken, or its owner has gone",
            body = schemas::Problem, content_type = "application/problem+json")))]
async fn restore(
    State(app): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<JsonAnswer<Restored>, Problem> {
    let (live, id) = find(&app, &id)?;
    if live.receipt(id.seq).await?.is_none() {
        return Err(missing(&id));
    }
    let (live, action) = (live.clone(), caller.audit_action("restore", &id));
    let work = async move { live.audited(action, live.restore(id.seq), audit_outcome).await };
    match app.finish(work).await?? {
        Restored::Refused { why } => Err(refused(why)),
        restored => Ok(JsonAnswer(restored)),
    }
}

/// The outcome of a restore in words, for the audit.
pub fn audit_outcome(restored: &Restored) -> String {
    match restored {
        Restored::Refused { why } => format!("refused: {why}"),
        _ => "restored".to_owned(),
    }
}

fn refused(why: String) -> Problem {
    Problem::new(StatusCode::CONFLICT, "refused", "It was not put back, and nothing changed", why)
}

fn find<'a>(app: &'a Shared, id: &str) -> Result<(&'a Arc<LiveSystem>, ReceiptId), Problem> {
    let id: ReceiptId = id.parse()?;
    let live = app.live(id.system.kind.as_str(), &id.system.name)?;
    Ok((live, id))
}

fn missing(id: &ReceiptId) -> Problem {
    Problem::not_found(format!("there is no receipt {id}, or it is past its retention"))
}
