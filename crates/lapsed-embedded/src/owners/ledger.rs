//! Settling a batch, and bounded housekeeping, which also removes the records of owners that ended
//! long ago.

use std::sync::Arc;

use lapsed_core::owner::Ending;
use lapsed_core::receipt::{Receipt, ReceiptQuery, Retention};
use lapsed_core::registry::rules::{IncarnationState, OwnerCase};
use lapsed_core::sweep::{BatchId, Tidied, TidyLimits};
use lapsed_core::{Kind, Result};

use crate::fault::Tried;
use crate::owners::slot::Slot;
use crate::owners::{OwnerService, OwnerTable};
use crate::services::term_holds;
use crate::tables::{batch_key, held_key, number, split_pair, to_number};
use crate::tx::Tx;

/// How long the store remembers that a batch must not be carried out.
const FORBIDDEN_KEPT_MS: u64 = 3_600_000;

impl OwnerService {
    /// The receipts that a batch wrote, if it was carried out; if not, it never will be. This is a
    /// job, because the batch in doubt may still wait in the writer's queue.
    pub async fn settle_batch(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let key = batch_key(&batch.sweeper, batch.number);
        let range = self.write(move |owners, tx| owners.carried_out(tx, &key), |_| {}).await?;
        let Some((first, last)) = range else { return Ok(Vec::new()) };
        let limit = (last - first + 1) as usize;
        let query = ReceiptQuery { after: Some(first - 1), limit, ..ReceiptQuery::default() };
        let receipts = self.inner.read_receipts(&self.owners.id, &query)?;
        Ok(receipts.into_iter().filter(|r| r.id.seq <= last).collect())
    }

    pub async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        let done = |(_, ended): &(Tidied, Vec<Arc<Slot>>)| {
            ended.iter().for_each(|slot| slot.end_is_durable());
        };
        let owners = self.owners.clone();
        let job = move |tx: &mut Tx| owners.tidy(tx, &limits);
        Ok(self.inner.writer.sweep(job, done).await?.0)
    }
}

impl OwnerTable {
    /// The receipts of a batch, or a record that it must not be carried out any more.
    fn carried_out(&self, tx: &mut Tx, key: &[u8]) -> Tried<Option<(u64, u64)>> {
        if let Some(row) = tx.get(&self.tables.batches, key)? {
            return Ok(split_pair(&row));
        }
        tx.put(&self.tables.forbidden, key, &number(self.store_clock.now_ms()))?;
        Ok(None)
    }

    /// Whether a batch may be carried out: it was neither carried out nor settled before.
    pub fn may_carry_out(&self, tx: &mut Tx, batch: &BatchId) -> Tried<bool> {
        Ok(!self.is_carried_out(tx, batch)? && !self.is_forbidden(tx, batch)?)
    }

    /// Whether a batch has written receipts.
    pub fn is_carried_out(&self, tx: &mut Tx, batch: &BatchId) -> Tried<bool> {
        let key = batch_key(&batch.sweeper, batch.number);
        Ok(tx.get(&self.tables.batches, &key)?.is_some())
    }

    /// Whether a batch was settled as not carried out.
    pub fn is_forbidden(&self, tx: &mut Tx, batch: &BatchId) -> Tried<bool> {
        let key = batch_key(&batch.sweeper, batch.number);
        Ok(tx.get(&self.tables.forbidden, &key)?.is_some())
    }

    /// Removes old records of settled batches: a request that is so late was lost.
    fn forget_forbidden(&self, tx: &mut Tx, limits: &TidyLimits, now_ms: u64) -> Tried<()> {
        let mut old = Vec::new();
        for row in tx.range::<&[u8]>(&self.tables.forbidden, ..)?.take(limits.rows) {
            let (key, since) = row?;
            let since_ms = to_number(since.value()).unwrap_or(0);
            if now_ms.saturating_sub(since_ms) > FORBIDDEN_KEPT_MS {
                old.push(key.value().to_vec());
            }
        }
        old.iter().try_for_each(|key| tx.remove(&self.tables.forbidden, key))
    }
}

impl OwnerTable {
    /// Bounded housekeeping, in one job.
    pub fn tidy(&self, tx: &mut Tx, limits: &TidyLimits) -> Tried<(Tidied, Vec<Arc<Slot>>)> {
        let (now_ms, _) = self.look();
        let mut tidied = Tidied::default();
        if let Some(term) = limits.term
            && !term_holds(tx, &self.id, term, now_ms)?
        {
            return Ok((tidied, Vec::new()));
        }
        let ended = self.end_empty(tx, limits)?;
        tidied.owners_ended = ended.len() as u64;
        tidied.receipts_pruned = self.prune_receipts(tx, limits, now_ms)?;
        self.forget_forbidden(tx, limits, now_ms)?;
        let (forgotten, is_cut) = self.forget_owners(tx, limits, now_ms)?;
        tidied.owners_forgotten = forgotten;
        let most = tidied.owners_ended.max(tidied.receipts_pruned).max(forgotten);
        tidied.has_more = is_cut || most >= limits.rows as u64;
        Ok((tidied, ended))
    }

    /// Declares overdue owners dead that hold nothing, because no suspect would ever make a pass do
    /// so.
    fn end_empty(&self, tx: &mut Tx, limits: &TidyLimits) -> Tried<Vec<Arc<Slot>>> {
        let (now_ms, back_ms) = self.look();
        let empty = {
            let mut due = self.index.due();
            due.advance(now_ms, back_ms);
            due.overdue_empty(limits.undeclared_max, limits.rows)
        };
        let mut ended = Vec::new();
        for slot in empty {
            let own = lapsed_core::owner::Incarnation(slot.incarnation);
            let may_end = |state: &IncarnationState| {
                let case =
                    OwnerCase { suspected: own, holder: own, state: *state, now_ms, back_ms };
                self.guard.judge(&case).map(|_| ())
            };
            if let Some(Ok(_)) = slot.end_if(Ending::Dead, now_ms, may_end) {
                self.write_end(tx, &slot)?;
                ended.push(slot);
            }
        }
        Ok(ended)
    }

    /// Removes at most `limit` records of what was taken from an incarnation; returns how many.
    fn forget_lost(&self, tx: &mut Tx, incarnation: u64, limit: usize) -> Tried<usize> {
        let (from, to) = (held_key(incarnation, ""), held_key(incarnation + 1, ""));
        let mut lost = Vec::new();
        for row in tx.range(&self.tables.lost, &*from..&*to)?.take(limit) {
            lost.push(row?.0.value().to_vec());
        }
        lost.iter().try_for_each(|key| tx.remove(&self.tables.lost, key))?;
        Ok(lost.len())
    }

    /// Removes ended owners that are older than their receipts, and the oldest ones beyond the number
    /// that is kept. Until then, an owner can still learn that it ended.
    /// Returns how many, and whether some are left because of the records of what they held.
    fn forget_owners(&self, tx: &mut Tx, limits: &TidyLimits, now_ms: u64) -> Tried<(u64, bool)> {
        let Retention { age_ms, owners, owners_age_ms, .. } = limits.retention;
        let (aged_ms, spare_ms) =
            (now_ms.saturating_sub(age_ms), now_ms.saturating_sub(owners_age_ms));
        let mut gone = self.index.due().forgettable(aged_ms, owners, spare_ms, limits.rows);
        // In a registry everything that was taken has a receipt and is removed with it. References
        // of sessions have no receipts: their records are removed before the incarnation's record,
        // a bounded number at a time.
        let mut left = limits.rows;
        let mut is_cut = false;
        let count = if self.id.kind == Kind::Sessions { gone.len() } else { 0 };
        for at in 0..count {
            left -= self.forget_lost(tx, gone[at].incarnation, left)?;
            if left == 0 {
                // There may be more: the next call continues.
                gone.truncate(at);
                is_cut = true;
                break;
            }
        }
        for slot in &gone {
            tx.remove(&self.tables.owners, &number(slot.incarnation))?;
        }
        self.index.forget(&gone);
        Ok((gone.len() as u64, is_cut))
    }
}
