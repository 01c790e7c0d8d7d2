//! Registering, finding, unregistering and restoring entries.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, Claim, Incarnation};
use lapsed_core::receipt::ReceiptId;
use lapsed_core::registry::{
    FoundEntry, Holder, RegisterAnswer, Registered, RegistryStore, TakePolicy,
};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};

use crate::fault::Tried;
use crate::holder_index::Entry;
use crate::owners::service::{begin, begun};
use crate::owners::slot::Slot;
use crate::owners::{UnlessEnded, unknown_claim};
use crate::registry::{Core, EmbeddedRegistry};
use crate::tables::{held_key, number};
use crate::tx::Tx;

/// Whether `holder` is a newer incarnation of the same owner, from which an older one must not take
/// a key.
fn is_newer(holder: &Slot, slot: &Slot) -> bool {
    holder.name == slot.name && holder.incarnation > slot.incarnation
}

fn named(holder: &Slot) -> Holder {
    Holder { owner: holder.name.clone(), incarnation: Incarnation(holder.incarnation) }
}

/// Result of a registration inside its job.
struct Done {
    slot: Arc<Slot>,
    started: bool,
    keys: Vec<Registered>,
}

impl Core {
    fn register(
        &self,
        tx: &mut Tx,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Tried<UnlessEnded<Done>> {
        let (slot, started) = match self.acting(claim)? {
            Some(UnlessEnded::Ended(slot)) => return Ok(UnlessEnded::Ended(slot)),
            Some(UnlessEnded::Done(slot)) => (slot, false),
            None => (self.start(tx, &claim.owner, self.ttl_unless_told())?, true),
        };
        let now_ms = self.store_clock.now_ms();
        let mut outcomes = Vec::with_capacity(keys.len());
        for key in keys {
            outcomes.push(self.register_one(tx, &slot, key, take, now_ms)?);
        }
        Ok(UnlessEnded::Done(Done { slot, started, keys: outcomes }))
    }

    fn register_one(
        &self,
        tx: &mut Tx,
        slot: &Arc<Slot>,
        key: &Name,
        take: TakePolicy,
        now_ms: u64,
    ) -> Tried<Registered> {
        let outcome = match self.holder(tx, key)? {
            Some(holder) if holder.incarnation == slot.incarnation => return Ok(Registered::Kept),
            Some(holder) => {
                let is_others = take == TakePolicy::IfFree && holder.name != slot.name;
                let keeps = is_others || is_newer(&holder, slot);
                if keeps && holder.end().is_none() {
                    return Ok(Registered::Taken { by: named(&holder) });
                }
                self.let_go(tx, holder.incarnation, Some(&holder), key)?;
                Registered::Moved { from: named(&holder) }
            }
            None => Registered::New,
        };
        self.hold(tx, slot, key, now_ms)?;
        Ok(outcome)
    }

    /// The incarnation that holds `key`. An entry whose holder has no record (a file that was edited
    /// or repaired by hand) belongs to nobody: it is removed, and the key is free.
    fn holder(&self, tx: &mut Tx, key: &Name) -> Tried<Option<Arc<Slot>>> {
        let Some((incarnation, _)) = self.entry(tx, key) else { return Ok(None) };
        let holder = self.index.incarnation(incarnation);
        if holder.is_none() {
            self.let_go(tx, incarnation, None, key)?;
        }
        Ok(holder)
    }

    /// The entry of `key` including this batch's changes: its holder, and when it was registered.
    pub(super) fn entry(&self, tx: &mut Tx, key: &Name) -> Option<Entry> {
        match tx.held(&self.tables.held).get(key) {
            Some(changed) => *changed,
            None => self.held.get(key),
        }
    }

    fn hold(&self, tx: &mut Tx, slot: &Slot, key: &Name, now_ms: u64) -> Tried<()> {
        let row = held_key(slot.incarnation, key.as_str());
        tx.put(&self.tables.held, &row, &number(now_ms))?;
        tx.held(&self.tables.held).insert(key.clone(), Some((slot.incarnation, now_ms)));
        slot.hold_one();
        Ok(())
    }

    pub(super) fn let_go(
        &self,
        tx: &mut Tx,
        incarnation: u64,
        slot: Option<&Arc<Slot>>,
        key: &Name,
    ) -> Tried<()> {
        tx.remove(&self.tables.held, &held_key(incarnation, key.as_str()))?;
        tx.held(&self.tables.held).insert(key.clone(), None);
        if let Some(slot) = slot {
            self.note_let_go(slot);
        }
        Ok(())
    }

    fn unregister(
        &self,
        tx: &mut Tx,
        claim: &Claim,
        keys: &[Name],
    ) -> Tried<UnlessEnded<Vec<bool>>> {
        let slot = match self.acting(claim)? {
            Some(UnlessEnded::Done(slot)) => slot,
            Some(UnlessEnded::Ended(slot)) => return Ok(UnlessEnded::Ended(slot)),
            None => return Err(unknown_claim(claim).into()),
        };
        let mut removed = Vec::with_capacity(keys.len());
        for key in keys {
            let is_its = matches!(self.entry(tx, key), Some((i, _)) if i == slot.incarnation);
            if is_its {
                self.let_go(tx, slot.incarnation, Some(&slot), key)?;
            }
            removed.push(is_its);
        }
        Ok(UnlessEnded::Done(removed))
    }

    fn restore(&self, tx: &mut Tx, seq: u64) -> Tried<Restored> {
        let refused = |why: String| Ok(Restored::Refused { why });
        let id = ReceiptId { system: self.id.clone(), seq };
        let Some(receipt) = self.receipt(tx, seq)? else {
            return refused(format!("there is no receipt {id}, or it is past its retention"));
        };
        let (key, owner) = (&receipt.key, &receipt.owner);
        if receipt.restored_ms.is_some() {
            return refused(format!("`{key}` was put back from {id} before"));
        }
        if let Some(holder) = self.holder(tx, key)? {
            return refused(format!(
                "its place is taken: `{key}` is registered to `{}`, incarnation {}",
                holder.name, holder.incarnation
            ));
        }
        let (now_ms, back_ms) = self.look();
        let newest = self.index.newest(owner.as_str());
        let alive = |slot: &Arc<Slot>| slot.end().is_none() && slot.due_ms(back_ms) > now_ms;
        let Some(slot) = newest.filter(alive) else {
            return refused(format!(
                "`{owner}` is not alive, and an entry lives only as long as its owner; start a \
                 new incarnation of it first"
            ));
        };
        self.hold(tx, &slot, key, now_ms)?;
        let answer = Restored::Restored {
            key: key.to_string(),
            owner: owner.to_string(),
            incarnation: slot.incarnation,
        };
        self.note_restored(tx, &receipt, now_ms)?;
        Ok(answer)
    }
}

#[async_trait]
impl RegistryStore for EmbeddedRegistry {
    async fn register(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        let (claim, keys) = (claim.clone(), keys.to_vec());
        let store_clock = self.core.store_clock.clone();
        let after = move |acted: &UnlessEnded<Done>| match acted {
            UnlessEnded::Done(done) if done.started => begin(&store_clock, &done.slot),
            _ => {}
        };
        let done = self.write(move |core, tx| core.register(tx, &claim, &keys, take), after);
        let done = self.owner_service.acted(done.await?).await?;
        let started: Option<Beat> = done.started.then(|| begun(&done.slot));
        let incarnation = Incarnation(done.slot.incarnation);
        Ok(RegisterAnswer { incarnation, started, keys: done.keys })
    }

    async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        let (claim, keys) = (claim.clone(), keys.to_vec());
        let done = self.write(move |core, tx| core.unregister(tx, &claim, &keys), |_| {});
        self.owner_service.acted(done.await?).await
    }

    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        let (now_ms, back_ms) = self.core.look();
        let find = |key: &Name| {
            let Some((incarnation, registered_ms)) = self.core.held.get(key) else {
                return Ok(None);
            };
            // Between the two reads the incarnation may have been emptied and removed.
            let Some(slot) = self.core.index.incarnation(incarnation) else { return Ok(None) };
            let holder = named(&slot);
            let ended = slot.end().map(|end| (end.ending, end.at_ms));
            let due_ms = slot.due_ms(back_ms);
            Ok(Some(FoundEntry {
                holder,
                registered_ms: Some(registered_ms),
                due_ms,
                ended,
                now_ms,
            }))
        };
        keys.iter().map(find).collect()
    }

    async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.owner_service.entries(claim, after, limit).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.write(move |core, tx| core.restore(tx, seq), |_| {}).await
    }
}
