//! A take that may be repeated because its answer was lost, and giving up one of its attempts. Each is
//! one job of the writer, and jobs are serial.

use std::sync::PoisonError;

use lapsed_core::Name;
use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Claimed, Finish, JobTicket, JobToken};
use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::request::RequestId;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, Tried};
use crate::inflight::Core;
use crate::inflight::job_index::JobLocation;
use crate::inflight::operations::{Done, Ended};
use crate::inflight::rows::split;
use crate::owners::UnlessEnded;
use crate::tables::held_key;
use crate::tx::Tx;

/// What is kept of a take: who holds the jobs, and which attempts were answered with them.
#[derive(Serialize, Deserialize)]
struct KeptTake {
    incarnation: Incarnation,
    attempts: Vec<Name>,
    jobs: Vec<(Name, JobToken)>,
}

/// How many delivered takes are forgotten with one job, and how many wait for that at most. Those beyond
/// are forgotten by their age.
const DELIVERED_A_JOB: usize = 100;
const DELIVERED_MAX: usize = 10_000;

impl Core {
    /// Notes a take that is to be forgotten with the next one.
    pub(super) fn note_delivered(&self, request: &RequestId) {
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        if delivered.len() < DELIVERED_MAX {
            delivered.push(request.clone());
        }
    }

    fn forget_delivered(&self, tx: &mut Tx) -> Tried<()> {
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        let first = delivered.len().saturating_sub(DELIVERED_A_JOB);
        let some = delivered.split_off(first);
        drop(delivered);
        some.iter().try_for_each(|request| self.requests().forget(tx, request))
    }

    pub(super) fn take_once(
        &self,
        tx: &mut Tx,
        request: &RequestId,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Tried<UnlessEnded<Done<Claimed>>> {
        let requests = self.requests();
        if requests.is_given_up(tx, request)? {
            return Err(request.given_up(&self.id.to_string()).into());
        }
        self.forget_delivered(tx)?;
        let earlier: Option<KeptTake> = requests.find(tx, request)?;
        let (slot, started) = match self.actor(tx, claim)? {
            UnlessEnded::Done(actor) => actor,
            UnlessEnded::Ended(slot) => return Ok(UnlessEnded::Ended(slot)),
        };
        if let Some(mut kept) = earlier {
            // Another incarnation of the owner took them: this attempt is not answered with them.
            if kept.incarnation.0 != slot.incarnation {
                return Ok(UnlessEnded::Done(Done { slot, started, jobs: Vec::new() }));
            }
            let jobs = self.still_held(tx, &kept)?;
            if !kept.attempts.contains(&request.attempt) {
                kept.attempts.push(request.attempt.clone());
                requests.keep(tx, request, &kept)?;
            }
            return Ok(UnlessEnded::Done(Done { slot, started, jobs }));
        }
        let jobs = self.take_for(tx, &slot, queue, limit)?;
        if !jobs.is_empty() {
            let kept = KeptTake {
                incarnation: Incarnation(slot.incarnation),
                attempts: vec![request.attempt.clone()],
                jobs: jobs.iter().map(|job| (job.id.clone(), job.token)).collect(),
            };
            requests.keep(tx, request, &kept)?;
        }
        Ok(UnlessEnded::Done(Done { slot, started, jobs }))
    }

    /// The jobs of a take that its claims still hold.
    fn still_held(&self, tx: &mut Tx, kept: &KeptTake) -> Tried<Vec<Claimed>> {
        let now_ms = self.store_clock.now_ms();
        let mut jobs = Vec::with_capacity(kept.jobs.len());
        for (id, token) in &kept.jobs {
            let (incarnation, token) = (kept.incarnation.0, *token);
            if self.location(tx, id) != Some(JobLocation::InFlight { incarnation, token: token.0 })
            {
                continue;
            }
            let row = tx.get(&self.tables.held, &held_key(incarnation, id.as_str()))?;
            let row = row.ok_or_else(|| Fault::row(format!("nobody holds job `{id}`")))?;
            let (_, body) = split(&row)?;
            let head = body.head()?;
            let (crashes, payload) = (self.crashes(&head, now_ms), body.payload()?);
            jobs.push(Claimed { id: id.clone(), token, queue: head.queue, payload, crashes });
        }
        Ok(jobs)
    }

    /// The results of the claims that were ended, and the incarnations whose end becomes durable.
    pub(super) fn give_up_take(&self, tx: &mut Tx, request: &RequestId) -> Tried<Ended> {
        let requests = self.requests();
        let earlier: Option<KeptTake> = requests.find(tx, request)?;
        requests.give_up(tx, request)?;
        let Some(mut kept) = earlier else { return Ok(Ended::default()) };
        let before = kept.attempts.len();
        kept.attempts.retain(|attempt| *attempt != request.attempt);
        if kept.attempts.len() == before {
            return Ok(Ended::default());
        }
        if !kept.attempts.is_empty() {
            requests.keep(tx, request, &kept)?;
            return Ok(Ended::default());
        }
        requests.forget(tx, request)?;
        let ticket = |(id, token): &(Name, JobToken)| JobTicket {
            id: id.clone(),
            token: *token,
            incarnation: Some(kept.incarnation),
        };
        // The last job is given back first, so that the jobs are in their original order on the queue.
        let tickets: Vec<JobTicket> = kept.jobs.iter().rev().map(ticket).collect();
        self.finish(tx, &tickets, &Finish::GiveBack(QueueEnd::Front))
    }
}
