//! `take`, for a client that may not get the answer.
//!
//! A job that was taken belongs to its owner, which would hold it for as long as it sends
//! heartbeats, without knowing of it if the answer was lost. Two things may go wrong:
//! - The client disconnects. The work runs to its end nevertheless. Waiting is divided into short
//!   pieces, and after each one the connection is checked; a store call is never cancelled half-way.
//! - The store does not answer in time, and carries out the take later. The client gets 503.
//!
//! In both cases this attempt is given up in the background: the store gives back what it took, unless
//! another attempt with the same `Idempotency-Key` was answered, and refuses it if it comes to it only
//! afterwards. If the daemon is killed before, the jobs stay with their owner until the client repeats the
//! request with the same key, or the owner gives them back, retires or dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use lapsed_core::inflight::{Inflight, JOBS_MAX, Taken};
use lapsed_core::owner::Claim;
use lapsed_core::request::RequestId;
use lapsed_core::schedule::StopSignal;
use lapsed_core::{Error, Kind, Name};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shapes::{TakeAnswer, TakeBody};
use crate::http::Shared;
use crate::http::extract::{JsonAnswer, Path};
use crate::http::idempotency::Repeatable;
use crate::http::owners::claim;
use crate::http::problem::{HttpResult, Problem};
use crate::http::route_rules::{keeps_requests, owner_in_body, slow};
use crate::schemas;

/// The longest time that a `take` may wait for the first job.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// How long one store call waits before the client's connection is checked again.
const PIECE: Duration = Duration::from_secs(1);

/// How often giving up is tried while the store does not answer: for about five minutes. The pause
/// between two tries grows from the first to the second of these.
const TRIES: u32 = 60;
const AGAIN_MIN: Duration = Duration::from_millis(250);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// The route of `take`.
pub fn routes() -> OpenApiRouter<Shared> {
    // It waits for jobs as long as the request says.
    OpenApiRouter::new().routes(keeps_requests(owner_in_body("owner", slow(routes!(take)))))
}

/// Pops up to `limit` jobs and registers them in the same step.
/// Waits up to `wait_ms` for the first job. An owner that was never seen before is started by the
/// call. If the client disconnects before it gets the answer, or the store does not answer in time, the
/// jobs are given back. A client that repeats the request with the same `Idempotency-Key` gets the same
/// jobs, as far as their owner still holds them.
#[utoipa::path(post, path = "/v1/inflight/{name}/take", tag = "inflight",
    params(("name" = String, Path)),
    request_body = TakeBody,
    responses((status = 200, description = "The jobs that were taken, possibly none", body = TakeAnswer),
        (status = 409, description = "The incarnation has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn take(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Repeatable { body, request }: Repeatable<TakeBody>,
) -> HttpResult<JsonAnswer<TakeAnswer>> {
    let live = app.live(Kind::Inflight.as_str(), &name)?;
    let inflight = live.share_operations::<Inflight>().ok_or_else(|| app.no_such_system())?;
    // The sender is dropped together with this request, when the client disconnects.
    let (_here, client) = oneshot::channel();
    let undelivered =
        UndeliveredTake { inflight, request, busy: app.busy.clone(), taken: None, is_over: false };
    let taking = Taking {
        undelivered,
        claim: claim(&body.owner, body.incarnation)?,
        queue: Name::new(&body.queue)?,
        limit: limit(body.limit)?,
        wait: wait(body.wait_ms)?,
        stop: app.stop.clone(),
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
    undelivered: UndeliveredTake,
    claim: Claim,
    queue: Name,
    limit: usize,
    wait: Duration,
    stop: StopSignal,
}

impl Taking {
    async fn run(
        mut self,
        mut client: oneshot::Receiver<()>,
    ) -> lapsed_core::Result<UndeliveredTake> {
        let until = Instant::now() + self.wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let piece = left.min(PIECE);
            let UndeliveredTake { inflight, request, .. } = &self.undelivered;
            let take = inflight.take_once(request, &self.claim, &self.queue, self.limit, piece);
            let taken = match take.await {
                Ok(taken) => taken,
                Err(error) => return Err(self.undelivered.failed(error)),
            };
            let is_gone = client.try_recv() != Err(oneshot::error::TryRecvError::Empty);
            if !taken.jobs.is_empty() || left.is_zero() || is_gone || self.stop.is_stopped() {
                self.undelivered.taken = Some(taken);
                return Ok(self.undelivered);
            }
        }
    }
}

/// A take whose jobs are not handed over yet. If it is dropped before that, this attempt is given up.
struct UndeliveredTake {
    inflight: Arc<Inflight>,
    request: RequestId,
    busy: mpsc::Sender<()>,
    /// What was taken; `None` until the store has answered.
    taken: Option<Taken>,
    /// Whether nothing is to be given back.
    is_over: bool,
}

impl UndeliveredTake {
    fn hand_over(mut self) -> Taken {
        self.is_over = true;
        self.inflight.take_delivered(&self.request);
        self.taken.take().expect("it is handed over once")
    }

    /// The store has answered with `error`. Some errors say that nothing was taken.
    fn failed(mut self, error: Error) -> Error {
        self.is_over = matches!(
            error,
            Error::Lost(_)
                | Error::Invalid(_)
                | Error::KeyReused { .. }
                | Error::Unsupported { .. }
                | Error::Throttled { .. }
        );
        error
    }
}

impl Drop for UndeliveredTake {
    fn drop(&mut self) {
        let is_empty = self.taken.as_ref().is_some_and(|taken| taken.jobs.is_empty());
        if self.is_over || is_empty {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (inflight, busy) = (self.inflight.clone(), self.busy.clone());
        let request = self.request.clone();
        runtime.spawn(async move {
            give_up(&inflight, &request).await;
            drop(busy);
        });
    }
}

/// Gives back what an attempt took whose answer did not reach the client.
async fn give_up(inflight: &Inflight, request: &RequestId) {
    let mut pause = AGAIN_MIN;
    for _ in 0..TRIES {
        match inflight.give_up_take(request).await {
            Ok(0) => {
                tracing::info!(
                    "a `take` request was given up, because its answer did not reach the client; the store keeps no jobs that it took"
                );
                return;
            }
            Ok(count) => {
                tracing::info!(
                    count,
                    "a `take` request was given up, because its answer did not reach the client; its jobs are given back"
                );
                return;
            }
            Err(error) => tracing::debug!(%error, "an undelivered take is not given back yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
    }
    tracing::error!(
        "a `take` without an answer could not be given back: jobs that it took stay with their owner until \
         the owner gives them back, retires or dies"
    );
}
