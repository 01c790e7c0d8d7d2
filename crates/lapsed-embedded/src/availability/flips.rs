//! Setting providers offline that the mirror declared silent, and restoring them.
//!
//! What can happen between the mirror's decision and this job: a toggle (another epoch), a
//! heartbeat that came here because its daemon could not reach the mirror, a faster sweeper, a
//! `settle`. Each is a job, and jobs are serial; the row is judged again inside the job that flips
//! it.

use lapsed_availability::{Flip, Flipped, ProviderState};
use lapsed_core::clock::Clock;
use lapsed_core::receipt::{Reason, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchId, Refusal};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name};
use serde::{Deserialize, Serialize};

use crate::availability::Core;
use crate::availability::log::LogStatus;
use crate::availability::rows::ProviderRow;
use crate::fault::Tried;
use crate::owners::batch::{Removed, Run};
use crate::removed_fields::RemovedFields;
use crate::services::term_is_over;
use crate::tx::Tx;

/// The receipt's `removed`: enough to tell whether the provider was toggled since.
#[derive(Debug, Serialize, Deserialize)]
struct FlippedProvider {
    is_online: bool,
    last_online_ms: Option<u64>,
    last_heartbeat_ms: Option<u64>,
    epoch: u64,
    /// The epoch that began when it was set offline.
    offline_epoch: u64,
}

impl Core {
    pub(super) fn flip(
        &self,
        tx: &mut Tx,
        batch: &Batch,
        flips: &[Flip],
        stale_ms: u64,
        clock: &dyn Clock,
    ) -> Tried<Vec<Flipped>> {
        if self.is_forbidden(tx, &batch.id)? {
            return Err(forbidden(&batch.id).into());
        }
        if let Some(term) = batch.term
            && term_is_over(tx, &self.id, term, self.store_clock.now_ms())?
        {
            return self.leave_all(tx, flips, Refusal::NotLeader);
        }
        if self.is_carried_out(tx, &batch.id)? {
            return self.leave_all(tx, flips, Refusal::Moved);
        }
        let mut run = self.begin(tx, &batch.id, clock)?;
        let mut flipped = Vec::with_capacity(flips.len());
        for flip in flips {
            flipped.push(self.flip_one(&mut run, tx, flip, stale_ms)?);
        }
        run.note(tx)?;
        Ok(flipped)
    }

    /// Refuses all flips with the same reason.
    fn leave_all(&self, tx: &mut Tx, flips: &[Flip], why: Refusal) -> Tried<Vec<Flipped>> {
        let now_ms = self.store_clock.now_ms();
        let mut left = Vec::with_capacity(flips.len());
        for flip in flips {
            let row = self.provider(tx, &flip.id)?;
            left.push(Flipped::Left(why, row.map(|row| row.state(&flip.id, now_ms))));
        }
        Ok(left)
    }

    /// Always takes a version, so that a mirror with a wrong state applies this answer.
    fn flip_one(
        &self,
        run: &mut Run<'_>,
        tx: &mut Tx,
        flip: &Flip,
        stale_ms: u64,
    ) -> Tried<Flipped> {
        let (id, now_ms) = (&flip.id, run.now_ms);
        let Some(mut row) = self.provider(tx, id)? else {
            return Ok(Flipped::Left(Refusal::Moved, None));
        };
        let was = row.clone();
        row.bump(0, now_ms);
        let refusal = judge(&was, flip, stale_ms, now_ms);
        match refusal {
            Some(Refusal::Alive) => row.begin_epoch(),
            Some(_) => {}
            None => row.go_offline(now_ms),
        }
        let state = row.state(id, now_ms);
        self.put_row(tx, id, row)?;
        if let Some(refusal) = refusal {
            return Ok(Flipped::Left(refusal, Some(state)));
        }
        self.write_log(tx, id, LogStatus::Offline, now_ms)?;
        let receipt = note(run, tx, flip, &was, state.epoch, stale_ms)?;
        Ok(Flipped::Offline(Box::new(receipt), state))
    }

    pub(super) fn restore(
        &self,
        tx: &mut Tx,
        seq: u64,
    ) -> Tried<(Restored, Option<ProviderState>)> {
        let id = ReceiptId { system: self.id.clone(), seq };
        let refused = |why: String, state| Ok((Restored::Refused { why }, state));
        let Some(receipt) = self.receipt(tx, seq)? else {
            return refused(format!("there is no receipt {id}, or it is past its retention"), None);
        };
        let (now_ms, key) = (self.store_clock.now_ms(), receipt.key.clone());
        let Some(mut row) = self.provider(tx, &key)? else {
            return refused(format!("there is no provider `{key}`"), None);
        };
        let was: FlippedProvider = serde_json::from_value(receipt.removed.clone())?;
        if let Some(why) = taken(&receipt, &row, &was) {
            return refused(why, Some(row.state(&key, now_ms)));
        }
        row.bump(0, now_ms);
        row.go_online(now_ms);
        let state = row.state(&key, now_ms);
        self.put_row(tx, &key, row)?;
        self.write_log(tx, &key, LogStatus::Online, now_ms)?;
        self.note_restored(tx, &receipt, now_ms)?;
        let (key, owner) = (key.to_string(), receipt.owner.to_string());
        Ok((Restored::Restored { key, owner, incarnation: state.epoch }, Some(state)))
    }
}

fn forbidden(batch: &BatchId) -> Error {
    let BatchId { sweeper, number } = batch;
    Error::Invalid(format!("batch {number} of {sweeper} was settled as not carried out"))
}

/// Why the provider must stay online, if it must.
fn judge(row: &ProviderRow, flip: &Flip, stale_ms: u64, now_ms: u64) -> Option<Refusal> {
    if !row.is_online || row.epoch != flip.epoch {
        return Some(Refusal::Moved);
    }
    let is_young = row.beat_age_ms(now_ms).is_some_and(|age_ms| age_ms < stale_ms);
    is_young.then_some(Refusal::Alive)
}

/// Why the provider cannot be set online again.
fn taken(receipt: &Receipt, row: &ProviderRow, was: &FlippedProvider) -> Option<String> {
    let (id, key) = (&receipt.id, &receipt.key);
    if receipt.restored_ms.is_some() {
        return Some(format!("`{key}` was put back from {id} before"));
    }
    match (row.is_online, row.epoch == was.offline_epoch) {
        (false, true) => None,
        (true, _) => Some(format!("`{key}` has been set online since")),
        (false, false) => Some(format!("`{key}` has been set online and offline since")),
    }
}

/// Writes the receipt. It is late by the time that the provider was overdue at the mirror's
/// decision, plus the time since.
fn note(
    run: &mut Run<'_>,
    tx: &mut Tx,
    flip: &Flip,
    was: &ProviderRow,
    offline_epoch: u64,
    stale_ms: u64,
) -> Tried<Receipt> {
    let overdue_ms = flip.silent_ms.map_or(0, |silent_ms| silent_ms.saturating_sub(stale_ms));
    let late_ms = flip.decided_ago_ms.saturating_add(overdue_ms);
    let what = RemovedFields::json(&FlippedProvider {
        is_online: was.is_online,
        last_online_ms: was.last_online_ms,
        last_heartbeat_ms: was.last_heartbeat_ms,
        epoch: was.epoch,
        offline_epoch,
    })?;
    let key: &Name = &flip.id;
    run.receipt(
        tx,
        Removed {
            key,
            owner: key,
            incarnation: flip.epoch,
            reason: Reason::HeartbeatStale,
            deadline_ms: run.now_ms.saturating_sub(late_ms),
            what,
        },
    )
}
