//! Sweeping expired leases and decisions that no operation has touched: listed by deadline, cleared
//! in batches.
//!
//! What can happen between listing and clearing: a renewal, a release, another holder, another
//! sweeper. Each is a job, and jobs are serial; the row is judged again inside the job that clears
//! it.

use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::leases::rules::{ClockReading, DecisionMarker, LeaseRecord};
use lapsed_core::leases::{LeaseKey, RemovedLease, Subject};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Refusal, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Error, Name, Result, SystemId};

use crate::fault::Tried;
use crate::leases::due::{DuePosition, Term};
use crate::leases::{Core, EmbeddedLeases};
use crate::owners::batch::{Run, durable};
use crate::tx::Tx;

/// The guard's result for a lease; `None`: it must be cleared.
fn judge_lease(
    record: Option<&LeaseRecord>,
    suspect: &Suspect,
    at: &ClockReading,
) -> Option<Outcome> {
    let Some(record) = record else { return Some(Outcome::Gone) };
    if record.token.0 != suspect.incarnation.0 {
        return Some(Outcome::Refused(Refusal::Moved));
    }
    let Some(lease) = &record.lease else { return Some(Outcome::Gone) };
    match lease.is_expired(at) {
        true => None,
        false if at.is_over(lease.deadline_ms) => Some(Outcome::Refused(Refusal::StoreAway)),
        false => Some(Outcome::Refused(Refusal::Alive)),
    }
}

/// The guard's result for a decision; `None`: it must be deleted.
fn judge_marker(marker: Option<&DecisionMarker>, at: &ClockReading) -> Option<Outcome> {
    match marker {
        None => Some(Outcome::Gone),
        Some(marker) if !marker.is_expired(at) => Some(Outcome::Refused(Refusal::Moved)),
        Some(_) => None,
    }
}

impl Core {
    fn reclaim(&self, run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect) -> Tried<Outcome> {
        let at = ClockReading::exact(run.now_ms, run.back_ms);
        match Subject::parse(suspect.key.as_str())? {
            Subject::Lease(key) => self.clear_lease(run, tx, suspect, &key, &at),
            Subject::Decision(txn) => self.delete_marker(run, tx, &txn, &at),
        }
    }

    fn clear_lease(
        &self,
        run: &mut Run<'_>,
        tx: &mut Tx,
        suspect: &Suspect,
        key: &LeaseKey,
        at: &ClockReading,
    ) -> Tried<Outcome> {
        let before = self.record(tx, key)?;
        if let Some(outcome) = judge_lease(before.as_ref(), suspect, at) {
            return Ok(outcome);
        }
        let Some(before) = before else { return Ok(Outcome::Gone) };
        let mut record = before.clone();
        let decision = self.decide_stage(tx, &record, at)?;
        let Some(cleared) = record.clear(at, decision) else { return Ok(Outcome::Gone) };
        self.put_record(tx, key, Some(&before), &record)?;
        let subject = Subject::Lease(key.clone());
        let receipt = Core::note_in(run, tx, &subject, &RemovedLease::Lease(cleared))?;
        Ok(Outcome::Reclaimed(Some(Box::new(receipt))))
    }

    fn delete_marker(
        &self,
        run: &mut Run<'_>,
        tx: &mut Tx,
        txn: &Name,
        at: &ClockReading,
    ) -> Tried<Outcome> {
        let marker = self.marker(tx, txn)?;
        if let Some(outcome) = judge_marker(marker.as_ref(), at) {
            return Ok(outcome);
        }
        let Some(marker) = marker else { return Ok(Outcome::Gone) };
        self.put_marker(tx, txn, Some(&marker), None)?;
        let subject = Subject::Decision(txn.clone());
        let receipt = Core::note_in(run, tx, &subject, &RemovedLease::Decision(marker))?;
        Ok(Outcome::Reclaimed(Some(Box::new(receipt))))
    }
}

impl EmbeddedLeases {
    /// Evaluates the guard without changing anything.
    fn preview(&self, suspect: &Suspect, at: &ClockReading) -> Result<Outcome> {
        let judged = match Subject::parse(suspect.key.as_str())? {
            Subject::Lease(key) => judge_lease(self.read_record(&key)?.as_ref(), suspect, at),
            Subject::Decision(txn) => match self.look_at_decision(&txn)? {
                None => Some(Outcome::Gone),
                Some((_, true)) => None,
                Some((_, false)) => Some(Outcome::Refused(Refusal::Moved)),
            },
        };
        Ok(judged.unwrap_or(Outcome::Reclaimed(None)))
    }
}

/// Converts an index entry to a suspect.
fn suspect((place, term): (DuePosition, Term)) -> Result<Suspect> {
    let (owner, token, reason) = match term {
        Term::Lease { owner, token, .. } => (owner, token.0, Reason::LeaseExpired),
        Term::Decision(decision) => (Name::new(decision.as_str())?, 0, Reason::DecisionExpired),
    };
    let (key, deadline_ms) = (place.subject, place.deadline_ms);
    Ok(Suspect { key, owner, incarnation: Incarnation(token), deadline_ms, reason })
}

fn place(cursor: &Cursor) -> Result<Option<DuePosition>> {
    let Some(text) = &cursor.0 else { return Ok(None) };
    let split = || {
        let (deadline_ms, key) = text.split_once(':')?;
        Some(DuePosition::new(deadline_ms.parse().ok()?, Name::new(key).ok()?))
    };
    match split() {
        Some(place) => Ok(Some(place)),
        None => Err(Error::Invalid(format!("{text:?} is not a cursor of this store"))),
    }
}

#[async_trait]
impl Sweep for EmbeddedLeases {
    fn system(&self) -> &SystemId {
        &self.core.id
    }

    fn threshold(&self) -> Duration {
        self.core.threshold
    }

    /// The guard itself spares each lease that was held when the store went away, so the brake does
    /// not have to wait for anything.
    async fn census(&self) -> Result<Census> {
        let at = self.core.moment();
        let counts = self.core.due().count(&at);
        let late_ms =
            counts.oldest_ms.map_or(0, |oldest_ms| at.judging_ms.saturating_sub(oldest_ms));
        Ok(Census {
            now_ms: at.judging_ms,
            store: self.owner_service.inner.incarnation.clone(),
            population: counts.leases,
            suspects: counts.over,
            orphans: counts.over,
            orphans_spared: counts.spared,
            oldest_late_ms: late_ms,
            ..Census::default()
        })
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        if request.undeclared_max == Some(0) {
            return Ok(SuspectPage { last: true, ..SuspectPage::default() });
        }
        let after = place(&request.after)?;
        let over = self.core.due().page(after, &self.core.moment(), request.limit);
        let (examined, last) = (over.len() as u64, over.len() < request.limit);
        let suspects = over.into_iter().map(suspect).collect::<Result<_>>()?;
        Ok(SuspectPage { suspects, examined, last })
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        Cursor(Some(format!("{}:{}", suspect.deadline_ms, suspect.key)))
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        if batch.act == PassMode::DryRun {
            let at = self.core.moment();
            let outcomes = batch.suspects.iter().map(|suspect| self.preview(suspect, &at));
            let outcomes = outcomes.collect::<Result<_>>()?;
            return Ok(BatchAnswer { outcomes, ..BatchAnswer::default() });
        }
        let clock = self.owner_service.inner.clock.clone();
        let core = self.core.clone();
        let job = move |tx: &mut Tx| {
            let one =
                |run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect| core.reclaim(run, tx, suspect);
            core.carry_out(tx, &batch, &*clock, one)
        };
        Ok(self.owner_service.inner.writer.sweep(job, durable).await?.0)
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.owner_service.settle_batch(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        // While the operator holds the brake, nothing is deleted.
        if limits.undeclared_max != Some(0) {
            self.forget_idle(limits.rows).await?;
        }
        self.owner_service.tidy(limits).await
    }
}
