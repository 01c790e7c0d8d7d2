//! The calls on the job store, each carried out, predicted and compared.

use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{
    Claimed, Enqueued, Finish, Finished, InflightStore, JobPlace as Seen, JobTicket, JobToken,
    NewJob, RecoveredJob, RecoveryAction,
};
use lapsed_core::owner::{Claim, Incarnation, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::request::RequestId;
use lapsed_core::sweep::{Batch, BatchId, Cursor, Outcome, PageRequest, PassMode, Suspect, Sweep};
use lapsed_core::{Error, Name, Result};

use crate::disk::Keep;
use crate::jobs::bug::JobBug;
use crate::jobs::model::{JobModel, ModelPlace, ModelWorker};
use crate::jobs::system::{JobSimSystem, TTL_MS, now, queue};
use crate::promise::{Broken, Checked, Promise, holds};

/// The result of a call, or the promise that it broke.
pub type CheckedCall<T> = std::result::Result<T, Broken>;

impl JobSimSystem {
    pub fn enqueue(&mut self, id: &Name, on_death: Option<OnDeath>) -> CheckedCall<bool> {
        let mut after = self.model.clone();
        let expected = after.enqueue(id, on_death);
        let job = NewJob { on_death, ..NewJob::new(id.clone(), queue(), id.as_str()) };
        let mut answer = now(self.jobs().enqueue(std::slice::from_ref(&job)));
        if self.bug == Some(JobBug::EnqueuedTwice)
            && matches!(answer.as_deref(), Ok([Enqueued::Exists]))
        {
            let again = Name::new(&format!("{id}'")).expect("it is a valid name");
            answer = now(self.jobs().enqueue(&[NewJob { id: again, ..job }]));
        }
        self.note("producer", format_args!("enqueue {id}: {answer:?}"));
        match answer {
            Ok(answer) => {
                holds((answer == [Enqueued::Queued]) == expected, Promise::P3, || {
                    format!("{id} was to be new ({expected}), and it was {answer:?}")
                })?;
                self.model = after;
                self.counted("enqueued");
                Ok(true)
            }
            Err(error) => self.doubt(&error, after).map(|()| false),
        }
    }

    pub fn start(&mut self, name: &Name) -> CheckedCall<Option<Claim>> {
        let now_ms = self.now_ms();
        let answer = now(self.jobs().start(name, TTL_MS));
        self.note(name.as_str(), format_args!("start: {answer:?}"));
        let number = match answer {
            Ok(beat) => beat.incarnation.0,
            Err(error) => {
                // Ask the store whether it started; no worker uses this incarnation.
                self.doubt_start(&error, name)?;
                return Ok(None);
            }
        };
        let last = self.model.incarnations.keys().next_back().copied().unwrap_or(0);
        holds(number > last, Promise::P5, || format!("incarnation {number} after {last}"))?;
        let incarnation = ModelWorker {
            name: name.clone(),
            started_ms: now_ms,
            deadline_ms: now_ms + TTL_MS,
            ended: None,
        };
        self.model.incarnations.insert(number, incarnation);
        Ok(Some(Claim::exact(name.clone(), Incarnation(number))))
    }

    fn doubt_start(&mut self, error: &Error, name: &Name) -> Checked {
        let now_ms = self.now_ms();
        let model = self.model.clone();
        self.doubt(error, model)?;
        let Some(info) = now(self.jobs().owner(&Claim::newest(name.clone()))).ok().flatten() else {
            return Ok(());
        };
        let incarnation = ModelWorker {
            name: name.clone(),
            started_ms: info.started_ms,
            deadline_ms: now_ms.max(info.started_ms) + TTL_MS,
            ended: None,
        };
        self.model.incarnations.entry(info.incarnation.0).or_insert(incarnation);
        Ok(())
    }

    pub fn beat(&mut self, claim: &Claim) -> CheckedCall<bool> {
        let number = claim.incarnation.map_or(0, |i| i.0);
        let mut answer = now(self.jobs().beat(claim));
        if self.bug == Some(JobBug::BeatRevivesTheDead) && matches!(answer, Err(Error::Lost(_))) {
            answer = now(self.jobs().start(&claim.owner, TTL_MS));
        }
        let ended = self.model.has_ended(number);
        self.note(claim.owner.as_str(), format_args!("beat of {number}: {}", answer.is_ok()));
        match answer {
            Ok(_) => {
                holds(!ended, Promise::P5, || format!("{number} has ended, and its beat counts"))?;
                let now_ms = self.now_ms();
                if let Some(incarnation) = self.model.incarnations.get_mut(&number) {
                    incarnation.deadline_ms = now_ms + TTL_MS;
                }
                Ok(true)
            }
            Err(Error::Lost(_)) => {
                holds(ended, Promise::P1, || {
                    format!("{number} is live, and was told that it ended")
                })?;
                self.model.unsure.remove(&number);
                Ok(false)
            }
            Err(error) => {
                let model = self.model.clone();
                self.doubt(&error, model).map(|()| true)
            }
        }
    }

    pub fn take(&mut self, claim: &Claim, limit: usize) -> CheckedCall<Result<Vec<Claimed>>> {
        self.take_as(None, claim, limit)
    }

    /// A take whose answer does not reach the worker, as through a daemon: the daemon gives it up, and
    /// sends the give-up twice.
    pub fn take_undelivered(&mut self, attempt: u64, claim: &Claim, limit: usize) -> Checked {
        let request = RequestId::unrepeatable(&format!("attempt-{attempt}"));
        let request = request.expect("it is a valid name");
        let Ok(jobs) = self.take_as(Some(&request), claim, limit)? else { return Ok(()) };
        for _ in 0..2 {
            let mut after = self.model.clone();
            let expected = jobs.iter().rev().filter(|job| {
                let ticket = JobTicket { id: job.id.clone(), token: job.token, incarnation: None };
                after.finish(&ticket, &Finish::GiveBack(QueueEnd::Front)) == Finished::Done
            });
            let expected = expected.count();
            let answer = match self.bug {
                Some(JobBug::UndeliveredTakeKept) => Ok(expected),
                _ => now(self.jobs().give_up_take(&request)),
            };
            self.note("daemon", format_args!("give up attempt {attempt}: {answer:?}"));
            match answer {
                Ok(count) => holds(count == expected, Promise::P4, || {
                    format!("{count} jobs were given back, not {expected}")
                })?,
                Err(error) => return self.doubt(&error, after),
            }
            self.model = after;
        }
        self.counted("takes given up");
        Ok(())
    }

    fn take_as(
        &mut self,
        request: Option<&RequestId>,
        claim: &Claim,
        limit: usize,
    ) -> CheckedCall<Result<Vec<Claimed>>> {
        let number = claim.incarnation.map_or(0, |i| i.0);
        let mut after = self.model.clone();
        let expected = after.take(number, limit);
        let answer = match request {
            None => now(self.jobs().take(claim, &queue(), limit)),
            Some(request) => now(self.jobs().take_once(request, claim, &queue(), limit)),
        };
        let seen: Option<Vec<Name>> =
            answer.as_ref().ok().map(|t| t.jobs.iter().map(|job| job.id.clone()).collect());
        self.note(claim.owner.as_str(), format_args!("take by {number}: {seen:?}"));
        let mut jobs = match answer {
            Ok(taken) => taken.jobs,
            Err(error @ Error::Lost(_)) => {
                holds(expected.is_none(), Promise::P1, || format!("{number} is live: {error}"))?;
                self.model.unsure.remove(&number);
                return Ok(Err(error));
            }
            Err(error) => {
                self.doubt(&error, after)?;
                return Ok(Err(error));
            }
        };
        holds(expected.is_some(), Promise::P5, || {
            format!("{number} has ended, and took {seen:?}")
        })?;
        holds(seen == expected, Promise::P4, || format!("it took {seen:?}, not {expected:?}"))?;
        self.model = after;
        for job in &mut jobs {
            job.token = JobToken(job.token.0.wrapping_sub(self.shift));
            let (id, token) = (&job.id, job.token.0);
            holds(token > self.model.token, Promise::P5, || {
                format!("token {token} of {id} after {}", self.model.token)
            })?;
            self.model.token = token;
            self.model.set(id, ModelPlace::InFlight { incarnation: number, token });
        }
        self.counted("taken");
        Ok(Ok(jobs))
    }

    /// Reads the jobs that a worker holds, as it does after a `take` without an answer.
    pub fn strays(&mut self, claim: &Claim) -> Vec<Claimed> {
        let held = now(self.jobs().in_flight(claim, None, 100)).unwrap_or_default();
        let mut jobs = Vec::new();
        for id in held {
            let Ok(Some(job)) = now(self.jobs().job(&id)) else { continue };
            if let Seen::InFlight { token, .. } = job.place {
                let token = JobToken(token.0.wrapping_sub(self.shift));
                let (queue, payload) = (job.queue, job.payload);
                jobs.push(Claimed { id, token, queue, payload, crashes: job.crashes });
            }
        }
        jobs
    }

    /// Finishes a job for a worker, which may have ended.
    pub fn finish(&mut self, ticket: &JobTicket, how: &Finish) -> CheckedCall<Option<Finished>> {
        let mut after = self.model.clone();
        let expected = after.finish(ticket, how);
        let shown = JobTicket {
            token: JobToken(ticket.token.0.wrapping_add(self.shift)),
            ..ticket.clone()
        };
        let mut answer = now(self.jobs().finish(&[shown], how));
        if self.bug == Some(JobBug::TokenNotChecked)
            && matches!(answer.as_deref(), Ok([Finished::Superseded]))
        {
            answer = self.finish_with_any_token(ticket, how);
        }
        self.note("worker", format_args!("{how:?} {} by {}: {answer:?}", ticket.id, ticket.token));
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.doubt(&error, after).map(|()| None),
        };
        holds(answer != [Finished::Done] || expected == Finished::Done, Promise::P5, || {
            format!("{} by {}: {expected:?}, and it was done", ticket.id, ticket.token)
        })?;
        holds(answer == [expected], Promise::P4, || {
            format!("{} by {}: {expected:?}, not {answer:?}", ticket.id, ticket.token)
        })?;
        if expected == Finished::OwnerEnded
            && let Some(ModelPlace::InFlight { incarnation, .. }) =
                after.jobs.get(&ticket.id).map(|j| j.place)
        {
            after.unsure.remove(&incarnation);
        }
        self.model = after;
        self.counted(if expected == Finished::Done { "claims ended" } else { "zombies refused" });
        Ok(Some(expected))
    }

    fn finish_with_any_token(&self, ticket: &JobTicket, how: &Finish) -> Result<Vec<Finished>> {
        match now(self.jobs().job(&ticket.id))?.map(|job| job.place) {
            Some(Seen::InFlight { token, .. }) => {
                now(self.jobs().finish(&[JobTicket { token, ..ticket.clone() }], how))
            }
            _ => Ok(vec![Finished::Superseded]),
        }
    }

    pub fn suspects(&mut self) -> CheckedCall<Vec<Suspect>> {
        let request = PageRequest { after: Cursor::default(), limit: 1_000, undeclared_max: None };
        let page = now(self.jobs().suspects(request));
        let suspects = page.map_err(|e| Broken::new(Promise::P4, e.to_string()))?.suspects;
        let expected = self.model.suspects(self.now_ms());
        let seen = suspects.iter().map(|suspect| suspect.key.clone()).collect();
        holds(expected == seen, Promise::P2, || format!("suspects {seen:?}, not {expected:?}"))?;
        Ok(suspects)
    }

    /// Reclaims a batch, possibly long after its page was read.
    pub fn reclaim(&mut self, number: u64, suspects: Vec<Suspect>) -> Checked {
        let now_ms = self.now_ms();
        let mut after = self.model.clone();
        let expected = after.reclaim(number, &suspects, now_ms);
        let id = BatchId { sweeper: "s".into(), number };
        let batch = Batch { id, suspects: suspects.clone(), act: PassMode::Reclaim, term: None };
        let answer = now(self.jobs().reclaim(batch));
        let answer = match answer {
            Ok(answer) => self.push_what_was_removed(answer.outcomes)?,
            Err(error) => return self.doubt(&error, after),
        };
        self.note("sweeper", format_args!("batch {number}: {answer:?}"));
        for ((suspect, expected), did) in suspects.iter().zip(expected).zip(answer) {
            holds(did.is_none() || expected.is_some(), Promise::P1, || {
                format!("{} was taken from {} in time", suspect.key, suspect.incarnation)
            })?;
            holds(did == expected, Promise::P3, || {
                format!("{}: {expected:?}, not {did:?}", suspect.key)
            })?;
            self.counted(if did.is_some() { "recovered" } else { "refused or gone" });
        }
        // The end of every incarnation in it is durable with it.
        after
            .unsure
            .retain(|incarnation| !suspects.iter().any(|s| s.incarnation.0 == *incarnation));
        // Between two steps, where there are two, the store may have been away.
        self.model = JobModel { back_ms: self.model.back_ms, ..after };
        Ok(())
    }

    /// What was done with each; the second step of those who remove first, before which the power may
    /// fail.
    fn push_what_was_removed(
        &mut self,
        outcomes: Vec<Outcome>,
    ) -> CheckedCall<Vec<Option<RecoveryAction>>> {
        let receipts: Vec<Option<Receipt>> = outcomes.into_iter().map(Outcome::receipt).collect();
        let recovered = |receipt: &Receipt| {
            let removed = receipt.removed.clone();
            serde_json::from_value::<RecoveredJob>(removed).expect("a receipt says what was done")
        };
        let mut done: Vec<Option<RecoveryAction>> =
            receipts.iter().map(|receipt| receipt.as_ref().map(|r| recovered(r).did)).collect();
        if self.bug != Some(JobBug::RemoveThenPush) {
            return Ok(done);
        }
        let mut removed = Vec::new();
        for (did, receipt) in done.iter_mut().zip(&receipts) {
            let Some(receipt) = receipt else { continue };
            let own = self.model.jobs.get(&receipt.key).and_then(|job| job.on_death);
            if own.is_none() {
                *did = Some(RecoveryAction::PutBack);
                removed.push((recovered(receipt).token, receipt.id.seq));
            }
        }
        if self.random.odds(0.1) {
            self.disk.cut_power(Keep::Everything);
            self.reopen()?;
            return Ok(done);
        }
        removed.sort_by_key(|(token, _)| std::cmp::Reverse(*token));
        for (_, seq) in removed {
            let _ = now(self.jobs().restore(seq));
        }
        Ok(done)
    }

    /// Settles a batch, as a sweeper does after a lost answer.
    pub fn settle(&mut self, number: u64) -> Checked {
        let id = BatchId { sweeper: "s".into(), number };
        let settled = match now(self.jobs().settle(&id)) {
            Ok(receipts) => receipts.len() as u64,
            Err(error) => {
                let model = self.model.clone();
                return self.doubt(&error, model);
            }
        };
        let written = self.model.receipts.get(&number).copied().unwrap_or(0);
        self.note("sweeper", format_args!("batch {number} wrote {settled} receipts"));
        holds(settled == written, Promise::P3, || {
            format!("batch {number} wrote {written} receipts, and {settled} were found")
        })
    }

    pub fn put_back(&mut self, id: &Name) -> Checked {
        let mut after = self.model.clone();
        let expected = after.put_back(id);
        match now(self.jobs().put_back(id, QueueEnd::Back)) {
            Ok(done) => {
                holds(done == expected, Promise::P4, || format!("put back {id}: {done}"))?;
                self.model = after;
                Ok(())
            }
            Err(error) => self.doubt(&error, after),
        }
    }
}
