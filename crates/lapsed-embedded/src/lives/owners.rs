//! OwnerTable: begun, beaten, ended, listed.

use std::sync::Arc;

use lapsed_core::owner::{Beat, BeatHandle, Claim, Ending, Incarnation, Lost, OwnerInfo};
use lapsed_core::{Error, Name, Result};

use crate::fault::{Fault, Tried};
use crate::lives::load::open;
use crate::lives::{OwnerService, OwnerTable, ResolvedClaim, stranger};
use crate::slot::{Slot, Touched};
use crate::tables::{held_key, number, split_held};
use crate::tx::Tx;
use crate::vigil::StoreClock;

/// The most keys named in a `Lost`.
const LOST_KEYS_MAX: usize = 1_000;

/// What a beat finds without waiting.
enum Found {
    Answer(Beat),
    Ended(Arc<Slot>),
    Pending,
    Nobody,
    Stranger,
}

impl OwnerTable {
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
            ResolvedClaim::Life(slot) => found(&slot, now_ms),
            ResolvedClaim::Nobody => Found::Nobody,
            ResolvedClaim::Stranger => Found::Stranger,
        }
    }

    /// Begins a life inside a job. It counts once the job's commit is durable.
    pub fn start(&self, tx: &mut Tx<'_>, name: &Name, ttl_ms: u64) -> Tried<Arc<Slot>> {
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
    pub fn write_end(&self, tx: &mut Tx<'_>, slot: &Arc<Slot>) -> Tried<()> {
        if let Some(row) = slot.unwritten_end() {
            tx.put(&self.tables.owners, &number(slot.incarnation), &serde_json::to_vec(&row)?)?;
            self.book.due().note_end(slot);
        }
        Ok(())
    }

    pub fn ttl_unless_told(&self) -> u64 {
        self.threshold.as_millis() as u64
    }
}

/// A life's start is durable: it counts from now on. Called behind the commit, not by whoever
/// asked, who may have stopped waiting.
pub(crate) fn begin(vigil: &StoreClock, slot: &Slot) {
    slot.begin(vigil.granting_ms() + slot.ttl_ms);
}

/// The first word to a life that began.
pub(crate) fn begun(slot: &Slot) -> Beat {
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

impl OwnerService {
    /// A beat that is answered at once, if it can be: by a life that is in memory, which is every
    /// one that lives. `None`: ask [`OwnerService::beat`].
    pub fn beat_now(&self, claim: &Claim) -> Option<Beat> {
        match self.lives.beat(claim) {
            Found::Answer(beat) => Some(beat),
            _ => None,
        }
    }

    /// The word to a life that ended. Nobody is told before the end is durable: a commit that
    /// failed may have left it in memory only, and after a restart that life would live again.
    pub async fn lost(&self, slot: &Arc<Slot>) -> Error {
        if slot.unwritten_end().is_some() {
            let (ended, durable) = (slot.clone(), slot.clone());
            let job = move |lives: &OwnerTable, tx: &mut Tx<'_>| lives.write_end(tx, &ended);
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
        for name in [&self.lives.tables.held, &self.lives.tables.lost] {
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
        let (name, ttl_ms) = (owner.clone(), self.lives.ttl_unless_told());
        let vigil = self.lives.vigil.clone();
        let started = self.write(
            move |lives, tx| match lives.book.newest(name.as_str()) {
                Some(_) => Ok(None),
                None => lives.start(tx, &name, ttl_ms).map(Some),
            },
            move |slot: &Option<Arc<Slot>>| slot.iter().for_each(|slot| begin(&vigil, slot)),
        );
        let started = started.await?;
        Ok(started.map(|slot| begun(&slot)))
    }
}

/// What [`OwnerStore`](lapsed_core::owner::OwnerStore) asks for.
impl OwnerService {
    pub async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let name = owner.clone();
        let vigil = self.lives.vigil.clone();
        let done = move |slot: &Arc<Slot>| begin(&vigil, slot);
        let slot = self.write(move |lives, tx| lives.start(tx, &name, ttl_ms), done).await?;
        Ok(begun(&slot))
    }

    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        loop {
            match self.lives.beat(claim) {
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

    pub async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        let meant = claim.clone();
        let slot = self.write(
            move |lives, tx| {
                let ResolvedClaim::Life(slot) = lives.meant(&meant) else {
                    return Err(stranger(&meant).into());
                };
                let (now_ms, _) = lives.look();
                let may_end = |_: &_| Ok::<(), ()>(());
                let ended = slot.end_if(Ending::Retired, now_ms, may_end).is_some();
                lives.write_end(tx, &slot)?;
                Ok((slot, ended))
            },
            |(slot, _)| slot.end_is_durable(),
        );
        match slot.await? {
            (slot, true) => Ok(slot.info(self.lives.look().1)),
            (slot, false) => Err(self.lost(&slot).await),
        }
    }

    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        let back_ms = self.lives.look().1;
        let lives = self.lives.book.page(after, limit);
        Ok(lives.iter().filter(|slot| !slot.is_pending()).map(|slot| slot.info(back_ms)).collect())
    }

    pub async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        match self.lives.meant(claim) {
            ResolvedClaim::Life(slot) if !slot.is_pending() => {
                Ok(Some(slot.info(self.lives.look().1)))
            }
            _ => Ok(None),
        }
    }

    pub fn pulse(&self, owner: &Name, incarnation: Incarnation) -> Option<Arc<dyn BeatHandle>> {
        match self.lives.meant(&Claim::exact(owner.clone(), incarnation)) {
            ResolvedClaim::Life(slot) => Some(slot),
            _ => None,
        }
    }
}
