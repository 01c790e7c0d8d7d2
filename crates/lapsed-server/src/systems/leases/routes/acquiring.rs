//! `acquire`, for a client that may disconnect before it gets the answer.
//!
//! The work runs to its end even if the client disconnects: a store call is never cancelled
//! half-way, and a lease that could not be handed over is released. (A lease whose request has a
//! name is kept, because the client can repeat the request and get the same answer.) Waiting
//! requests are answered when the daemon is stopped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use futures::future::select;
use lapsed_core::Kind;
use lapsed_core::leases::{AcquireRequest, Acquired, Grant, Leases};
use lapsed_core::request::RequestId;
use lapsed_core::schedule::StopSignal;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::{AcquireBody, AcquireManyBody, Many};
use super::{leases, many, one};
use crate::http::Shared;
use crate::http::extract::{JsonAnswer, Path};
use crate::http::idempotency::Repeatable;
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{keeps_requests, owner_in_body, slow};
use crate::schemas;
use crate::systems::leases::metrics::{Waiting, wait_for_lease};

/// The longest time that a request may wait for a lease.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The routes that acquire leases.
pub fn routes() -> OpenApiRouter<Shared> {
    // It waits as long as the request says.
    OpenApiRouter::new()
        .routes(keeps_requests(owner_in_body("owner", slow(routes!(acquire)))))
        .routes(keeps_requests(owner_in_body("leases/*/owner", routes!(acquire_many))))
}

/// Grants a lease on a key with the key's next token.
/// While another owner holds the key, the request waits in a queue for up to `wait_ms`. The problem
/// `held` names the holder, its token and how long its lease still lasts. A repetition with the same
/// `Idempotency-Key` (or the same `request`) gets the same lease, as long as it is held.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire", tag = "leases",
    params(("name" = String, Path)),
    request_body = AcquireBody,
    responses((status = 200, body = schemas::Grant),
        (status = 409, description = "Another owner holds the lease", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn acquire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<AcquireBody>,
) -> HttpResult<JsonAnswer<Grant>> {
    let live = app.live(Kind::Leases.as_str(), &name)?;
    let leases = live.share_operations::<Leases>().ok_or_else(|| app.no_such_system())?;
    let acquire = body.read(leases.ttl(), &request)?;
    let wait = wait(body.wait_ms)?;
    // The sender is dropped together with this request, when the client disconnects.
    let (_here, client) = oneshot::channel();
    let (stop, busy) = (app.stop.clone(), app.busy.clone());
    let waiting = (!wait.is_zero()).then(|| wait_for_lease(&app.metrics, live.id())).flatten();
    let pending = PendingAcquire { leases, acquire, wait, waiting, stop, busy };
    let lease = app.finish(pending.run(client)).await??;
    granted(lease.hand_over())
}

fn wait(given: Option<u64>) -> HttpResult<Duration> {
    match Duration::from_millis(given.unwrap_or(0)) {
        wait if wait <= WAIT_MAX => Ok(wait),
        _ => {
            let most = WAIT_MAX.as_millis();
            Err(Problem::invalid(format!("`wait_ms` must be at most {most}; then ask again")))
        }
    }
}

fn granted(acquired: Acquired) -> HttpResult<JsonAnswer<Grant>> {
    match acquired {
        Acquired::Granted(grant) => Ok(JsonAnswer(grant)),
        Acquired::Held(grant) => Err(held(&grant)),
    }
}

/// The problem `held`: the holder, its token and how long its lease still lasts.
fn held(grant: &Grant) -> Problem {
    let left = grant.left();
    let detail = format!(
        "`{}` holds it by token {}, for another {:.1} s unless it renews; wait with `wait_ms`, or try \
         again later",
        grant.owner,
        grant.token,
        left.as_secs_f64()
    );
    Problem::new(StatusCode::CONFLICT, "held", "Another owner holds the lease", detail)
        .with("namespace", json!(grant.namespace))
        .with("key", json!(grant.key))
        .with("holder", json!(grant.owner))
        .with("token", json!(grant.token))
        .with("ttl_ms", json!(grant.ttl_ms))
        .with("deadline_ms", json!(grant.deadline_ms))
        .with("now_ms", json!(grant.now_ms))
        .with("left_ms", json!(left.as_millis() as u64))
}

/// Acquires many leases independently and without waiting; each has its own result, in order.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire_many", tag = "leases",
    params(("name" = String, Path)),
    request_body = AcquireManyBody,
    responses((status = 200, body = Many)))]
async fn acquire_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<AcquireManyBody>,
) -> HttpResult<JsonAnswer<Many>> {
    let leases = leases(&app, &name)?;
    many(body.leases, "leases", async |body| {
        let answer = acquire_now(leases, &body, &request).await;
        one(body.named(), answer.map(|JsonAnswer(grant)| json!(grant)))
    })
    .await
}

async fn acquire_now(
    leases: &Leases,
    body: &AcquireBody,
    request: &RequestId,
) -> HttpResult<JsonAnswer<Grant>> {
    if body.wait_ms.is_some_and(|wait| wait > 0) {
        return Err(Problem::invalid("one of many cannot wait: leave out `wait_ms`"));
    }
    let acquire = body.read(leases.ttl(), request)?;
    granted(leases.acquire(&acquire, Duration::ZERO).await?)
}

/// One `acquire` request, which runs independently of the client's connection.
struct PendingAcquire {
    leases: Arc<Leases>,
    acquire: AcquireRequest,
    wait: Duration,
    waiting: Option<Waiting>,
    stop: StopSignal,
    busy: mpsc::Sender<()>,
}

impl PendingAcquire {
    async fn run(self, client: oneshot::Receiver<()>) -> lapsed_core::Result<UndeliveredLease> {
        let PendingAcquire { leases, acquire, wait, waiting, stop, busy } = self;
        let given_up = async { drop(select(client, pin!(stop.stopped())).await) };
        let acquired = leases.acquire_unless(&acquire, wait, given_up).await?;
        drop(waiting);
        let is_ours = acquire.request.is_none();
        Ok(UndeliveredLease { leases, busy, acquired: Some(acquired), is_ours })
    }
}

/// A lease that was granted but not handed over yet. If it is dropped before that, the lease is
/// released.
struct UndeliveredLease {
    leases: Arc<Leases>,
    busy: mpsc::Sender<()>,
    acquired: Option<Acquired>,
    /// Whether the request has no name, so that the client cannot repeat it to get this lease.
    is_ours: bool,
}

impl UndeliveredLease {
    fn hand_over(mut self) -> Acquired {
        self.acquired.take().expect("it is handed over once")
    }
}

impl Drop for UndeliveredLease {
    fn drop(&mut self) {
        let Some(Acquired::Granted(grant)) = self.acquired.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_ours {
            return;
        }
        let (leases, busy) = (self.leases.clone(), self.busy.clone());
        runtime.spawn(async move {
            let key = format!("{}/{}", grant.namespace, grant.key);
            match leases.release(&grant.ticket()).await {
                Ok(_) => tracing::info!(key, "lease released: the client had disconnected before it was handed over"),
                Err(error) => {
                    tracing::warn!(key, %error, "lease of a disconnected client not released: it ends at its deadline");
                }
            }
            drop(busy);
        });
    }
}
