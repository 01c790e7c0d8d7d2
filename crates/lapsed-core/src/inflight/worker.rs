//! A worker: takes jobs, beats by itself, and stops the work that it no longer holds.
//!
//! The race it closes: a worker that was frozen comes back and goes on, while its jobs run elsewhere.
//! Its store would refuse to complete them, but what it does outside would be done twice. So work is
//! run beside the owner's handle, and is dropped at the moment at which the handle knows, or must
//! assume, that the owner was lost.

use std::collections::HashSet;
use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select, try_join_all};
use tokio::sync::Mutex;

use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{
    Claimed, Finish, Finished, Inflight, JOBS_MAX, Job, JobPlace, RetiredWorker,
};
use crate::name::Name;
use crate::owner::{Incarnation, Lost, Owner};
use crate::schedule::StopSignal;

/// How long one look at an empty queue waits.
const WAIT: Duration = Duration::from_secs(5);

/// How soon a call that had no answer is made again.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// What one worker has before it.
#[derive(Default)]
struct Bench {
    under_way: HashSet<Name>,
    /// Held by this life, and nobody knew.
    strays: Vec<Claimed>,
    /// A `take` had no answer, or was dropped in its middle.
    in_doubt: bool,
}

/// What the work on a job came to, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobResult {
    /// It is done. What `()` stands for, too.
    Complete,
    /// It was not done, and nobody died: back on its queue.
    GiveBack(QueueEnd),
}

impl From<()> for JobResult {
    fn from((): ()) -> JobResult {
        JobResult::Complete
    }
}

/// What became of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// JobResult, and the store knows.
    Completed,
    /// Back on its queue.
    GivenBack,
    /// It failed: a dead letter.
    Failed,
    /// It was done or failed, but too late: the store had given it to somebody else.
    TooLate(Finished),
    /// The owner was lost before it was done: the work was dropped in its middle.
    Cancelled,
}

/// Takes and works on jobs in the name of one owner, alive until dropped or retired.
pub struct Worker {
    inflight: Arc<Inflight>,
    owner: Owner,
}

impl Worker {
    /// Begins a new life of `name`, and beats for it from now on.
    pub async fn start(inflight: Arc<Inflight>, name: &str) -> Result<Worker> {
        let owner = inflight.owner(name).await?;
        Ok(Worker { inflight, owner })
    }

    /// The handle that beats.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Which life this is.
    pub fn incarnation(&self) -> Incarnation {
        self.owner.incarnation()
    }

    /// Up to `limit` jobs; waits up to `wait` for the first.
    pub async fn take(&self, queue: &Name, limit: usize, wait: Duration) -> Result<Vec<Claimed>> {
        Ok(self.inflight.take(self.owner.claim(), queue, limit, wait).await?.jobs)
    }

    /// Runs `work` for `job` and tells the store how it ended. When the owner is lost meanwhile the
    /// work is dropped where it is, and nothing is told.
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

    /// Tells the store how it ended, again and again until it has answered.
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
                // It was carried out the first time, and the answer was lost.
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

    /// Takes and works on jobs, up to `at_once` at a time, until told to stop (those under way are
    /// finished first) or until the owner is lost, which is an error: begin again with a new worker.
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
        let bench = Mutex::new(Bench::default());
        let (bench, work) = (&bench, &work);
        let one = |_| self.keep_working(queue, stop, bench, work);
        try_join_all((0..at_once.max(1)).map(one)).await.map(|_| ())
    }

    /// One job after the other.
    async fn keep_working<D: Into<JobResult>, E: Display, F>(
        &self,
        queue: &Name,
        stop: &StopSignal,
        bench: &Mutex<Bench>,
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
            // Not within the match: the lock would then be held while the job is worked on.
            let next = self.next(queue, &mut *bench.lock().await).await;
            match next {
                Ok(Some(job)) => {
                    let worked = self.work(&job, work(job.clone())).await;
                    bench.lock().await.under_way.remove(&job.id);
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

    /// The next job. A `take` that was not answered may have taken one: then what the store says
    /// that this life holds is compared with what is under way, before anything else is taken.
    async fn next(&self, queue: &Name, bench: &mut Bench) -> Result<Option<Claimed>> {
        if bench.in_doubt {
            bench.strays = self.strays(&bench.under_way).await?;
            bench.in_doubt = false;
        }
        let next = match bench.strays.pop() {
            Some(stray) => Some(stray),
            None => {
                bench.in_doubt = true;
                let taken = self.inflight.take_now(self.owner.claim(), queue, 1).await?;
                bench.in_doubt = false;
                taken.jobs.into_iter().next()
            }
        };
        bench.under_way.extend(next.iter().map(|job| job.id.clone()));
        Ok(next)
    }

    /// Jobs that this life holds and that nobody works on.
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

    /// The job as its holder knows it, if that is this life.
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
                tracing::warn!(%owner, job = %job.id, "finished too late: {}", finished.describe());
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

    /// Gives one job back unfinished.
    pub async fn give_back(&self, job: &Claimed, end: QueueEnd) -> Result<Finished> {
        self.inflight.give_back(&job.ticket(self.incarnation()), end).await
    }

    /// The graceful end: whatever it still holds is back on its queue.
    pub async fn retire(self) -> Result<RetiredWorker> {
        self.inflight.retire(self.owner.claim()).await
    }
}
