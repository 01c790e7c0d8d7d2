//! The store traits of `lapsed_core`, implemented for sessions.

use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::request::RequestId;
use lapsed_core::sessions::{
    Activated, Deleted, ReferenceChange, ReferenceStep, Session, SessionProfile, SessionsStore,
};
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result, SystemId};

use super::RedisSessions;

impl RedisSessions {
    /// Refuses operations on owners in adopt mode, where sessions have no owners.
    fn require_native(&self, operation: &str) -> Result<()> {
        if self.is_native() {
            return Ok(());
        }
        Err(Error::Unsupported {
            operation: format!(
                "`{operation}` while mode = \"adopt\", where references have no owner (use mode = \
                 \"native\")"
            ),
            store: self.context().place(),
        })
    }
}

#[async_trait]
impl OwnerStore for RedisSessions {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.require_native("start")?;
        self.owners().start(owner, ttl_ms).await
    }

    async fn start_once(&self, request: &RequestId, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.require_native("start")?;
        self.owners().start_once(request, owner, ttl_ms).await
    }

    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.require_native("beat")?;
        self.owners().beat(claim).await
    }

    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        self.require_native("retire")?;
        self.owners().end(claim).await
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.owners().owners(after, limit).await
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.owners().owner(claim).await
    }
}

#[async_trait]
impl Sweep for RedisSessions {
    fn system(&self) -> &SystemId {
        &self.context().id
    }

    fn threshold(&self) -> Duration {
        self.context().threshold
    }

    async fn census(&self) -> Result<Census> {
        self.count().await
    }

    /// The index is sorted by time, so that nothing has to be read in full.
    async fn survey(&self, act: PassMode) -> Result<Option<Census>> {
        self.count_and_observe(act).await
    }

    async fn confirm_adoption(&self) -> Result<u64> {
        self.confirm().await
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.page(&request).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        self.place_after(suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.owners().left_by(claim, limit).await
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.reclaim_batch(&batch).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.context().settle(batch).await
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.owners().tidy(&limits).await
    }
}

#[async_trait]
impl SessionsStore for RedisSessions {
    async fn activate(&self, id: &Name, profile: &SessionProfile) -> Result<Activated> {
        let written = self.write("activate", id, profile).await?;
        let (created, session) = written
            .ok_or_else(|| self.context().unexpected_answer(&crate::script::SESSION_WRITE))?;
        Ok(Activated { created, session })
    }

    async fn connect(&self, claim: Option<&Claim>, id: &Name) -> Result<Option<ReferenceChange>> {
        self.change_references(None, "connect", claim, id).await
    }

    async fn disconnect(
        &self,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.change_references(None, "disconnect", claim, id).await
    }

    async fn change_once(
        &self,
        request: &RequestId,
        change: ReferenceStep,
        claim: Option<&Claim>,
        id: &Name,
    ) -> Result<Option<ReferenceChange>> {
        self.change_references(Some(request), change.as_str(), claim, id).await
    }

    async fn resume(&self, id: &Name) -> Result<Option<ReferenceChange>> {
        self.change_references(None, "resume", None, id).await
    }

    async fn get(&self, id: &Name) -> Result<Option<Session>> {
        Ok(self.write("get", id, &SessionProfile::default()).await?.map(|(_, session)| session))
    }

    async fn update(&self, id: &Name, profile: &SessionProfile) -> Result<Option<Session>> {
        Ok(self.write("update", id, profile).await?.map(|(_, session)| session))
    }

    async fn delete(&self, id: &Name) -> Result<Deleted> {
        self.remove(id).await
    }

    async fn of_broadcaster(&self, broadcaster: &Name) -> Result<Option<Name>> {
        self.current_of(broadcaster).await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Name>> {
        self.overdue(limit).await
    }

    async fn disconnected_count(&self) -> Result<u64> {
        self.count_disconnected().await
    }

    async fn referred(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.require_native("referred")?;
        self.owners().held_by(claim, after, limit).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.restore_session(seq).await
    }
}
