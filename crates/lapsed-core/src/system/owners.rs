//! What a system whose entries live by their owner's heartbeat does for owners, the same for all of
//! them: it starts, ends and lists owners, and takes their heartbeats.
//!
//! A graceful end is one O(1) step that ends the incarnation, which makes its entries invalid at
//! once. The entries are then removed in batches, by the same guarded reclaim as those of dead
//! owners. If the process crashes in between, the sweep finds the ended owner and removes the rest.

use std::sync::Arc;
use std::time::Duration;

use super::parts::SystemParts;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{
    Beat, Claim, Incarnation, Owner, OwnerInfo, OwnerOptions, OwnerStore, ReleasedHoldings,
};
use crate::receipt::Receipt;
use crate::request::RequestId;
use crate::store_caller::StoreCaller;
use crate::sweep::{Batch, BatchId, Outcome, PassMode, Suspect, Sweep};

/// The owners of one system. Every call has the system's time limit and counts as activity of the
/// system.
#[derive(Clone)]
pub struct OwnerService {
    store: Arc<dyn OwnerStore>,
    sweep: Arc<dyn Sweep>,
    calls: StoreCaller,
    options: OwnerOptions,
    batch: usize,
    sweeper: Arc<str>,
    page_max: usize,
}

impl OwnerService {
    /// The owners of the system that `parts` describes. `store` and `sweep` are its store of
    /// entries; `page_max` is the most owners that one call lists.
    pub(crate) fn new<S: Sweep + ?Sized>(
        parts: &SystemParts<S>,
        store: Arc<dyn OwnerStore>,
        sweep: Arc<dyn Sweep>,
        page_max: usize,
    ) -> OwnerService {
        OwnerService {
            store,
            sweep,
            calls: parts.calls(),
            options: OwnerOptions { every: parts.beat_every, ..OwnerOptions::with_ttl(parts.ttl) },
            batch: parts.batch,
            sweeper: Arc::from(parts.sweeper.as_str()),
            page_max,
        }
    }

    /// How long a heartbeat lasts unless the owner says otherwise.
    pub fn ttl(&self) -> Duration {
        self.options.ttl
    }

    /// Starts an owner whose handle sends heartbeats in the background.
    pub async fn owner(&self, name: &str) -> Result<Owner> {
        let (store, clock) = (self.store.clone(), self.calls.clock.clone());
        let owner = Owner::start(store, clock, name, self.options.clone()).await?;
        let service = self.clone();
        Ok(owner.releasing(Arc::new(move |ended| {
            let service = service.clone();
            Box::pin(async move { service.release(&ended).await })
        })))
    }

    /// Begins a new incarnation of `owner`. A `ttl` of zero is refused.
    pub async fn start(&self, owner: &Name, ttl: Option<Duration>) -> Result<Beat> {
        let ttl_ms = self.ttl_ms(ttl)?;
        self.calls.call("start", self.store.start(owner, ttl_ms)).await
    }

    /// Like [`start`](Self::start) for a request that may be repeated: all its attempts get the same
    /// incarnation.
    pub async fn start_once(
        &self,
        request: &RequestId,
        owner: &Name,
        ttl: Option<Duration>,
    ) -> Result<Beat> {
        let ttl_ms = self.ttl_ms(ttl)?;
        self.calls.call("start", self.store.start_once(request, owner, ttl_ms)).await
    }

    fn ttl_ms(&self, ttl: Option<Duration>) -> Result<u64> {
        match ttl.unwrap_or(self.ttl()).as_millis() as u64 {
            0 => Err(Error::Invalid("ttl_ms must be above 0".to_owned())),
            ttl_ms => Ok(ttl_ms),
        }
    }

    /// A heartbeat: O(1), however much the owner holds. `Lost` when that incarnation has ended.
    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
        if let Some(beat) = self.store.beat_now(claim) {
            self.calls.note_activity();
            return Ok(beat);
        }
        self.calls.call("beat", self.store.beat(claim)).await
    }

    /// Owners, oldest incarnation first: those after `after`, at most `limit`.
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.calls.call("owners", self.store.owners(after, limit.min(self.page_max))).await
    }

    /// One incarnation of an owner, or the newest of that name.
    pub async fn owner_info(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.calls.call("owner", self.store.owner(claim)).await
    }

    /// Ends an owner gracefully, and releases what it holds.
    pub async fn retire(&self, claim: &Claim) -> Result<ReleasedHoldings> {
        let ended = self.calls.call("retire", self.store.end(claim)).await?;
        self.release(&ended).await
    }

    /// Releases what one ended incarnation holds, batch by batch. The batches are signed by the
    /// process and the incarnation, which together are unique, and numbered one after the other.
    async fn release(&self, ended: &OwnerInfo) -> Result<ReleasedHoldings> {
        let sweeper: Arc<str> = format!("{}/retire-{}", self.sweeper, ended.incarnation).into();
        let owner = Claim::exact(ended.owner.clone(), ended.incarnation);
        let mut done = ReleasedHoldings::none_of(ended.incarnation);
        for number in 1.. {
            let held = self.sweep.held_by(&owner, self.batch);
            let suspects = self.calls.call("suspects", held).await?;
            if suspects.is_empty() {
                break;
            }
            let id = BatchId { sweeper: sweeper.clone(), number };
            let (receipts, released) = self.reclaim(id, suspects).await?;
            receipts.iter().for_each(|receipt| self.calls.observer.reclaimed(receipt));
            done.reclaimed += receipts.len() as u64;
            done.released += released;
            if receipts.is_empty() && released == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Reclaims one batch. If its answer is lost, reads the receipts that it wrote, so that they are
    /// counted.
    async fn reclaim(&self, id: BatchId, suspects: Vec<Suspect>) -> Result<(Vec<Receipt>, u64)> {
        let batch = Batch { id: id.clone(), suspects, act: PassMode::Reclaim, term: None };
        match self.calls.call("reclaim", self.sweep.reclaim(batch)).await {
            Ok(answer) => {
                let is_released = |outcome: &&Outcome| matches!(outcome, Outcome::Released);
                let released = answer.outcomes.iter().filter(is_released).count() as u64;
                Ok((answer.outcomes.into_iter().filter_map(Outcome::receipt).collect(), released))
            }
            Err(Error::Unavailable { .. }) => {
                Ok((self.calls.call("settle", self.sweep.settle(&id)).await?, 0))
            }
            Err(error) => Err(error),
        }
    }
}
