//! Starting, ending and listing owners; what an ended one held.

use std::sync::Arc;

use lapsed_core::owner::{Beat, BeatHandle, Claim, Ending, Incarnation, Lost, OwnerInfo};
use lapsed_core::request::{self, RequestId};
use lapsed_core::{Error, Name, Result};

use crate::fault::{Fault, Tried};
use crate::owners::load::open;
use crate::owners::slot::Slot;
use crate::owners::{Found, OwnerService, OwnerTable, ResolvedClaim, UnlessEnded, unknown_claim};
use crate::requests::Requests;
use crate::store_clock::StoreClock;
use crate::tables::{held_key, number, split_held};
use crate::tx::Tx;

/// Largest number of keys in a `Lost`.
const LOST_KEYS_MAX: usize = 1_000;

impl OwnerTable {
    /// The requests of this system, which a job finds and keeps.
    pub fn requests(&self) -> Requests<'_> {
        Requests { tables: &self.tables, now_ms: self.store_clock.now_ms() }
    }

    /// Starts an incarnation inside a job. It has no effect until the job's commit is durable.
    pub fn start(&self, tx: &mut Tx, name: &Name, ttl_ms: u64) -> Tried<Arc<Slot>> {
        let incarnation = tx.take_numbers(&self.tables.next_incarnation, 1)?;
        let (now_ms, back_ms) = self.look();
        self.store_clock.mind_ttl(ttl_ms);
        let slot =
            Arc::new(Slot::pending(self.slots.clone(), name.clone(), incarnation, ttl_ms, now_ms));
        let mut row = slot.row();
        row.deadline_ms = now_ms + ttl_ms;
        tx.put(&self.tables.owners, &number(incarnation), &serde_json::to_vec(&row)?)?;
        self.index.add(slot.clone(), now_ms, back_ms);
        Ok(slot)
    }

    /// Ends an incarnation inside a job, if it has not ended yet, and makes sure that its end is
    /// written.
    pub fn write_end(&self, tx: &mut Tx, slot: &Arc<Slot>) -> Tried<()> {
        if let Some(row) = slot.unwritten_end() {
            // Before the write, which may fail: the incarnation has ended in memory already, and the
            // census must not count it as live.
            self.index.due().note_end(slot);
            tx.put(&self.tables.owners, &number(slot.incarnation), &serde_json::to_vec(&row)?)?;
        }
        Ok(())
    }

    pub fn ttl_unless_told(&self) -> u64 {
        self.threshold.as_millis() as u64
    }
}

/// Result of a start that may be a repetition.
enum StartedOnce {
    /// A repetition gets this answer, too.
    Now(Arc<Slot>, Beat),
    /// An earlier attempt of the request started this one.
    Before(Beat),
}

/// Makes an incarnation effective whose start is durable. Called after the commit and not by the
/// caller, which may have stopped waiting.
pub(crate) fn begin(store_clock: &StoreClock, slot: &Slot) {
    slot.begin(store_clock.granting_ms() + slot.ttl_ms);
}

/// The answer to a call that started an incarnation.
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

impl OwnerService {
    /// Runs a job that needs only the owners.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OwnerTable, &mut Tx) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let (owners, current) = (self.owners.clone(), request::current(&self.owners.id));
        let work = move |tx: &mut Tx| {
            owners.requests().noted(tx, current.as_deref(), |tx| work(&owners, tx))
        };
        self.inner.writer.write(work, done).await
    }

    /// The result of a job, or `Lost` if it would have acted for an ended incarnation.
    pub async fn acted<T>(&self, acted: UnlessEnded<T>) -> Result<T> {
        match acted {
            UnlessEnded::Done(value) => Ok(value),
            UnlessEnded::Ended(slot) => Err(self.lost(&slot).await),
        }
    }

    /// The error for an ended incarnation. It is returned only after the end is durable: a failed
    /// commit may have left the end in memory only, and after a restart the incarnation would be
    /// alive again.
    pub async fn lost(&self, slot: &Arc<Slot>) -> Error {
        if slot.unwritten_end().is_some() {
            let (ended, durable) = (slot.clone(), slot.clone());
            let job = move |owners: &OwnerTable, tx: &mut Tx| owners.write_end(tx, &ended);
            if let Err(error) = self.write(job, move |()| durable.end_is_durable()).await {
                return error;
            }
        }
        self.what_was_lost(slot)
    }

    /// What an ended incarnation held: the entries that are left, and those that were taken from
    /// it.
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
        for name in [&self.owners.tables.held, &self.owners.tables.lost] {
            let Some(table) = open(&txn, name).map_err(told)? else { continue };
            let (from, to) = (held_key(slot.incarnation, ""), held_key(slot.incarnation + 1, ""));
            let rows = table.range(&*from..&*to).map_err(told)?;
            for row in rows.take(LOST_KEYS_MAX) {
                let row = row.map_err(told)?;
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

    /// Waits until all commits that are under way are durable.
    async fn settle_commits(&self) -> Result<()> {
        self.inner.writer.write(|_| Ok(()), |()| {}).await
    }

    async fn start_unless_known(&self, owner: &Name) -> Result<Option<Beat>> {
        let (name, ttl_ms) = (owner.clone(), self.owners.ttl_unless_told());
        let store_clock = self.owners.store_clock.clone();
        let started = self.write(
            move |owners, tx| match owners.index.newest(name.as_str()) {
                Some(_) => Ok(None),
                None => owners.start(tx, &name, ttl_ms).map(Some),
            },
            move |slot: &Option<Arc<Slot>>| slot.iter().for_each(|slot| begin(&store_clock, slot)),
        );
        let started = started.await?;
        Ok(started.map(|slot| begun(&slot)))
    }
}

/// The methods of [`OwnerStore`](lapsed_core::owner::OwnerStore).
impl OwnerService {
    pub async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let name = owner.clone();
        let store_clock = self.owners.store_clock.clone();
        let done = move |slot: &Arc<Slot>| begin(&store_clock, slot);
        let slot = self.write(move |owners, tx| owners.start(tx, &name, ttl_ms), done).await?;
        Ok(begun(&slot))
    }

    pub async fn start_once(&self, request: &RequestId, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let (request, name) = (request.clone(), owner.clone());
        let store_clock = self.owners.store_clock.clone();
        let job = move |owners: &OwnerTable, tx: &mut Tx| {
            let requests = owners.requests();
            if let Some(beat) = requests.find::<Beat>(tx, &request)? {
                return Ok(StartedOnce::Before(beat));
            }
            let slot = owners.start(tx, &name, ttl_ms)?;
            let (incarnation, now_ms) = (Incarnation(slot.incarnation), requests.now_ms);
            let deadline_ms = now_ms + ttl_ms;
            let beat = Beat { incarnation, deadline_ms, now_ms, ttl_ms, started: true };
            requests.keep(tx, &request, &beat)?;
            Ok(StartedOnce::Now(slot, beat))
        };
        let done = move |started: &StartedOnce| match started {
            StartedOnce::Now(slot, _) => begin(&store_clock, slot),
            StartedOnce::Before(_) => {}
        };
        match self.write(job, done).await? {
            StartedOnce::Now(_, beat) | StartedOnce::Before(beat) => Ok(beat),
        }
    }

    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        loop {
            match self.owners.beat(claim) {
                Found::Answer(beat) => return Ok(beat),
                Found::Ended(slot) => return Err(self.lost(&slot).await),
                Found::Stranger => return Err(unknown_claim(claim)),
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
            move |owners, tx| {
                let ResolvedClaim::Known(slot) = owners.resolve(&meant) else {
                    return Err(unknown_claim(&meant).into());
                };
                let (now_ms, _) = owners.look();
                let may_end = |_: &_| Ok::<(), ()>(());
                let ended = slot.end_if(Ending::Retired, now_ms, may_end).is_some();
                owners.write_end(tx, &slot)?;
                Ok((slot, ended))
            },
            |(slot, _)| slot.end_is_durable(),
        );
        match slot.await? {
            (slot, true) => Ok(slot.info(self.owners.look().1)),
            (slot, false) => Err(self.lost(&slot).await),
        }
    }

    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        let back_ms = self.owners.look().1;
        let owners = self.owners.index.page(after, limit);
        Ok(owners.iter().filter(|slot| !slot.is_pending()).map(|slot| slot.info(back_ms)).collect())
    }

    pub async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        match self.owners.resolve(claim) {
            ResolvedClaim::Known(slot) if !slot.is_pending() => {
                Ok(Some(slot.info(self.owners.look().1)))
            }
            _ => Ok(None),
        }
    }

    pub fn beat_handle(
        &self,
        owner: &Name,
        incarnation: Incarnation,
    ) -> Option<Arc<dyn BeatHandle>> {
        match self.owners.resolve(&Claim::exact(owner.clone(), incarnation)) {
            ResolvedClaim::Known(slot) => Some(slot),
            _ => None,
        }
    }
}
