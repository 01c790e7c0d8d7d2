//! Leaders whose renewals fail, and leaders that stall: the same stories for every store that elects one.
//!
//! B12: what fails or takes long must not delay the next renewal, or two processes lead. X5: the leader is
//! stopped in the middle of a pass, its term ends, another process leads, and the first one wakes up.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};

use super::{Advance, SweepMoment, WatchedSweep, unique};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::leader::{Campaign, Leadership, Term, TermOptions};
use crate::name::SystemId;
use crate::notes::NoteStore;
use crate::receipt::{Receipt, ReceiptQuery};
use crate::schedule::StopSignal;
use crate::store::{Store, StoreInfo};
use crate::sweep::brake::{Brake, BrakePolicy, BrakeRecord};
use crate::sweep::policy::{Policy, SweepMode};
use crate::sweep::{PassMode, Stopped, Sweep, Sweeper, SweeperParts};
use crate::upkeep::UpkeepStore;

/// How the campaigns of one candidate go wrong.
#[non_exhaustive]
pub enum Answering {
    /// Answers take so long, by this clock.
    Late(Arc<dyn Clock>, Duration),
    /// Every second campaign fails: in turn it does not arrive, and its answer is lost.
    EveryOther,
}

/// A real store on which campaigns go wrong.
pub struct CampaignsBy {
    store: Arc<dyn Store>,
    answering: Answering,
    campaigns: AtomicUsize,
}

impl CampaignsBy {
    pub fn new(store: Arc<dyn Store>, answering: Answering) -> Arc<Self> {
        Arc::new(CampaignsBy { store, answering, campaigns: AtomicUsize::new(0) })
    }

    /// How many campaigns were begun.
    pub fn campaigns(&self) -> usize {
        self.campaigns.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Store for CampaignsBy {
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
        let number = self.campaigns.fetch_add(1, Ordering::SeqCst);
        if matches!(self.answering, Answering::EveryOther) && number % 4 == 1 {
            let (store, what) = ("the store".to_owned(), "connection refused".to_owned());
            return Err(Error::Unavailable { store, what });
        }
        let answer = self.store.campaign(s, candidate, ttl_ms).await;
        match &self.answering {
            Answering::Late(clock, by) => clock.sleep(*by).await,
            Answering::EveryOther if number % 4 == 3 => pending().await,
            Answering::EveryOther => {}
        }
        answer
    }
    async fn term(&self, system: &SystemId) -> Result<Option<Term>> {
        self.store.term(system).await
    }
    async fn resign(&self, system: &SystemId, term: u64) -> Result<()> {
        self.store.resign(system, term).await
    }
    async fn brake(&self, system: &SystemId) -> Result<BrakeRecord> {
        self.store.brake(system).await
    }
    async fn swap_brake(&self, system: &SystemId, next: &BrakeRecord) -> Result<bool> {
        self.store.swap_brake(system, next).await
    }
    fn upkeep(&self) -> Option<&dyn UpkeepStore> {
        self.store.upkeep()
    }
    fn notes(&self) -> &dyn NoteStore {
        self.store.notes()
    }
}

/// A system on a real store of which a leader is elected.
pub struct LedSystem {
    pub store: Arc<dyn Store>,
    pub sweep: Arc<dyn Sweep>,
    /// Lets the store's clock run on.
    pub advance: Arc<Advance>,
    /// How long a term lasts: longer than the store's clock is coarse.
    pub term: Duration,
}

impl LedSystem {
    fn candidate(&self, store: Arc<dyn Store>, who: &str) -> (Campaign, Leadership) {
        let options = TermOptions { ttl: self.term, timeout: self.term / 6 };
        let system = self.sweep.system().clone();
        Campaign::new(store, SystemClock::shared(), system, &unique(who), options)
    }

    async fn receipts(&self) -> usize {
        let query = ReceiptQuery { after: Some(0), limit: 10_000, ..ReceiptQuery::default() };
        self.store.receipts(self.sweep.system(), query).await.expect("receipts").len()
    }

    /// A sweeper whose brake never holds for a mass death: everybody may be dead in these stories.
    fn sweeper(&self, who: &str, sweep: Arc<dyn Sweep>, policy: Policy, of: Leadership) -> Sweeper {
        let all = BrakePolicy { share: 1.0, min_owners: 0, ..BrakePolicy::default() };
        let brake = Arc::new(Brake::new(all, sweep.threshold()));
        let parts = SweeperParts::new(unique(who), sweep, self.store.clone()).brake(brake);
        Sweeper::new(parts.policy(policy).leadership(Some(of)))
    }

    fn policy(&self) -> Policy {
        Policy {
            mode: SweepMode::Leader,
            batch: 2,
            timeout: Duration::from_secs(60),
            ..Policy::default()
        }
    }

    /// Lets time pass until the candidate leads.
    async fn lead(self: &Arc<Self>, campaign: &Campaign, leadership: &Leadership) {
        for _ in 0..200 {
            campaign.renew().await;
            if leadership.term().is_some() {
                return;
            }
            (self.advance)(self.term / 10).await;
        }
        panic!("the former term never ends");
    }
}

/// Each leader stalls at another moment of its pass, until its term is over and the next one leads: nothing is
/// reclaimed by it from then on. The system has `suspects` suspects that stay dead, at least seven.
pub async fn leaders_that_stall_within_a_pass_reclaim_nothing_more(it: LedSystem, suspects: u64) {
    let it = Arc::new(it);
    let mut expected = 0;
    for (moment, before) in [
        (SweepMoment::PageRead(1), 0),
        (SweepMoment::BatchSent(1), 0),
        (SweepMoment::PageRead(2), 2),
        (SweepMoment::BatchSent(2), 2),
    ] {
        let (campaign, leading) = it.candidate(it.store.clone(), "stalls");
        it.lead(&campaign, &leading).await;
        let stalled_for = it.clone();
        let next = Arc::new(Mutex::new(None));
        let stall = {
            let next = next.clone();
            move |at: SweepMoment| -> BoxFuture<'static, ()> {
                let (it, next) = (stalled_for.clone(), next.clone());
                async move {
                    if at == moment {
                        (it.advance)(it.term).await;
                        let (campaign, leading) = it.candidate(it.store.clone(), "leads");
                        it.lead(&campaign, &leading).await;
                        *next.lock().expect("nothing panics under it") = Some((campaign, leading));
                    }
                }
                .boxed()
            }
        };
        let watched = WatchedSweep::new(it.sweep.clone(), stall);
        let sweeper = it.sweeper("stalls", watched.clone(), it.policy(), leading);
        let (_stopper, stop) = StopSignal::channel();
        let report = sweeper.pass(PassMode::Reclaim, 100, &stop).await;
        expected += before;
        assert_eq!(report.reclaimed, before, "{moment:?}: {report:?}");
        assert_eq!(it.receipts().await as u64, expected, "{moment:?}: what the store did");
        assert_ne!(report.stopped, Stopped::Done, "{moment:?}: it knows that it was replaced");
        for batch in watched.batches() {
            assert!(batch.term.is_some(), "{moment:?}: a batch without the leader's term");
        }
        let next = next.lock().expect("nothing panics under it").take();
        let (campaign, _) = next.expect("the pass reached that moment");
        campaign.resign().await;
    }
    let (campaign, leading) = it.candidate(it.store.clone(), "last");
    it.lead(&campaign, &leading).await;
    let sweeper = it.sweeper("last", it.sweep.clone(), it.policy(), leading);
    let (_stopper, stop) = StopSignal::channel();
    let report = sweeper.pass(PassMode::Reclaim, 100, &stop).await;
    assert_eq!(report.reclaimed, suspects - expected, "the leader goes on: {report:?}");
    campaign.resign().await;
}

/// Every second renewal fails while a pass takes more than two terms, and a rival asks for the term all the time:
/// one process leads all along. For a store on the real clock.
pub async fn failed_renewals_cost_no_term(it: LedSystem, suspects: u64) {
    let it = Arc::new(it);
    let unreliable = CampaignsBy::new(it.store.clone(), Answering::EveryOther);
    let (campaign, leading) = it.candidate(unreliable.clone(), "renews");
    let (rival, leading_rival) = it.candidate(it.store.clone(), "rival");
    campaign.renew().await;
    let first = leading.term();
    assert!(first.is_some(), "nobody else asked for the term");
    let (stopper, stop) = StopSignal::channel();
    let renewing = tokio::spawn(campaign.run(async move { stop.stopped().await }));
    let op_delay = it.term * 5 / 2 / suspects as u32;
    let policy = Policy { batch: 1, op_delay, ..it.policy() };
    let sweeper = it.sweeper("renews", it.sweep.clone(), policy, leading.clone());
    let (_keep, never) = StopSignal::channel();
    let working = async { sweeper.pass(PassMode::Reclaim, 0, &never).await }.boxed();
    let rivalling = async {
        loop {
            rival.renew().await;
            assert_eq!(leading_rival.term(), None, "the rival leads beside it, or instead of it");
            tokio::time::sleep(it.term / 40).await;
        }
    };
    let report = match select(working, Box::pin(rivalling)).await {
        Either::Left((report, _)) => report,
        Either::Right((never, _)) => never,
    };
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, suspects), "{report:?}");
    assert_eq!(leading.term(), first, "one term all along");
    let campaigns = unreliable.campaigns();
    assert!(campaigns >= 6, "{campaigns} campaigns, of which every second fails");
    stopper.stop();
    renewing.await.expect("renewing ends");
    assert_eq!(leading.term(), None, "and it resigned");
    it.lead(&rival, &leading_rival).await;
    assert!(leading_rival.term() > first, "terms only grow");
    rival.resign().await;
}
