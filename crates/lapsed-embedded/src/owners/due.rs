//! Owners by deadline, for passes.
//!
//! The index is updated lazily: a heartbeat moves a deadline without touching the index, which
//! notices it when the old deadline comes up. That is correct only while deadlines never become
//! earlier. The one operation that makes them earlier (an operator waives the store-away grace)
//! indexes all owners again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use lapsed_core::owner::Ending;

use crate::owners::slot::Slot;

/// Position of a reclaimable owner: its deadline, then its incarnation.
pub(crate) type OwnerPosition = (u64, u64);

/// Owners by deadline, and those whose deadline has passed.
#[derive(Default)]
pub(crate) struct DueOwners {
    /// Live owners, by a time at or before their deadline.
    filed: BTreeMap<u64, Vec<Arc<Slot>>>,
    /// Overdue owners, and ended ones that still hold something, by deadline.
    reclaimable: BTreeMap<OwnerPosition, Arc<Slot>>,
    /// The deadline under which each incarnation is in `reclaimable`.
    positions: HashMap<u64, u64>,
    /// When owners were declared dead, within the last threshold.
    deaths: VecDeque<u64>,
    /// Incarnations that have not ended. What is done regularly goes through these only: there may be
    /// many times as many that have ended.
    alive: BTreeMap<u64, Arc<Slot>>,
    /// Ended incarnations that hold nothing, by the time of their end, then by number.
    gone: BTreeMap<(u64, u64), Arc<Slot>>,
}

/// Number of owners by state.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct OwnerCounts {
    pub live: u64,
    pub overdue: u64,
    pub died_recently: u64,
    pub suspects: u64,
    pub oldest_deadline_ms: Option<u64>,
}

impl DueOwners {
    pub fn admit(&mut self, slot: Arc<Slot>, now_ms: u64, back_ms: u64) {
        match slot.end() {
            None => {
                self.alive.insert(slot.incarnation, slot.clone());
                let due = slot.due_ms(back_ms).max(now_ms);
                self.filed.entry(due).or_default().push(slot);
            }
            Some(end) => {
                if end.ending == Ending::Dead {
                    self.deaths.push_back(end.at_ms);
                }
                self.file_ended(slot, end.at_ms);
            }
        }
    }

    /// Records that an incarnation has just ended.
    pub fn note_end(&mut self, slot: &Arc<Slot>) {
        let Some(end) = slot.end().filter(|_| slot.note_end()) else { return };
        self.alive.remove(&slot.incarnation);
        if end.ending == Ending::Dead {
            self.deaths.push_back(end.at_ms);
        }
        self.spare(slot.incarnation);
        self.file_ended(slot.clone(), end.at_ms);
    }

    /// Files an ended incarnation by whether it still holds something.
    fn file_ended(&mut self, slot: Arc<Slot>, ended_ms: u64) {
        if slot.held() > 0 {
            self.gone.remove(&(ended_ms, slot.incarnation));
            self.mark_reclaimable(slot);
        } else {
            self.spare(slot.incarnation);
            self.gone.insert((ended_ms, slot.incarnation), slot);
        }
    }

    /// Removes an incarnation whose start was undone.
    pub fn withdraw(&mut self, slot: &Arc<Slot>) {
        self.spare(slot.incarnation);
        for bucket in self.filed.values_mut() {
            bucket.retain(|other| !Arc::ptr_eq(other, slot));
        }
        self.forget(slot);
    }

    /// Removes an incarnation whose record was removed.
    pub fn forget(&mut self, slot: &Slot) {
        self.alive.remove(&slot.incarnation);
        if let Some(end) = slot.end() {
            self.gone.remove(&(end.at_ms, slot.incarnation));
        }
    }

    /// Incarnations that have not ended, in the order of their numbers.
    pub fn alive(&self) -> &BTreeMap<u64, Arc<Slot>> {
        &self.alive
    }

    /// The first of the ended incarnations that hold nothing, at most `limit`, oldest end first:
    /// those that ended before `aged_ms`, and so many that at most `max` are left, of those that ended
    /// before `spare_ms`.
    pub fn forgettable(
        &self,
        aged_ms: u64,
        max: u64,
        spare_ms: u64,
        limit: usize,
    ) -> Vec<Arc<Slot>> {
        let excess = (self.gone.len() as u64).saturating_sub(max);
        let is_over = |(index, (ended_ms, _)): (u64, &(u64, u64))| {
            *ended_ms < aged_ms || (index < excess && *ended_ms < spare_ms)
        };
        let first = (0..).zip(&self.gone).take(limit);
        first
            .take_while(|(index, (place, _))| is_over((*index, *place)))
            .map(|(_, (_, slot))| slot.clone())
            .collect()
    }

    fn mark_reclaimable(&mut self, slot: Arc<Slot>) {
        let deadline_ms = slot.deadline_ms();
        self.positions.insert(slot.incarnation, deadline_ms);
        self.reclaimable.insert((deadline_ms, slot.incarnation), slot);
    }

    fn spare(&mut self, incarnation: u64) -> Option<Arc<Slot>> {
        let deadline_ms = self.positions.remove(&incarnation)?;
        self.reclaimable.remove(&(deadline_ms, incarnation))
    }

    /// Records that a batch was undone: an ended incarnation may hold again what the batch had
    /// removed.
    pub fn note_undone(&mut self, slot: &Arc<Slot>) {
        if let Some(end) = slot.end().filter(|_| !self.alive.contains_key(&slot.incarnation)) {
            self.file_ended(slot.clone(), end.at_ms);
        }
    }

    /// Records that an incarnation holds nothing any more.
    pub fn note_emptied(&mut self, slot: &Arc<Slot>) {
        if slot.held() == 0 {
            self.note_undone(slot);
        }
    }

    /// Updates the index to `now_ms`: an owner whose old deadline has come up is indexed by its new
    /// deadline or becomes reclaimable, and a reclaimable one that has sent a heartbeat since is
    /// indexed again.
    pub fn advance(&mut self, now_ms: u64, back_ms: u64) {
        let later = self.filed.split_off(&(now_ms + 1));
        let came_up = std::mem::replace(&mut self.filed, later);
        let has_beaten = |slot: &&Arc<Slot>| slot.end().is_none() && slot.due_ms(back_ms) > now_ms;
        let beaten: Vec<u64> =
            self.reclaimable.values().filter(has_beaten).map(|slot| slot.incarnation).collect();
        let beaten: Vec<Arc<Slot>> = beaten.into_iter().filter_map(|i| self.spare(i)).collect();
        for slot in came_up.into_values().flatten().chain(beaten) {
            if slot.end().is_some() {
                continue;
            }
            let due = if slot.is_pending() { now_ms + slot.ttl_ms } else { slot.due_ms(back_ms) };
            if due > now_ms {
                self.filed.entry(due).or_default().push(slot);
            } else {
                self.mark_reclaimable(slot);
            }
        }
    }

    /// Indexes all owners again, because deadlines may have become earlier.
    pub fn refile(&mut self, now_ms: u64, back_ms: u64) {
        let all = std::mem::take(&mut self.filed);
        for slot in all.into_values().flatten() {
            let due = slot.due_ms(back_ms).max(now_ms);
            self.filed.entry(due).or_default().push(slot);
        }
        self.advance(now_ms, back_ms);
    }

    pub fn heads(&mut self, now_ms: u64, threshold_ms: u64) -> OwnerCounts {
        // Not only from the front: those read from disk are not in the order of their deaths.
        self.deaths.retain(|at| at + threshold_ms > now_ms);
        let mut heads =
            OwnerCounts { died_recently: self.deaths.len() as u64, ..OwnerCounts::default() };
        for slot in self.reclaimable.values() {
            heads.suspects += slot.held();
            heads.overdue += u64::from(slot.end().is_none());
        }
        heads.oldest_deadline_ms = self.reclaimable.keys().next().map(|place| place.0);
        heads.live = (self.alive.len() as u64).saturating_sub(heads.overdue);
        heads
    }

    /// Up to `limit` reclaimable owners from `from` on that hold something (or, with `empty`,
    /// nothing): all that have ended, but of the overdue ones only the first `undeclared_max`,
    /// counted from the very beginning.
    pub fn reclaimable(
        &self,
        from: OwnerPosition,
        undeclared_max: Option<usize>,
        limit: usize,
        empty: bool,
    ) -> Vec<(OwnerPosition, Arc<Slot>)> {
        let mut undeclared = 0;
        let mut reclaimable = Vec::new();
        for (place, slot) in &self.reclaimable {
            if reclaimable.len() == limit {
                break;
            }
            if slot.end().is_none() {
                undeclared += 1;
                if undeclared_max.is_some_and(|max| undeclared > max) {
                    continue;
                }
            }
            if *place >= from && (slot.held() == 0) == empty {
                reclaimable.push((*place, slot.clone()));
            }
        }
        reclaimable
    }
}
