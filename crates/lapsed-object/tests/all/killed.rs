//! A sweeper that dies at any of its requests, or is taken for dead and comes back: one receipt for each
//! lease, whichever process wrote it.

use std::collections::BTreeSet;
use std::time::Duration;

use lapsed_core::leases::conformance::{LeasesFixture, key, name};
use lapsed_core::leases::{AcquireRequest, LeaseKey, LeasesStore};
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Cursor, PageRequest, PassMode, Suspect, Sweep};
use lapsed_testbed::{Fault, HttpProxy, ObjectEngine, ObjectServer, Rule};

use crate::fixture::{BUCKET, Site, layout, pass, prefix, sharpen, system};

const KEYS: usize = 3;
const TTL: Duration = Duration::from_secs(1);
/// Longer than a log object may be open: a request that is held back for this long arrives after its process was settled.
const LATE: Duration = Duration::from_secs(6);

fn keys() -> Vec<LeaseKey> {
    (0..KEYS).map(|n| key(&format!("k{n}"))).collect()
}

/// Leases that are over and listed, and who is about to reclaim them.
async fn ripe(home: &str) -> (Site, Vec<Suspect>) {
    let engine = ObjectEngine::Seaweed;
    let proxy = HttpProxy::start(ObjectServer::shared(engine).port()).unwrap();
    let site = Site::at(engine, home, layout(), Some(proxy));
    sharpen(&site.store).await;
    for key in keys() {
        let ttl_ms = TTL.as_millis() as u64;
        let wish = AcquireRequest { key, owner: name("dead"), ttl_ms, request: None };
        site.leases.acquire(&wish).await.unwrap();
    }
    pass(&site.store, TTL + BUCKET).await;
    let request = PageRequest { after: Cursor::default(), limit: 100, undeclared_max: None };
    let suspects = site.leases.suspects(request).await.unwrap().suspects;
    assert_eq!(suspects.len(), KEYS);
    site.proxy.as_ref().unwrap().take_seen();
    (site, suspects)
}

fn batch(suspects: Vec<Suspect>) -> Batch {
    let id = BatchId { sweeper: "mortal".into(), number: 1 };
    Batch { id, suspects, act: PassMode::Reclaim, term: None }
}

async fn receipts(site: &Site) -> Vec<Receipt> {
    let query = ReceiptQuery { after: Some(0), limit: 1_000, ..ReceiptQuery::default() };
    site.store.receipts(&system(), query).await.unwrap()
}

/// Everything is cleared, with one receipt each.
async fn assert_exactly_once(site: &Site, when: &str) {
    let receipts = receipts(site).await;
    let distinct: BTreeSet<_> = receipts.iter().map(|r| (r.key.clone(), r.incarnation.0)).collect();
    assert_eq!((receipts.len(), distinct.len()), (KEYS, KEYS), "{when}: {receipts:#?}");
    for key in keys() {
        let there = site.leases.peek(&key).await.unwrap().unwrap();
        assert_eq!((there.lease, there.token.0), (None, 1), "{when}");
    }
}

/// Another process takes over: passes until there is nothing to do.
async fn take_over(home: &str) -> LeasesFixture {
    let other = Site::at(ObjectEngine::Seaweed, home, layout(), None);
    let f = other.fixture();
    for _ in 0..20 {
        let report = f.sweep().await;
        if report.errors == 0 && report.suspects == 0 {
            return f;
        }
    }
    panic!("there is always something to do")
}

/// Dies with its request number `nth` under way; that one is carried out much later.
async fn dies_at(nth: usize) -> bool {
    let home = prefix();
    let (site, suspects) = ripe(&home).await;
    let proxy = site.proxy.as_ref().unwrap();
    proxy.add(Rule::next("", "", Fault::Delay(LATE)).skip(nth));
    let reached = async {
        while proxy.seen() <= nth {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let died = tokio::select! {
        answer = site.leases.reclaim(batch(suspects)) => {
            answer.unwrap();
            false
        }
        () = reached => true,
    };
    let f = take_over(&home).await;
    let other = f.keep.downcast_ref::<Site>().unwrap();
    assert_exactly_once(other, &format!("died at request {nth}")).await;
    lapsed_testbed::until("the late request", LATE * 5, || Ok(proxy.is_idle().then_some(())))
        .unwrap();
    assert_exactly_once(other, &format!("request {nth} came late")).await;
    // The dead one's own view, if it was only stopped.
    let settled = site.leases.settle(&batch(Vec::new()).id).await.unwrap();
    let known: BTreeSet<u64> = receipts(other).await.iter().map(|r| r.id.seq).collect();
    assert!(settled.iter().all(|receipt| known.contains(&receipt.id.seq)), "{settled:?}");
    died
}

/// A look for the newest log object, the intention, a look whether that is the newest now, three changes,
/// the end, three entries of the index: ten requests, each the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweeper_may_die_at_any_request() {
    let deaths = (0..11).map(|nth| tokio::spawn(dies_at(nth)));
    let deaths: Vec<bool> =
        futures::future::join_all(deaths).await.into_iter().map(|death| death.unwrap()).collect();
    assert_eq!(deaths.iter().filter(|died| **died).count(), 10, "{deaths:?}");
}

/// The answers of the decisive writes are lost: what was done is found out, in the same batch.
#[tokio::test]
async fn lost_answers_are_settled_within_the_batch() {
    for part in ["/meta/", "/receipts/", "/.lease-index/"] {
        for fault in [Fault::DropAnswer, Fault::AnswerAfter(500)] {
            let (site, suspects) = ripe(&prefix()).await;
            let proxy = site.proxy.as_ref().unwrap();
            let rule = Rule { times: 2, ..Rule::next("", part, fault.clone()) };
            proxy.add(rule);
            let answer = site.leases.reclaim(batch(suspects)).await.unwrap();
            let reclaimed = answer.outcomes.into_iter().filter_map(|o| o.receipt()).count();
            assert_eq!(reclaimed, KEYS, "{part} {fault:?}");
            assert_exactly_once(&site, &format!("{part} {fault:?}")).await;
        }
    }
}

/// The store goes away in the middle for good: in doubt, and settled by the next pass.
#[tokio::test]
async fn a_store_that_goes_away_in_the_middle_leaves_doubt_that_is_settled() {
    let home = prefix();
    let (site, _) = ripe(&home).await;
    let f = site.fixture();
    let site = f.keep.downcast_ref::<Site>().unwrap();
    let proxy = site.proxy.as_ref().unwrap();
    // The intention and one change come through; then nothing does.
    proxy.add(Rule::always("", "/meta/", Fault::DropRequest).skip(KEYS + 1));
    proxy.add(Rule::always("PUT", "/receipts/", Fault::DropRequest).skip(1));
    let sweeper = f.sweeper("s", lapsed_core::leases::conformance::policy());
    let (_stopper, stop) = lapsed_core::schedule::StopSignal::channel();
    let first = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
    assert_eq!((first.reclaimed, first.errors), (0, 1), "{first:?}");
    assert!(sweeper.is_in_doubt());
    proxy.clear();
    // A store that was away holds the brake for a while.
    let mut reclaimed = 0;
    for _ in 0..10 {
        let reason = "the store is back".to_owned();
        f.set_brake(lapsed_core::sweep::brake::BrakeSetting::Override { reason }).await;
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        reclaimed += report.reclaimed;
        if report.suspects == 0 && report.errors == 0 {
            break;
        }
    }
    assert_eq!(reclaimed, KEYS as u64, "counted once each");
    assert_exactly_once(site, "after the store was back").await;
}
