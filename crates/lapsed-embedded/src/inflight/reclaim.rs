//! Recovering jobs: guard, move, crash count and receipt in one job of the writer.
//!
//! What can happen between listing and this job: a heartbeat (judged by the compare-and-swap that
//! ends the incarnation), the end of the claim, or another sweeper. The latter are jobs, and jobs
//! are serial.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::clock::Clock;
use lapsed_core::inflight::rules::{JobCase, JobDecision, QueueEnd, counts, decide};
use lapsed_core::inflight::{JobToken, RecoveredJob, RecoveryAction};
use lapsed_core::owner::Claim;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Name, Result, SystemId};

use crate::fault::Tried;
use crate::inflight::job_index::JobLocation;
use crate::inflight::letters::Kept;
use crate::inflight::rows::{Body, Death, Head, split};
use crate::inflight::{Core, EmbeddedInflight};
use crate::owners::batch::{Carried, Removed, Run, durable};
use crate::owners::slot::Slot;
use crate::owners::suspects::{after, place};
use crate::removed_fields::RemovedFields;
use crate::tables::{held_key, number};
use crate::tx::Tx;

/// A suspect that the guard has judged dead.
struct Dead {
    slot: Arc<Slot>,
    token: u64,
    reason: Reason,
}

/// A job that goes to the front of its queue.
struct Returning {
    token: u64,
    id: Name,
    head: Head,
    payload: Vec<u8>,
}

impl Core {
    /// Evaluates the guard for one suspect. `place` is where its job is now.
    fn judge_job(
        &self,
        suspect: &Suspect,
        place: Option<JobLocation>,
        now_ms: u64,
        back_ms: u64,
    ) -> std::result::Result<Dead, Outcome> {
        let Some(JobLocation::InFlight { incarnation, token }) = place else {
            return Err(Outcome::Gone);
        };
        let Some(slot) = self.index.incarnation(incarnation) else { return Err(Outcome::Gone) };
        match self.judge(suspect, &slot, now_ms, back_ms) {
            Ok(reason) => Ok(Dead { slot, token, reason }),
            Err(why) => Err(Outcome::Refused(why)),
        }
    }

    fn reclaim(&self, tx: &mut Tx, batch: &Batch, clock: &dyn Clock) -> Tried<Carried> {
        let (began, mut returning) = (clock.mono(), Vec::new());
        let one = |run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect| {
            self.reclaim_one(run, tx, suspect, &mut returning)
        };
        let (answer, ended) = self.carry_out(tx, batch, clock, one)?;
        self.to_the_front(tx, returning)?;
        Ok((BatchAnswer { held: clock.mono() - began, ..answer }, ended))
    }

    fn reclaim_one(
        &self,
        run: &mut Run<'_>,
        tx: &mut Tx,
        suspect: &Suspect,
        returning: &mut Vec<Returning>,
    ) -> Tried<Outcome> {
        let id = &suspect.key;
        let found = self.location(tx, id);
        let dead = match self.judge_job(suspect, found, run.now_ms, run.back_ms) {
            Ok(dead) => dead,
            Err(outcome) => return Ok(outcome),
        };
        if let Err(why) = run.end(tx, suspect, &dead.slot)? {
            return Ok(Outcome::Refused(why));
        }
        let row = self.let_go(tx, &dead.slot, id)?;
        let (_, body) = split(&row)?;
        let kept = self.recover(run, tx, id, &dead, body, returning)?;
        let incarnation = dead.slot.incarnation;
        let removed = Removed {
            key: id,
            owner: &dead.slot.name,
            incarnation,
            reason: dead.reason,
            deadline_ms: dead.slot.deadline_ms(),
            what: RemovedFields::json(&kept)?,
        };
        let receipt = run.receipt(tx, removed)?;
        let seq = number(receipt.id.seq);
        tx.put(&self.tables.lost, &held_key(incarnation, id.as_str()), &seq)?;
        Ok(Outcome::Reclaimed(Some(Box::new(receipt))))
    }

    /// Moves a job to where the rules say and counts its crash; returns what the receipt records.
    fn recover(
        &self,
        run: &Run<'_>,
        tx: &mut Tx,
        id: &Name,
        dead: &Dead,
        body: Body<'_>,
        returning: &mut Vec<Returning>,
    ) -> Tried<Kept> {
        let (mut head, now_ms) = (body.head()?, run.now_ms);
        let crashed = dead.reason != Reason::OwnerRetired;
        let decision = decide(&JobCase {
            recovery: &self.recovery,
            on_death: head.on_death,
            crashes_max: head.crashes_max,
            crashed,
            crashes: &head.crashes,
            deadline_ms: dead.slot.deadline_ms(),
            now_ms,
        });
        if crashed {
            head.crashes.retain(|at_ms| counts(*at_ms, self.recovery.crash_window_ms, now_ms));
            head.crashes.push(now_ms);
        }
        let mut kept = self.kept(&head, dead.token, now_ms);
        match decision {
            JobDecision::PutBack(QueueEnd::Back) => {
                let bytes = head.bytes();
                self.put_on(
                    tx,
                    self.return_queue(&head),
                    QueueEnd::Back,
                    id,
                    Body { head: &bytes, ..body },
                )?;
            }
            JobDecision::PutBack(QueueEnd::Front) => {
                let (id, payload) = (id.clone(), body.payload.to_vec());
                returning.push(Returning { token: dead.token, id, head, payload });
            }
            JobDecision::Move => {
                let to = self.recovery.move_to.clone().unwrap_or_else(|| head.queue.clone());
                head.queue = to.clone();
                let bytes = head.bytes();
                self.put_on(tx, &to, QueueEnd::Back, id, Body { head: &bytes, ..body })?;
                kept.recovered.moved_to = Some(to);
            }
            JobDecision::DeadLetter(why) => {
                let bytes = head.bytes();
                let death = Death { why, at_ms: now_ms, error: None };
                self.make_dead_letter(tx, id, Body { head: &bytes, ..body }, &death)?;
                (kept.recovered.did, kept.recovered.why) = (RecoveryAction::DeadLetter, Some(why));
            }
            JobDecision::Drop => {
                self.account(tx).dropped += 1;
                kept.recovered.did = RecoveryAction::Dropped;
                kept.recovered.payload = Some(body.payload()?);
                kept.entered_ms = Some(head.entered_ms);
                (kept.on_death, kept.crashes_max) = (head.on_death, head.crashes_max);
            }
        }
        Ok(kept)
    }

    fn kept(&self, head: &Head, token: u64, now_ms: u64) -> Kept {
        let recovered = RecoveredJob {
            queue: head.queue.clone(),
            token: JobToken(token),
            crashes: self.crashes(head, now_ms),
            did: RecoveryAction::PutBack,
            why: None,
            payload: None,
            moved_to: None,
            due_ms: None,
            kept_in: None,
            how_sure: None,
        };
        Kept { recovered, entered_ms: None, on_death: None, crashes_max: None }
    }

    /// The job that was taken first is the next to be taken again.
    fn to_the_front(&self, tx: &mut Tx, mut returning: Vec<Returning>) -> Tried<()> {
        returning.sort_by_key(|job| std::cmp::Reverse(job.token));
        for Returning { id, head, payload, .. } in &returning {
            let bytes = head.bytes();
            let body = Body { head: &bytes, payload };
            self.put_on(tx, self.return_queue(head), QueueEnd::Front, id, body)?;
        }
        Ok(())
    }
}

impl EmbeddedInflight {
    /// Evaluates the guard without changing anything.
    fn preview(&self, batch: &Batch) -> BatchAnswer {
        let (now_ms, back_ms) = self.core.look();
        let one = |suspect: &Suspect| {
            let found = self.core.jobs.get(&suspect.key);
            match self.core.judge_job(suspect, found, now_ms, back_ms) {
                Ok(_) => Outcome::Reclaimed(None),
                Err(outcome) => outcome,
            }
        };
        let outcomes = batch.suspects.iter().map(one).collect();
        BatchAnswer { outcomes, ..BatchAnswer::default() }
    }
}

#[async_trait]
impl Sweep for EmbeddedInflight {
    fn system(&self) -> &SystemId {
        &self.core.id
    }

    fn threshold(&self) -> Duration {
        self.core.threshold
    }

    async fn census(&self) -> Result<Census> {
        Ok(self.owner_service.census(self.core.jobs.in_flight()))
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.owner_service.page(place(&request.after)?.as_ref(), &request)
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        after(suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.owner_service.held_by(claim, limit)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        if batch.act == PassMode::DryRun {
            return Ok(self.preview(&batch));
        }
        let clock = self.owner_service.inner.clock.clone();
        let job = move |core: &Core, tx: &mut Tx| core.reclaim(tx, &batch, &*clock);
        let core = self.core.clone();
        let job = move |tx: &mut Tx| job(&core, tx);
        Ok(self.owner_service.inner.writer.sweep(job, durable).await?.0)
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.owner_service.settle_batch(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.owner_service.tidy(limits).await
    }
}
