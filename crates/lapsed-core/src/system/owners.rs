//! What a system whose entries live by their owner's heartbeat does for owners, the same for all of them.

use std::sync::Arc;
use std::time::Duration;

use super::store_caller::StoreCaller;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};

/// Starts owners, takes their heartbeats and lists them. Every call has the system's time limit and counts
/// as activity of the system.
pub struct OwnerService {
    store: Arc<dyn OwnerStore>,
    calls: StoreCaller,
    ttl: Duration,
    page_max: usize,
}

impl OwnerService {
    /// For the owners in `store`. `ttl` is how long a heartbeat lasts unless the owner says otherwise, and
    /// `page_max` the most owners that one call lists.
    pub fn new(
        store: Arc<dyn OwnerStore>,
        calls: StoreCaller,
        ttl: Duration,
        page_max: usize,
    ) -> OwnerService {
        OwnerService { store, calls, ttl, page_max }
    }

    /// Begins a new incarnation of `owner`. A `ttl` of zero is refused.
    pub async fn start(&self, owner: &Name, ttl: Option<Duration>) -> Result<Beat> {
        let ttl_ms = ttl.unwrap_or(self.ttl).as_millis() as u64;
        if ttl_ms == 0 {
            return Err(Error::Invalid("ttl_ms must be above 0".to_owned()));
        }
        self.calls.call("start", self.store.start(owner, ttl_ms)).await
    }

    /// A heartbeat: O(1), however much the owner holds. `Lost` when that incarnation has ended.
    pub async fn beat(&self, claim: &Claim) -> Result<Beat> {
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
}
