//! A worker: takes jobs, sends heartbeats in the background, and stops work that it no longer
//! holds.
//!
//! The race that it closes: a worker that was frozen resumes while its jobs already run elsewhere.
//! The store would refuse to complete them, but their side effects would happen twice. So the work
//! runs beside the owner's handle and is dropped as soon as the handle knows, or must assume, that
//! the owner was lost.

use std::collections::HashSet;
use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select, try_join_all};
use tokio::sync::Mutex;

use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{Claimed, Finish, Finished, Inflight, JOBS_MAX, Job, JobPlace};
use crate::name::Name;
use crate::owner::{Incarnation, Lost, Owner, ReleasedHoldings};
use crate::schedule::StopSignal;

/// How long one call waits for a job on an empty queue.
const WAIT: Duration = Duration::from_secs(5);

/// Pause before a call that was not answered is repeated.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Jobs that one worker has at hand.
#[derive(Default)]
struct JobBacklog {
    under_way: HashSet<Name>,
    /// Jobs that this incarnation holds because of a `take` whose answer was lost.
    strays: Vec<Claimed>,
    /// Whether a `take` was not answered or was dropped, so that it may have taken jobs.
    in_doubt: bool,
}

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

    /// Takes up to `limit` jobs; waits up to `wait` for the first one.
    pub async fn take(&self, queue: &Name, limit: usize, wait: Duration) -> Result<Vec<Claimed>> {
        Ok(self.inflight.take(self.owner.claim(), queue, limit, wait).await?.jobs)
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

    /// Reports the result to the store, and repeats the call until it is answered.
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
        let tickets = [job.ticket(self.incarnation())];
        let mut is_repeated = false;
        loop {
            match self.inflight.finish(&tickets, &how).await.as_deref() {
                Ok([Finished::Done]) => return Ok(worked),
                // The first call was carried out, but its answer was lost.
                Ok([Finished::Gone]) if is_repeated => return Ok(worked),
                Ok([late, ..]) => return Ok(JobOutcome::TooLate(*late)),
                Ok([]) => return Ok(JobOutcome::TooLate(Finished::Gone)),
                Err(Error::Unavailable { .. } | Error::Throttled { .. }) => {
                    is_repeated = true;
                    self.inflight.parts.clock.sleep(TRY_AGAIN).await;
                }
                Err(error) => return Err(error.clone()),
            }
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
        let backlog = Mutex::new(JobBacklog::default());
        let (backlog, work) = (&backlog, &work);
        let one = |_| self.keep_working(queue, stop, backlog, work);
        try_join_all((0..at_once.max(1)).map(one)).await.map(|_| ())
    }

    /// Takes and works on one job after the other.
    async fn keep_working<D: Into<JobResult>, E: Display, F>(
        &self,
        queue: &Name,
        stop: &StopSignal,
        backlog: &Mutex<JobBacklog>,
        work: &impl Fn(Claimed) -> F,
    ) -> Result<()>
    where
        F: Future<Output = std::result::Result<D, E>>,
    {
        let clock = &self.inflight.parts.clock;
        while !stop.is_told() {
            if !self.owner.is_live() {
                return Err(self.gone());
            }
            let ear = self.inflight.listen(queue);
            // Not inside the match, because the lock would then be held while the job is worked on.
            let next = self.next(queue, &mut *backlog.lock().await).await;
            match next {
                Ok(Some(job)) => {
                    let worked = self.work(&job, work(job.clone())).await;
                    backlog.lock().await.under_way.remove(&job.id);
                    self.note(&job, worked?)?;
                }
                Ok(None) => {
                    select(pin!(ear.wait(&**clock, WAIT)), pin!(stop.told())).await;
                }
                Err(Error::Unavailable { .. } | Error::Throttled { .. }) => {
                    clock.sleep(TRY_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next job. After a `take` whose answer was lost, first compares what the store says this
    /// incarnation holds with the running jobs, before it takes anything else.
    async fn next(&self, queue: &Name, backlog: &mut JobBacklog) -> Result<Option<Claimed>> {
        if backlog.in_doubt {
            backlog.strays = self.strays(&backlog.under_way).await?;
            backlog.in_doubt = false;
        }
        let next = match backlog.strays.pop() {
            Some(stray) => Some(stray),
            None => {
                backlog.in_doubt = true;
                let taken = self.inflight.take_now(self.owner.claim(), queue, 1).await?;
                backlog.in_doubt = false;
                taken.jobs.into_iter().next()
            }
        };
        backlog.under_way.extend(next.iter().map(|job| job.id.clone()));
        Ok(next)
    }

    /// Jobs that this incarnation holds but does not work on.
    async fn strays(&self, under_way: &HashSet<Name>) -> Result<Vec<Claimed>> {
        let (mut strays, mut after) = (Vec::new(), None);
        loop {
            let held = self.inflight.in_flight(self.owner.claim(), after.as_ref(), JOBS_MAX);
            let held = held.await?;
            let Some(last) = held.last() else { return Ok(strays) };
            after = Some(last.clone());
            for id in held.iter().filter(|id| !under_way.contains(*id)) {
                strays.extend(self.inflight.job(id).await?.and_then(|job| self.mine(job)));
            }
        }
    }

    /// The job as a claim, if this incarnation holds it.
    fn mine(&self, job: Job) -> Option<Claimed> {
        match job.place {
            JobPlace::InFlight { incarnation, token, .. } if incarnation == self.incarnation() => {
                let Job { id, queue, payload, crashes, .. } = job;
                Some(Claimed { id, token, queue, payload, crashes })
            }
            _ => None,
        }
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
        self.inflight.give_back(&job.ticket(self.incarnation()), end).await
    }

    /// Ends the worker gracefully: the jobs that it still holds go back to their queues.
    pub async fn retire(self) -> Result<ReleasedHoldings> {
        self.inflight.retire(self.owner.claim()).await
    }
}
