//! Owners by deadline, for passes.
//!
//! The index is updated lazily: a heartbeat moves a deadline without touching the index, which
//! notices it when the old deadline comes up. That is correct only while deadlines never become
//! earlier. The one operation that makes them earlier (an operator waives the store-away grace)
//! indexes all owners again.
//!
//! No step goes through all owners that are reclaimable, because they may all have died at once: a
//! reclaimable owner whose deadline or first or last entry changes reports itself
//! ([`SlotContext`]), and counts are kept up to date. The races with a heartbeat are closed in
//! [`Slot::watch`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lapsed_core::owner::Ending;

use crate::owners::slot::{Slot, SlotContext};

/// Position of a reclaimable owner: its deadline, then its incarnation.
pub(crate) type OwnerPosition = (u64, u64);

/// Reclaimable owners by deadline.
type ByDeadline = BTreeMap<OwnerPosition, Arc<Slot>>;

/// Owners by deadline, and those whose deadline has passed.
pub(crate) struct DueOwners {
    context: Arc<SlotContext>,
    /// Live owners, by a time at or before their deadline. An incarnation whose start was undone
    /// stays here until then.
    filed: BTreeMap<u64, Vec<Arc<Slot>>>,
    /// Overdue owners that hold something.
    overdue: ByDeadline,
    /// Overdue owners that hold nothing.
    overdue_empty: ByDeadline,
    /// Ended owners that still hold something.
    ended: ByDeadline,
    /// In which of the three each incarnation is, and under which deadline.
    places: HashMap<u64, (List, u64)>,
    /// How many owners were declared dead at each time, within the last threshold.
    deaths: BTreeMap<u64, u64>,
    died_recently: u64,
    /// Incarnations that have not ended. What is done regularly goes through these only: there may be
    /// many times as many that have ended.
    alive: BTreeMap<u64, Arc<Slot>>,
    /// Ended incarnations that hold nothing, by the time of their end, then by number.
    gone: BTreeMap<(u64, u64), Arc<Slot>>,
    /// What the brake allowed last.
    allowed: Allowed,
    /// The end of the store's absence with which overdue owners were judged.
    back_ms: u64,
    /// How many owners were looked at.
    #[cfg(test)]
    looked_at: u64,
}

/// The lists of reclaimable owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Overdue,
    OverdueEmpty,
    Ended,
}

/// The first overdue owners: those before a position, and how many they are.
#[derive(Debug, Default, Clone, Copy)]
struct Allowed {
    to: OwnerPosition,
    count: usize,
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
    pub fn new(context: Arc<SlotContext>) -> Self {
        DueOwners {
            context,
            filed: BTreeMap::new(),
            overdue: BTreeMap::new(),
            overdue_empty: BTreeMap::new(),
            ended: BTreeMap::new(),
            places: HashMap::new(),
            deaths: BTreeMap::new(),
            died_recently: 0,
            alive: BTreeMap::new(),
            gone: BTreeMap::new(),
            allowed: Allowed::default(),
            back_ms: 0,
            #[cfg(test)]
            looked_at: 0,
        }
    }

    pub fn admit(&mut self, slot: Arc<Slot>, now_ms: u64, back_ms: u64) {
        match slot.end() {
            None => {
                self.alive.insert(slot.incarnation, slot.clone());
                let due = slot.due_ms(back_ms).max(now_ms);
                self.filed.entry(due).or_default().push(slot);
            }
            Some(end) => {
                self.note_death(end.ending, end.at_ms);
                self.file_ended(slot, end.at_ms);
            }
        }
    }

    fn note_death(&mut self, ending: Ending, at_ms: u64) {
        if ending == Ending::Dead {
            *self.deaths.entry(at_ms).or_default() += 1;
            self.died_recently += 1;
        }
    }

    /// Records that an incarnation has just ended.
    pub fn note_end(&mut self, slot: &Arc<Slot>) {
        let Some(end) = slot.end().filter(|_| slot.note_end()) else { return };
        self.alive.remove(&slot.incarnation);
        self.note_death(end.ending, end.at_ms);
        self.file_ended(slot.clone(), end.at_ms);
    }

    /// Files an ended incarnation by whether it still holds something.
    fn file_ended(&mut self, slot: Arc<Slot>, ended_ms: u64) {
        self.spare(slot.incarnation);
        if slot.held() > 0 {
            self.gone.remove(&(ended_ms, slot.incarnation));
            self.mark_reclaimable(slot, List::Ended);
        } else {
            self.gone.insert((ended_ms, slot.incarnation), slot);
        }
    }

    /// Removes an incarnation whose start was undone.
    pub fn withdraw(&mut self, slot: &Arc<Slot>) {
        self.spare(slot.incarnation);
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

    fn list(&mut self, list: List) -> &mut ByDeadline {
        match list {
            List::Overdue => &mut self.overdue,
            List::OverdueEmpty => &mut self.overdue_empty,
            List::Ended => &mut self.ended,
        }
    }

    fn mark_reclaimable(&mut self, slot: Arc<Slot>, list: List) {
        slot.watch();
        let place = (slot.deadline_ms(), slot.incarnation);
        self.places.insert(slot.incarnation, (list, place.0));
        self.list(list).insert(place, slot);
        if list != List::Ended && place < self.allowed.to {
            self.allowed.count += 1;
        }
    }

    fn spare(&mut self, incarnation: u64) -> Option<Arc<Slot>> {
        let (list, deadline_ms) = self.places.remove(&incarnation)?;
        let place = (deadline_ms, incarnation);
        let slot = self.list(list).remove(&place)?;
        if list != List::Ended && place < self.allowed.to {
            self.allowed.count -= 1;
        }
        slot.unwatch();
        Some(slot)
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
    /// deadline or becomes reclaimable, and a reclaimable one that has changed since is indexed
    /// again.
    pub fn advance(&mut self, now_ms: u64, back_ms: u64) {
        let changed = self.context.take_changed();
        changed.into_iter().for_each(|incarnation| self.refresh(incarnation, now_ms, back_ms));
        if back_ms != self.back_ms {
            // The store was away, or a waiver is over: overdue owners may have become spared.
            self.back_ms = back_ms;
            let overdue = self.overdue.keys().chain(self.overdue_empty.keys());
            let overdue: Vec<u64> = overdue.map(|place| place.1).collect();
            overdue.into_iter().for_each(|i| self.refresh(i, now_ms, back_ms));
        }
        let later = self.filed.split_off(&(now_ms + 1));
        let came_up = std::mem::replace(&mut self.filed, later);
        for slot in came_up.into_values().flatten() {
            self.look_at();
            // Not one whose start was undone, or that has ended and is filed or about to be.
            let is_alive = self.alive.get(&slot.incarnation).is_some_and(|s| Arc::ptr_eq(s, &slot));
            if is_alive && slot.end().is_none() {
                self.file(slot, now_ms, back_ms);
            }
        }
    }

    /// Files an incarnation that has not ended.
    fn file(&mut self, slot: Arc<Slot>, now_ms: u64, back_ms: u64) {
        let due = if slot.is_pending() { now_ms + slot.ttl_ms } else { slot.due_ms(back_ms) };
        if due > now_ms {
            self.filed.entry(due).or_default().push(slot);
            return;
        }
        // Watched from here on: what changes later is reported, and what has changed before is seen.
        slot.watch();
        let due = slot.due_ms(back_ms);
        if due > now_ms {
            slot.unwatch();
            self.filed.entry(due).or_default().push(slot);
        } else {
            let list = if slot.held() > 0 { List::Overdue } else { List::OverdueEmpty };
            self.mark_reclaimable(slot, list);
        }
    }

    /// Files an overdue incarnation again.
    fn refresh(&mut self, incarnation: u64, now_ms: u64, back_ms: u64) {
        self.look_at();
        // One that has ended is filed by what ends or empties it.
        let is_overdue =
            self.places.get(&incarnation).is_some_and(|(list, _)| *list != List::Ended);
        if is_overdue
            && self.alive.get(&incarnation).is_some_and(|slot| slot.end().is_none())
            && let Some(slot) = self.spare(incarnation)
        {
            self.file(slot, now_ms, back_ms);
        }
    }

    /// Counts the work, for a test.
    fn look_at(&mut self) {
        #[cfg(test)]
        {
            self.looked_at += 1;
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
        while let Some(first) = self.deaths.first_entry()
            && first.key() + threshold_ms <= now_ms
        {
            self.died_recently -= first.remove();
        }
        let overdue = (self.overdue.len() + self.overdue_empty.len()) as u64;
        let lists = [&self.overdue, &self.overdue_empty, &self.ended];
        let oldest = lists.iter().filter_map(|list| list.first_key_value()).map(|(at, _)| at.0);
        OwnerCounts {
            live: (self.alive.len() as u64).saturating_sub(overdue),
            overdue,
            died_recently: self.died_recently,
            suspects: self.context.suspects(),
            oldest_deadline_ms: oldest.min(),
        }
    }

    /// Up to `limit` reclaimable owners from `from` on that hold something: all that have ended, but
    /// of the overdue ones only the first `undeclared_max`, counted from the very beginning.
    pub fn reclaimable(
        &mut self,
        from: OwnerPosition,
        undeclared_max: Option<usize>,
        limit: usize,
    ) -> Vec<(OwnerPosition, Arc<Slot>)> {
        let to = self.allowed_to(undeclared_max);
        let overdue = self.overdue.range(from..to.max(from)).take(limit);
        let ended = self.ended.range(from..).take(limit);
        let mut first: Vec<_> =
            overdue.chain(ended).map(|(place, slot)| (*place, slot.clone())).collect();
        first.sort_unstable_by_key(|(place, _)| *place);
        first.truncate(limit);
        first
    }

    /// Up to `limit` of the first `undeclared_max` overdue owners: those that hold nothing.
    pub fn overdue_empty(&mut self, undeclared_max: Option<usize>, limit: usize) -> Vec<Arc<Slot>> {
        let to = self.allowed_to(undeclared_max);
        self.overdue_empty.range(..to).take(limit).map(|(_, slot)| slot.clone()).collect()
    }

    /// The position before which the first `undeclared_max` overdue owners are. A pass asks for less
    /// by as many as it has ended, so that the position hardly moves.
    fn allowed_to(&mut self, undeclared_max: Option<usize>) -> OwnerPosition {
        let Some(max) = undeclared_max else { return (u64::MAX, u64::MAX) };
        let lists = [&self.overdue, &self.overdue_empty];
        while self.allowed.count > max {
            let before = lists.iter().filter_map(|list| list.range(..self.allowed.to).next_back());
            let Some(last) = before.map(|(place, _)| *place).max() else { break };
            self.allowed = Allowed { to: last, count: self.allowed.count - 1 };
        }
        while self.allowed.count < max {
            let after = lists.iter().filter_map(|list| list.range(self.allowed.to..).next());
            let Some(next) = after.map(|(place, _)| *place).min() else { break };
            self.allowed = Allowed { to: (next.0, next.1 + 1), count: self.allowed.count + 1 };
        }
        self.allowed.to
    }
}

#[cfg(test)]
mod tests;
