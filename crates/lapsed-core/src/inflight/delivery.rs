//! Taking and ending jobs for a caller in this process that may not get the store's answer.
//!
//! The races that it closes. A worker that sends heartbeats keeps every job that the store says it
//! holds, so none of them may leave a job that nobody works on:
//! - *A `take` is carried out after its caller gave up*, because the store stood still, or the call was
//!   dropped half-way. Each take is one attempt of a request of its own. If it ends without an answer,
//!   a task in the background gives up the attempt: the store gives back what it took, and refuses the
//!   attempt if it comes to it only afterwards.
//! - *A claim is to end, and the store does not get the call or its answer is lost.* The call is repeated
//!   until it is answered or the owner is lost. That the claim has ended then may be the work of the
//!   call before, which is decided by whether the store still counts the incarnation as live: the claim
//!   of a live incarnation is ended by nobody else.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::inflight::{Finish, Finished, Inflight, JobTicket, Taken};
use crate::name::Name;
use crate::owner::{Claim, OwnerWatch};
use crate::request::RequestId;

/// Pause before a call that was not answered is repeated.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Longest pause between two tries to give up an attempt; the pauses grow up to it.
const GIVE_UP_AGAIN_MAX: Duration = Duration::from_secs(5);

/// How many attempts this process has made.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

impl Inflight {
    /// Like [`take`](Self::take), for a caller that learns of jobs by this call's answer alone: if the
    /// call fails or is dropped before it returns, what it took goes back to the front of its queue,
    /// without a crash, as soon as the store answers again.
    pub async fn take_or_give_back(
        self: &Arc<Self>,
        claim: &Claim,
        queue: &Name,
        limit: usize,
        wait: Duration,
    ) -> Result<Taken> {
        let attempt = UndeliveredTake::new(self)?;
        let taken = self.take_once(&attempt.request, claim, queue, limit, wait).await;
        if taken.as_ref().is_ok_and(|taken| !taken.jobs.is_empty()) {
            self.take_delivered(&attempt.request);
        }
        if !matches!(taken, Err(Error::Unavailable { .. } | Error::Corrupt { .. })) {
            attempt.answered();
        }
        taken
    }
}

/// An attempt of a take whose answer is not there yet. If it is dropped before, it is given up.
struct UndeliveredTake {
    inflight: Weak<Inflight>,
    request: RequestId,
    is_over: bool,
}

impl UndeliveredTake {
    fn new(inflight: &Arc<Inflight>) -> Result<Self> {
        // Unique in this process by the count, and among processes by chance.
        let count = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        let clock = &inflight.parts.clock;
        let attempt = format!("{:016x}{:016x}-{count}", clock.random(), clock.random());
        let request = RequestId::unrepeatable(&attempt)?;
        Ok(UndeliveredTake { inflight: Arc::downgrade(inflight), request, is_over: false })
    }

    fn answered(mut self) {
        self.is_over = true;
    }
}

impl Drop for UndeliveredTake {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(give_up(self.inflight.clone(), self.request.clone()));
            }
            Err(_) => tracing::error!(
                "a `take` without an answer was dropped outside a runtime: jobs that it took stay with \
                 their owner until the owner gives them back, retires or dies"
            ),
        }
    }
}

/// Gives up an attempt, and tries it until the store answers or the system is dropped, with which its
/// owners stop their heartbeats.
async fn give_up(inflight: Weak<Inflight>, request: RequestId) {
    let mut pause = TRY_AGAIN;
    while let Some(alive) = inflight.upgrade() {
        match alive.give_up_take(&request).await {
            Ok(0) => return,
            Ok(count) => {
                tracing::info!(count, "jobs of a `take` whose answer was lost were given back");
                return;
            }
            Err(Error::Unavailable { .. } | Error::Throttled { .. }) => {}
            Err(error) => {
                tracing::error!(%error, "a `take` without an answer could not be given up");
                return;
            }
        }
        let sleep = alive.parts.clock.sleep(pause);
        drop(alive);
        sleep.await;
        pause = (pause * 2).min(GIVE_UP_AGAIN_MAX);
    }
}

/// The right to end one claim, with what is known of the calls that tried to.
pub struct HeldClaim {
    inflight: Arc<Inflight>,
    owner: OwnerWatch,
    ticket: JobTicket,
    /// The calls that were not answered.
    unanswered: Mutex<Vec<Finish>>,
}

impl HeldClaim {
    /// The claim of `ticket`, held by the owner that is watched.
    pub fn new(inflight: Arc<Inflight>, owner: OwnerWatch, ticket: JobTicket) -> Self {
        HeldClaim { inflight, owner, ticket, unanswered: Mutex::default() }
    }

    /// Ends the claim. While the store does not answer, the call is repeated. A call that is dropped
    /// or fails may be made again: `Done` then also says that an earlier one was carried out.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the owner was lost before the store answered. The claim has ended, or
    /// the job is recovered by a pass.
    pub async fn finish(&self, how: &Finish) -> Result<Finished> {
        let (clock, mut lost) = (&self.inflight.parts.clock, pin!(self.owner.lost()));
        loop {
            let unanswered = match self.finish_once(how).await {
                Err(error @ (Error::Unavailable { .. } | Error::Throttled { .. })) => error,
                answer => return answer,
            };
            if let Either::Right(_) = select(clock.sleep(TRY_AGAIN), lost.as_mut()).await {
                return Err(unanswered);
            }
        }
    }

    async fn finish_once(&self, how: &Finish) -> Result<Finished> {
        let is_repeated = self.note(how);
        let tickets = std::slice::from_ref(&self.ticket);
        let finished = self.inflight.finish(tickets, how).await?.first().copied();
        let finished = match finished {
            Some(Finished::Gone | Finished::Superseded) if is_repeated => {
                self.settle(finished).await?
            }
            finished => finished.unwrap_or(Finished::Gone),
        };
        self.unanswered().clear();
        Ok(finished)
    }

    /// Notes the call as unanswered; whether all unanswered calls before were the same, and there was
    /// one.
    fn note(&self, how: &Finish) -> bool {
        let mut unanswered = self.unanswered();
        let is_repeated = !unanswered.is_empty() && unanswered.iter().all(|one| one == how);
        if !unanswered.contains(how) {
            unanswered.push(how.clone());
        }
        is_repeated
    }

    /// What a repetition that found no claim means. A job that is gone was completed by the call
    /// before or, if the owner was declared dead in between, by another worker: this one must not
    /// undo its work in either case.
    async fn settle(&self, finished: Option<Finished>) -> Result<Finished> {
        if finished == Some(Finished::Gone) {
            return Ok(Finished::Done);
        }
        let owner = self.inflight.owner_info(self.owner.claim()).await?;
        let is_live = owner.is_some_and(|owner| owner.ended.is_none());
        Ok(if is_live { Finished::Done } else { Finished::Superseded })
    }

    fn unanswered(&self) -> MutexGuard<'_, Vec<Finish>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
