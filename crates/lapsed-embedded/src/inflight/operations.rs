//! Enqueuing, taking, registering jobs and ending claims. Each operation is one job of the writer.
//!
//! The race that `finish` closes: a worker completes a job while its incarnation is being ended. A
//! heartbeat may come at any time, but an incarnation *ends* only inside a job (a sweep's batch, a
//! retirement, housekeeping), and jobs are serial. So an incarnation that `finish` finds alive
//! stays alive until it is done, and `finish` refuses one that has ended. If that end is not
//! durable yet, it is written together with the refusal, so that no caller learns of an end that a
//! restart would undo.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_core::inflight::rules::{DeadLetterReason, QueueEnd};
use lapsed_core::inflight::{
    Claimed, Enqueued, Finish, Finished, InflightStore, Job, JobCounts, JobTicket, JobToken,
    NewJob, Taken, TrackAnswer, Tracked,
};
use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::request::RequestId;
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};
use tokio::sync::Notify;

use crate::fault::{Fault, Tried};
use crate::inflight::job_index::JobLocation;
use crate::inflight::rows::{Body, Death, Head, name, split};
use crate::inflight::{Core, EmbeddedInflight};
use crate::owners::service::{begin, begun};
use crate::owners::slot::Slot;
use crate::owners::{ResolvedClaim, UnlessEnded};
use crate::tx::Tx;

/// Result of a job for an incarnation, and whether the job started it.
pub(super) struct Done<T> {
    pub slot: Arc<Slot>,
    pub started: bool,
    pub jobs: Vec<T>,
}

/// Results of ended claims, and the incarnations whose end becomes durable with them.
pub(super) type Ended = (Vec<Finished>, Vec<Arc<Slot>>);

impl Core {
    fn enqueue(&self, tx: &mut Tx, jobs: &[NewJob]) -> Tried<Vec<Enqueued>> {
        let now_ms = self.store_clock.now_ms();
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            if self.location(tx, &job.id).is_some() {
                answers.push(Enqueued::Exists);
                continue;
            }
            let head = Head::of(job, now_ms).bytes();
            let body = Body { head: &head, payload: job.payload.as_bytes() };
            self.put_on(tx, &job.queue, QueueEnd::Back, &job.id, body)?;
            self.account(tx).entered += 1;
            answers.push(Enqueued::Queued);
        }
        Ok(answers)
    }

    /// The incarnation that acts by that claim, and whether this call starts it.
    pub(super) fn actor(
        &self,
        tx: &mut Tx,
        claim: &Claim,
    ) -> Tried<UnlessEnded<(Arc<Slot>, bool)>> {
        Ok(match self.acting(claim)? {
            Some(UnlessEnded::Ended(slot)) => UnlessEnded::Ended(slot),
            Some(UnlessEnded::Done(slot)) => UnlessEnded::Done((slot, false)),
            None => {
                UnlessEnded::Done((self.start(tx, &claim.owner, self.ttl_unless_told())?, true))
            }
        })
    }

    fn take(
        &self,
        tx: &mut Tx,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Tried<UnlessEnded<Done<Claimed>>> {
        let (slot, started) = match self.actor(tx, claim)? {
            UnlessEnded::Done(actor) => actor,
            UnlessEnded::Ended(slot) => return Ok(UnlessEnded::Ended(slot)),
        };
        let jobs = self.take_for(tx, &slot, queue, limit)?;
        Ok(UnlessEnded::Done(Done { slot, started, jobs }))
    }

    /// Moves the first `limit` jobs of a queue to an incarnation.
    pub(super) fn take_for(
        &self,
        tx: &mut Tx,
        slot: &Arc<Slot>,
        queue: &Name,
        limit: usize,
    ) -> Tried<Vec<Claimed>> {
        let now_ms = self.store_clock.now_ms();
        let rows = self.pop(tx, queue, limit)?;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, body) = split(row)?;
            let (id, head) = (name(id)?, body.head()?);
            let token = self.hold(tx, slot, &id, body, now_ms)?;
            let (crashes, payload) = (self.crashes(&head, now_ms), body.payload()?);
            jobs.push(Claimed { id, token, queue: head.queue, payload, crashes });
        }
        Ok(jobs)
    }

    fn register(
        &self,
        tx: &mut Tx,
        claim: &Claim,
        jobs: &[NewJob],
    ) -> Tried<UnlessEnded<Done<Tracked>>> {
        let (slot, started) = match self.actor(tx, claim)? {
            UnlessEnded::Done(actor) => actor,
            UnlessEnded::Ended(slot) => return Ok(UnlessEnded::Ended(slot)),
        };
        let now_ms = self.store_clock.now_ms();
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            answers.push(self.register_one(tx, &slot, job, now_ms)?);
        }
        Ok(UnlessEnded::Done(Done { slot, started, jobs: answers }))
    }

    fn register_one(
        &self,
        tx: &mut Tx,
        slot: &Arc<Slot>,
        job: &NewJob,
        now_ms: u64,
    ) -> Tried<Tracked> {
        match self.location(tx, &job.id) {
            Some(JobLocation::InFlight { incarnation, token })
                if incarnation == slot.incarnation =>
            {
                return Ok(Tracked::Kept { token: JobToken(token) });
            }
            Some(_) => return Ok(Tracked::Taken),
            None => {}
        }
        let head = Head::of(job, now_ms).bytes();
        let body = Body { head: &head, payload: job.payload.as_bytes() };
        let token = self.hold(tx, slot, &job.id, body, now_ms)?;
        self.account(tx).entered += 1;
        Ok(Tracked::Tracked { token })
    }

    pub(super) fn finish(&self, tx: &mut Tx, tickets: &[JobTicket], how: &Finish) -> Tried<Ended> {
        let mut ended: Vec<Arc<Slot>> = Vec::new();
        let mut answers = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            let slot = match self.current(tx, ticket)? {
                Ok(slot) => slot,
                Err(answer) => {
                    answers.push(answer);
                    continue;
                }
            };
            if self.guard.may_register(&slot.state()) {
                self.finish_one(tx, &slot, &ticket.id, how)?;
                answers.push(Finished::Done);
                continue;
            }
            self.write_end(tx, &slot)?;
            ended.push(slot);
            answers.push(Finished::OwnerEnded);
        }
        Ok((answers, ended))
    }

    /// The incarnation that holds a claim, if it is the current claim of its job.
    fn current(
        &self,
        tx: &Tx,
        ticket: &JobTicket,
    ) -> Tried<std::result::Result<Arc<Slot>, Finished>> {
        let incarnation = match self.location(tx, &ticket.id) {
            None => return Ok(Err(Finished::Gone)),
            Some(JobLocation::InFlight { incarnation, token }) if token == ticket.token.0 => {
                incarnation
            }
            Some(_) => return Ok(Err(Finished::Superseded)),
        };
        let slot = self.index.incarnation(incarnation);
        let slot = slot.ok_or_else(|| Fault::row(format!("nobody holds job `{}`", ticket.id)))?;
        Ok(Ok(slot))
    }

    fn finish_one(&self, tx: &mut Tx, slot: &Arc<Slot>, id: &Name, how: &Finish) -> Tried<()> {
        let row = self.let_go(tx, slot, id)?;
        let (_, body) = split(&row)?;
        match how {
            Finish::Complete => {
                self.account(tx).completed += 1;
                Ok(())
            }
            Finish::Fail { error } => {
                let (why, at_ms) = (DeadLetterReason::Failed, self.store_clock.now_ms());
                self.make_dead_letter(
                    tx,
                    id,
                    body,
                    &Death { why, at_ms, error: Some(error.clone()) },
                )
            }
            Finish::GiveBack(end) => {
                let head = body.head()?;
                self.put_on(tx, self.return_queue(&head), *end, id, body)
            }
        }
    }
}

impl EmbeddedInflight {
    /// An empty answer without a job, if the queue is empty, so that waiting costs no disk access.
    /// Everything that a caller was answered is already in memory.
    fn nothing_to_take(&self, claim: &Claim, queue: &Name) -> Option<Taken> {
        if !self.core.jobs.is_empty(queue) {
            return None;
        }
        let ResolvedClaim::Known(slot) = self.core.resolve(claim) else { return None };
        let is_alive = !slot.is_pending() && self.core.guard.may_register(&slot.state());
        let incarnation = Incarnation(slot.incarnation);
        is_alive.then(|| Taken { incarnation, started: None, jobs: Vec::new() })
    }

    async fn taken(&self, done: UnlessEnded<Done<Claimed>>) -> Result<Taken> {
        let done = self.owner_service.acted(done).await?;
        let started = done.started.then(|| begun(&done.slot));
        Ok(Taken { incarnation: Incarnation(done.slot.incarnation), started, jobs: done.jobs })
    }

    /// Must be called when the job is durable: makes an incarnation effective that it started.
    fn beginning<T>(&self) -> impl FnOnce(&UnlessEnded<Done<T>>) + Send + 'static {
        let store_clock = self.core.store_clock.clone();
        move |acted| match acted {
            UnlessEnded::Done(done) if done.started => begin(&store_clock, &done.slot),
            _ => {}
        }
    }
}

#[async_trait]
impl InflightStore for EmbeddedInflight {
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        let jobs = jobs.to_vec();
        self.write(move |core, tx| core.enqueue(tx, &jobs), |_| {}).await
    }

    async fn enqueue_once(&self, request: &RequestId, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        let (request, jobs) = (request.clone(), jobs.to_vec());
        let job = move |core: &Core, tx: &mut Tx| {
            core.requests().once(tx, &request, |tx| core.enqueue(tx, &jobs))
        };
        self.write(job, |_| {}).await
    }

    async fn take(&self, claim: &Claim, queue: &Name, limit: usize) -> Result<Taken> {
        if let Some(nothing) = self.nothing_to_take(claim, queue) {
            return Ok(nothing);
        }
        let (claim, queue) = (claim.clone(), queue.clone());
        let job = move |core: &Core, tx: &mut Tx| core.take(tx, &claim, &queue, limit);
        let done = self.write(job, self.beginning()).await?;
        self.taken(done).await
    }

    async fn take_once(
        &self,
        request: &RequestId,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Result<Taken> {
        // If the request may be a repetition, its jobs are not on the queue.
        if !request.is_repeatable()
            && let Some(nothing) = self.nothing_to_take(claim, queue)
        {
            return Ok(nothing);
        }
        let (request, claim, queue) = (request.clone(), claim.clone(), queue.clone());
        let job =
            move |core: &Core, tx: &mut Tx| core.take_once(tx, &request, &claim, &queue, limit);
        let done = self.write(job, self.beginning()).await?;
        self.taken(done).await
    }

    fn forget_take(&self, request: &RequestId) {
        self.core.note_delivered(request);
    }

    async fn give_up_take(&self, request: &RequestId) -> Result<usize> {
        let request = request.clone();
        let durable = |(_, ended): &Ended| ended.iter().for_each(|slot| slot.end_is_durable());
        let job = move |core: &Core, tx: &mut Tx| core.give_up_take(tx, &request);
        let (finished, _) = self.write(job, durable).await?;
        Ok(finished.iter().filter(|one| **one == Finished::Done).count())
    }

    fn waiter(&self, queue: &Name) -> Option<Arc<Notify>> {
        Some(self.core.jobs.waiter(queue))
    }

    async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer> {
        let (claim, jobs) = (claim.clone(), jobs.to_vec());
        let job = move |core: &Core, tx: &mut Tx| core.register(tx, &claim, &jobs);
        let done = self.write(job, self.beginning()).await?;
        let done = self.owner_service.acted(done).await?;
        let started = done.started.then(|| begun(&done.slot));
        Ok(TrackAnswer {
            incarnation: Incarnation(done.slot.incarnation),
            started,
            jobs: done.jobs,
        })
    }

    async fn finish(&self, tickets: &[JobTicket], how: &Finish) -> Result<Vec<Finished>> {
        let (tickets, how) = (tickets.to_vec(), how.clone());
        let durable = |(_, ended): &Ended| ended.iter().for_each(|slot| slot.end_is_durable());
        let job = move |core: &Core, tx: &mut Tx| core.finish(tx, &tickets, &how);
        Ok(self.write(job, durable).await?.0)
    }

    async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.read_job(id).await
    }

    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.owner_service.entries(claim, after, limit).await
    }

    async fn counts(&self) -> Result<JobCounts> {
        Ok(self.core.jobs.counts())
    }

    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        Ok(self.core.jobs.queues(after, limit))
    }

    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.read_dead(after, limit)
    }

    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        let id = id.clone();
        self.write(move |core, tx| core.put_back(tx, &id, end), |_| {}).await
    }

    async fn delete(&self, id: &Name) -> Result<bool> {
        let id = id.clone();
        self.write(move |core, tx| core.delete(tx, &id), |_| {}).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.write(move |core, tx| core.restore(tx, seq), |_| {}).await
    }
}
