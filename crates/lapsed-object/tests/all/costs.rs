//! What operations cost: requests, counted by the proxy that they pass and by the store itself.

use std::time::Duration;

use lapsed_core::leases::conformance::{LeasesFixture, done, json, key};
use lapsed_core::leases::{Acquired, LeaseKey, LeaseTicket, LeasesStore};
use lapsed_core::sweep::policy::Policy;
use lapsed_object::{LeasesLayout, RequestKind};
use lapsed_testbed::{HttpProxy, ObjectEngine, ObjectServer};

use crate::fixture::{BUCKET, Site, layout, pass, prefix, sharpen};

/// A bucket so wide that no test crosses its end.
fn wide() -> LeasesLayout {
    LeasesLayout { bucket: Duration::from_secs(86_400), ..layout() }
}

fn site(engine: ObjectEngine, prefix: &str, layout: LeasesLayout) -> Site {
    let proxy = HttpProxy::start(ObjectServer::shared(engine).port()).unwrap();
    Site::at(engine, prefix, layout, Some(proxy))
}

impl Site {
    /// What was asked since the last call, by method.
    fn asked(&self) -> Vec<String> {
        let seen = self.proxy.as_ref().unwrap().take_seen();
        seen.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }
}

async fn acquire(leases: &dyn LeasesStore, key: &LeaseKey, ttl: Duration) -> LeaseTicket {
    let wish = lapsed_core::leases::AcquireRequest {
        key: key.clone(),
        owner: lapsed_core::Name::new("o").unwrap(),
        ttl_ms: ttl.as_millis() as u64,
        request: None,
    };
    match leases.acquire(&wish).await.unwrap().answer {
        Acquired::Granted(grant) => grant.ticket(),
        Acquired::Held(grant) => panic!("{grant:?}"),
    }
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(1);

async fn a_cycle_costs_six_requests_at_first_and_two_when_warm(engine: ObjectEngine) {
    let site = site(engine, &prefix(), wide());
    let k = key("k");
    let ticket = acquire(&*site.leases, &k, LONG).await;
    let asked = ["GET", "PUT", "PUT", "GET", "PUT"];
    assert_eq!(site.asked(), asked, "read, index and empty record, token floor, record");
    done(site.leases.release(&ticket).await.unwrap().answer);
    assert_eq!(site.asked(), ["PUT"]);
    for _ in 0..3 {
        let ticket = acquire(&*site.leases, &k, LONG).await;
        done(site.leases.renew(&ticket, None).await.unwrap().answer);
        done(site.leases.set_state(&ticket, Some(&json("x"))).await.unwrap().answer);
        done(site.leases.release(&ticket).await.unwrap().answer);
        assert_eq!(site.asked(), ["PUT"; 4], "one each: acquire, renew, set state, release");
    }
    let counts = site.store.requests();
    assert_eq!((counts.of(RequestKind::Get), counts.of(RequestKind::Put)), (2, 16));
    assert_eq!(counts.total(), 18);
}

#[tokio::test]
async fn a_cycle_on_s3_costs_six_requests_at_first_and_two_when_warm() {
    a_cycle_costs_six_requests_at_first_and_two_when_warm(ObjectEngine::Seaweed).await;
}

#[tokio::test]
async fn a_cycle_on_azure_costs_six_requests_at_first_and_two_when_warm() {
    a_cycle_costs_six_requests_at_first_and_two_when_warm(ObjectEngine::Azurite).await;
}

/// For a process that has not seen the key, an expired lease costs no more than a free key.
#[tokio::test]
async fn a_transparent_clear_adds_no_request_to_a_write_and_one_to_a_look() {
    let home = prefix();
    let first = site(ObjectEngine::Seaweed, &home, wide());
    sharpen(&first.store).await;
    let [over, free, seen] = [key("over"), key("free"), key("seen")];
    acquire(&*first.leases, &over, SHORT).await;
    acquire(&*first.leases, &seen, SHORT).await;
    let ticket = acquire(&*first.leases, &free, LONG).await;
    done(first.leases.release(&ticket).await.unwrap().answer);
    let other = site(ObjectEngine::Seaweed, &home, wide());
    pass(&other.store, SHORT).await;
    other.asked();
    acquire(&*other.leases, &free, LONG).await;
    let of_free = other.asked();
    acquire(&*other.leases, &over, LONG).await;
    assert_eq!(other.asked(), of_free);
    assert_eq!(of_free, ["GET", "PUT"]);
    let met = other.leases.describe(&seen).await.unwrap();
    assert_eq!((met.cleared.len(), other.asked()), (1, vec!["GET".to_owned(), "PUT".to_owned()]));
    other.leases.describe(&seen).await.unwrap();
    assert_eq!(other.asked(), ["GET"]);
}

/// A refusal is read, once; and so is every further attempt.
#[tokio::test]
async fn an_acquire_of_a_held_lease_costs_one_read() {
    let home = prefix();
    let holder = site(ObjectEngine::Seaweed, &home, wide());
    let k = key("k");
    acquire(&*holder.leases, &k, LONG).await;
    let rival = site(ObjectEngine::Seaweed, &home, wide());
    let wish = lapsed_core::leases::AcquireRequest {
        key: k.clone(),
        owner: lapsed_core::Name::new("rival").unwrap(),
        ttl_ms: 5_000,
        request: None,
    };
    for _ in 0..3 {
        let answer = rival.leases.acquire(&wish).await.unwrap().answer;
        assert!(matches!(answer, Acquired::Held(_)));
        assert_eq!(rival.asked(), ["GET"]);
    }
}

/// A hundred dead among as many living: four requests each, and a few for the pages and the log. The
/// fourth files the key, so that it is forgotten one day: once for as long as that takes.
#[tokio::test]
async fn a_sweep_costs_less_than_five_requests_a_lease() {
    let forgetting =
        LeasesLayout { forget_after: LeasesLayout::default().forget_after, ..layout() };
    let site = site(ObjectEngine::Seaweed, &prefix(), forgetting);
    site.store.probe().await.unwrap();
    sharpen(&site.store).await;
    let dead: Vec<LeaseKey> = (0..100).map(|n| key(&format!("dead{n}"))).collect();
    let live: Vec<LeaseKey> = (0..100).map(|n| key(&format!("live{n}"))).collect();
    for chunk in dead.chunks(10) {
        futures::future::join_all(chunk.iter().map(|k| acquire(&*site.leases, k, SHORT))).await;
    }
    for chunk in live.chunks(10) {
        futures::future::join_all(chunk.iter().map(|k| acquire(&*site.leases, k, LONG))).await;
    }
    pass(&site.store, SHORT + BUCKET).await;
    site.asked();
    let before = site.store.requests();
    let f: LeasesFixture = site.fixture();
    let policy = Policy { batch: 20, ..lapsed_core::leases::conformance::policy() };
    let report = f.pass("s", lapsed_core::sweep::PassMode::Reclaim, policy).await;
    assert_eq!((report.reclaimed, report.suspects), (100, 100), "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    let after = site.store.requests();
    let cost = |kind: RequestKind| after.of(kind) - before.of(kind);
    assert_eq!(cost(RequestKind::Delete), 100);
    assert_eq!(cost(RequestKind::Put), 200 + 2 * 5, "and two log writes a batch");
    // One each, the brake's setting, and the oldest log object for its retention.
    assert!(cost(RequestKind::Get) <= 100 + 3, "{}", cost(RequestKind::Get));
    // The listings are as many as these narrow buckets: as many as the seconds that leasing took.
    let all = after.total() - before.total();
    assert!(all - cost(RequestKind::List) < 5 * 100, "{before:?} {after:?}");
    assert_eq!(site.asked().len() as u64, all);
}

/// What is over the budget is not sent, and says so.
#[tokio::test]
async fn a_budget_that_is_used_up_is_named() {
    let server = ObjectServer::shared(ObjectEngine::Seaweed);
    let mut config = crate::fixture::config(server, server.port(), &prefix());
    config.requests_per_hour = 7;
    let store = crate::fixture::open(config);
    let leases = store.leases(crate::fixture::system(), wide()).unwrap();
    let ticket = acquire(&*leases, &key("k"), LONG).await;
    done(leases.renew(&ticket, None).await.unwrap().answer);
    done(leases.renew(&ticket, None).await.unwrap().answer);
    let refused = leases.renew(&ticket, None).await.unwrap_err();
    assert!(matches!(refused, lapsed_core::Error::Throttled { .. }), "{refused}");
    assert!(refused.to_string().contains("7 requests per hour"), "{refused}");
    let counts = store.requests();
    assert_eq!((counts.total(), counts.withheld), (7, 1));
}

/// A pass with a small budget stops, and the next one continues.
#[tokio::test]
async fn a_pass_keeps_its_budget() {
    let tight = LeasesLayout { requests_per_pass: Some(20), ..layout() };
    let site = site(ObjectEngine::Seaweed, &prefix(), tight);
    sharpen(&site.store).await;
    let dead: Vec<LeaseKey> = (0..12).map(|n| key(&format!("k{n}"))).collect();
    futures::future::join_all(dead.iter().map(|k| acquire(&*site.leases, k, SHORT))).await;
    pass(&site.store, SHORT + BUCKET).await;
    let f = site.fixture();
    let policy = Policy { batch: 3, ..lapsed_core::leases::conformance::policy() };
    let sweeper = f.sweeper("s", policy);
    let (_stopper, stop) = lapsed_core::schedule::StopSignal::channel();
    let first = sweeper.pass(lapsed_core::sweep::PassMode::Reclaim, 0, &stop).await;
    assert!(first.reclaimed > 0 && first.reclaimed < 12, "{first:?}");
    assert!(first.detail.unwrap().contains("20 requests per pass"));
    let mut reclaimed = first.reclaimed;
    for _ in 0..8 {
        reclaimed += sweeper.pass(lapsed_core::sweep::PassMode::Reclaim, 0, &stop).await.reclaimed;
    }
    assert_eq!(reclaimed, 12);
}

/// Nothing is over: one listing of the namespaces, one of each index, the brake, the oldest receipts.
async fn a_pass_with_nothing_to_do_costs_little(engine: ObjectEngine) {
    let site = site(engine, &prefix(), layout());
    sharpen(&site.store).await;
    for n in 0..5 {
        acquire(&*site.leases, &key(&format!("dead{n}")), SHORT).await;
    }
    acquire(&*site.leases, &key("live"), LONG).await;
    pass(&site.store, SHORT + BUCKET).await;
    let f = site.fixture();
    assert_eq!(f.sweep().await.reclaimed, 5);
    let site = f.keep.downcast_ref::<Site>().unwrap();
    // SeaweedFS goes on listing a folder after its last object was deleted: the next pass removes it.
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        site.asked();
        assert_eq!(f.sweep().await.suspects, 0);
        let asked = site.proxy.as_ref().unwrap().take_seen();
        let lists = asked.iter().filter(|line| line.contains("list")).count();
        if (asked.len(), lists) == (4, 3) {
            return;
        }
        let folders = engine == ObjectEngine::Seaweed && asked.len() <= 4 + 2 * 5;
        assert!(folders && std::time::Instant::now() < limit, "{asked:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn an_idle_pass_on_s3() {
    a_pass_with_nothing_to_do_costs_little(ObjectEngine::Seaweed).await;
}

#[tokio::test]
async fn an_idle_pass_on_azure() {
    a_pass_with_nothing_to_do_costs_little(ObjectEngine::Azurite).await;
}
