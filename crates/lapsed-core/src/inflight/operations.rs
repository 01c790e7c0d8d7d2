//! The operations of `inflight`, the same on every store.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use tokio::sync::futures::OwnedNotified;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{
    Claimed, Enqueued, Finish, Finished, InflightStore, JOBS_MAX, Job, JobCounts, JobTicket,
    NewJob, Taken, TrackAnswer, check, check_count,
};
use crate::name::Name;
use crate::owner::{Claim, Incarnation};
use crate::request::RequestId;
use crate::store_caller::StoreCaller;
use crate::system::{OwnerService, SystemParts, system_with_owners};

/// How often a waiting `take` polls if the store cannot notify it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often it polls if the store can notify it, because a notification may be lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// Largest error text of a worker that is kept, in bytes.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// What a system of jobs needs.
pub type InflightParts = SystemParts<dyn InflightStore>;

/// A system of jobs in flight.
pub struct Inflight {
    pub(super) parts: InflightParts,
    pub(super) calls: StoreCaller,
    owners: OwnerService,
}

impl Inflight {
    pub fn new(parts: InflightParts) -> Self {
        let (calls, entries) = (parts.calls(), &parts.entries);
        let owners = OwnerService::new(&parts, entries.clone(), entries.clone(), JOBS_MAX);
        Inflight { parts, calls, owners }
    }

    /// The store of this system, for callers that send heartbeats through a
    /// [`BeatHandle`](crate::owner::BeatHandle).
    pub fn store(&self) -> &Arc<dyn InflightStore> {
        &self.parts.entries
    }

    /// Puts jobs on their queues. Repeating it is safe: jobs that exist already stay as they are.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        check(jobs)?;
        self.calls.call("enqueue", self.parts.entries.enqueue(jobs)).await
    }

    /// Like [`enqueue`](Self::enqueue) for a request that may be repeated: a repetition changes
    /// nothing, also if a job was completed since.
    pub async fn enqueue_once(
        &self,
        request: &RequestId,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>> {
        check(jobs)?;
        self.calls.call("enqueue", self.parts.entries.enqueue_once(request, jobs)).await
    }

    /// Pops up to `limit` jobs and registers them in the same step. Waits up to `wait` for the
    /// first one.
    ///
    /// A call that fails with [`Error::Unavailable`], or that is dropped before it returns, may
    /// have taken jobs, which their owner then holds without knowing of them.
    /// [`take_or_give_back`](Self::take_or_give_back) has no such effect.
    pub async fn take(
        &self,
        claim: &Claim,
        queue: &Name,
        limit: usize,
        wait: Duration,
    ) -> Result<Taken> {
        let clock = &self.parts.clock;
        let until = clock.mono() + wait;
        let limit = limit.clamp(1, JOBS_MAX);
        loop {
            let listener = self.listen(queue);
            let take = self.parts.entries.take(claim, queue, limit);
            let taken = self.calls.call("take", take).await?;
            let left = until.saturating_sub(clock.mono());
            if !taken.jobs.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            listener.wait(&**clock, left).await;
        }
    }

    /// Like [`take`](Self::take) for a request that may be repeated. If this attempt fails with
    /// [`Error::Unavailable`], or its answer is not delivered, call [`give_up_take`](Self::give_up_take).
    pub async fn take_once(
        &self,
        request: &RequestId,
        claim: &Claim,
        queue: &Name,
        limit: usize,
        wait: Duration,
    ) -> Result<Taken> {
        let clock = &self.parts.clock;
        let until = clock.mono() + wait;
        let limit = limit.clamp(1, JOBS_MAX);
        loop {
            let listener = self.listen(queue);
            let take = self.parts.entries.take_once(request, claim, queue, limit);
            let taken = self.calls.call("take", take).await?;
            let left = until.saturating_sub(clock.mono());
            if !taken.jobs.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            listener.wait(&**clock, left).await;
        }
    }

    /// Gives back what this attempt of a take took, unless another attempt of the same request was
    /// answered. Returns how many jobs were given back; repeating the call is safe.
    pub async fn give_up_take(&self, request: &RequestId) -> Result<usize> {
        self.calls.call("give_up_take", self.parts.entries.give_up_take(request)).await
    }

    /// The answer to this attempt reached its caller, and it will not be given up. Takes without a key
    /// are then forgotten: otherwise they would displace the keys that callers repeat requests with.
    pub fn take_delivered(&self, request: &RequestId) {
        if !request.is_repeatable() {
            self.parts.entries.forget_take(request);
        }
    }

    /// Must be called before the queue is read, so that a notification in between is not missed.
    pub(super) fn listen(&self, queue: &Name) -> QueueListener {
        let heard = self.parts.entries.waiter(queue).map(|waiter| {
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
        self.calls.call("register", self.parts.entries.register(claim, jobs)).await
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
        let finished = self.calls.call(word, self.parts.entries.finish(tickets, &how)).await?;
        let lost = finished.iter().filter(|one| one.is_lost());
        lost.for_each(|_| self.parts.observer.zombie_rejected(&self.parts.id));
        Ok(finished)
    }

    /// One job, on a queue, in flight, or a dead letter.
    pub async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.calls.call("job", self.parts.entries.job(id)).await
    }

    /// The jobs that one incarnation holds, ordered by id.
    pub async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let limit = limit.min(JOBS_MAX);
        self.calls.call("in_flight", self.parts.entries.in_flight(claim, after, limit)).await
    }

    /// Totals of the system. Not recorded as activity, because metrics call it.
    pub async fn counts(&self) -> Result<JobCounts> {
        self.calls.quiet("counts", self.parts.entries.counts()).await
    }

    /// Queues that are not empty, each with its length.
    pub async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        self.calls.quiet("queues", self.parts.entries.queues(after, limit.min(JOBS_MAX))).await
    }

    /// Dead letters, ordered by id.
    pub async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.calls.quiet("dead", self.parts.entries.dead(after, limit.min(JOBS_MAX))).await
    }

    /// Puts a dead letter back on its queue and clears its crashes; whether there was one.
    pub async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        self.calls.call("put_back", self.parts.entries.put_back(id, end)).await
    }

    /// Deletes a dead letter; whether there was one.
    pub async fn delete(&self, id: &Name) -> Result<bool> {
        self.calls.call("delete", self.parts.entries.delete(id)).await
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

system_with_owners!(Inflight);
