//! Sweeping expired leases and decisions that no operation has touched: listed by deadline, cleared
//! in batches.
//!
//! What can happen between listing and clearing: a renewal, a release, another holder, another
//! sweeper. Each is a job, and jobs are serial; the row is judged again inside the job that clears
//! it.

use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::clock::Clock;
use lapsed_core::leases::Subject;
use lapsed_core::leases::rules::{ClearedLease, ClockReading, DecisionMarker, LeaseRecord};
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Refusal, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Error, Name, Result, SystemId};

use crate::fault::Tried;
use crate::leases::due::{DuePosition, Term};
use crate::leases::rows::{removed_decision, removed_lease, row_key, row_key_of, word};
use crate::leases::{Core, EmbeddedLeases, record_row};
use crate::owners::batch::{Carried, Run, durable};
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

/// A lease that a batch has cleared, and the number of its receipt.
struct Cleared {
    seq: u64,
    key: Name,
    lease: ClearedLease,
}

impl Cleared {
    fn position(&self) -> DuePosition {
        DuePosition::new(self.lease.lease.deadline_ms, self.key.clone())
    }
}

/// What became of a batch. The receipts of cleared leases are still missing in its answer: the sweep's own task makes them,
/// so that callers do not wait for that.
struct LeaseBatch {
    carried: Carried,
    cleared: Vec<Cleared>,
    now_ms: u64,
}

impl LeaseBatch {
    fn answer(self, core: &Core, batch: &BatchId) -> Tried<BatchAnswer> {
        let (mut answer, _) = self.carried;
        let mut cleared = self.cleared.iter();
        for outcome in &mut answer.outcomes {
            if matches!(outcome, Outcome::Reclaimed(None))
                && let Some(Cleared { seq, key, lease }) = cleared.next()
            {
                let removed = removed_lease(key, lease)?;
                let receipt = core.new_receipt(*seq, batch, self.now_ms, &removed)?;
                *outcome = Outcome::Reclaimed(Some(Box::new(receipt)));
            }
        }
        Ok(answer)
    }
}

impl Core {
    /// Carries out a batch. What is cleared leaves the index of deadlines after the commit.
    fn carry_out_batch(&self, tx: &mut Tx, batch: &Batch, clock: &dyn Clock) -> Tried<LeaseBatch> {
        let (mut cleared, mut now_ms) = (Vec::new(), 0);
        let carried = self.carry_out(tx, batch, clock, |run, tx, suspect| {
            now_ms = run.now_ms;
            self.reclaim(run, tx, suspect, &mut cleared)
        })?;
        let (due, waiters) = (self.due.clone(), self.waiters.clone());
        let positions: Vec<DuePosition> = cleared.iter().map(Cleared::position).collect();
        tx.then(move || {
            let mut due = due.lock().unwrap_or_else(PoisonError::into_inner);
            positions.iter().for_each(|position| due.remove(position));
            drop(due);
            waiters.ring_all(positions.iter().map(|position| &position.subject));
        });
        Ok(LeaseBatch { carried, cleared, now_ms })
    }

    fn reclaim(
        &self,
        run: &mut Run<'_>,
        tx: &mut Tx,
        suspect: &Suspect,
        cleared: &mut Vec<Cleared>,
    ) -> Tried<Outcome> {
        let at = ClockReading::exact(run.now_ms, run.back_ms);
        if let Some(row) = row_key_of(&suspect.key)
            && !tx.has_changed_row(&self.tables.leases, &row)
        {
            let position = DuePosition::new(suspect.deadline_ms, suspect.key.clone());
            let known = self.due().record(&position);
            // Whatever has changed in memory since the page was read is durable.
            if let Some(record) = known {
                return self.clear_lease(run, tx, suspect, (&row, record), &at, cleared);
            }
        }
        match Subject::parse(suspect.key.as_str())? {
            Subject::Lease(key) => {
                let Some(record) = self.record(tx, &key)? else { return Ok(Outcome::Gone) };
                self.clear_lease(run, tx, suspect, (&row_key(&key), record), &at, cleared)
            }
            Subject::Decision(txn) => self.delete_marker(run, tx, &txn, &at),
        }
    }

    fn clear_lease(
        &self,
        run: &mut Run<'_>,
        tx: &mut Tx,
        suspect: &Suspect,
        (row, mut record): (&[u8], LeaseRecord),
        at: &ClockReading,
        cleared: &mut Vec<Cleared>,
    ) -> Tried<Outcome> {
        if let Some(outcome) = judge_lease(Some(&record), suspect, at) {
            return Ok(outcome);
        }
        let decision = self.decide_stage(tx, &record, at)?;
        let Some(lease) = record.clear(at, decision) else { return Ok(Outcome::Gone) };
        tx.put(&self.tables.leases, row, &record_row::write(&record)?)?;
        let seq = run.write_receipt(tx, &removed_lease(&suspect.key, &lease)?)?;
        cleared.push(Cleared { seq, key: suspect.key.clone(), lease });
        Ok(Outcome::Reclaimed(None))
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
        let (key, word) = (Subject::Decision(txn.clone()).name(), word(&marker)?);
        let receipt = run.receipt(tx, removed_decision(&key, &word, marker)?)?;
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
        let id = batch.id.clone();
        let job = move |tx: &mut Tx| core.carry_out_batch(tx, &batch, &*clock);
        let done = |batch: &LeaseBatch| durable(&batch.carried);
        let batch = self.owner_service.inner.writer.sweep(job, done).await?;
        let answer = batch.answer(&self.core, &id);
        answer.map_err(|fault| fault.told(&self.owner_service.inner.disk.name))
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
