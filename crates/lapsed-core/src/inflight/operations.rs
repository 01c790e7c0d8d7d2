//! The operations of `inflight`, the same on every store.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::select;
use serde::{Deserialize, Serialize};
use tokio::sync::futures::OwnedNotified;

use crate::activity::Activity;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{
    Claimed, Enqueued, Finish, Finished, InflightStore, JOBS_MAX, Job, JobCounts, JobTicket,
    NewJob, Taken, TrackAnswer, check, check_count,
};
use crate::name::{Name, SystemId};
use crate::owner::{Beat, Claim, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore};
use crate::receipt::Observer;
use crate::reconcile::Reconcile;
use crate::store::Store;
use crate::sweep::Sweep;
use crate::sweep::brake::Brake;
use crate::system::release::let_go;
use crate::system::store_caller::StoreCaller;
use crate::system::{Explanation, Restored, System};

/// How soon a waiting `take` looks again where the store has no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How soon it looks again where the store has one: a bell may have been missed.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// The most bytes kept of what a worker says of a failure.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// What `inflight` is made of.
pub struct InflightParts {
    /// Which system this is.
    pub id: SystemId,
    /// Where its jobs are.
    pub inflight: Arc<dyn InflightStore>,
    /// Its index, where it has one besides its truth.
    pub index: Option<Arc<dyn Reconcile>>,
    /// Where its receipts are.
    pub store: Arc<dyn Store>,
    /// How long a beat lasts unless the owner says otherwise.
    pub ttl: Duration,
    /// How often a worker of this library beats; a third of the TTL unless told.
    pub beat_every: Option<Duration>,
    /// Whether the overdue are spared.
    pub brake: Arc<Brake>,
    pub clock: Arc<dyn Clock>,
    /// Notes who uses it.
    pub activity: Arc<Activity>,
    pub witness: Arc<dyn Observer>,
    /// How long any one store call may take.
    pub timeout: Duration,
    /// The most jobs put back in one step when an owner retires.
    pub batch: usize,
    /// Unique among all processes: signs the batches of those who retire.
    pub sweeper: String,
}

/// What a graceful end did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredWorker {
    pub incarnation: Incarnation,
    /// How many of its jobs are back on their queues. What is left the sweep puts back.
    pub put_back: u64,
}

/// One system of jobs in flight.
pub struct Inflight {
    pub(super) parts: InflightParts,
    pub(super) calls: StoreCaller,
}

impl Inflight {
    pub fn new(parts: InflightParts) -> Self {
        let calls = StoreCaller {
            id: parts.id.clone(),
            clock: parts.clock.clone(),
            activity: parts.activity.clone(),
            observer: parts.witness.clone(),
            timeout: parts.timeout,
        };
        Inflight { parts, calls }
    }

    /// The seam below: for whoever wants to beat without a search.
    pub fn store(&self) -> &Arc<dyn InflightStore> {
        &self.parts.inflight
    }

    /// How long a beat lasts unless the owner says otherwise.
    pub fn ttl(&self) -> Duration {
        self.parts.ttl
    }

    /// Puts jobs on their queues. Repeating is safe: what is there already is left as it is.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check(jobs)?;
        self.calls.call("enqueue", self.parts.inflight.enqueue(jobs)).await
    }

    /// Pops up to `limit` jobs and registers them in the same step. Waits up to `wait` for the first.
    ///
    /// A call that fails with [`Error::Unavailable`], or is dropped in its middle, may have taken jobs
    /// that nobody knows of: [`in_flight`](Self::in_flight) lists what an owner holds, and
    /// [`job`](Self::job) has each one's token. A [`Worker`](crate::inflight::Worker) does that by
    /// itself.
    pub async fn take(
        &self,
        claim: &Claim,
        queue: &Name,
        limit: usize,
        wait: Duration,
    ) -> Result<Taken> {
        let clock = &self.parts.clock;
        let until = clock.mono() + wait;
        loop {
            let ear = self.listen(queue);
            let taken = self.take_now(claim, queue, limit).await?;
            let left = until.saturating_sub(clock.mono());
            if !taken.jobs.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            ear.wait(&**clock, left).await;
        }
    }

    /// What is there now.
    pub(super) async fn take_now(
        &self,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Result<Taken> {
        let limit = limit.clamp(1, JOBS_MAX);
        self.calls.call("take", self.parts.inflight.take(claim, queue, limit)).await
    }

    /// To be called before looking: what arrives in between is heard.
    pub(super) fn listen(&self, queue: &Name) -> Ear {
        let heard = self.parts.inflight.waiter(queue).map(|waiter| {
            let mut heard = Box::pin(waiter.notified_owned());
            heard.as_mut().enable();
            heard
        });
        Ear { heard }
    }

    /// Tracks jobs that somebody else has popped. What happens between their popping and this is not
    /// covered: that is what [`take`](Self::take) is for.
    pub async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer> {
        check(jobs)?;
        self.calls.call("register", self.parts.inflight.register(claim, jobs)).await
    }

    /// The work is done.
    pub async fn complete(&self, ticket: &JobTicket) -> Result<Finished> {
        self.finish_one(ticket, &Finish::Complete).await
    }

    /// The work cannot be done: a dead letter. The application's own retries come before this.
    pub async fn fail(&self, ticket: &JobTicket, error: &str) -> Result<Finished> {
        self.finish_one(ticket, &Finish::Fail { error: error.to_owned() }).await
    }

    /// The work was not done: back on its queue, without a crash.
    pub async fn give_back(&self, ticket: &JobTicket, end: QueueEnd) -> Result<Finished> {
        self.finish_one(ticket, &Finish::GiveBack(end)).await
    }

    async fn finish_one(&self, ticket: &JobTicket, how: &Finish) -> Result<Finished> {
        let finished = self.finish(std::slice::from_ref(ticket), how).await?;
        finished.first().copied().ok_or_else(|| Error::Corrupt {
            store: self.parts.id.to_string(),
            what: "one claim was ended and no answer came for it".to_owned(),
        })
    }

    /// Ends several claims alike; one answer each, in order. Whoever no longer holds what it acted
    /// on is told so, and counted.
    pub async fn finish(&self, tickets: &[JobTicket], how: &Finish) -> Result<Vec<Finished>> {
        check_count(tickets.len())?;
        let (how, word) = match how {
            Finish::Complete => (Finish::Complete, "complete"),
            Finish::GiveBack(end) => (Finish::GiveBack(*end), "give_back"),
            Finish::Fail { error } => (Finish::Fail { error: cut(error) }, "fail"),
        };
        let finished = self.calls.call(word, self.parts.inflight.finish(tickets, &how)).await?;
        let lost = finished.iter().filter(|one| one.is_lost());
        lost.for_each(|_| self.parts.witness.zombie_rejected(&self.parts.id));
        Ok(finished)
    }

    /// One job, wherever it is.
    pub async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.calls.call("job", self.parts.inflight.job(id)).await
    }

    /// The jobs that one life holds, by id.
    pub async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let limit = limit.min(JOBS_MAX);
        self.calls.call("in_flight", self.parts.inflight.in_flight(claim, after, limit)).await
    }

    /// The account. Not activity: metrics ask for it.
    pub async fn counts(&self) -> Result<JobCounts> {
        self.calls.quiet("counts", self.parts.inflight.counts()).await
    }

    /// Queues that hold something, each with how many.
    pub async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        self.calls.quiet("queues", self.parts.inflight.queues(after, limit.min(JOBS_MAX))).await
    }

    /// Dead letters, by id.
    pub async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.calls.quiet("dead", self.parts.inflight.dead(after, limit.min(JOBS_MAX))).await
    }

    /// Puts a dead letter back on its queue, its crashes forgotten; whether there was one.
    pub async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        self.calls.call("put_back", self.parts.inflight.put_back(id, end)).await
    }

    /// Deletes a dead letter; whether there was one.
    pub async fn delete(&self, id: &Name) -> Result<bool> {
        self.calls.call("delete", self.parts.inflight.delete(id)).await
    }

    /// A living owner that beats by itself.
    pub async fn owner(&self, name: &str) -> Result<Owner> {
        let store: Arc<dyn OwnerStore> = self.parts.inflight.clone();
        let every = self.parts.beat_every;
        let options = OwnerOptions { every, ..OwnerOptions::with_ttl(self.parts.ttl) };
        Owner::start(store, self.parts.clock.clone(), name, options).await
    }

    /// Begins a new life of `owner`.
    pub async fn start(&self, owner: &Name, ttl: Option<Duration>) -> Result<Beat> {
        let ttl_ms = ttl.unwrap_or(self.parts.ttl).as_millis() as u64;
        if ttl_ms == 0 {
            return Err(Error::Invalid("ttl_ms must be above 0".to_owned()));
        }
        self.calls.call("start", self.parts.inflight.start(owner, ttl_ms)).await
    }

    /// Life. O(1), however many jobs are held.
    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.calls.call("beat", self.parts.inflight.beat(claim)).await
    }

    /// Owners, oldest incarnation first.
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.calls.call("owners", self.parts.inflight.owners(after, limit.min(JOBS_MAX))).await
    }

    pub async fn owner_info(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.calls.call("owner", self.parts.inflight.owner(claim)).await
    }

    /// The graceful end. First the life ends, in one O(1) step; then its jobs go back in batches by
    /// the same guarded step as those of the dead, without a crash. A crash in between leaves an
    /// ended owner, which the sweep finds.
    pub async fn retire(&self, claim: &Claim) -> Result<RetiredWorker> {
        let (inflight, batch) = (&self.parts.inflight, self.parts.batch);
        let ended = self.calls.call("retire", inflight.end(claim)).await?;
        let held_by = |owner: Claim| async move { inflight.held_by(&owner, batch).await };
        let sweeper = &self.parts.sweeper;
        let done = let_go(&self.calls, &**inflight, &ended, sweeper, held_by).await?;
        Ok(RetiredWorker { incarnation: done.incarnation, put_back: done.reclaimed })
    }
}

/// Listens for what arrives on one queue.
pub(super) struct Ear {
    heard: Option<Pin<Box<OwnedNotified>>>,
}

impl Ear {
    /// Until something may have arrived, or it is time to look again anyway; `most` at the most.
    pub async fn wait(self, clock: &dyn Clock, most: Duration) {
        match self.heard {
            None => clock.sleep(most.min(LOOK_AGAIN)).await,
            Some(heard) => {
                select(heard, clock.sleep(most.min(LOOK_ANYWAY))).await;
            }
        }
    }
}

impl Claimed {
    /// To be shown at its end by the life that took it.
    pub fn ticket(&self, incarnation: Incarnation) -> JobTicket {
        JobTicket { id: self.id.clone(), token: self.token, incarnation: Some(incarnation) }
    }
}

/// Not more than is kept, without cutting a character in two.
fn cut(error: &str) -> String {
    let end = error.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = end.take_while(|end| *end <= ERROR_BYTES_MAX).last().unwrap_or(0);
    error[..end].to_owned()
}

#[async_trait]
impl System for Inflight {
    fn id(&self) -> &SystemId {
        &self.parts.id
    }

    fn sweep(&self) -> Arc<dyn Sweep> {
        self.parts.inflight.clone()
    }

    async fn explain(&self, key: &str) -> Result<Explanation> {
        self.explain_key(&Name::new(key)?).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.calls.call("restore", self.parts.inflight.restore(seq)).await
    }

    fn index(&self) -> Option<Arc<dyn Reconcile>> {
        self.parts.index.clone()
    }
}
