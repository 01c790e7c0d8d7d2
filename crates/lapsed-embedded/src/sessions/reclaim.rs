//! Reclaiming references and sessions: guard, removal and receipt in one job of the writer.
//!
//! What can happen between listing and this job: a heartbeat (judged by the compare-and-swap that
//! ends the incarnation), a connect, a disconnect, a resume, or another sweeper. The latter are
//! jobs, and jobs are serial.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::Claim;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, Outcome, PageRequest, PassMode, Suspect,
    SuspectPage, Sweep, Tidied, TidyLimits,
};
use lapsed_core::{Result, SystemId};

use crate::fault::Tried;
use crate::owners::batch::{Removed, Run, durable};
use crate::owners::load::open;
use crate::owners::slot::Slot;
use crate::owners::suspects::after;
use crate::removed_fields::RemovedFields;
use crate::sessions::operations::Kept;
use crate::sessions::rows::disconnected_ms;
use crate::sessions::suspects::NOBODY;
use crate::sessions::{Core, EmbeddedSessions};
use crate::tables::{held_key, number};
use crate::tx::Tx;

impl Core {
    fn reclaim(&self, run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect) -> Tried<Outcome> {
        match suspect.incarnation == NOBODY {
            true => self.delete_orphan(run, tx, suspect),
            false => self.release(run, tx, suspect),
        }
    }

    /// Removes all references of a dead incarnation to a session; if they were its last ones, its
    /// grace period begins now.
    fn release(&self, run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect) -> Tried<Outcome> {
        let Some(slot) = self.suspected(suspect) else { return Ok(Outcome::Gone) };
        let id = &suspect.key;
        let count = self.references(tx, &slot, id)?;
        if count == 0 {
            return Ok(Outcome::Gone);
        }
        if let Err(why) = self.judge(suspect, &slot, run.now_ms, run.back_ms) {
            return Ok(Outcome::Refused(why));
        }
        if let Err(why) = run.end(tx, suspect, &slot)? {
            return Ok(Outcome::Refused(why));
        }
        self.refer(tx, &slot, id, count, 0)?;
        if let Some(row) = self.row(tx, id)? {
            self.dereference(tx, id, &row, count, run.now_ms)?;
        }
        // There is no receipt for this; 0 stands for none.
        tx.put(&self.tables.lost, &held_key(slot.incarnation, id.as_str()), &number(0))?;
        Ok(Outcome::Released)
    }

    fn suspected(&self, suspect: &Suspect) -> Option<Arc<Slot>> {
        self.index.incarnation(suspect.incarnation.0).filter(|slot| slot.name == suspect.owner)
    }

    fn delete_orphan(&self, run: &mut Run<'_>, tx: &mut Tx, suspect: &Suspect) -> Tried<Outcome> {
        let id = &suspect.key;
        let Some(row) = self.row(tx, id)? else { return Ok(Outcome::Gone) };
        let reason = match self.rules.judge(&self.case(&row, run.now_ms, run.back_ms)) {
            Ok(reason) => reason,
            Err(why) => return Ok(Outcome::Refused(why)),
        };
        let was_current = self.take_out(tx, id, &row)?;
        let kept = Kept {
            disconnected_ms: disconnected_ms(&row),
            updated_ms: row.updated_ms,
            profile: row.profile,
            was_current,
        };
        let what = RemovedFields::json(&kept)?;
        let removed = Removed {
            key: id,
            owner: kept.profile.broadcaster_user_id.as_ref().unwrap_or(id),
            incarnation: NOBODY.0,
            reason,
            deadline_ms: row.since_ms + self.grace_ms,
            what,
        };
        let receipt = run.receipt(tx, removed)?;
        Ok(Outcome::Reclaimed(Some(Box::new(receipt))))
    }
}

impl EmbeddedSessions {
    /// Evaluates the guard without changing anything.
    fn preview(&self, batch: &Batch) -> Result<BatchAnswer> {
        let (now_ms, back_ms) = self.core.look();
        let one = |suspect: &Suspect| match suspect.incarnation == NOBODY {
            true => self.preview_orphan(suspect, now_ms, back_ms),
            false => self.preview_release(suspect, now_ms, back_ms),
        };
        let outcomes = batch.suspects.iter().map(one).collect::<Result<_>>()?;
        Ok(BatchAnswer { outcomes, ..BatchAnswer::default() })
    }

    fn preview_orphan(&self, suspect: &Suspect, now_ms: u64, back_ms: u64) -> Result<Outcome> {
        let Some(row) = self.row(&suspect.key)? else { return Ok(Outcome::Gone) };
        Ok(match self.core.rules.judge(&self.core.case(&row, now_ms, back_ms)) {
            Ok(_) => Outcome::Reclaimed(None),
            Err(why) => Outcome::Refused(why),
        })
    }

    fn preview_release(&self, suspect: &Suspect, now_ms: u64, back_ms: u64) -> Result<Outcome> {
        let Some(slot) = self.core.suspected(suspect) else { return Ok(Outcome::Gone) };
        if !self.refers(&slot, suspect)? {
            return Ok(Outcome::Gone);
        }
        Ok(match self.core.judge(suspect, &slot, now_ms, back_ms) {
            Ok(_) => Outcome::Released,
            Err(why) => Outcome::Refused(why),
        })
    }

    fn refers(&self, slot: &Slot, suspect: &Suspect) -> Result<bool> {
        let disk = &self.owner_service.inner.disk;
        let txn = disk.read()?;
        let read = || -> Tried<bool> {
            let Some(held) = open(&txn, &self.core.tables.held)? else { return Ok(false) };
            Ok(held.get(&held_key(slot.incarnation, suspect.key.as_str()))?.is_some())
        };
        read().map_err(|fault| fault.told(&disk.name))
    }
}

#[async_trait]
impl Sweep for EmbeddedSessions {
    fn system(&self) -> &SystemId {
        &self.core.id
    }

    /// The longer of TTL and grace period. If only the way to the store was cut, the guard does not
    /// know of the absence, and the brake alone spares owners for a whole TTL and sessions for a
    /// whole grace period. The cost is that a real mass death is held for longer.
    fn threshold(&self) -> Duration {
        self.core.threshold.max(Duration::from_millis(self.core.grace_ms))
    }

    async fn census(&self) -> Result<Census> {
        Ok(self.count())
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.suspects_page(&request)
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        after(suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.owner_service.held_by(claim, limit)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        if batch.act == PassMode::DryRun {
            return self.preview(&batch);
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
