//! Lives: begun, beaten, ended, listed.

use std::sync::Arc;

use async_trait::async_trait;
use lapsed::owner::{Beat, Claim, Ending, Incarnation, Lost, OwnerInfo, OwnerStore, Pulse};
use lapsed::{Error, Name, Result};

use crate::fault::{Fault, Tried};
use crate::registry::load::open;
use crate::registry::{Core, EmbeddedRegistry, LOST_KEYS_MAX, Meant, stranger};
use crate::slot::{Slot, Touched};
use crate::tables::{held_key, number, split_held};
use crate::tx::Tx;
use crate::vigil::Vigil;

/// What a beat finds without waiting.
enum Found {
    Answer(Beat),
    Ended(Arc<Slot>),
    Pending,
    Nobody,
    Stranger,
}

impl Core {
    fn beat(&self, claim: &Claim) -> Found {
        let now_ms = self.vigil.granting_ms();
        let by_name = self.book.with_newest(claim.owner.as_str(), |newest| {
            let slot = newest?;
            let meant = claim.incarnation.is_none_or(|i| i.0 == slot.incarnation);
            meant.then(|| found(slot, now_ms))
        });
        if let Some(found) = by_name {
            return found;
        }
        match self.meant(claim) {
            Meant::Life(slot) => found(&slot, now_ms),
            Meant::Nobody => Found::Nobody,
            Meant::Stranger => Found::Stranger,
        }
    }

    /// Begins a life inside a job. It counts once the job's commit is durable.
    pub(super) fn start(&self, tx: &mut Tx<'_>, name: &Name, ttl_ms: u64) -> Tried<Arc<Slot>> {
        let incarnation = tx.take_numbers(&self.tables.next_incarnation, 1)?;
        let (now_ms, back_ms) = self.look();
        self.vigil.mind_ttl(ttl_ms);
        let slot =
            Arc::new(Slot::pending(self.vigil.clone(), name.clone(), incarnation, ttl_ms, now_ms));
        let mut row = slot.row();
        row.deadline_ms = now_ms + ttl_ms;
        tx.put(&self.tables.owners, &number(incarnation), &serde_json::to_vec(&row)?)?;
        self.book.add(slot.clone(), now_ms, back_ms);
        Ok(slot)
    }

    /// Ends a life inside a job, if it has not ended yet; makes sure that the end is written down.
    pub(crate) fn write_end(&self, tx: &mut Tx<'_>, slot: &Arc<Slot>) -> Tried<()> {
        if let Some(row) = slot.unwritten_end() {
            tx.put(&self.tables.owners, &number(slot.incarnation), &serde_json::to_vec(&row)?)?;
            self.book.due().note_end(slot);
        }
        Ok(())
    }

    pub(super) fn ttl_unless_told(&self) -> u64 {
        self.threshold.as_millis() as u64
    }
}

/// A life's start is durable: it counts from now on. Called behind the commit, not by whoever
/// asked, who may have stopped waiting.
pub(super) fn begin(vigil: &Vigil, slot: &Slot) {
    slot.begin(vigil.granting_ms() + slot.ttl_ms);
}

/// The first word to a life that began.
pub(super) fn begun(slot: &Slot) -> Beat {
    let deadline_ms = slot.deadline_ms();
    Beat {
        incarnation: Incarnation(slot.incarnation),
        deadline_ms,
        now_ms: deadline_ms.saturating_sub(slot.ttl_ms),
        ttl_ms: slot.ttl_ms,
        started: true,
    }
}

fn found(slot: &Arc<Slot>, now_ms: u64) -> Found {
    match slot.beat(now_ms) {
        Touched::Until(deadline_ms) => Found::Answer(Beat {
            incarnation: Incarnation(slot.incarnation),
            deadline_ms,
            now_ms,
            ttl_ms: slot.ttl_ms,
            started: false,
        }),
        Touched::Ended => Found::Ended(slot.clone()),
        Touched::Pending => Found::Pending,
    }
}

impl EmbeddedRegistry {
    /// A beat that is answered at once, if it can be: by a life that is in memory, which is every
    /// one that lives. `None`: ask [`OwnerStore::beat`].
    pub fn beat_now(&self, claim: &Claim) -> Option<Beat> {
        match self.core.beat(claim) {
            Found::Answer(beat) => Some(beat),
            _ => None,
        }
    }

    /// The word to a life that ended. Nobody is told before the end is durable: a commit that
    /// failed may have left it in memory only, and after a restart that life would live again.
    pub(super) async fn lost(&self, slot: &Arc<Slot>) -> Error {
        if slot.unwritten_end().is_some() {
            let (ended, durable) = (slot.clone(), slot.clone());
            let job = move |core: &Core, tx: &mut Tx<'_>| core.write_end(tx, &ended);
            if let Err(error) = self.write(job, move |()| durable.end_is_durable()).await {
                return error;
            }
        }
        self.what_was_lost(slot)
    }

    /// What a life that ended used to hold: what is left of it, and what was taken from it.
    fn what_was_lost(&self, slot: &Slot) -> Error {
        let keys = self.keys_of(slot).unwrap_or_default();
        let end = slot.end();
        let lost = Lost {
            owner: slot.name.clone(),
            incarnation: Some(Incarnation(slot.incarnation)),
            ending: end.map(|end| end.ending),
            ended_ms: end.map(|end| end.at_ms),
            held_total: end.map_or(0, |end| end.held).max(keys.len() as u64),
            held: keys,
        };
        lost.into()
    }

    fn keys_of(&self, slot: &Slot) -> Result<Vec<Name>> {
        let told = |fault: Fault| fault.told(&self.inner.disk.name);
        let txn = self.inner.disk.read()?;
        let mut keys = Vec::new();
        for name in [&self.core.tables.held, &self.core.tables.lost] {
            let Some(table) = open(&txn, name).map_err(told)? else { continue };
            let (from, to) = (held_key(slot.incarnation, ""), held_key(slot.incarnation + 1, ""));
            let rows = table.range(&*from..&*to).map_err(|e| told(e.into()))?;
            for row in rows.take(LOST_KEYS_MAX) {
                let row = row.map_err(|e| told(e.into()))?;
                if let Some((_, key)) = split_held(row.0.value()) {
                    keys.push(Name::new(key)?);
                }
            }
        }
        keys.sort();
        keys.dedup();
        keys.truncate(LOST_KEYS_MAX);
        Ok(keys)
    }

    /// Waits until every commit that is under way is durable.
    async fn settle_commits(&self) -> Result<()> {
        self.inner.writer.write(|_| Ok(()), |()| {}).await
    }

    async fn start_unless_known(&self, owner: &Name) -> Result<Option<Beat>> {
        let (name, ttl_ms) = (owner.clone(), self.core.ttl_unless_told());
        let vigil = self.core.vigil.clone();
        let started = self.write(
            move |core, tx| match core.book.newest(name.as_str()) {
                Some(_) => Ok(None),
                None => core.start(tx, &name, ttl_ms).map(Some),
            },
            move |slot: &Option<Arc<Slot>>| slot.iter().for_each(|slot| begin(&vigil, slot)),
        );
        let started = started.await?;
        Ok(started.map(|slot| begun(&slot)))
    }
}

#[async_trait]
impl OwnerStore for EmbeddedRegistry {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let name = owner.clone();
        let vigil = self.core.vigil.clone();
        let done = move |slot: &Arc<Slot>| begin(&vigil, slot);
        let slot = self.write(move |core, tx| core.start(tx, &name, ttl_ms), done).await?;
        Ok(begun(&slot))
    }

    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        loop {
            match self.core.beat(claim) {
                Found::Answer(beat) => return Ok(beat),
                Found::Ended(slot) => return Err(self.lost(&slot).await),
                Found::Stranger => return Err(stranger(claim)),
                Found::Pending => self.settle_commits().await?,
                Found::Nobody => {
                    if let Some(beat) = self.start_unless_known(&claim.owner).await? {
                        return Ok(beat);
                    }
                }
            }
        }
    }

    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        let meant = claim.clone();
        let slot = self.write(
            move |core, tx| {
                let Meant::Life(slot) = core.meant(&meant) else {
                    return Err(stranger(&meant).into());
                };
                let (now_ms, _) = core.look();
                let may_end = |_: &_| Ok::<(), ()>(());
                let ended = slot.end_if(Ending::Retired, now_ms, may_end).is_some();
                core.write_end(tx, &slot)?;
                Ok((slot, ended))
            },
            |(slot, _)| slot.end_is_durable(),
        );
        match slot.await? {
            (slot, true) => Ok(slot.info(self.core.look().1)),
            (slot, false) => Err(self.lost(&slot).await),
        }
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        let back_ms = self.core.look().1;
        let lives = self.core.book.page(after, limit);
        Ok(lives.iter().filter(|slot| !slot.is_pending()).map(|slot| slot.info(back_ms)).collect())
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        match self.core.meant(claim) {
            Meant::Life(slot) if !slot.is_pending() => Ok(Some(slot.info(self.core.look().1))),
            _ => Ok(None),
        }
    }

    fn pulse(&self, owner: &Name, incarnation: Incarnation) -> Option<Arc<dyn Pulse>> {
        match self.core.meant(&Claim::exact(owner.clone(), incarnation)) {
            Meant::Life(slot) => Some(slot),
            _ => None,
        }
    }
}
