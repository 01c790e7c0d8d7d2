//! Leader election: renewed apart from the work, trusted from the sending, and checked by the
//! store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::clock::{Clock, ManualClock};
use lapsed_core::leader::{Campaign, Leadership, Term, TermOptions};
use lapsed_core::notes::NoteStore;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::registry::conformance::RegistryFixture;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{PassMode, Stopped, Sweeper, SweeperParts};
use lapsed_core::{Result, SystemId};

/// A real store whose answers to a campaign can be held back.
struct SlowAnswer {
    store: Arc<dyn Store>,
    clock: ManualClock,
    slow: AtomicBool,
}

#[async_trait]
impl Store for SlowAnswer {
    async fn info(&self) -> Result<StoreInfo> {
        self.store.info().await
    }
    async fn receipts(&self, system: &SystemId, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        self.store.receipts(system, query).await
    }
    async fn receipt(&self, system: &SystemId, seq: u64) -> Result<Option<Receipt>> {
        self.store.receipt(system, seq).await
    }
    async fn campaign(&self, s: &SystemId, candidate: &str, ttl_ms: u64) -> Result<Option<Term>> {
        let answer = self.store.campaign(s, candidate, ttl_ms).await;
        if self.slow.load(Ordering::SeqCst) {
            self.clock.sleep(Duration::from_secs(2)).await;
        }
        answer
    }
    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        self.store.term(system).await
    }
    async fn resign(&self, system: &SystemId, term: u64) -> Result<()> {
        self.store.resign(system, term).await
    }
    async fn brake_setting(&self, system: &SystemId) -> Result<BrakeSetting> {
        self.store.brake_setting(system).await
    }
    async fn set_brake(&self, system: &SystemId, setting: BrakeSetting) -> Result<()> {
        self.store.set_brake(system, setting).await
    }
    fn notes(&self) -> &dyn NoteStore {
        self.store.notes()
    }
}

const TERM: TermOptions =
    TermOptions { ttl: Duration::from_secs(15), timeout: Duration::from_secs(3) };

fn candidate(
    f: &RegistryFixture,
    store: Arc<dyn Store>,
    clock: &ManualClock,
    who: &str,
) -> (Campaign, Leadership) {
    Campaign::new(store, Arc::new(clock.clone()), f.registry.system().clone(), who, TERM)
}

fn sweeper(
    f: &RegistryFixture,
    clock: &ManualClock,
    leadership: &Leadership,
    batch: usize,
) -> Sweeper {
    Sweeper::new(
        SweeperParts::new("s".to_owned(), f.registry.clone(), f.store.clone())
            .policy(Policy { mode: SweepMode::Leader, batch, ..Policy::default() })
            .clock(Arc::new(clock.clone()))
            .leadership(Some(leadership.clone())),
    )
}

/// The answer takes two seconds: trust still ends fifteen seconds after the *sending*.
#[tokio::test]
async fn trap_x5_a_term_is_trusted_from_when_its_renewal_was_sent() {
    let (f, clock) = crate::fixture::in_memory();
    let slow =
        SlowAnswer { store: f.store.clone(), clock: clock.clone(), slow: AtomicBool::new(true) };
    let (campaign, leadership) = candidate(&f, Arc::new(slow), &clock, "one");
    let renewing = tokio::spawn(async move {
        campaign.renew().await;
        campaign
    });
    while !renewing.is_finished() {
        clock.advance(Duration::from_millis(500));
        tokio::task::yield_now().await;
    }
    let _campaign = renewing.await.unwrap();
    assert!(leadership.term().is_some());
    let sent_ago = Duration::from_secs(2);
    clock.advance(TERM.ttl - sent_ago - Duration::from_millis(600));
    assert!(leadership.term().is_some());
    clock.advance(Duration::from_millis(600));
    assert!(leadership.term().is_none(), "fifteen seconds after the sending");
}

/// The leader stalls during a pass, beyond its term, and another process leads. When it resumes, it
/// does nothing.
#[tokio::test]
async fn trap_x5_a_stalled_leader_does_nothing_after_it_resumes() {
    let (f, clock) = crate::fixture::in_memory();
    let f = f.settled().await;
    f.holding("i-1", &["a", "b"]).await;
    (f.advance)(f.ttl).await;
    let (one, leading) = candidate(&f, f.store.clone(), &clock, "one");
    one.renew().await;
    let sweeper = sweeper(&f, &clock, &leading, 1);
    clock.advance(Duration::from_secs(16));
    let (two, leading_two) = candidate(&f, f.store.clone(), &clock, "two");
    two.renew().await;
    assert!(leading_two.term().is_some());
    let (_stopper, stop) = StopSignal::channel();
    let report = sweeper.pass(PassMode::Reclaim, 10, &stop).await;
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Error, 0), "{report:?}");
    assert!(report.detail.unwrap().contains("another process leads"));
    assert!(f.receipts().await.is_empty());
}

/// Work that takes far longer than a term does not cost the term, because renewing is a separate
/// task.
#[tokio::test]
async fn trap_b12_renewing_does_not_wait_for_a_pass() {
    let (f, clock) = crate::fixture::in_memory();
    let f = f.settled().await;
    let keys: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    f.holding("i-1", &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    (f.advance)(f.ttl).await;
    let (campaign, leading) = candidate(&f, f.store.clone(), &clock, "one");
    campaign.renew().await;
    let first = leading.term();
    let (stopper, stop) = StopSignal::channel();
    let until = stop.clone();
    let renewing = tokio::spawn(campaign.run(async move { until.told().await }));
    let sweeper = {
        let parts = Policy {
            mode: SweepMode::Leader,
            batch: 1,
            op_delay: Duration::from_secs(2),
            ..Policy::default()
        };
        Sweeper::new(
            SweeperParts::new("s".to_owned(), f.registry.clone(), f.store.clone())
                .policy(parts)
                .clock(Arc::new(clock.clone()))
                .leadership(Some(leading.clone())),
        )
    };
    let (_keep, never) = StopSignal::channel();
    let working = tokio::spawn(async move { sweeper.pass(PassMode::Reclaim, 0, &never).await });
    while !working.is_finished() {
        clock.advance(Duration::from_millis(500));
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }
    let report = working.await.unwrap();
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, 40), "80 s of work");
    assert_eq!(leading.term(), first, "one term all along");
    stopper.stop();
    renewing.await.unwrap();
    assert_eq!(leading.term(), None, "and it resigned");
    let (two, leading_two) = candidate(&f, f.store.clone(), &clock, "two");
    two.renew().await;
    assert!(leading_two.term() > first, "the next one need not wait");
}

/// Several candidates: at every instant at most one of them trusts its term.
#[tokio::test]
async fn at_most_one_candidate_is_the_leader() {
    let (f, clock) = crate::fixture::in_memory();
    let candidates: Vec<_> =
        (0..5).map(|i| candidate(&f, f.store.clone(), &clock, &format!("c{i}"))).collect();
    let mut changes = 0;
    let mut last = None;
    for round in 0..200u64 {
        let (campaign, _) = &candidates[(round * 7 % 5) as usize];
        campaign.renew().await;
        clock.advance(Duration::from_millis(1_000 + (round * 977) % 5_000));
        let terms: Vec<u64> = candidates.iter().filter_map(|(_, l)| l.term()).collect();
        assert!(terms.len() <= 1, "{terms:?}");
        if let Some(term) = terms.first() {
            assert!(last.is_none_or(|last| *term >= last), "terms only grow");
            changes += u32::from(last != Some(*term));
            last = Some(*term);
        }
    }
    assert!(changes > 1);
}
