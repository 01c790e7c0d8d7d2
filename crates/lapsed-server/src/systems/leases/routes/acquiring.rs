//! `acquire`: a lease for somebody who may be gone before it is handed over.
//!
//! It runs to its end whatever becomes of the client: a store call is never cut off in its middle, and
//! a lease that nobody was told of is released. (Not so where the client named its request: it may ask
//! again and be told.) Those who wait are answered when the daemon is told to stop.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use futures::future::select;
use lapsed_core::Kind;
use lapsed_core::leases::{AcquireRequest, Acquired, Grant, Leases};
use lapsed_core::schedule::StopSignal;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::{AcquireBody, AcquireManyBody, Many};
use super::{leases, many, one};
use crate::http::extract::{Json, JsonAnswer, Path};
use crate::http::owners::HttpResult;
use crate::http::problem::Problem;
use crate::http::{Shared, schemas};
use crate::systems::leases::metrics::{Waiting, wait_for_lease};

/// The longest that somebody may wait.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// All of them.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(acquire)).routes(routes!(acquire_many))
}

/// Grants the next token of a key, unless somebody holds it; then waits in line for up to `wait_ms`.
/// `held` names the holder, its token and how long its lease still lasts.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire", tag = "leases",
    request_body = AcquireBody,
    responses((status = 200, body = schemas::Grant),
        (status = 409, description = "Somebody else holds it", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn acquire(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<AcquireBody>,
) -> HttpResult<JsonAnswer<Grant>> {
    let live = app.live(Kind::Leases.as_str(), &name)?;
    let leases = live.share_operations::<Leases>().ok_or_else(|| app.no_such_system())?;
    let acquire = body.read(leases.ttl())?;
    let wait = wait(body.wait_ms)?;
    // Dropped with this request.
    let (_here, client) = oneshot::channel();
    let (stop, busy) = (app.stop.clone(), app.busy.clone());
    let waiting = (!wait.is_zero()).then(|| wait_for_lease(&app.metrics, live.id())).flatten();
    let asking = Asking { leases, acquire, wait, waiting, stop, busy };
    let hand = app.finish(asking.run(client)).await??;
    granted(hand.over())
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

/// `held`, with the holder, its token and how much is left.
fn held(grant: &Grant) -> Problem {
    let left = grant.left();
    let detail = format!(
        "`{}` holds it by token {}, for another {:.1} s unless it renews; wait with `wait_ms`, or try \
         again later",
        grant.owner,
        grant.token,
        left.as_secs_f64()
    );
    Problem::new(StatusCode::CONFLICT, "held", "Somebody else holds it", detail)
        .with("namespace", json!(grant.namespace))
        .with("key", json!(grant.key))
        .with("holder", json!(grant.owner))
        .with("token", json!(grant.token))
        .with("ttl_ms", json!(grant.ttl_ms))
        .with("deadline_ms", json!(grant.deadline_ms))
        .with("now_ms", json!(grant.now_ms))
        .with("left_ms", json!(left.as_millis() as u64))
}

/// Acquires many, each by itself and without waiting; each has its own answer, in order.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire_many", tag = "leases",
    request_body = AcquireManyBody,
    responses((status = 200, body = Many)))]
async fn acquire_many(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<AcquireManyBody>,
) -> HttpResult<JsonAnswer<Many>> {
    let leases = leases(&app, &name)?;
    many(body.leases, "leases", async |body| {
        let answer = acquire_now(leases, &body).await;
        one(body.named(), answer.map(|JsonAnswer(grant)| json!(grant)))
    })
    .await
}

async fn acquire_now(leases: &Leases, body: &AcquireBody) -> HttpResult<JsonAnswer<Grant>> {
    if body.wait_ms.is_some_and(|wait| wait > 0) {
        return Err(Problem::invalid("one of many cannot wait: leave out `wait_ms`"));
    }
    let acquire = body.read(leases.ttl())?;
    granted(leases.acquire(&acquire, Duration::ZERO).await?)
}

/// One `acquire`, on its own feet.
struct Asking {
    leases: Arc<Leases>,
    acquire: AcquireRequest,
    wait: Duration,
    waiting: Option<Waiting>,
    stop: StopSignal,
    busy: mpsc::Sender<()>,
}

impl Asking {
    async fn run(self, client: oneshot::Receiver<()>) -> lapsed_core::Result<Hand> {
        let Asking { leases, acquire, wait, waiting, stop, busy } = self;
        let given_up = async { drop(select(client, pin!(stop.told())).await) };
        let acquired = leases.acquire_unless(&acquire, wait, given_up).await?;
        drop(waiting);
        let is_ours = acquire.request.is_none();
        Ok(Hand { leases, busy, acquired: Some(acquired), is_ours })
    }
}

/// What was granted, until somebody has it. Dropped before that, it is released.
struct Hand {
    leases: Arc<Leases>,
    busy: mpsc::Sender<()>,
    acquired: Option<Acquired>,
    /// Whether nobody can ask for it again.
    is_ours: bool,
}

impl Hand {
    fn over(mut self) -> Acquired {
        self.acquired.take().expect("it is handed over once")
    }
}

impl Drop for Hand {
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
                Ok(_) => tracing::info!(key, "released: whoever asked for it had gone"),
                Err(error) => {
                    tracing::warn!(key, %error, "not released: it ends by itself");
                }
            }
            drop(busy);
        });
    }
}
