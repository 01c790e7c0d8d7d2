//! `/v1/webhooks`: the progress of each webhook, its dead letters, and a test delivery.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use lapsed_core::receipt::ReceiptId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::caller::Caller;
use super::extract::{Json, JsonAnswer, Path, Query};
use super::problem::Problem;
use super::{App, Shared};
use crate::node::audit::{self, AuditAction};
use crate::webhooks::{DeadLetter, Hook, HookStatus, LETTERS_MAX, LetterDecision};

/// Dead letters per system if the request has no `limit`.
const LIMIT_DEFAULT: usize = 100;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(webhooks))
        .routes(routes!(dead))
        .routes(routes!(put_back))
        .routes(routes!(delete))
        .routes(routes!(test))
}

/// All configured webhooks and their progress.
#[derive(Serialize, ToSchema)]
pub struct WebhookList {
    /// One element per webhook, in the order of the configuration.
    pub webhooks: Vec<HookStatus>,
}

/// The dead letters of one webhook: deliveries that were given up.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct WebhookLetters {
    /// The dead letters, grouped by system, newest first within each system.
    pub dead: Vec<DeadLetter>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LettersQuery {
    /// `NAME` or `KIND/NAME` of one system. Default: all systems.
    system: Option<String>,
    /// Return only dead letters whose number is below this one. Requires `system`.
    before: Option<u64>,
    /// Return at most this many dead letters per system. Default 100.
    limit: Option<usize>,
}

/// Names one dead letter.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LetterBody {
    /// The id of the dead letter, as it is listed.
    pub id: String,
}

/// What was done with a dead letter: `queued` (it will be delivered again) or `deleted`.
#[derive(Serialize, ToSchema)]
struct Settled {
    id: String,
    outcome: &'static str,
}

/// The id of a test delivery, and its outcome.
#[derive(Serialize, ToSchema)]
struct Sent {
    delivery: String,
    outcome: &'static str,
}

impl App {
    fn hook(&self, name: &str) -> Result<&Arc<Hook>, Problem> {
        self.webhooks.find(name).ok_or_else(|| {
            let all: Vec<&str> =
                self.webhooks.all().iter().map(|hook| hook.name().as_str()).collect();
            let all = if all.is_empty() { "there are none".to_owned() } else { all.join(", ") };
            Problem::not_found(format!("there is no such webhook; configured: {all}"))
        })
    }
}

/// Lists all webhooks, and how far each one has delivered.
#[utoipa::path(get, path = "/v1/webhooks", tag = "webhooks",
    responses((status = 200, body = WebhookList)))]
async fn webhooks(State(app): State<Shared>) -> Result<JsonAnswer<WebhookList>, Problem> {
    let mut webhooks = Vec::new();
    for hook in app.webhooks.all() {
        webhooks.push(hook.status().await?);
    }
    Ok(JsonAnswer(WebhookList { webhooks }))
}

/// Lists the deliveries of a webhook that were given up, newest first.
#[utoipa::path(get, path = "/v1/webhooks/{name}/dead", tag = "webhooks",
    params(("name" = String, Path), LettersQuery),
    responses((status = 200, body = WebhookLetters)))]
async fn dead(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<LettersQuery>,
) -> Result<JsonAnswer<WebhookLetters>, Problem> {
    let hook = app.hook(&name)?;
    if query.before.is_some() && query.system.is_none() {
        return Err(Problem::malformed("`before` is a number of one system: give `system`, too"));
    }
    let limit = match query.limit.unwrap_or(LIMIT_DEFAULT) {
        0 => return Err(Problem::malformed("`limit` must be above 0")),
        limit => limit.min(LETTERS_MAX),
    };
    let chosen = app.chosen(query.system.as_deref())?;
    let mut dead = Vec::new();
    for live in hook.lives().iter().filter(|live| chosen.iter().any(|one| one.id() == live.id())) {
        dead.extend(hook.letters(live, query.before, limit).await?);
    }
    Ok(JsonAnswer(WebhookLetters { dead }))
}

/// Queues a delivery that was given up, so that it is tried again.
#[utoipa::path(post, path = "/v1/webhooks/{name}/dead/put_back", tag = "webhooks",
    request_body = LetterBody, params(("name" = String, Path)),
    responses((status = 200, body = Settled), (status = 404, description = "There is no such dead letter")))]
async fn put_back(
    State(app): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<LetterBody>,
) -> Result<JsonAnswer<Settled>, Problem> {
    let action = caller.audit_action("webhook put_back", format!("{name} {}", body.id));
    settle(&app, &name, body.id, LetterDecision::PutBack, action).await
}

/// Deletes a delivery that was given up.
#[utoipa::path(post, path = "/v1/webhooks/{name}/dead/delete", tag = "webhooks",
    request_body = LetterBody, params(("name" = String, Path)),
    responses((status = 200, body = Settled), (status = 404, description = "There is no such dead letter")))]
async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<LetterBody>,
) -> Result<JsonAnswer<Settled>, Problem> {
    let action = caller.audit_action("webhook delete", format!("{name} {}", body.id));
    settle(&app, &name, body.id, LetterDecision::Deleted, action).await
}

/// Retries or deletes a dead letter. The action is recorded in the audit of the system whose
/// receipts it is about, before it is carried out.
async fn settle(
    app: &Shared,
    name: &str,
    id: String,
    decision: LetterDecision,
    action: AuditAction,
) -> Result<JsonAnswer<Settled>, Problem> {
    let hook = app.hook(name)?.clone();
    let missing = || Problem::not_found(format!("there is no dead letter {id:?}"));
    let of = id.parse::<ReceiptId>().map_err(|_| missing())?.system;
    let live = hook.lives().iter().find(|live| *live.id() == of).ok_or_else(missing)?.clone();
    let outcome = match decision {
        LetterDecision::PutBack => "queued",
        LetterDecision::Deleted => "deleted",
    };
    let letter = id.clone();
    let work = async move {
        let work = hook.settle(&letter, decision);
        live.audited(action, work, |found| audit::outcome(*found, outcome)).await
    };
    match app.finish(work).await?? {
        true => Ok(JsonAnswer(Settled { id, outcome })),
        false => Err(missing()),
    }
}

/// Sends one `test` event without content to the webhook's receiver; it is not retried.
#[utoipa::path(post, path = "/v1/webhooks/{name}/test", tag = "webhooks",
    params(("name" = String, Path)),
    responses((status = 200, body = Sent), (status = 502, description = "The receiver did not accept it")))]
async fn test(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<JsonAnswer<Sent>, Problem> {
    match app.hook(&name)?.test().await {
        Ok(delivery) => Ok(JsonAnswer(Sent { delivery, outcome: "delivered" })),
        Err(why) => Err(Problem::new(
            StatusCode::BAD_GATEWAY,
            "not_delivered",
            "The receiver did not take it",
            why,
        )),
    }
}
