//! The owners of one system in memory: by name, by incarnation, and by deadline.
//!
//! The deadline index is updated lazily: a heartbeat moves a deadline without touching the index,
//! which notices it when the old deadline comes up. That is correct only while deadlines never
//! become earlier. The one operation that makes them earlier (an operator waives the store-away
//! grace) indexes all owners again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use foldhash::fast::RandomState;
use lapsed_core::Name;
use lapsed_core::owner::{Ending, Incarnation};

use crate::slot::Slot;

const SHARDS: usize = 16;

/// Position of a reclaimable owner: its deadline, then its incarnation.
pub(crate) type OwnerPosition = (u64, u64);

type Shard = RwLock<HashMap<Name, NamedOwners, RandomState>>;

/// The incarnations of one name, usually one.
struct NamedOwners {
    newest: Arc<Slot>,
    older: Vec<Arc<Slot>>,
}

impl NamedOwners {
    fn of(slot: Arc<Slot>) -> Self {
        NamedOwners { newest: slot, older: Vec::new() }
    }

    fn add(&mut self, slot: Arc<Slot>) {
        if slot.incarnation > self.newest.incarnation {
            self.older.push(std::mem::replace(&mut self.newest, slot));
        } else {
            self.older.push(slot);
        }
    }

    /// The rest without `slot`; `None` if it was the only one.
    fn without(mut self, slot: &Arc<Slot>) -> Option<Self> {
        self.older.retain(|other| !Arc::ptr_eq(other, slot));
        if Arc::ptr_eq(&self.newest, slot) {
            let last = self.older.iter().enumerate().max_by_key(|(_, other)| other.incarnation)?.0;
            self.newest = self.older.swap_remove(last);
        }
        Some(self)
    }
}

pub(crate) struct OwnerIndex {
    hasher: RandomState,
    newest: Vec<Shard>,
    owners: RwLock<BTreeMap<u64, Arc<Slot>>>,
    due: Mutex<DueOwners>,
}

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
    living: u64,
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

impl OwnerIndex {
    pub fn new() -> Self {
        let hasher = RandomState::default();
        let shard = || RwLock::new(HashMap::with_hasher(hasher.clone()));
        OwnerIndex {
            newest: (0..SHARDS).map(|_| shard()).collect(),
            hasher,
            owners: RwLock::default(),
            due: Mutex::default(),
        }
    }

    /// Adds an incarnation. `now_ms` and `back_ms` decide whether it is overdue.
    pub fn add(&self, slot: Arc<Slot>, now_ms: u64, back_ms: u64) {
        let mut names = self.shard(slot.name.as_str()).write().expect(LOCK);
        match names.get_mut(&slot.name) {
            Some(owners) => owners.add(slot.clone()),
            None => {
                names.insert(slot.name.clone(), NamedOwners::of(slot.clone()));
            }
        }
        drop(names);
        self.owners.write().expect(LOCK).insert(slot.incarnation, slot.clone());
        self.due().admit(slot, now_ms, back_ms);
    }

    /// Removes incarnations that ended long ago and hold nothing, or whose start was undone. The
    /// newest one that is left becomes the newest of its name.
    pub fn forget(&self, gone: &[Arc<Slot>]) {
        for slot in gone {
            let mut names = self.shard(slot.name.as_str()).write().expect(LOCK);
            if let Some(left) = names.remove(&slot.name).and_then(|owners| owners.without(slot)) {
                names.insert(slot.name.clone(), left);
            }
            drop(names);
            self.owners.write().expect(LOCK).remove(&slot.incarnation);
        }
    }

    /// The newest incarnation of that name.
    pub fn newest(&self, name: &str) -> Option<Arc<Slot>> {
        self.with_newest(name, |slot| slot.cloned())
    }

    /// Calls `act` with the newest incarnation of that name without cloning it, for heartbeats.
    pub fn with_newest<T>(&self, name: &str, act: impl FnOnce(Option<&Arc<Slot>>) -> T) -> T {
        act(self.shard(name).read().expect(LOCK).get(name).map(|owners| &owners.newest))
    }

    pub fn incarnation(&self, incarnation: u64) -> Option<Arc<Slot>> {
        self.owners.read().expect(LOCK).get(&incarnation).cloned()
    }

    /// Incarnations after `after`, oldest first.
    pub fn page(&self, after: Option<Incarnation>, limit: usize) -> Vec<Arc<Slot>> {
        let from = after.map_or(0, |i| i.0.saturating_add(1));
        let owners = self.owners.read().expect(LOCK);
        owners.range(from..).take(limit).map(|(_, slot)| slot.clone()).collect()
    }

    /// Whether the predicate is true for any incarnation.
    pub fn any(&self, is_so: impl Fn(&Slot) -> bool) -> bool {
        self.owners.read().expect(LOCK).values().any(|slot| is_so(slot))
    }

    /// For how many incarnations the predicate is true.
    pub fn count(&self, is_so: impl Fn(&Slot) -> bool) -> u64 {
        self.owners.read().expect(LOCK).values().filter(|slot| is_so(slot)).count() as u64
    }

    /// At most `limit` incarnations for which the predicate is true, from `from` on and then from
    /// the beginning.
    pub fn pick(&self, from: u64, limit: usize, is_so: impl Fn(&Slot) -> bool) -> Vec<Arc<Slot>> {
        let owners = self.owners.read().expect(LOCK);
        let all = owners.range(from..).chain(owners.range(..from)).map(|(_, slot)| slot);
        all.filter(|slot| is_so(slot)).take(limit).cloned().collect()
    }

    pub fn due(&self) -> MutexGuard<'_, DueOwners> {
        self.due.lock().expect(LOCK)
    }

    fn shard(&self, name: &str) -> &Shard {
        let hash = self.hasher.hash_one(name);
        &self.newest[(hash >> 32) as usize % SHARDS]
    }
}

const LOCK: &str = "no holder of this lock panics";

impl DueOwners {
    fn admit(&mut self, slot: Arc<Slot>, now_ms: u64, back_ms: u64) {
        match slot.end() {
            None => {
                self.living += 1;
                let due = slot.due_ms(back_ms).max(now_ms);
                self.filed.entry(due).or_default().push(slot);
            }
            Some(end) => {
                if end.ending == Ending::Dead {
                    self.deaths.push_back(end.at_ms);
                }
                if slot.held() > 0 {
                    self.mark_reclaimable(slot);
                }
            }
        }
    }

    /// Records that an incarnation has just ended.
    pub fn note_end(&mut self, slot: &Arc<Slot>) {
        let Some(end) = slot.end().filter(|_| slot.note_end()) else { return };
        self.living = self.living.saturating_sub(1);
        if end.ending == Ending::Dead {
            self.deaths.push_back(end.at_ms);
        }
        self.spare(slot.incarnation);
        if slot.held() > 0 {
            self.mark_reclaimable(slot.clone());
        }
    }

    /// Removes an incarnation whose start was undone.
    pub fn withdraw(&mut self, slot: &Arc<Slot>) {
        self.spare(slot.incarnation);
        for bucket in self.filed.values_mut() {
            bucket.retain(|other| !Arc::ptr_eq(other, slot));
        }
        if slot.end().is_none() {
            self.living = self.living.saturating_sub(1);
        }
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
        self.note_emptied(slot);
        if slot.end().is_some() && slot.held() > 0 {
            self.mark_reclaimable(slot.clone());
        }
    }

    /// Removes an ended incarnation that holds nothing from the reclaimable ones.
    pub fn note_emptied(&mut self, slot: &Arc<Slot>) {
        if slot.end().is_some() && slot.held() == 0 {
            self.spare(slot.incarnation);
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
        heads.live = self.living.saturating_sub(heads.overdue);
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
