//! The store as a process sees it, over its wire: every seam of the library, faults included.
//!
//! Beside it stands what a sweeper was told ([`Watch`]): what it may do follows from that alone, so
//! it is known here, and checked on the ground, what its brake should have said.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::leader::Term;
use lapsed_core::notes::{NoNotes, NoteStore};
use lapsed_core::owner::{Beat, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::registry::{FoundEntry, RegisterAnswer, RegistryStore, TakePolicy};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::SweepMode;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, PassMode, Suspect, SuspectPage,
    Sweep, Tidied, TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result, SystemId};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};

use crate::ground::{Permit, system};
use crate::watch::Watch;
use crate::wire::Wire;

/// The store over a wire.
pub struct SimRemote {
    wire: Wire,
    system: SystemId,
    threshold: Duration,
    /// What its sweeper was told, if it has one.
    pub watch: Mutex<Watch>,
    /// How long the last answer to a candidate was on its way.
    pub campaign_took_ms: Arc<AtomicU64>,
}

impl SimRemote {
    /// The store as seen over `wire`.
    pub fn new(wire: Wire, threshold: Duration, watch: Watch) -> Arc<Self> {
        let watch = Mutex::new(watch);
        Arc::new(SimRemote {
            wire,
            system: system(),
            threshold,
            watch,
            campaign_took_ms: Arc::default(),
        })
    }

    fn permit(&self) -> Permit {
        self.watch.lock().expect("nobody panics while holding a watch").permit()
    }

    fn check_leads(&self, act: PassMode, term: Option<u64>) {
        let leader = self.watch.lock().expect("nobody panics while holding a watch").mode;
        if leader == SweepMode::Leader && act == PassMode::Reclaim {
            let mut ground = self.wire.world.ground();
            let checked = ground.check_leads(&self.wire.process.name, term);
            drop(ground);
            self.wire.world.check(checked);
        }
    }
}

/// Places in the index are written by a real store, whichever.
fn yardstick() -> &'static EmbeddedRegistry {
    static YARDSTICK: OnceLock<Arc<EmbeddedRegistry>> = OnceLock::new();
    YARDSTICK.get_or_init(|| {
        let store = Embedded::in_memory(Options::default()).expect("an empty store opens");
        store.registry(system(), Duration::from_secs(1)).expect("an empty registry opens")
    })
}

#[async_trait]
impl OwnerStore for SimRemote {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        let owner = owner.clone();
        self.wire.call("start", move |ground, who| ground.start(who, &owner, ttl_ms)).await
    }

    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        let claim = claim.clone();
        self.wire.call("beat", move |ground, who| ground.beat(who, &claim)).await
    }

    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        let claim = claim.clone();
        self.wire.call("end", move |ground, who| ground.end(who, &claim)).await
    }

    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.wire.call("owners", move |ground, _| ground.owners(after, limit)).await
    }

    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        let claim = claim.clone();
        self.wire.call("owner", move |ground, _| ground.owner(&claim)).await
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
        let op = move |ground: &mut crate::ground::SimSystem, who: &str| {
            ground.register(who, &claim, &keys, take)
        };
        self.wire.call("register", op).await
    }

    async fn unregister(&self, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        let (claim, keys) = (claim.clone(), keys.to_vec());
        self.wire.call("unregister", move |ground, who| ground.unregister(who, &claim, &keys)).await
    }

    async fn find(&self, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        let keys = keys.to_vec();
        self.wire.call("find", move |ground, who| ground.find(who, &keys)).await
    }

    async fn entries(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let (claim, after) = (claim.clone(), after.cloned());
        let op = move |ground: &mut crate::ground::SimSystem, _: &str| {
            ground.entries(&claim, after.as_ref(), limit)
        };
        self.wire.call("entries", op).await
    }

    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        let claim = claim.clone();
        self.wire.call("held by", move |ground, _| ground.held_by(&claim, limit)).await
    }

    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.wire.call("restore", move |ground, who| ground.restore(who, seq)).await
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
        let census = self.wire.call("census", |ground, who| ground.census(who)).await?;
        self.watch.lock().expect("nobody panics while holding a watch").see(&census);
        Ok(census)
    }

    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.wire.call("suspects", move |ground, who| ground.suspects(who, &request)).await
    }

    fn after(&self, suspect: &Suspect) -> Cursor {
        yardstick().after(suspect)
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        let permit = self.permit();
        self.check_leads(batch.act, batch.term);
        self.wire.call("reclaim", move |ground, who| ground.reclaim(who, batch, permit)).await
    }

    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let asked = batch.clone();
        let answer = self.wire.call("settle", move |ground, who| ground.settle(who, &asked)).await;
        if answer.is_ok() {
            self.wire.world.ground().note_settled(batch);
        }
        answer
    }

    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        let permit = self.permit();
        self.check_leads(PassMode::Reclaim, limits.term);
        self.wire.call("tidy", move |ground, who| ground.tidy(who, limits, permit)).await
    }
}

#[async_trait]
impl Store for SimRemote {
    async fn info(&self) -> Result<StoreInfo> {
        self.wire.call("info", |ground, _| ground.info()).await
    }

    async fn receipts(&self, _: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.wire.call("receipts", move |ground, _| ground.receipts(query)).await
    }

    async fn receipt(&self, _: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        self.wire.call("receipt", move |ground, _| ground.receipt(seq)).await
    }

    async fn campaign(&self, _: &SystemId, who: &str, ttl_ms: u64) -> Result<Option<Term>> {
        let (who, sent_ms) = (who.to_owned(), self.wire.world.time.now_ms());
        let answer =
            self.wire.call("campaign", move |ground, _| ground.campaign(&who, ttl_ms)).await;
        let took_ms = self.wire.world.time.now_ms() - sent_ms;
        self.campaign_took_ms.store(took_ms, Ordering::Relaxed);
        answer
    }

    async fn term(&self, _: &SystemId) -> Result<Option<Term>> {
        Ok(None)
    }

    async fn resign(&self, _: &SystemId, term: u64) -> Result<()> {
        self.wire.call("resign", move |ground, who| ground.resign(who, term)).await
    }

    async fn brake_setting(&self, _: &SystemId) -> Result<BrakeSetting> {
        let setting = self.wire.call("setting", |ground, _| ground.brake_setting()).await?;
        self.watch.lock().expect("nobody panics while holding a watch").setting = setting;
        Ok(setting)
    }

    async fn set_brake(&self, _: &SystemId, setting: BrakeSetting) -> Result<()> {
        self.wire.call("set brake", move |ground, who| ground.set_brake(who, setting)).await
    }

    fn notes(&self) -> &dyn NoteStore {
        &NoNotes
    }
}
