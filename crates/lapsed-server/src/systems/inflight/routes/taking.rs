//! `take`, for a client that may disconnect before it gets the answer.
//!
//! A job that was taken belongs to its owner, which would hold it for as long as it sends
//! heartbeats, without knowing of it if the answer was lost. The work therefore runs to its end
//! even if the client disconnects, and jobs that could not be handed over are given back. Waiting
//! is divided into short pieces, and after each one the connection is checked; a store call is
//! never cancelled half-way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Finish, Inflight, JOBS_MAX, JobTicket, Taken};
use lapsed_core::owner::Claim;
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Kind, Name};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::{TakeAnswer, TakeBody};
use crate::http::extract::{Json, JsonAnswer, Path};
use crate::http::owners::{HttpResult, claim};
use crate::http::problem::Problem;
use crate::http::{Shared, schemas};

/// The longest time that a `take` may wait for the first job.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// How long one store call waits before the client's connection is checked again.
const PIECE: Duration = Duration::from_secs(1);

/// How often giving jobs back is attempted when the store does not answer, and the pause between
/// two attempts.
const TRIES: u32 = 10;
const AGAIN: Duration = Duration::from_millis(500);

/// The route of `take`.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(take))
}

/// Pops up to `limit` jobs and registers them in the same step.
/// Waits up to `wait_ms` for the first job. An owner that was never seen before is started by the
/// call. If the client disconnects before it gets the answer, the jobs are given back.
#[utoipa::path(post, path = "/v1/inflight/{name}/take", tag = "inflight",
    request_body = TakeBody,
    responses((status = 200, description = "The jobs that were taken, possibly none", body = TakeAnswer),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn take(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<TakeBody>,
) -> HttpResult<JsonAnswer<TakeAnswer>> {
    let live = app.live(Kind::Inflight.as_str(), &name)?;
    let inflight = live.share_operations::<Inflight>().ok_or_else(|| app.no_such_system())?;
    // The sender is dropped together with this request, when the client disconnects.
    let (_here, client) = oneshot::channel();
    let taking = Taking {
        inflight,
        claim: claim(&body.owner, body.incarnation)?,
        queue: Name::new(&body.queue)?,
        limit: limit(body.limit)?,
        wait: wait(body.wait_ms)?,
        stop: app.stop.clone(),
        busy: app.busy.clone(),
    };
    let jobs = app.finish(taking.run(client)).await??;
    Ok(JsonAnswer(TakeAnswer::of(body.owner, jobs.hand_over())))
}

fn limit(given: Option<usize>) -> HttpResult<usize> {
    match given.unwrap_or(1) {
        limit @ 1..=JOBS_MAX => Ok(limit),
        _ => Err(Problem::invalid(format!("`limit` must be 1 to {JOBS_MAX}"))),
    }
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

/// One `take` request, which runs independently of the client's connection.
struct Taking {
    inflight: Arc<Inflight>,
    claim: Claim,
    queue: Name,
    limit: usize,
    wait: Duration,
    stop: StopSignal,
    busy: mpsc::Sender<()>,
}

impl Taking {
    async fn run(self, mut client: oneshot::Receiver<()>) -> lapsed_core::Result<UndeliveredJobs> {
        let until = Instant::now() + self.wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let piece = left.min(PIECE);
            let taken = self.inflight.take(&self.claim, &self.queue, self.limit, piece).await?;
            let is_gone = client.try_recv() != Err(oneshot::error::TryRecvError::Empty);
            if !taken.jobs.is_empty() || left.is_zero() || is_gone || self.stop.is_told() {
                let Taking { inflight, busy, .. } = self;
                return Ok(UndeliveredJobs { inflight, busy, taken: Some(taken) });
            }
        }
    }
}

/// Jobs that were taken but not handed over yet. If they are dropped before that, they are given
/// back.
struct UndeliveredJobs {
    inflight: Arc<Inflight>,
    busy: mpsc::Sender<()>,
    taken: Option<Taken>,
}

impl UndeliveredJobs {
    fn hand_over(mut self) -> Taken {
        self.taken.take().expect("it is handed over once")
    }
}

impl Drop for UndeliveredJobs {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take().filter(|taken| !taken.jobs.is_empty()) else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        let (inflight, busy) = (self.inflight.clone(), self.busy.clone());
        runtime.spawn(async move {
            give_back(&inflight, &taken).await;
            drop(busy);
        });
    }
}

async fn give_back(inflight: &Inflight, taken: &Taken) {
    let tickets: Vec<JobTicket> =
        taken.jobs.iter().map(|job| job.ticket(taken.incarnation)).collect();
    let count = tickets.len();
    // The last job is given back first, so that the jobs are in their original order on the queue.
    let tickets: Vec<JobTicket> = tickets.into_iter().rev().collect();
    for _ in 0..TRIES {
        match inflight.finish(&tickets, &Finish::GiveBack(QueueEnd::Front)).await {
            Ok(_) => {
                tracing::info!(
                    count,
                    "jobs given back: the client had disconnected before they were handed over"
                );
                return;
            }
            Err(error) => tracing::warn!(count, %error, "jobs not given back yet; trying again"),
        }
        tokio::time::sleep(AGAIN).await;
    }
    tracing::error!(
        count,
        "jobs not given back: they stay with their owner until it retires or dies"
    );
}
