//! The store as a process reaches it over its connection: implements every store trait of the
//! library, with faults.
//!
//! It also keeps the sweeper's [`BrakeModel`], from which follows what the sweeper's brake should
//! allow. The simulated system checks every batch against that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::leader::Term;
use lapsed_core::notes::{NoNotes, NoteStore};
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::registry::{FoundEntry, RegisterAnswer, RegistryStore, TakePolicy};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeRecord;
use lapsed_core::sweep::policy::SweepMode;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result, SystemId};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};

use crate::brake_model::BrakeModel;
use crate::connection::StoreConnection;
use crate::system::{SweeperLimits, system_id};

/// The store, reached over a connection.
pub struct SimRemote {
    connection: StoreConnection,
    system: SystemId,
    threshold: Duration,
    /// What the sweeper of this process has read.
    pub brake_model: Mutex<BrakeModel>,
    /// How long the last `campaign` call took, in milliseconds.
    pub campaign_took_ms: Arc<AtomicU64>,
}

impl SimRemote {
    /// The store, reached over `connection`.
    pub fn new(
        connection: StoreConnection,
        threshold: Duration,
        brake_model: BrakeModel,
    ) -> Arc<Self> {
        let brake_model = Mutex::new(brake_model);
        Arc::new(SimRemote {
            connection,
            system: system_id(),
            threshold,
            brake_model,
            campaign_took_ms: Arc::default(),
        })
    }

    fn model(&self) -> MutexGuard<'_, BrakeModel> {
        self.brake_model.lock().expect("nobody panics while holding the lock")
    }

    fn may(&self) -> SweeperLimits {
        self.model().limits()
    }

    fn check_leads(&self, act: PassMode, term: Option<u64>) {
        let leader = self.model().mode;
        if leader == SweepMode::Leader && act == PassMode::Reclaim {
            let mut sim = self.connection.world.sim();
            let checked = sim.check_leads(&self.connection.process.name, term);
            drop(sim);
            self.connection.world.check(checked);
        }
    }
}

/// A real store that formats cursors; any one gives the same result.
fn reference_store() -> &'static EmbeddedRegistry {
    static REFERENCE: OnceLock<Arc<EmbeddedRegistry>> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        let store = Embedded::in_memory(Options::default()).expect("an empty store opens");
        store.registry(system_id(), Duration::from_secs(1)).expect("an empty registry opens")
    })
}

#[async_trait]
impl OwnerStore for SimRemote {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let owner = owner.clone();
        self.connection.call("start", move |sim, who| sim.start(who, &owner, ttl_ms)).await
    }

    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        let claim = claim.clone();
        self.connection.call("beat", move |sim, who| sim.beat(who, &claim)).await
    }

    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        let claim = claim.clone();
        self.connection.call("end", move |sim, who| sim.end(who, &claim)).await
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.connection.call("owners", move |sim, _| sim.owners(after, limit)).await
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        let claim = claim.clone();
        self.connection.call("owner", move |sim, _| sim.owner(&claim)).await
    }
}

#[async_trait]
impl RegistryStore for SimRemote {
    async fn register(
        &self,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        let (claim, keys) = (claim.clone(), keys.to_vec());
        let op = move |sim: &mut crate::system::SimSystem, who: &str| {
            sim.register(who, &claim, &keys, take)
        };
        self.connection.call("register", op).await
    }

    async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        let (claim, keys) = (claim.clone(), keys.to_vec());
        self.connection.call("unregister", move |sim, who| sim.unregister(who, &claim, &keys)).await
    }

    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        let keys = keys.to_vec();
        self.connection.call("find", move |sim, who| sim.find(who, &keys)).await
    }

    async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let (claim, after) = (claim.clone(), after.cloned());
        let op = move |sim: &mut crate::system::SimSystem, _: &str| {
            sim.entries(&claim, after.as_ref(), limit)
        };
        self.connection.call("entries", op).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.connection.call("restore", move |sim, who| sim.restore(who, seq)).await
    }
}

#[async_trait]
impl Sweep for SimRemote {
    fn system(&self) -> &SystemId {
        &self.system
    }

    fn threshold(&self) -> Duration {
        self.threshold
    }

    async fn census(&self) -> Result<Census> {
        let census = self.connection.call("census", |sim, who| sim.census(who)).await?;
        self.model().observe_census(&census);
        Ok(census)
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.connection.call("suspects", move |sim, who| sim.suspects(who, &request)).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        reference_store().after(suspect)
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        let claim = claim.clone();
        self.connection.call("held by", move |sim, _| sim.held_by(&claim, limit)).await
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let may = self.may();
        self.check_leads(batch.act, batch.term);
        self.connection.call("reclaim", move |sim, who| sim.reclaim(who, batch, may)).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let asked = batch.clone();
        let answer = self.connection.call("settle", move |sim, who| sim.settle(who, &asked)).await;
        if answer.is_ok() {
            self.connection.world.sim().note_settled(batch);
        }
        answer
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        let may = self.may();
        self.check_leads(PassMode::Reclaim, limits.term);
        self.connection.call("tidy", move |sim, who| sim.tidy(who, limits, may)).await
    }
}

#[async_trait]
impl Store for SimRemote {
    async fn info(&self) -> Result<StoreInfo> {
        self.connection.call("info", |sim, _| sim.info()).await
    }

    async fn receipts(&self, _: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.connection.call("receipts", move |sim, _| sim.receipts(query)).await
    }

    async fn receipt(&self, _: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        self.connection.call("receipt", move |sim, _| sim.receipt(seq)).await
    }

    async fn campaign(&self, _: &SystemId, who: &str, ttl_ms: u64) -> Result<Option<Term>> {
        let (who, sent_ms) = (who.to_owned(), self.connection.world.time.now_ms());
        let answer =
            self.connection.call("campaign", move |sim, _| sim.campaign(&who, ttl_ms)).await;
        let took_ms = self.connection.world.time.now_ms() - sent_ms;
        self.campaign_took_ms.store(took_ms, Ordering::Relaxed);
        answer
    }

    async fn term(&self, _: &SystemId) -> Result<Option<Term>> {
        Ok(None)
    }

    async fn resign(&self, _: &SystemId, term: u64) -> Result<()> {
        self.connection.call("resign", move |sim, who| sim.resign(who, term)).await
    }

    async fn brake(&self, _: &SystemId) -> Result<BrakeRecord> {
        let record = self.connection.call("brake", |sim, _| sim.brake()).await?;
        self.model().observe_record(&record);
        Ok(record)
    }

    async fn swap_brake(&self, _: &SystemId, next: &BrakeRecord) -> Result<bool> {
        let next = next.clone();
        let swap = next.clone();
        let accepted =
            self.connection.call("swap brake", move |sim, who| sim.swap_brake(who, &swap)).await?;
        if accepted {
            self.model().observe_swap(&next);
        }
        Ok(accepted)
    }

    fn notes(&self) -> &dyn NoteStore {
        &NoNotes
    }
}
