//! The owners of one system: which are alive, how incarnations start and end, how many entries each
//! holds, batches and receipts. What an entry is, is deliberately absent: each system adds that.
//!
//! Jobs on the writer's thread work with [`OwnerTable`]. [`OwnerService`] is its asynchronous
//! interface, which waits for the writer and reads the disk.

pub(crate) mod batch;
pub(crate) mod ledger;
pub(crate) mod load;
pub(crate) mod service;
pub(crate) mod suspects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lapsed_core::owner::{Claim, Lost};
use lapsed_core::registry::rules::OwnerGuard;
use lapsed_core::{Error, Result, SystemId};

use crate::Inner;
use crate::fault::Tried;
use crate::owner_index::OwnerIndex;
use crate::slot::Slot;
use crate::store_clock::StoreClock;
use crate::tables::Tables;
use crate::tx::Tx;

/// All incarnations of one system.
pub(crate) struct OwnerTable {
    pub id: SystemId,
    pub tables: Tables,
    pub index: OwnerIndex,
    pub threshold: Duration,
    pub store_clock: Arc<StoreClock>,
    pub guard: Arc<dyn OwnerGuard>,
    /// Until when the operator has waived the store-away grace.
    release_until_ms: AtomicU64,
    /// The incarnation whose deadline is the next to be written to disk.
    mirror_from: AtomicU64,
}

/// The incarnation that a claim refers to.
pub(crate) enum ResolvedClaim {
    Known(Arc<Slot>),
    /// The owner's name is new, and the claim has no incarnation.
    NoSuchOwner,
    /// The claimed incarnation belongs to another owner, or its record was removed.
    Unknown,
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
        OwnerTable {
            tables: Tables::of(&id),
            index: OwnerIndex::new(),
            threshold,
            store_clock: inner.store_clock.clone(),
            guard: inner.guard.clone(),
            release_until_ms: AtomicU64::new(0),
            mirror_from: AtomicU64::new(0),
            id,
        }
    }

    /// The store's clock, and since when owners could reach the store; 0 while the grace is waived.
    pub fn look(&self) -> (u64, u64) {
        let (now_ms, back_ms) = self.store_clock.look();
        (now_ms, self.spared_from(now_ms, back_ms))
    }

    fn spared_from(&self, now_ms: u64, back_ms: u64) -> u64 {
        if now_ms < self.release_until_ms.load(Ordering::Acquire) { 0 } else { back_ms }
    }

    /// `back_ms` while it matters: for one threshold, and only if a live owner existed before it. A
    /// store that was empty then has nobody to spare.
    fn cut_off_until(&self, now_ms: u64, back_ms: u64) -> u64 {
        let over = now_ms >= back_ms + self.threshold.as_millis() as u64;
        let was_there = |slot: &Slot| slot.end().is_none() && slot.started_ms < back_ms;
        if over || !self.index.any(was_there) { 0 } else { back_ms }
    }

    /// How many owners are past their deadline and spared only because the store was away.
    fn spared(&self, now_ms: u64, back_ms: u64) -> u64 {
        let is_spared = |slot: &Slot| {
            slot.end().is_none()
                && !slot.is_pending()
                && slot.deadline_ms() <= now_ms
                && slot.due_ms(back_ms) > now_ms
        };
        self.index.count(is_spared)
    }

    /// Waives the store-away grace until `until_ms`. Deadlines may become earlier, so they are
    /// indexed again.
    pub fn release_until(&self, until_ms: u64) {
        self.release_until_ms.store(until_ms, Ordering::Release);
        let (now_ms, back_ms) = self.look();
        self.index.due().refile(now_ms, back_ms);
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

/// The asynchronous interface of [`OwnerTable`].
pub(crate) struct OwnerService {
    pub inner: Arc<Inner>,
    pub owners: Arc<OwnerTable>,
}

impl OwnerService {
    /// Runs a job that needs only the owners.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OwnerTable, &mut Tx<'_>) -> Tried<T> + Send + 'static,
        done: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T> {
        let owners = self.owners.clone();
        self.inner.writer.write(move |tx| work(&owners, tx), done).await
    }

    /// The result of a job, or `Lost` if it would have acted for an ended incarnation.
    pub async fn acted<T>(&self, acted: UnlessEnded<T>) -> Result<T> {
        match acted {
            UnlessEnded::Done(value) => Ok(value),
            UnlessEnded::Ended(slot) => Err(self.lost(&slot).await),
        }
    }
}

/// Implements [`OwnerStore`](lapsed_core::owner::OwnerStore) for a system that has an
/// `owner_service`.
macro_rules! impl_owner_store {
    ($system:ty) => {
        #[async_trait]
        impl OwnerStore for $system {
            async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
                self.owner_service.start(owner, ttl_ms).await
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
            fn pulse(&self, owner: &Name, incarnation: Incarnation) -> Option<Arc<dyn BeatHandle>> {
                self.owner_service.pulse(owner, incarnation)
            }
        }
    };
}
pub(crate) use impl_owner_store;
