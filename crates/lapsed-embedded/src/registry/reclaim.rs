//! Reclaiming entries: guard, removal and receipt in one job of the writer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::Claim;
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Result, SystemId};

use crate::fault::Tried;
use crate::owners::batch::{Removed, Run, durable};
use crate::owners::slot::Slot;
use crate::owners::suspects::{after, place};
use crate::registry::{Core, EmbeddedRegistry};
use crate::removed_fields::RemovedFields;
use crate::tables::{held_key, number};
use crate::tx::Tx;

/// A suspect that the guard has judged dead.
struct Dead {
    slot: Arc<Slot>,
    reason: Reason,
    registered_ms: u64,
}

impl Core {
    /// Evaluates the guard for one suspect. `entry` is what is stored under its key now.
    fn judge_entry(
        &self,
        suspect: &Suspect,
        entry: Option<(u64, u64)>,
        now_ms: u64,
        back_ms: u64,
    ) -> std::result::Result<Dead, Outcome> {
        let Some((holder, registered_ms)) = entry else { return Err(Outcome::Gone) };
        let Some(slot) = self.index.incarnation(holder) else { return Err(Outcome::Gone) };
        match self.judge(suspect, &slot, now_ms, back_ms) {
            Ok(reason) => Ok(Dead { slot, reason, registered_ms }),
            Err(why) => Err(Outcome::Refused(why)),
        }
    }

    fn reclaim(&self, run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect) -> Tried<Outcome> {
        let entry = self.entry(tx, &suspect.key);
        let dead = match self.judge_entry(suspect, entry, run.now_ms, run.back_ms) {
            Ok(dead) => dead,
            Err(outcome) => return Ok(outcome),
        };
        if let Err(why) = run.end(tx, suspect, &dead.slot)? {
            return Ok(Outcome::Refused(why));
        }
        let (key, incarnation) = (&suspect.key, dead.slot.incarnation);
        self.let_go(tx, incarnation, Some(&dead.slot), key)?;
        let removed = Removed {
            key,
            owner: &dead.slot.name,
            incarnation,
            reason: dead.reason,
            deadline_ms: dead.slot.deadline_ms(),
            what: RemovedFields::Entry { registered_ms: dead.registered_ms },
        };
        let receipt = run.receipt(tx, removed)?;
        let seq = number(receipt.id.seq);
        tx.put(&self.tables.lost, &held_key(incarnation, key.as_str()), &seq)?;
        Ok(Outcome::Reclaimed(Some(Box::new(receipt))))
    }
}

impl EmbeddedRegistry {
    /// Evaluates the guard without changing anything.
    fn preview(&self, batch: &Batch) -> BatchAnswer {
        let (now_ms, back_ms) = self.core.look();
        let mut outcomes = Vec::with_capacity(batch.suspects.len());
        for suspect in &batch.suspects {
            let entry = self.core.held.get(&suspect.key);
            outcomes.push(match self.core.judge_entry(suspect, entry, now_ms, back_ms) {
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
        Ok(self.owner_service.census(self.core.held.len()))
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
        let job = move |core: &Core, tx: &mut Tx| {
            let one =
                |run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect| core.reclaim(run, tx, suspect);
            core.carry_out(tx, &batch, &*clock, one)
        };
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
