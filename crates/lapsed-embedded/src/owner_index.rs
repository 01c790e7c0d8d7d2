//! The owners of one system, in memory: by name, by incarnation, and by when they are due.
//!
//! The deadline index re-files lazily: a beat moves a deadline without touching the index, and the
//! index finds out when the old one comes up. That is right only while deadlines never shorten;
//! the one thing that shortens them (an operator waiving a store-away grace) re-files everybody.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use foldhash::fast::RandomState;
use lapsed_core::Name;
use lapsed_core::owner::{Ending, Incarnation};

use crate::slot::Slot;

const SHARDS: usize = 16;

/// The place of a doomed owner: its deadline, then its incarnation.
pub(crate) type OwnerPosition = (u64, u64);

type Shard = RwLock<HashMap<Name, NamedOwners, RandomState>>;

/// The lives of one name: usually one.
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

    /// Without `slot`; `None` when it was the only one.
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

/// Who is due, and who is past it.
#[derive(Default)]
pub(crate) struct DueOwners {
    /// Living owners, by a time at or before they are due.
    filed: BTreeMap<u64, Vec<Arc<Slot>>>,
    /// Overdue owners, and ended ones that still hold something, by deadline.
    reclaimable: BTreeMap<OwnerPosition, Arc<Slot>>,
    /// Under which deadline each of them stands there.
    positions: HashMap<u64, u64>,
    /// When owners were declared dead, lately.
    deaths: VecDeque<u64>,
    living: u64,
}

/// A count of the owners.
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

    /// Adds a life. `now_ms` and `back_ms` place it among those due.
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

    /// Forgets lives: that ended long ago and hold nothing, or that never were. A name's newest
    /// life is then the newest of those that are left.
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

    /// The newest life of that name.
    pub fn newest(&self, name: &str) -> Option<Arc<Slot>> {
        self.with_newest(name, |slot| slot.cloned())
    }

    /// Does something with the newest life of that name, without cloning it: what a beat uses.
    pub fn with_newest<T>(&self, name: &str, act: impl FnOnce(Option<&Arc<Slot>>) -> T) -> T {
        act(self.shard(name).read().expect(LOCK).get(name).map(|owners| &owners.newest))
    }

    pub fn incarnation(&self, incarnation: u64) -> Option<Arc<Slot>> {
        self.owners.read().expect(LOCK).get(&incarnation).cloned()
    }

    /// NamedOwners after `after`, oldest first.
    pub fn page(&self, after: Option<Incarnation>, limit: usize) -> Vec<Arc<Slot>> {
        let from = after.map_or(0, |i| i.0.saturating_add(1));
        let owners = self.owners.read().expect(LOCK);
        owners.range(from..).take(limit).map(|(_, slot)| slot.clone()).collect()
    }

    /// Whether any life is so.
    pub fn any(&self, is_so: impl Fn(&Slot) -> bool) -> bool {
        self.owners.read().expect(LOCK).values().any(|slot| is_so(slot))
    }

    /// How many lives are so.
    pub fn count(&self, is_so: impl Fn(&Slot) -> bool) -> u64 {
        self.owners.read().expect(LOCK).values().filter(|slot| is_so(slot)).count() as u64
    }

    /// At most `limit` lives that are so, from incarnation `from` on and then from the beginning.
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

    /// A life ended just now.
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

    /// A life that never was: its start was undone.
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

    /// A batch was undone: an ended life may hold again what that batch had taken from it.
    pub fn note_undone(&mut self, slot: &Arc<Slot>) {
        self.note_emptied(slot);
        if slot.end().is_some() && slot.held() > 0 {
            self.mark_reclaimable(slot.clone());
        }
    }

    /// An ended life that holds nothing needs no more attention.
    pub fn note_emptied(&mut self, slot: &Arc<Slot>) {
        if slot.end().is_some() && slot.held() == 0 {
            self.spare(slot.incarnation);
        }
    }

    /// Brings the index up to `now_ms`: who came up is either re-filed or doomed, and who was
    /// overdue and has beaten since is filed again.
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

    /// Deadlines may have shortened: looks at everybody anew.
    pub fn refile(&mut self, now_ms: u64, back_ms: u64) {
        let all = std::mem::take(&mut self.filed);
        for slot in all.into_values().flatten() {
            let due = slot.due_ms(back_ms).max(now_ms);
            self.filed.entry(due).or_default().push(slot);
        }
        self.advance(now_ms, back_ms);
    }

    pub fn heads(&mut self, now_ms: u64, threshold_ms: u64) -> OwnerCounts {
        // Not from the front only: those read from disk are not in the order of their deaths.
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

    /// Up to `limit` of the doomed from `from` on that hold something (or, with `empty`, nothing):
    /// all that ended, and of the others only the first `undeclared_max`, counted from the very
    /// beginning.
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
