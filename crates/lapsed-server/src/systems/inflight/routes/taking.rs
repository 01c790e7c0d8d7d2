//! `take`: jobs for somebody who may be gone before they are handed over.
//!
//! A job that was taken belongs to its owner, who would hold it for ever without knowing of it as
//! long as it beats. So taking runs to its end whatever becomes of the client, and what cannot be
//! handed over is given back. Its waiting is cut into short pieces between which it looks whether
//! the client is still there; a store call is never cut off in its middle.

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

/// The longest that a `take` may wait.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// How long it waits before it looks whether the client is still there.
const PIECE: Duration = Duration::from_secs(1);

/// How often, and how soon, giving back is tried again when the store does not answer.
const TRIES: u32 = 10;
const AGAIN: Duration = Duration::from_millis(500);

/// The only one.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(take))
}

/// Pops up to `limit` jobs and registers them in the same step; waits up to `wait_ms` for the first.
/// An owner never seen before is started by it. When the client goes away before it is answered, its
/// jobs are given back.
#[utoipa::path(post, path = "/v1/inflight/{name}/take", tag = "inflight",
    request_body = TakeBody,
    responses((status = 200, description = "What there was, perhaps nothing", body = TakeAnswer),
        (status = 409, description = "That life has ended", body = schemas::Problem,
            content_type = "application/problem+json")))]
async fn take(
    State(app): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<TakeBody>,
) -> HttpResult<JsonAnswer<TakeAnswer>> {
    let live = app.live(Kind::Inflight.as_str(), &name)?;
    let inflight = live.share_operations::<Inflight>().ok_or_else(|| app.no_such_system())?;
    // Dropped with this request.
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
    let hand = app.finish(taking.run(client)).await??;
    Ok(JsonAnswer(TakeAnswer::of(body.owner, hand.over())))
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

/// One `take`, on its own feet.
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
    async fn run(self, mut client: oneshot::Receiver<()>) -> lapsed_core::Result<Hand> {
        let until = Instant::now() + self.wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let piece = left.min(PIECE);
            let taken = self.inflight.take(&self.claim, &self.queue, self.limit, piece).await?;
            let is_gone = client.try_recv() != Err(oneshot::error::TryRecvError::Empty);
            if !taken.jobs.is_empty() || left.is_zero() || is_gone || self.stop.is_told() {
                let Taking { inflight, busy, .. } = self;
                return Ok(Hand { inflight, busy, taken: Some(taken) });
            }
        }
    }
}

/// What was taken, until somebody has it. Dropped before that, it goes back.
struct Hand {
    inflight: Arc<Inflight>,
    busy: mpsc::Sender<()>,
    taken: Option<Taken>,
}

impl Hand {
    fn over(mut self) -> Taken {
        self.taken.take().expect("it is handed over once")
    }
}

impl Drop for Hand {
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
    // The last first, so that they are on their queue again in the order in which they were.
    let tickets: Vec<JobTicket> = tickets.into_iter().rev().collect();
    for _ in 0..TRIES {
        match inflight.finish(&tickets, &Finish::GiveBack(QueueEnd::Front)).await {
            Ok(_) => {
                tracing::info!(count, "given back: whoever asked for them had gone");
                return;
            }
            Err(error) => tracing::warn!(count, %error, "not given back yet"),
        }
        tokio::time::sleep(AGAIN).await;
    }
    tracing::error!(count, "not given back: they stay with their owner until it retires or dies");
}
