//! Leader election: renewed apart from the work, trusted from the sending, and checked by the
//! store.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::ManualClock;
use lapsed_core::conformance::leading::{Answering, CampaignsBy};
use lapsed_core::leader::{Campaign, Leadership, TermOptions};
use lapsed_core::registry::conformance::RegistryFixture;
use lapsed_core::schedule::StopSignal;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::{Policy, SweepMode};
use lapsed_core::sweep::{PassMode, Stopped, Sweeper, SweeperParts};

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
    let slow = CampaignsBy::new(
        f.store.clone(),
        Answering::Late(Arc::new(clock.clone()), Duration::from_secs(2)),
    );
    let (campaign, leadership) = candidate(&f, slow, &clock, "one");
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

/// The leader stalls before its pass, beyond its term, and another process leads. When it resumes, it
/// does nothing. `interrupted_passes.rs` stalls it within a pass.
#[tokio::test]
async fn trap_x5_a_leader_that_stalled_before_its_pass_does_nothing() {
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

/// A pass takes far longer than a term, every second renewal fails, and a rival asks for the term all
/// the time: one process leads all along, because renewing waits neither for the pass nor for a
/// back-off.
#[tokio::test]
async fn trap_b12_neither_a_pass_nor_a_failed_renewal_delays_the_next_one() {
    let (f, clock) = crate::fixture::in_memory();
    let f = f.settled().await;
    let keys: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    f.holding("i-1", &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    (f.advance)(f.ttl).await;
    let unreliable = CampaignsBy::new(f.store.clone(), Answering::EveryOther);
    let options = TermOptions { timeout: Duration::from_secs(1), ..TERM };
    let shared = Arc::new(clock.clone());
    let system = f.registry.system().clone();
    let (campaign, leading) =
        Campaign::new(unreliable.clone(), shared.clone(), system, "one", options);
    let (rival, leading_rival) = candidate(&f, f.store.clone(), &clock, "two");
    campaign.renew().await;
    let first = leading.term();
    let (stopper, stop) = StopSignal::channel();
    let renewing = tokio::spawn(campaign.run(async move { stop.stopped().await }));
    let sweeper = {
        let policy = Policy {
            mode: SweepMode::Leader,
            batch: 1,
            op_delay: Duration::from_secs(2),
            ..Policy::default()
        };
        Sweeper::new(
            SweeperParts::new("s".to_owned(), f.registry.clone(), f.store.clone())
                .policy(policy)
                .clock(shared)
                .leadership(Some(leading.clone())),
        )
    };
    let (_keep, never) = StopSignal::channel();
    let working = tokio::spawn(async move { sweeper.pass(PassMode::Reclaim, 0, &never).await });
    while !working.is_finished() {
        clock.advance(Duration::from_millis(250));
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        rival.renew().await;
        assert_eq!(leading_rival.term(), None, "the rival leads beside it, or instead of it");
    }
    let report = working.await.unwrap();
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, 40), "80 s of work: {report:?}");
    assert_eq!(leading.term(), first, "one term all along");
    let campaigns = unreliable.campaigns();
    assert!(campaigns >= 8, "{campaigns} campaigns, of which every second fails");
    stopper.stop();
    while !renewing.is_finished() {
        clock.advance(Duration::from_millis(250));
        tokio::task::yield_now().await;
    }
    assert_eq!(leading.term(), None, "and it resigned");
    rival.renew().await;
    assert!(leading_rival.term() > first, "the next one need not wait");
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
