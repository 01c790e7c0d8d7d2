//! Suspects: overdue and ended owners from memory, their entries from disk. Entries of live owners
//! are not read.

use std::sync::Arc;

use lapsed_core::owner::{Claim, Ending, Incarnation};
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::{Census, Cursor, PageRequest, Suspect, SuspectPage};
use lapsed_core::{Error, Name, Result};

use crate::fault::Fault;
use crate::owners::load::open;
use crate::owners::slot::Slot;
use crate::owners::{OwnerService, OwnerTable, ResolvedClaim, unknown_claim};
use crate::snapshot::Snapshot;
use crate::tables::{held_key, split_held};

/// Position of a suspect: its deadline, its incarnation, its key.
pub(crate) type ScanPosition = (u64, u64, Name);

/// A suspect that this incarnation holds.
fn suspect(slot: &Slot, deadline_ms: u64, key: Name) -> Suspect {
    let retired = slot.end().is_some_and(|end| end.ending == Ending::Retired);
    Suspect {
        key,
        owner: slot.name.clone(),
        incarnation: Incarnation(slot.incarnation),
        deadline_ms,
        reason: if retired { Reason::OwnerRetired } else { Reason::OwnerDead },
    }
}

/// The cursor just after that suspect: `deadline:incarnation:key`.
pub(crate) fn after(suspect: &Suspect) -> Cursor {
    Cursor(Some(format!("{}:{}:{}", suspect.deadline_ms, suspect.incarnation, suspect.key)))
}

pub(crate) fn place(cursor: &Cursor) -> Result<Option<ScanPosition>> {
    let Some(text) = &cursor.0 else { return Ok(None) };
    let wrong = || Error::Invalid(format!("{text:?} is not a cursor of this store"));
    let mut parts = text.splitn(3, ':');
    let mut next = || parts.next().ok_or_else(wrong);
    let deadline_ms = next()?.parse().map_err(|_| wrong())?;
    let incarnation = next()?.parse().map_err(|_| wrong())?;
    Ok(Some((deadline_ms, incarnation, Name::new(next()?)?)))
}

impl OwnerTable {
    /// `back_ms` while it matters: for one threshold, and only if a live owner existed before it. A
    /// store that was empty then has nobody to spare.
    fn cut_off_until(&self, now_ms: u64, back_ms: u64) -> u64 {
        let over = now_ms >= back_ms + self.threshold.as_millis() as u64;
        let was_there = |slot: &Slot| slot.end().is_none() && slot.started_ms < back_ms;
        if over || !self.index.any_alive(was_there) { 0 } else { back_ms }
    }

    /// How many owners are past their deadline and spared only because the store was away.
    fn spared(&self, now_ms: u64, back_ms: u64) -> u64 {
        let is_spared = |slot: &Slot| {
            slot.end().is_none()
                && !slot.is_pending()
                && slot.deadline_ms() <= now_ms
                && slot.due_ms(back_ms) > now_ms
        };
        self.index.count_alive(is_spared)
    }
}

impl OwnerService {
    /// Entries of overdue and ended owners, from `start` on.
    pub fn page(&self, start: Option<&ScanPosition>, request: &PageRequest) -> Result<SuspectPage> {
        let (now_ms, back_ms) = self.owners.look();
        let from = start.map_or((0, 0), |(deadline, i, _)| (*deadline, *i));
        let reclaimable: Vec<((u64, u64), Arc<Slot>)> = {
            let mut due = self.owners.index.due();
            due.advance(now_ms, back_ms);
            due.reclaimable(from, request.undeclared_max, request.limit)
        };
        let txn = self.inner.disk.read()?;
        let mut page = SuspectPage { last: true, ..SuspectPage::default() };
        for (place, slot) in reclaimable {
            let left = request.limit - page.suspects.len();
            let resumed = start.filter(|(deadline, i, _)| (*deadline, *i) == place);
            let keys = self.held_keys(&txn, &slot, resumed.map(|(_, _, key)| key), left)?;
            page.last = keys.len() < left;
            page.suspects.extend(keys.into_iter().map(|key| suspect(&slot, place.0, key)));
            if !page.last {
                break;
            }
        }
        page.examined = page.suspects.len() as u64;
        page.last &= page.suspects.len() < request.limit;
        Ok(page)
    }

    /// Counts of owners. Suspects are the entries of overdue and ended ones.
    pub fn census(&self, population: u64) -> Census {
        let (now_ms, back_ms) = self.owners.look();
        let threshold_ms = self.owners.threshold.as_millis() as u64;
        let mut due = self.owners.index.due();
        due.advance(now_ms, back_ms);
        let heads = due.heads(now_ms, threshold_ms);
        drop(due);
        let cut_off_until = self.owners.cut_off_until(now_ms, back_ms);
        let spared = if cut_off_until == 0 { 0 } else { self.owners.spared(now_ms, back_ms) };
        Census {
            now_ms,
            store: self.inner.incarnation.clone(),
            back_ms: cut_off_until,
            population,
            suspects: heads.suspects,
            owners_live: heads.live,
            owners_overdue: heads.overdue,
            owners_spared: spared,
            owners_died_recently: heads.died_recently,
            oldest_late_ms: heads
                .oldest_deadline_ms
                .map_or(0, |deadline| now_ms.saturating_sub(deadline)),
            ..Census::default()
        }
    }

    /// Entries of one incarnation, ordered by key.
    pub async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let slot = match self.owners.resolve(claim) {
            ResolvedClaim::Known(slot) if slot.end().is_none() => slot,
            ResolvedClaim::Known(slot) => return Err(self.lost(&slot).await),
            ResolvedClaim::NoSuchOwner | ResolvedClaim::Unknown => {
                return Err(unknown_claim(claim));
            }
        };
        self.held_keys(&self.inner.disk.read()?, &slot, after, limit)
    }

    /// Entries that an ended incarnation still holds, as suspects.
    pub fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        let ResolvedClaim::Known(slot) = self.owners.resolve(claim) else { return Ok(Vec::new()) };
        let Some(end) = slot.end() else { return Ok(Vec::new()) };
        let keys = self.held_keys(&self.inner.disk.read()?, &slot, None, limit)?;
        Ok(keys.into_iter().map(|key| suspect(&slot, end.deadline_ms, key)).collect())
    }

    /// Keys that one incarnation holds, in order, after `after`.
    fn held_keys(
        &self,
        txn: &Snapshot,
        slot: &Slot,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let told = |fault: Fault| fault.told(&self.inner.disk.name);
        let Some(held) = open(txn, &self.owners.tables.held).map_err(told)? else {
            return Ok(Vec::new());
        };
        let mut from = held_key(slot.incarnation, after.map_or("", Name::as_str));
        if after.is_some() {
            from.push(0);
        }
        let to = held_key(slot.incarnation + 1, "");
        let rows = held.range(&*from..&*to).map_err(told)?;
        rows.take(limit)
            .map(|row| {
                let row = row.map_err(told)?;
                let key = split_held(row.0.value()).map(|(_, key)| key).unwrap_or_default();
                Name::new(key).map_err(|_| Error::Corrupt {
                    store: self.inner.disk.name.clone(),
                    what: "a row of `held` is not a key".to_owned(),
                })
            })
            .collect()
    }
}
