//! The operations of `inflight`, the same on every store.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::select;
use serde::{Deserialize, Serialize};
use tokio::sync::futures::OwnedNotified;

use crate::activity::Activity;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{
    Claimed, Enqueued, Finish, Finished, InflightStore, JOBS_MAX, Job, JobCounts, JobTicket,
    NewJob, Taken, TrackAnswer, check, check_count,
};
use crate::name::{Name, SystemId};
use crate::owner::{Beat, Claim, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore, Release};
use crate::receipt::{NoObserver, Observer};
use crate::reconcile::Reconcile;
use crate::setters;
use crate::store::Store;
use crate::sweep::Sweep;
use crate::sweep::brake::{Brake, BrakePolicy};
use crate::sweep::policy::Policy;
use crate::system::release::let_go;
use crate::system::store_caller::StoreCaller;
use crate::system::{Explanation, OwnerService, Restored, System};

/// How often a waiting `take` polls if the store cannot notify it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often it polls if the store can notify it, because a notification may be lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// Largest error text of a worker that is kept, in bytes.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// What a system of jobs needs.
pub struct InflightParts {
    /// Kind and name of the system.
    pub(super) id: SystemId,
    /// Where its jobs are.
    pub(super) inflight: Arc<dyn InflightStore>,
    /// The index of the system, if the store has one besides its data.
    pub(super) index: Option<Arc<dyn Reconcile>>,
    /// The store of the receipts.
    pub(super) store: Arc<dyn Store>,
    /// How long a beat lasts unless the owner says otherwise.
    pub(super) ttl: Duration,
    /// How often a worker of this library beats; a third of the TTL unless the request says otherwise.
    pub(super) beat_every: Option<Duration>,
    /// The brake, which decides whether overdue owners are spared.
    pub(super) brake: Arc<Brake>,
    pub(super) clock: Arc<dyn Clock>,
    /// Records when the system is used.
    pub(super) activity: Arc<Activity>,
    pub(super) witness: Arc<dyn Observer>,
    /// Time limit of every store call.
    pub(super) timeout: Duration,
    /// The most jobs put back in one step when an owner retires.
    pub(super) batch: usize,
    /// Unique among all processes: signs the batches of those who retire.
    pub(super) sweeper: String,
}

impl InflightParts {
    /// Everything that jobs in flight must be given; the rest has the defaults of the configuration file.
    pub fn new(inflight: Arc<dyn InflightStore>, store: Arc<dyn Store>, ttl: Duration) -> Self {
        let (threshold, policy, clock) =
            (inflight.threshold(), Policy::default(), SystemClock::shared());
        InflightParts {
            id: inflight.system().clone(),
            inflight,
            index: None,
            store,
            ttl,
            beat_every: None,
            brake: Arc::new(Brake::new(BrakePolicy::default(), threshold)),
            clock: clock.clone(),
            activity: Arc::default(),
            witness: Arc::new(NoObserver),
            timeout: policy.timeout,
            batch: policy.batch,
            sweeper: format!("process-{:016x}", clock.random()),
        }
    }

    setters! {
        /// The index, where the store keeps one besides its truth.
        index: Option<Arc<dyn Reconcile>>;
        /// How often a worker of this library sends heartbeats; by default every third of the TTL.
        beat_every: Option<Duration>;
        /// The brake, to be shared with the sweeper of the same system.
        brake: Arc<Brake>;
        /// The clock of this process; by default the system's.
        clock: Arc<dyn Clock>;
        /// Counts the operations, to be shared with the sweeper of the same system.
        activity: Arc<Activity>;
        /// The most time that one store call may take; by default 5 s.
        timeout: Duration;
        /// The most entries that one step releases when an owner retires; by default 500.
        batch: usize;
        /// Signs the batches of owners that retire; must be unique among all processes.
        sweeper: String;
    }

    /// Is shown what happens, for metrics and logs.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.witness = observer;
        self
    }
}

/// Result of a graceful end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredWorker {
    pub incarnation: Incarnation,
    /// Number of jobs that are back on their queues. The sweep puts back what is left.
    pub put_back: u64,
}

/// A system of jobs in flight.
pub struct Inflight {
    pub(super) parts: InflightParts,
    pub(super) calls: StoreCaller,
    owners: OwnerService,
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
        let store: Arc<dyn OwnerStore> = parts.inflight.clone();
        let owners = OwnerService::new(store, calls.clone(), parts.ttl, JOBS_MAX);
        Inflight { parts, calls, owners }
    }

    /// The store of this system, for callers that send heartbeats through a
    /// [`BeatHandle`](crate::owner::BeatHandle).
    pub fn store(&self) -> &Arc<dyn InflightStore> {
        &self.parts.inflight
    }

    /// How long a heartbeat lasts unless the owner says otherwise.
    pub fn ttl(&self) -> Duration {
        self.parts.ttl
    }

    /// Puts jobs on their queues. Repeating it is safe: jobs that exist already stay as they are.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check(jobs)?;
        self.calls.call("enqueue", self.parts.inflight.enqueue(jobs)).await
    }

    /// Pops up to `limit` jobs and registers them in the same step. Waits up to `wait` for the
    /// first one.
    ///
    /// A call that fails with [`Error::Unavailable`], or that is dropped before it returns, may
    /// have taken jobs. [`in_flight`](Self::in_flight) lists what an owner holds, and
    /// [`job`](Self::job) returns each job's token. A [`Worker`](crate::inflight::Worker) does that
    /// automatically.
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

    /// Takes what is on the queue now, without waiting.
    pub(super) async fn take_now(
        &self,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Result<Taken> {
        let limit = limit.clamp(1, JOBS_MAX);
        self.calls.call("take", self.parts.inflight.take(claim, queue, limit)).await
    }

    /// Must be called before the queue is read, so that a notification in between is not missed.
    pub(super) fn listen(&self, queue: &Name) -> QueueListener {
        let heard = self.parts.inflight.waiter(queue).map(|waiter| {
            let mut heard = Box::pin(waiter.notified_owned());
            heard.as_mut().enable();
            heard
        });
        QueueListener { heard }
    }

    /// Tracks jobs that the application popped itself. A crash between its popping and this call
    /// loses the job; [`take`](Self::take) closes that gap.
    pub async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer> {
        check(jobs)?;
        self.calls.call("register", self.parts.inflight.register(claim, jobs)).await
    }

    /// Ends the claim because the work is done.
    pub async fn complete(&self, ticket: &JobTicket) -> Result<Finished> {
        self.finish_one(ticket, &Finish::Complete).await
    }

    /// Ends the claim because the work cannot be done: the job becomes a dead letter. The
    /// application's own retries come before this.
    pub async fn fail(&self, ticket: &JobTicket, error: &str) -> Result<Finished> {
        self.finish_one(ticket, &Finish::Fail { error: error.to_owned() }).await
    }

    /// Ends the claim although the work was not done: the job goes back to its queue without a
    /// crash.
    pub async fn give_back(&self, ticket: &JobTicket, end: QueueEnd) -> Result<Finished> {
        self.finish_one(ticket, &Finish::GiveBack(end)).await
    }

    async fn finish_one(&self, ticket: &JobTicket, how: &Finish) -> Result<Finished> {
        let finished = self.finish(std::slice::from_ref(ticket), how).await?;
        finished.first().copied().ok_or_else(|| Error::Corrupt {
            store: self.parts.id.to_string(),
            what: "the store returned no result for the ended claim".to_owned(),
        })
    }

    /// Ends several claims in the same way; one result per claim, in order. Claims that were no
    /// longer held are reported to the observer.
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

    /// One job, on a queue, in flight, or a dead letter.
    pub async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.calls.call("job", self.parts.inflight.job(id)).await
    }

    /// The jobs that one incarnation holds, ordered by id.
    pub async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let limit = limit.min(JOBS_MAX);
        self.calls.call("in_flight", self.parts.inflight.in_flight(claim, after, limit)).await
    }

    /// Totals of the system. Not recorded as activity, because metrics call it.
    pub async fn counts(&self) -> Result<JobCounts> {
        self.calls.quiet("counts", self.parts.inflight.counts()).await
    }

    /// Queues that are not empty, each with its length.
    pub async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        self.calls.quiet("queues", self.parts.inflight.queues(after, limit.min(JOBS_MAX))).await
    }

    /// Dead letters, ordered by id.
    pub async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.calls.quiet("dead", self.parts.inflight.dead(after, limit.min(JOBS_MAX))).await
    }

    /// Puts a dead letter back on its queue and clears its crashes; whether there was one.
    pub async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        self.calls.call("put_back", self.parts.inflight.put_back(id, end)).await
    }

    /// Deletes a dead letter; whether there was one.
    pub async fn delete(&self, id: &Name) -> Result<bool> {
        self.calls.call("delete", self.parts.inflight.delete(id)).await
    }

    /// Starts an owner whose handle sends heartbeats in the background.
    pub async fn owner(&self, name: &str) -> Result<Owner> {
        let store: Arc<dyn OwnerStore> = self.parts.inflight.clone();
        let every = self.parts.beat_every;
        let options = OwnerOptions { every, ..OwnerOptions::with_ttl(self.parts.ttl) };
        let owner = Owner::start(store, self.parts.clock.clone(), name, options).await?;
        Ok(owner.releasing(self.release()))
    }

    /// Starts a new incarnation of `owner`.
    pub async fn start(&self, owner: &Name, ttl: Option<Duration>) -> Result<Beat> {
        self.owners.start(owner, ttl).await
    }

    /// Sends a heartbeat. O(1), however many jobs are held.
    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.owners.beat(claim).await
    }

    /// Incarnations after `after`, oldest first.
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.owners.owners(after, limit).await
    }

    pub async fn owner_info(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.owners.owner_info(claim).await
    }

    /// Ends an owner gracefully. One O(1) step ends the incarnation; its jobs then go back in
    /// batches, by the same guarded step as those of dead owners, but without a crash. If the
    /// process crashes in between, the sweep puts back the rest.
    pub async fn retire(&self, claim: &Claim) -> Result<RetiredWorker> {
        let ended = self.calls.call("retire", self.parts.inflight.end(claim)).await?;
        let done = self.release()(ended).await?;
        Ok(RetiredWorker { incarnation: done.incarnation, put_back: done.reclaimed })
    }

    /// Releases in batches what an ended incarnation holds.
    fn release(&self) -> Release {
        let (calls, inflight) = (self.calls.clone(), self.parts.inflight.clone());
        let (batch, sweeper) = (self.parts.batch, self.parts.sweeper.clone());
        Arc::new(move |ended| {
            let (calls, inflight, sweeper) = (calls.clone(), inflight.clone(), sweeper.clone());
            Box::pin(async move {
                let held_by = |owner: Claim| {
                    let inflight = inflight.clone();
                    async move { inflight.held_by(&owner, batch).await }
                };
                let_go(&calls, &*inflight, &ended, &sweeper, held_by).await
            })
        })
    }
}

/// Waits for jobs on one queue.
pub(super) struct QueueListener {
    heard: Option<Pin<Box<OwnedNotified>>>,
}

impl QueueListener {
    /// Waits until a job may have arrived or it is time to poll, but at most `most`.
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
    /// The proof with which `incarnation` ends this claim.
    pub fn ticket(&self, incarnation: Incarnation) -> JobTicket {
        JobTicket { id: self.id.clone(), token: self.token, incarnation: Some(incarnation) }
    }
}

/// Cuts an error text to what is kept, without splitting a character.
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

    fn owner_service(&self) -> Option<&OwnerService> {
        Some(&self.owners)
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
