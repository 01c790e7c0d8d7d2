//! The decisive step: guard, act and receipt in one job of the writer.
//!
//! The race: a beat may arrive between the guard and the end of a life. The guard therefore judges
//! the very deadline that the compare-and-swap takes out of the slot: a beat that came before is
//! judged, one that comes after finds the life ended. All else that could come in between
//! (a registration elsewhere, another sweeper) is a job, and jobs are serial.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed::clock::Clock;
use lapsed::owner::{Ending, Incarnation};
use lapsed::receipt::{Evidence, Reason, Receipt, ReceiptId};
use lapsed::registry::rules::{Case, Life};
use lapsed::sweep::{
    Act, Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, Refusal, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed::{Result, SystemId};
use serde_json::json;

use crate::fault::Tried;
use crate::registry::{Core, EmbeddedRegistry};
use crate::services::term_holds;
use crate::slot::Slot;
use crate::tables::{batch_key, held_key, number, pair};
use crate::tx::Tx;

/// A suspect that the guard has found dead.
struct Dead {
    slot: Arc<Slot>,
    reason: Reason,
    registered_ms: u64,
}

/// A batch under way.
struct Reclaim<'a> {
    core: &'a Core,
    id: &'a BatchId,
    now_ms: u64,
    back_ms: u64,
    first_seq: u64,
    next_seq: u64,
    ended: HashMap<u64, Arc<Slot>>,
    owners_ended: u64,
}

impl Core {
    /// The guard's question about one suspect. `entry` is what is stored under its key right now.
    fn judge(
        &self,
        suspect: &Suspect,
        entry: Option<(u64, u64)>,
        now_ms: u64,
        back_ms: u64,
    ) -> std::result::Result<Dead, Outcome> {
        let Some((holder, registered_ms)) = entry else { return Err(Outcome::Gone) };
        let Some(slot) = self.book.life(holder) else { return Err(Outcome::Gone) };
        match self.guard.judge(&case(suspect, holder, slot.life(), now_ms, back_ms)) {
            Ok(reason) => Ok(Dead { slot, reason, registered_ms }),
            Err(why) => Err(Outcome::Refused(why)),
        }
    }
}

fn case(suspect: &Suspect, holder: u64, life: Life, now_ms: u64, back_ms: u64) -> Case {
    let (suspected, holder) = (suspect.incarnation, Incarnation(holder));
    Case { suspected, holder, life, now_ms, back_ms }
}

impl Reclaim<'_> {
    fn one(&mut self, tx: &mut Tx<'_>, suspect: &Suspect) -> Tried<Outcome> {
        let core = self.core;
        let entry = core.entry(tx, &suspect.key);
        let dead = match core.judge(suspect, entry, self.now_ms, self.back_ms) {
            Ok(dead) => dead,
            Err(outcome) => return Ok(outcome),
        };
        if let Err(why) = self.end(tx, suspect, &dead.slot)? {
            return Ok(Outcome::Refused(why));
        }
        let incarnation = dead.slot.incarnation;
        core.let_go(tx, incarnation, Some(&dead.slot), &suspect.key)?;
        let receipt = self.receipt(suspect, &dead);
        self.next_seq += 1;
        let seq = number(receipt.id.seq);
        tx.put(&core.tables.receipts, &seq, &serde_json::to_vec(&receipt)?)?;
        tx.put(&core.tables.lost, &held_key(incarnation, suspect.key.as_str()), &seq)?;
        Ok(Outcome::Reclaimed(Some(Box::new(receipt))))
    }

    /// Ends the life, unless a beat comes first.
    fn end(
        &mut self,
        tx: &mut Tx<'_>,
        suspect: &Suspect,
        slot: &Arc<Slot>,
    ) -> Tried<std::result::Result<(), Refusal>> {
        let may_end = |life: &Life| {
            let case = case(suspect, slot.incarnation, *life, self.now_ms, self.back_ms);
            self.core.guard.judge(&case).map(|_| ())
        };
        match slot.end_if(Ending::Dead, self.now_ms, may_end) {
            Some(Err(why)) => return Ok(Err(why)),
            Some(Ok(_)) => self.owners_ended += 1,
            None => {}
        }
        if !self.ended.contains_key(&slot.incarnation) {
            self.core.write_end(tx, slot)?;
            self.ended.insert(slot.incarnation, slot.clone());
        }
        Ok(Ok(()))
    }

    fn receipt(&self, suspect: &Suspect, dead: &Dead) -> Receipt {
        let deadline_ms = dead.slot.deadline_ms();
        Receipt {
            id: ReceiptId { system: self.core.id.clone(), seq: self.next_seq },
            key: suspect.key.clone(),
            owner: dead.slot.name.clone(),
            incarnation: Incarnation(dead.slot.incarnation),
            reason: dead.reason,
            evidence: Evidence {
                clock: "embedded".to_owned(),
                deadline_ms,
                judged_ms: self.now_ms,
                late_ms: self.now_ms.saturating_sub(deadline_ms),
            },
            removed: json!({ "registered_ms": dead.registered_ms }),
            sweeper: self.id.sweeper.clone(),
            batch: self.id.number,
            at_ms: self.now_ms,
            restored_ms: None,
        }
    }
}

/// What a reclaim job leaves: the answer, and the lives whose end is durable with it.
type Reclaimed = (BatchAnswer, Vec<Arc<Slot>>);

fn reclaim(core: &Core, tx: &mut Tx<'_>, batch: &Batch, clock: &dyn Clock) -> Tried<Reclaimed> {
    let began = clock.mono();
    let (now_ms, back_ms) = core.look();
    if let Some(term) = batch.term
        && !term_holds(tx, &core.id, term, now_ms)?
    {
        let outcomes = vec![Outcome::Refused(Refusal::NotLeader); batch.suspects.len()];
        return Ok((BatchAnswer { outcomes, ..BatchAnswer::default() }, Vec::new()));
    }
    if !core.may_carry_out(tx, &batch.id)? {
        let outcomes = vec![Outcome::Gone; batch.suspects.len()];
        return Ok((BatchAnswer { outcomes, ..BatchAnswer::default() }, Vec::new()));
    }
    let first_seq = tx.take_numbers(&core.tables.next_receipt, 0)?;
    let mut run = Reclaim {
        core,
        id: &batch.id,
        now_ms,
        back_ms,
        first_seq,
        next_seq: first_seq,
        ended: HashMap::new(),
        owners_ended: 0,
    };
    let mut outcomes = Vec::with_capacity(batch.suspects.len());
    for suspect in &batch.suspects {
        outcomes.push(run.one(tx, suspect)?);
    }
    let count = run.next_seq - run.first_seq;
    if count > 0 {
        tx.take_numbers(&core.tables.next_receipt, count)?;
        let key = batch_key(&batch.id.sweeper, batch.id.number);
        tx.put(&core.tables.batches, &key, &pair(first_seq, run.next_seq - 1))?;
    }
    let held = clock.mono() - began;
    let answer = BatchAnswer { outcomes, owners_ended: run.owners_ended, held };
    Ok((answer, run.ended.into_values().collect()))
}

impl EmbeddedRegistry {
    /// The guard without the act.
    fn preview(&self, batch: &Batch) -> BatchAnswer {
        let (now_ms, back_ms) = self.core.look();
        let mut outcomes = Vec::with_capacity(batch.suspects.len());
        for suspect in &batch.suspects {
            let entry = self.core.held.get(&suspect.key);
            outcomes.push(match self.core.judge(suspect, entry, now_ms, back_ms) {
                Ok(_) => Outcome::Reclaimed(None),
                Err(outcome) => outcome,
            });
        }
        BatchAnswer { outcomes, ..BatchAnswer::default() }
    }
}

#[async_trait]
impl Sweep for EmbeddedRegistry {
    fn system(&self) -> &SystemId {
        &self.core.id
    }

    fn threshold(&self) -> Duration {
        self.core.threshold
    }

    async fn census(&self) -> Result<Census> {
        Ok(self.count())
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.page(&request)
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        super::suspects::after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        if batch.act == Act::DryRun {
            return Ok(self.preview(&batch));
        }
        let clock = self.inner.clock.clone();
        let done = |(_, ended): &Reclaimed| ended.iter().for_each(|slot| slot.end_is_durable());
        let job = self.write(move |core, tx| reclaim(core, tx, &batch, &*clock), done);
        Ok(job.await?.0)
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.settle_batch(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        let done = |(_, ended): &(Tidied, Vec<Arc<Slot>>)| {
            ended.iter().for_each(|slot| slot.end_is_durable());
        };
        Ok(self.write(move |core, tx| core.tidy(tx, &limits), done).await?.0)
    }
}
