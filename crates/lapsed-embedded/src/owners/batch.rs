//! One batch of a sweep inside its job: which owners it declares dead, and which receipts it
//! writes.
//!
//! The race: a heartbeat may arrive between the guard and the end of an incarnation. The guard
//! therefore judges the very deadline that the compare-and-swap takes out of the slot: an earlier
//! heartbeat is judged, a later one finds the incarnation ended. Everything else that could happen
//! in between (another operation, another sweeper) is a job, and jobs are serial.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use lapsed_core::owner::{Ending, Incarnation};
use lapsed_core::receipt::{Reason, Receipt, ReceiptId};
use lapsed_core::registry::rules::{IncarnationState, OwnerCase};
use lapsed_core::sweep::{Batch, BatchAnswer, BatchId, Outcome, Refusal, Suspect};

use crate::fault::Tried;
use crate::owners::OwnerTable;
use crate::owners::slot::Slot;
use crate::receipt_block::{BlockHead, BlockItem, BlockWriter};
use crate::receipt_row;
use crate::removed_fields::RemovedFields;
use crate::services::term_holds;
use crate::tables::{batch_key, number, pair};
use crate::tx::Tx;

/// Result of a batch: its answer, and the incarnations whose end becomes durable with it.
pub(crate) type Carried = (BatchAnswer, Vec<Arc<Slot>>);

/// Must be called when a batch is durable.
pub(crate) fn durable((_, ended): &Carried) {
    ended.iter().for_each(|slot| slot.end_is_durable());
}

/// What a receipt records about the removed entry.
pub(crate) struct Removed<'a> {
    pub key: &'a Name,
    pub owner: &'a Name,
    pub incarnation: u64,
    pub reason: Reason,
    pub deadline_ms: u64,
    pub what: RemovedFields<'a>,
}

/// A batch that is being carried out.
pub(crate) struct Run<'a> {
    pub owners: &'a OwnerTable,
    pub now_ms: u64,
    pub back_ms: u64,
    id: &'a BatchId,
    clock: &'a dyn Clock,
    began: Duration,
    first_seq: u64,
    next_seq: u64,
    block: BlockWriter,
    ended: HashMap<u64, Arc<Slot>>,
    owners_ended: u64,
}

fn case(
    suspect: &Suspect,
    holder: u64,
    state: IncarnationState,
    now_ms: u64,
    back_ms: u64,
) -> OwnerCase {
    let (suspected, holder) = (suspect.incarnation, Incarnation(holder));
    OwnerCase { suspected, holder, state, now_ms, back_ms }
}

impl OwnerTable {
    /// Evaluates the guard for one suspect that this incarnation holds now.
    pub fn judge(
        &self,
        suspect: &Suspect,
        holder: &Slot,
        now_ms: u64,
        back_ms: u64,
    ) -> Result<Reason, Refusal> {
        let case = case(suspect, holder.incarnation, holder.state(), now_ms, back_ms);
        self.guard.judge(&case)
    }

    /// Carries out a batch, one suspect after the other, unless the sweeper is not the leader or
    /// the batch was carried out before.
    pub fn carry_out<'a>(
        &'a self,
        tx: &mut Tx,
        batch: &'a Batch,
        clock: &'a dyn Clock,
        mut one: impl FnMut(&mut Run<'a>, &mut Tx, &Suspect) -> Tried<Outcome>,
    ) -> Tried<Carried> {
        let (now_ms, _) = self.look();
        let all = |outcome| {
            let outcomes = vec![outcome; batch.suspects.len()];
            Ok((BatchAnswer { outcomes, ..BatchAnswer::default() }, Vec::new()))
        };
        if let Some(term) = batch.term
            && !term_holds(tx, &self.id, term, now_ms)?
        {
            return all(Outcome::Refused(Refusal::NotLeader));
        }
        if !self.may_carry_out(tx, &batch.id)? {
            return all(Outcome::Gone);
        }
        let mut run = self.begin(tx, &batch.id, clock)?;
        let mut outcomes = Vec::with_capacity(batch.suspects.len());
        for suspect in &batch.suspects {
            outcomes.push(one(&mut run, tx, suspect)?);
        }
        run.close(tx, outcomes)
    }

    /// Starts a batch that may be carried out.
    pub fn begin<'a>(
        &'a self,
        tx: &mut Tx,
        id: &'a BatchId,
        clock: &'a dyn Clock,
    ) -> Tried<Run<'a>> {
        let began = clock.mono();
        let (now_ms, back_ms) = self.look();
        let first_seq = tx.take_numbers(&self.tables.next_receipt, 0)?;
        Ok(Run {
            owners: self,
            now_ms,
            back_ms,
            id,
            clock,
            began,
            first_seq,
            next_seq: first_seq,
            block: BlockWriter::default(),
            ended: HashMap::new(),
            owners_ended: 0,
        })
    }
}

impl OwnerTable {
    /// A receipt under a number that was reserved for it.
    pub fn new_receipt(
        &self,
        seq: u64,
        by: &BatchId,
        now_ms: u64,
        removed: &Removed<'_>,
    ) -> Tried<Receipt> {
        let Removed { key, owner, incarnation, reason, deadline_ms, what } = removed;
        Ok(Receipt {
            id: ReceiptId { system: self.id.clone(), seq },
            key: (*key).clone(),
            owner: (*owner).clone(),
            incarnation: Incarnation(*incarnation),
            reason: *reason,
            evidence: receipt_row::evidence(*deadline_ms, now_ms),
            removed: what.to_json(owner.as_str(), *incarnation, *deadline_ms)?,
            sweeper: by.sweeper.clone(),
            batch: by.number,
            at_ms: now_ms,
            restored_ms: None,
        })
    }

    /// Writes a receipt by itself.
    pub fn put_receipt(
        &self,
        tx: &mut Tx,
        seq: u64,
        by: &BatchId,
        now_ms: u64,
        removed: Removed<'_>,
    ) -> Tried<Receipt> {
        let receipt = self.new_receipt(seq, by, now_ms, &removed)?;
        let row = receipt_row::write(&receipt)?;
        tx.put(&self.tables.receipts, &number(receipt.id.seq), &row)?;
        Ok(receipt)
    }
}

impl Run<'_> {
    /// Ends the incarnation, unless a heartbeat comes first.
    pub fn end(
        &mut self,
        tx: &mut Tx,
        suspect: &Suspect,
        slot: &Arc<Slot>,
    ) -> Tried<Result<(), Refusal>> {
        let may_end = |state: &IncarnationState| {
            let case = case(suspect, slot.incarnation, *state, self.now_ms, self.back_ms);
            self.owners.guard.judge(&case).map(|_| ())
        };
        match slot.end_if(Ending::Dead, self.now_ms, may_end) {
            Some(Err(why)) => return Ok(Err(why)),
            Some(Ok(_)) => self.owners_ended += 1,
            None => {}
        }
        if !self.ended.contains_key(&slot.incarnation) {
            self.owners.write_end(tx, slot)?;
            self.ended.insert(slot.incarnation, slot.clone());
        }
        Ok(Ok(()))
    }

    /// Writes the next receipt, together with others of this batch, and returns it.
    pub fn receipt(&mut self, tx: &mut Tx, removed: Removed<'_>) -> Tried<Receipt> {
        let seq = self.write_receipt(tx, &removed)?;
        self.owners.new_receipt(seq, self.id, self.now_ms, &removed)
    }

    /// The same, but returns only its number.
    pub fn write_receipt(&mut self, tx: &mut Tx, removed: &Removed<'_>) -> Tried<u64> {
        let seq = self.next_seq;
        self.next_seq += 1;
        if self.block.is_full() {
            self.put_block(tx)?;
        }
        self.block.add(&BlockItem {
            seq,
            key: removed.key.as_str(),
            owner: removed.owner.as_str(),
            incarnation: removed.incarnation,
            reason: removed.reason,
            deadline_ms: removed.deadline_ms,
            removed: removed.what.clone(),
            restored_ms: None,
        });
        Ok(seq)
    }

    fn put_block(&mut self, tx: &mut Tx) -> Tried<()> {
        let (sweeper, batch) = (&*self.id.sweeper, self.id.number);
        let head = BlockHead { at_ms: self.now_ms, sweeper, batch };
        self.owners.put_block(tx, self.block.finish(&head))
    }

    /// Writes the receipts that were collected, and records which ones this batch wrote, if any.
    pub fn note(&mut self, tx: &mut Tx) -> Tried<()> {
        self.put_block(tx)?;
        let count = self.next_seq - self.first_seq;
        if count > 0 {
            let tables = &self.owners.tables;
            tx.take_numbers(&tables.next_receipt, count)?;
            let key = batch_key(&self.id.sweeper, self.id.number);
            tx.put(&tables.batches, &key, &pair(self.first_seq, self.next_seq - 1))?;
        }
        Ok(())
    }

    fn close(mut self, tx: &mut Tx, outcomes: Vec<Outcome>) -> Tried<Carried> {
        self.note(tx)?;
        let held = self.clock.mono() - self.began;
        let answer = BatchAnswer { outcomes, owners_ended: self.owners_ended, held };
        Ok((answer, self.ended.into_values().collect()))
    }
}
