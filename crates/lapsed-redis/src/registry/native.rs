//! A registry that is written through lapsed: the application's layout, and indexes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::registry::{FoundEntry, RegisterAnswer, RegistryStore, TakePolicy};
use lapsed_core::request::RequestId;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result, SystemId};

use super::RegistryLayout;
use super::entries::KEYS_A_CALL;
use crate::Redis;
use crate::names::check_shards;
use crate::overdue_owners::{self, OverduePages};
use crate::owners::OwnerService;
use crate::system_context::SystemContext;
use crate::write_probe::PROBE;

/// A registry written through lapsed. Clones share it.
#[derive(Clone)]
pub struct NativeRegistry {
    pub(super) owners: Arc<OwnerService>,
    pages: Arc<OverduePages>,
}

impl NativeRegistry {
    pub(super) fn open(redis: &Redis, id: SystemId, layout: RegistryLayout) -> Result<Self> {
        check_shards(layout.shards)?;
        let context = SystemContext::new(
            redis.connection().clone(),
            redis.clock().clone(),
            id,
            layout.heartbeat_ttl,
            layout.anchors(),
        );
        let written = vec![context.shards[0].anchor.clone(), layout.heartbeat_key.of(PROBE)];
        redis.register_context(&context, written);
        let ttl_ms = context.threshold_ms();
        let owners = OwnerService { context, heartbeat: Some(layout.heartbeat_key), ttl_ms };
        Ok(NativeRegistry { owners: Arc::new(owners), pages: Arc::default() })
    }

    pub(super) fn context(&self) -> &Arc<SystemContext> {
        &self.owners.context
    }
}

#[async_trait]
impl OwnerStore for NativeRegistry {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.owners.start(owner, ttl_ms).await
    }

    async fn start_once(&self, request: &RequestId, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.owners.start_once(request, owner, ttl_ms).await
    }

    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.owners.beat(claim).await
    }

    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        self.owners.end(claim).await
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.owners.owners(after, limit).await
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.owners.owner(claim).await
    }
}

#[async_trait]
impl Sweep for NativeRegistry {
    fn system(&self) -> &SystemId {
        &self.context().id
    }

    fn threshold(&self) -> Duration {
        self.context().threshold
    }

    async fn census(&self) -> Result<Census> {
        let mut census = self.owners.count().await?;
        census.population = self.population().await?;
        Ok(census)
    }

    /// There is an index; but owners that beat without lapsed (taken over by a reconciliation) are in
    /// it with the deadline that was last read off their heartbeat. Read again, or the brake would
    /// take them for dead.
    async fn survey(&self, _act: PassMode) -> Result<Option<Census>> {
        for shard in &self.context().shards {
            self.renew_external(shard).await?;
        }
        Ok(None)
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.pages.page(&self.owners, &request).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        let shard = self.context().shard(suspect.key.as_str()).index;
        overdue_owners::after(shard, suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.owners.left_by(claim, limit).await
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.reclaim_batch(&batch).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.context().settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.owners.tidy(&limits).await
    }
}

#[async_trait]
impl RegistryStore for NativeRegistry {
    fn atomic_keys(&self) -> usize {
        KEYS_A_CALL
    }

    async fn register(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        self.register_keys(claim, keys, take).await
    }

    async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        self.unregister_keys(claim, keys).await
    }

    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        self.find_keys(keys).await
    }

    async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.owners.held_by(claim, after, limit).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.restore_entry(seq).await
    }
}
