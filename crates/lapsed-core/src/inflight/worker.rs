//! A worker: takes jobs, sends heartbeats in the background, and stops work that it no longer
//! holds.
//!
//! The race that it closes: a worker that was frozen resumes while its jobs already run elsewhere.
//! The store would refuse to complete them, but their side effects would happen twice. So the work
//! runs beside the owner's handle and is dropped as soon as the handle knows, or must assume, that
//! the owner was lost. What happens when an answer of the store is lost is the matter of `delivery`.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select, try_join_all};

use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{Claimed, Finish, Finished, HeldClaim, Inflight};
use crate::name::Name;
use crate::owner::{Incarnation, Lost, Owner, ReleasedHoldings};
use crate::stop::StopSignal;

/// How long one call waits for a job on an empty queue.
const WAIT: Duration = Duration::from_secs(5);

/// Pause before a `take` that failed is repeated.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Result of the work on a job, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobResult {
    /// The work is done. `()` converts to this.
    Complete,
    /// The work was not done. The job goes back to its queue and no crash is counted.
    GiveBack(QueueEnd),
}

impl From<()> for JobResult {
    fn from((): ()) -> JobResult {
        JobResult::Complete
    }
}

/// What happened to one job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobOutcome {
    /// The work is done, and the store has recorded it.
    Completed,
    /// The job is back on its queue.
    GivenBack,
    /// The work failed, and the job is a dead letter.
    Failed,
    /// The work ended too late: the store had recovered the job before.
    TooLate(Finished),
    /// The owner was lost before the work ended, and the work was dropped.
    Cancelled,
}

/// Takes and works on jobs for one owner, which is alive until the worker is dropped or retired.
pub struct Worker {
    inflight: Arc<Inflight>,
    owner: Owner,
}

impl Worker {
    /// Starts a new incarnation of `name` and its heartbeats.
    pub async fn start(inflight: Arc<Inflight>, name: &str) -> Result<Worker> {
        let owner = inflight.owner(name).await?;
        Ok(Worker { inflight, owner })
    }

    /// The handle that sends the heartbeats.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Number of this worker's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.owner.incarnation()
    }

    /// Takes up to `limit` jobs; waits up to `wait` for the first one. What a call took that fails or
    /// is dropped is given back.
    pub async fn take(&self, queue: &Name, limit: usize, wait: Duration) -> Result<Vec<Claimed>> {
        let take = self.inflight.take_or_give_back(self.owner.claim(), queue, limit, wait);
        Ok(take.await?.jobs)
    }

    /// The right to end the claim of `job`.
    pub fn held(&self, job: &Claimed) -> HeldClaim {
        let ticket = job.ticket(self.incarnation());
        HeldClaim::new(self.inflight.clone(), self.owner.watch(), ticket)
    }

    /// Runs `work` for `job` and reports the result to the store. If the owner is lost meanwhile,
    /// the work is dropped and nothing is reported.
    pub async fn work<D: Into<JobResult>, E: Display>(
        &self,
        job: &Claimed,
        work: impl Future<Output = std::result::Result<D, E>>,
    ) -> Result<JobOutcome> {
        let outcome = match select(pin!(work), pin!(self.owner.lost())).await {
            Either::Left((outcome, _)) => outcome.map(D::into),
            Either::Right(_) => return Ok(JobOutcome::Cancelled),
        };
        match select(pin!(self.tell(job, outcome)), pin!(self.owner.lost())).await {
            Either::Left((worked, _)) => worked,
            Either::Right(_) => Ok(JobOutcome::Cancelled),
        }
    }

    /// Reports the result to the store, and repeats the call until it is answered or the owner is lost.
    async fn tell<E: Display>(
        &self,
        job: &Claimed,
        outcome: std::result::Result<JobResult, E>,
    ) -> Result<JobOutcome> {
        let (how, worked) = match outcome {
            Ok(JobResult::Complete) => (Finish::Complete, JobOutcome::Completed),
            Ok(JobResult::GiveBack(end)) => (Finish::GiveBack(end), JobOutcome::GivenBack),
            Err(error) => (Finish::Fail { error: error.to_string() }, JobOutcome::Failed),
        };
        match self.held(job).finish(&how).await {
            Ok(Finished::Done) => Ok(worked),
            Ok(late) => Ok(JobOutcome::TooLate(late)),
            // Only a lost owner stops trying.
            Err(Error::Unavailable { .. } | Error::Throttled { .. }) => Ok(JobOutcome::Cancelled),
            Err(error) => Err(error),
        }
    }

    /// Takes and works on jobs, up to `at_once` at a time, until `stop` says so; running jobs are
    /// finished first. Returns an error if the owner is lost: start a new worker then.
    pub async fn run<D: Into<JobResult>, E: Display, F>(
        &self,
        queue: &Name,
        at_once: usize,
        stop: &StopSignal,
        work: impl Fn(Claimed) -> F,
    ) -> Result<()>
    where
        F: Future<Output = std::result::Result<D, E>>,
    {
        let work = &work;
        let one = |_| self.keep_working(queue, stop, work);
        try_join_all((0..at_once.max(1)).map(one)).await.map(|_| ())
    }

    /// Takes and works on one job after the other.
    async fn keep_working<D: Into<JobResult>, E: Display, F>(
        &self,
        queue: &Name,
        stop: &StopSignal,
        work: &impl Fn(Claimed) -> F,
    ) -> Result<()>
    where
        F: Future<Output = std::result::Result<D, E>>,
    {
        let clock = &self.inflight.parts.clock;
        while !stop.is_stopped() {
            if !self.owner.is_live() {
                return Err(self.gone());
            }
            let listener = self.inflight.listen(queue);
            match self.take(queue, 1, Duration::ZERO).await.map(|jobs| jobs.into_iter().next()) {
                Ok(Some(job)) => {
                    let worked = self.work(&job, work(job.clone())).await?;
                    self.note(&job, worked)?;
                }
                Ok(None) => {
                    select(pin!(listener.wait(&**clock, WAIT)), pin!(stop.stopped())).await;
                }
                Err(Error::Unavailable { .. } | Error::Throttled { .. }) => {
                    clock.sleep(TRY_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn note(&self, job: &Claimed, worked: JobOutcome) -> Result<()> {
        match worked {
            JobOutcome::Cancelled => Err(self.gone()),
            JobOutcome::TooLate(finished) => {
                let owner = self.owner.name();
                tracing::warn!(%owner, job = %job.id, "a job was finished too late: {}", finished.describe());
                Ok(())
            }
            JobOutcome::Completed | JobOutcome::GivenBack | JobOutcome::Failed => Ok(()),
        }
    }

    fn gone(&self) -> Error {
        let claim = self.owner.claim();
        let lost = Lost {
            owner: claim.owner.clone(),
            incarnation: claim.incarnation,
            ending: None,
            ended_ms: None,
            held: Vec::new(),
            held_total: 0,
        };
        lost.into()
    }

    /// Gives a job back without having done it.
    pub async fn give_back(&self, job: &Claimed, end: QueueEnd) -> Result<Finished> {
        self.held(job).finish(&Finish::GiveBack(end)).await
    }

    /// Ends the worker gracefully: the jobs that it still holds go back to their queues.
    pub async fn retire(self) -> Result<ReleasedHoldings> {
        self.inflight.retire(self.owner.claim()).await
    }
}
