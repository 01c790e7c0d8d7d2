//! What the fixtures of all suites share: a store with a clock that can be advanced, and the steps of a
//! pass on one system of it.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::leading::LedSystem;
use super::{name, unique};
use crate::clock::ManualClock;
use crate::owner::{Claim, OwnerStore};
use crate::receipt::{Receipt, ReceiptQuery};
use crate::schedule::StopSignal;
use crate::store::Store;
use crate::sweep::policy::Policy;
use crate::sweep::{
    Batch, BatchAnswer, BatchId, Cursor, PageRequest, PassMode, PassReport, Suspect, Sweep,
    Sweeper, SweeperParts,
};

/// Advances a store's clock by a duration, and resolves when it has.
pub type Advance = Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// A fresh store under test, and a way to advance its clock.
pub struct TestStore {
    pub store: Arc<dyn Store>,
    /// Advances the store's clock by that much, and returns when the store itself knows.
    pub advance: Advance,
    /// Values that must be dropped only with the fixture.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl TestStore {
    /// A store whose clock is `clock`, which is moved by hand.
    pub fn by_hand(store: impl Store + 'static, clock: &ManualClock) -> TestStore {
        let clock = clock.clone();
        let advance: Advance = Box::new(move |span| {
            clock.advance(span);
            Box::pin(async {})
        });
        TestStore { store: Arc::new(store), advance, keep: Box::new(()) }
    }

    /// A store on the real clock: a case waits.
    pub fn waiting(store: impl Store + 'static) -> TestStore {
        let store: Arc<dyn Store> = Arc::new(store);
        let waiting = store.clone();
        let advance: Advance = Box::new(move |span| {
            let store = waiting.clone();
            Box::pin(async move { wait(&*store, span).await })
        });
        TestStore { store, advance, keep: Box::new(()) }
    }

    /// The same, with a value that must be dropped only after the test.
    pub fn keeping(self, value: impl Any + Send + Sync) -> TestStore {
        TestStore { keep: Box::new(value), ..self }
    }
}

/// Waits until the store's own clock has moved by `span` and a little more, because a heartbeat may be
/// granted a few milliseconds beyond its TTL.
pub async fn wait(store: &dyn Store, span: Duration) {
    let now_ms = async || store.info().await.expect("info").now_ms;
    let until = now_ms().await + span.as_millis() as u64 + 25;
    loop {
        let left_ms = until.saturating_sub(now_ms().await);
        if left_ms == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(left_ms)).await;
    }
}

/// One system on a [`TestStore`], and what a pass does with it. `O` is [`TestOwners`] if the system has owners
/// that send heartbeats.
pub struct SystemFixture<O = ()> {
    on: TestStore,
    sweep: Arc<dyn Sweep>,
    owners: O,
    /// How long a heartbeat or a lease lasts; short if the fixture has to wait for it on the real clock.
    pub ttl: Duration,
}

/// The owners of a system under test.
pub type TestOwners = Arc<dyn OwnerStore>;

impl<O> Deref for SystemFixture<O> {
    type Target = TestStore;
    fn deref(&self) -> &TestStore {
        &self.on
    }
}

/// Policy of the suites' passes: no limits, and a long timeout for slow machines.
pub fn policy() -> Policy {
    Policy { timeout: Duration::from_secs(60), ..Policy::default() }
}

impl<O> SystemFixture<O> {
    pub fn new(sweep: Arc<dyn Sweep>, owners: O, ttl: Duration, on: TestStore) -> Self {
        SystemFixture { on, sweep, owners, ttl }
    }

    /// The same system, for the stories about its leader, and what must be kept until they end.
    pub fn led(self, term: Duration) -> (LedSystem, Box<dyn Any + Send + Sync>) {
        let SystemFixture { on: TestStore { store, advance, keep }, sweep, .. } = self;
        (LedSystem { store, sweep, advance: Arc::new(advance), term }, keep)
    }

    /// The TTL and the store, for another system on it.
    pub fn into_store(self) -> (Duration, TestStore) {
        (self.ttl, self.on)
    }

    /// The TTL in milliseconds.
    pub fn ttl_ms(&self) -> u64 {
        self.ttl.as_millis() as u64
    }

    pub async fn now_ms(&self) -> u64 {
        self.store.info().await.expect("info").now_ms
    }

    /// All suspects, without a brake.
    pub async fn suspects(&self) -> Vec<Suspect> {
        self.suspects_within(None).await
    }

    /// All suspects, page after page, while at most `undeclared_max` owners may be declared dead.
    pub async fn suspects_within(&self, undeclared_max: Option<usize>) -> Vec<Suspect> {
        let mut all: Vec<Suspect> = Vec::new();
        loop {
            let after = all.last().map_or(Cursor::default(), |last| self.sweep.after(last));
            let request = PageRequest { after, limit: 1_000, undeclared_max };
            let page = self.sweep.suspects(request).await.expect("suspects");
            let ends = page.last || page.suspects.is_empty();
            all.extend(page.suspects);
            if ends {
                return all;
            }
        }
    }

    /// Reclaims one batch under a unique sweeper name.
    pub async fn reclaim(&self, suspects: Vec<Suspect>) -> BatchAnswer {
        let id = BatchId { sweeper: unique("by-hand").into(), number: 1 };
        self.reclaim_as(&id, None, suspects).await
    }

    /// Reclaims the batch `id`, in the leader's term if one is given.
    pub async fn reclaim_as(
        &self,
        id: &BatchId,
        term: Option<u64>,
        suspects: Vec<Suspect>,
    ) -> BatchAnswer {
        let batch = Batch { id: id.clone(), suspects, act: PassMode::Reclaim, term };
        self.sweep.reclaim(batch).await.expect("reclaim")
    }

    /// How many receipts settle the batch `id`.
    pub async fn settle(&self, id: &BatchId) -> usize {
        self.sweep.settle(id).await.expect("settle").len()
    }

    /// A sweeper with that policy and a unique name that begins with `who`.
    pub fn sweeper(&self, who: &str, policy: Policy) -> Sweeper {
        let parts = SweeperParts::new(unique(who), self.sweep.clone(), self.store.clone());
        Sweeper::new(parts.policy(policy))
    }

    /// Runs one pass with that policy; its report lists what it reclaimed.
    pub async fn pass(&self, who: &str, act: PassMode, policy: Policy) -> PassReport {
        let (_stopper, stop) = StopSignal::channel();
        self.sweeper(who, policy).pass(act, 1_000, &stop).await
    }

    /// Runs one pass that acts; its report lists what it reclaimed.
    pub async fn sweep(&self) -> PassReport {
        self.pass("s", PassMode::Reclaim, policy()).await
    }

    /// All receipts, oldest first.
    pub async fn receipts(&self) -> Vec<Receipt> {
        let query = ReceiptQuery { after: Some(0), limit: 20_000, ..ReceiptQuery::default() };
        self.store.receipts(self.sweep.system(), query).await.expect("receipts")
    }
}

impl SystemFixture<TestOwners> {
    /// Starts an incarnation and returns its claim.
    pub async fn start(&self, owner: &str) -> Claim {
        let beat = self.owners.start(&name(owner), self.ttl_ms()).await.expect("start");
        Claim::exact(name(owner), beat.incarnation)
    }

    /// Advances the clock by `span` while `others` send heartbeats.
    pub async fn outlive(&self, span: Duration, others: &[&Claim]) {
        let steps = (4 * span.as_millis()).div_ceil(self.ttl.as_millis()).max(1) as u32;
        for _ in 0..steps {
            (self.advance)(span / steps).await;
            for other in others {
                self.owners.beat(other).await.expect("the living beat");
            }
        }
    }
}

/// Batch `number` of a sweeper that the case names.
pub fn batch_id(sweeper: &str, number: u64) -> BatchId {
    BatchId { sweeper: sweeper.into(), number }
}
