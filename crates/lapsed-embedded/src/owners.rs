//! The owners of one system: which are alive, how incarnations start and end, how many entries each
//! holds, batches and receipts. What an entry is, is deliberately absent: each system adds that.
//!
//! Jobs on the writer's thread work with [`OwnerTable`]; all other threads go through [`OwnerService`].

pub(crate) mod batch;
mod due;
pub(crate) mod ledger;
pub(crate) mod load;
mod receipts;
pub(crate) mod service;
pub(crate) mod slot;
pub(crate) mod suspects;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use foldhash::fast::RandomState;
use lapsed_core::owner::{Beat, Claim, Incarnation, Lost};
use lapsed_core::registry::rules::OwnerGuard;
use lapsed_core::{Error, Name, SystemId};

use crate::Inner;
use crate::fault::Tried;
use crate::store_clock::StoreClock;
use crate::tables::Tables;
use due::DueOwners;
use slot::{Slot, SlotContext, Touched};

/// All incarnations of one system.
pub(crate) struct OwnerTable {
    pub id: SystemId,
    pub tables: Tables,
    pub index: OwnerIndex,
    pub slots: Arc<SlotContext>,
    pub threshold: Duration,
    pub store_clock: Arc<StoreClock>,
    pub guard: Arc<dyn OwnerGuard>,
    /// Until when the operator has waived the store-away grace.
    waived_until_ms: AtomicU64,
    /// The incarnation whose deadline is the next to be written to disk.
    mirror_from: AtomicU64,
    /// No receipt has a lower number. Pruning begins to read here, and not where receipts were removed long ago.
    receipts_from: Arc<AtomicU64>,
}

/// The incarnation that a claim refers to.
pub(crate) enum ResolvedClaim {
    Known(Arc<Slot>),
    /// The owner's name is new, and the claim has no incarnation.
    NoSuchOwner,
    /// The claimed incarnation belongs to another owner, or its record was removed.
    Unknown,
}

/// Result of a heartbeat in memory.
enum Found {
    Answer(Beat),
    Ended(Arc<Slot>),
    Pending,
    Nobody,
    Stranger,
}

/// Result of a job that must not act for an ended incarnation.
pub(crate) enum UnlessEnded<T> {
    Done(T),
    Ended(Arc<Slot>),
}

impl OwnerTable {
    /// An empty table; owners are loaded together with their entries.
    pub fn new(inner: &Inner, id: SystemId, threshold: Duration) -> Self {
        inner.store_clock.mind_ttl(threshold.as_millis() as u64);
        let slots = SlotContext::new(inner.store_clock.clone());
        OwnerTable {
            tables: Tables::of(&id),
            index: OwnerIndex::new(slots.clone()),
            slots,
            threshold,
            store_clock: inner.store_clock.clone(),
            guard: inner.guard.clone(),
            waived_until_ms: AtomicU64::new(0),
            mirror_from: AtomicU64::new(0),
            receipts_from: Arc::default(),
            id,
        }
    }

    /// The store's clock, and since when owners could reach the store; 0 while the grace is waived.
    pub fn look(&self) -> (u64, u64) {
        let (now_ms, back_ms) = self.store_clock.look();
        (now_ms, self.spared_from(now_ms, back_ms))
    }

    fn spared_from(&self, now_ms: u64, back_ms: u64) -> u64 {
        if now_ms < self.waived_until_ms.load(Ordering::Acquire) { 0 } else { back_ms }
    }

    /// Waives the store-away grace until `until_ms`. Deadlines may become earlier, so they are
    /// indexed again.
    pub fn waive_until(&self, until_ms: u64) {
        self.waived_until_ms.store(until_ms, Ordering::Release);
        let (now_ms, back_ms) = self.look();
        self.index.due().refile(now_ms, back_ms);
    }

    /// A heartbeat in memory, and nowhere else.
    fn beat(&self, claim: &Claim) -> Found {
        let now_ms = self.store_clock.granting_ms();
        let by_name = self.index.with_newest(claim.owner.as_str(), |newest| {
            let slot = newest?;
            let meant = claim.incarnation.is_none_or(|i| i.0 == slot.incarnation);
            meant.then(|| found(slot, now_ms))
        });
        if let Some(found) = by_name {
            return found;
        }
        match self.resolve(claim) {
            ResolvedClaim::Known(slot) => found(&slot, now_ms),
            ResolvedClaim::NoSuchOwner => Found::Nobody,
            ResolvedClaim::Unknown => Found::Stranger,
        }
    }

    pub fn resolve(&self, claim: &Claim) -> ResolvedClaim {
        let newest = self.index.newest(claim.owner.as_str());
        match (newest, claim.incarnation) {
            (Some(slot), None) => ResolvedClaim::Known(slot),
            (None, None) => ResolvedClaim::NoSuchOwner,
            (Some(slot), Some(i)) if slot.incarnation == i.0 => ResolvedClaim::Known(slot),
            (_, Some(i)) => match self.index.incarnation(i.0) {
                Some(slot) if slot.name == claim.owner => ResolvedClaim::Known(slot),
                _ => ResolvedClaim::Unknown,
            },
        }
    }

    /// The incarnation that may act inside a job; `None`: the owner's name is new.
    pub fn acting(&self, claim: &Claim) -> Tried<Option<UnlessEnded<Arc<Slot>>>> {
        match self.resolve(claim) {
            ResolvedClaim::Unknown => Err(unknown_claim(claim).into()),
            ResolvedClaim::NoSuchOwner => Ok(None),
            ResolvedClaim::Known(slot) if self.guard.may_register(&slot.state()) => {
                Ok(Some(UnlessEnded::Done(slot)))
            }
            ResolvedClaim::Known(slot) => Ok(Some(UnlessEnded::Ended(slot))),
        }
    }

    /// Records that the incarnation holds one entry less.
    pub fn note_let_go(&self, slot: &Arc<Slot>) {
        slot.drop_one();
        if slot.held() == 0 {
            self.index.due().note_emptied(slot);
        }
    }
}

/// The error for a claim whose incarnation is not known.
pub(crate) fn unknown_claim(claim: &Claim) -> Error {
    let (owner, incarnation) = (claim.owner.clone(), claim.incarnation);
    let lost =
        Lost { owner, incarnation, ending: None, ended_ms: None, held: Vec::new(), held_total: 0 };
    lost.into()
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

/// What other threads do with an [`OwnerTable`]: heartbeats in memory, and all else by jobs of the writer
/// and by reading the disk (`service`).
pub(crate) struct OwnerService {
    pub inner: Arc<Inner>,
    pub owners: Arc<OwnerTable>,
}

impl OwnerService {
    /// Sends a heartbeat without waiting, if the incarnation is in memory, as every live one is.
    /// `None`: call [`OwnerService::beat`].
    pub fn beat_now(&self, claim: &Claim) -> Option<Beat> {
        match self.owners.beat(claim) {
            Found::Answer(beat) => Some(beat),
            _ => None,
        }
    }
}

const SHARDS: usize = 16;

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

/// The owners of one system in memory: by name, by incarnation, and by deadline.
pub(crate) struct OwnerIndex {
    hasher: RandomState,
    newest: Vec<Shard>,
    owners: RwLock<BTreeMap<u64, Arc<Slot>>>,
    due: Mutex<DueOwners>,
}

const LOCK: &str = "no holder of this lock panics";

impl OwnerIndex {
    pub fn new(slots: Arc<SlotContext>) -> Self {
        let hasher = RandomState::default();
        let shard = || RwLock::new(HashMap::with_hasher(hasher.clone()));
        OwnerIndex {
            newest: (0..SHARDS).map(|_| shard()).collect(),
            hasher,
            owners: RwLock::default(),
            due: Mutex::new(DueOwners::new(slots)),
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
            self.due().forget(slot);
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

    /// Whether the predicate is true for any incarnation that has not ended.
    pub fn any_alive(&self, is_so: impl Fn(&Slot) -> bool) -> bool {
        self.due().alive().values().any(|slot| is_so(slot))
    }

    /// For how many incarnations that have not ended the predicate is true.
    pub fn count_alive(&self, is_so: impl Fn(&Slot) -> bool) -> u64 {
        self.due().alive().values().filter(|slot| is_so(slot)).count() as u64
    }

    /// At most `limit` incarnations that have not ended and for which the predicate is true, from
    /// `from` on and then from the beginning.
    pub fn pick_alive(
        &self,
        from: u64,
        limit: usize,
        is_so: impl Fn(&Slot) -> bool,
    ) -> Vec<Arc<Slot>> {
        let due = self.due();
        let alive = due.alive();
        let all = alive.range(from..).chain(alive.range(..from)).map(|(_, slot)| slot);
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

/// What every system has whose entries belong to owners, given its `owner_service` and its `core`: jobs
/// on the writer's thread, and [`OwnerStore`](lapsed_core::owner::OwnerStore).
macro_rules! impl_system_with_owners {
    ($system:ty) => {
        const _: () = {
            use lapsed_core::Name;
            use lapsed_core::owner::{Beat, BeatHandle, Claim, Incarnation, OwnerInfo, OwnerStore};
            use lapsed_core::request::{RequestId, current};

            use crate::{fault::Tried, tx::Tx};

            impl $system {
                pub(crate) fn core(&self) -> &Arc<Core> {
                    &self.core
                }

                /// Runs a job on the writer's thread.
                async fn write<T: Send + 'static>(
                    &self,
                    work: impl FnOnce(&Core, &mut Tx) -> Tried<T> + Send + 'static,
                    done: impl FnOnce(&T) + Send + 'static,
                ) -> Result<T> {
                    let (core, current) = (self.core.clone(), current(&self.core.id));
                    let work = move |tx: &mut Tx| {
                        core.requests().noted(tx, current.as_deref(), |tx| work(&core, tx))
                    };
                    self.owner_service.inner.writer.write(work, done).await
                }
            }

            #[async_trait::async_trait]
            impl OwnerStore for $system {
                async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
                    self.owner_service.start(owner, ttl_ms).await
                }
                async fn start_once(
                    &self,
                    request: &RequestId,
                    owner: &Name,
                    ttl_ms: u64,
                ) -> Result<Beat> {
                    self.owner_service.start_once(request, owner, ttl_ms).await
                }
                async fn beat(&self, claim: &Claim) -> Result<Beat> {
                    self.owner_service.beat(claim).await
                }
                async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
                    self.owner_service.end(claim).await
                }
                async fn owners(
                    &self,
                    after: Option<Incarnation>,
                    limit: usize,
                ) -> Result<Vec<OwnerInfo>> {
                    self.owner_service.owners(after, limit).await
                }
                async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
                    self.owner_service.owner(claim).await
                }
                fn beat_now(&self, claim: &Claim) -> Option<Beat> {
                    self.owner_service.beat_now(claim)
                }
                fn beat_handle(
                    &self,
                    owner: &Name,
                    of: Incarnation,
                ) -> Option<Arc<dyn BeatHandle>> {
                    self.owner_service.beat_handle(owner, of)
                }
            }
        };
    };
}
pub(crate) use impl_system_with_owners;
