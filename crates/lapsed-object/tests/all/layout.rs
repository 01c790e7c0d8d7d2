//! Where objects lie: traps of the index, foreign objects under the prefix, other bucket widths.

use std::time::Duration;

use lapsed_core::Error;
use lapsed_core::leases::conformance::{LeasesFixture, done, key, name};
use lapsed_core::leases::{AcquireRequest, Acquired, Decision, Grant, LeaseKey, LeasesStore};
use lapsed_core::reconcile::{Healed, Reconcile};
use lapsed_core::sweep::{Cursor, Outcome, PassMode, Refusal};
use lapsed_object::LeasesLayout;
use lapsed_testbed::{
    BUCKET as PLACE, Fault, HttpProxy, ObjectEngine, ObjectServer, Rule, http_call,
};

use crate::fixture::{BUCKET, Site, layout, pass, prefix, sharpen};

const TTL: Duration = Duration::from_secs(1);
const ENGINE: ObjectEngine = ObjectEngine::Moto;

fn wish(key: &LeaseKey, ttl: Duration) -> AcquireRequest {
    let ttl_ms = ttl.as_millis() as u64;
    AcquireRequest { key: key.clone(), owner: name("a"), ttl_ms, request: None }
}

async fn acquire(site: &Site, key: &LeaseKey, ttl: Duration) -> Grant {
    sharpen(&site.store).await;
    match site.leases.acquire(&wish(key, ttl)).await.unwrap().answer {
        Acquired::Granted(grant) => grant,
        Acquired::Held(grant) => panic!("{grant:?}"),
    }
}

/// moto checks no signatures: the bucket can be looked at, and spoilt, by hand.
fn by_hand(method: &str, target: &str) -> lapsed_testbed::HttpAnswer {
    by_hand_with(method, target, &[])
}

fn by_hand_with(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> lapsed_testbed::HttpAnswer {
    let signed = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, \
                  SignedHeaders=host, Signature=none";
    let port = ObjectServer::shared(ENGINE).port();
    let target = format!("/{PLACE}{target}");
    let headers: Vec<_> = [("authorization", signed)].iter().chain(headers).copied().collect();
    http_call(port, method, &target, &headers, Duration::from_secs(20)).unwrap()
}

/// The names below a site's prefix that contain `part`.
fn names(site: &Site, part: &str) -> Vec<String> {
    let listed = by_hand("GET", &format!("?list-type=2&prefix={}/", site.prefix)).body;
    let keys = listed.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
    keys.filter(|key| key.contains(part)).map(str::to_owned).collect()
}

async fn sweep(f: &LeasesFixture) -> lapsed_core::sweep::PassReport {
    f.sweep().await
}

/// D1: a lease that a sweeper with narrower buckets finds after its bucket is over is indexed again, not forgotten.
#[tokio::test]
async fn trap_d1_a_lease_that_lives_on_is_filed_where_it_belongs() {
    let site = Site::new(ENGINE);
    let k = key("k");
    let grant = acquire(&site, &k, TTL).await;
    let longer = Some(6_000);
    done(site.leases.renew(&grant.ticket(), longer).await.unwrap().answer);
    let entries = names(&site, ".lease-index/");
    assert_eq!(entries.len(), 2, "one a bucket: {entries:?}");
    pass(&site.store, TTL + BUCKET).await;
    let f = site.fixture();
    let report = sweep(&f).await;
    assert_eq!((report.reclaimed, report.skipped.get("alive")), (0, Some(&1)), "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    let left = names(site, ".lease-index/");
    assert_eq!(left, entries[1..], "the stale one is gone, the other is not");
    pass(&site.store, Duration::from_secs(6) + BUCKET).await;
    assert_eq!(sweep(&f).await.reclaimed, 1);
    assert!(names(site, ".lease-index/").is_empty());
}

/// D1, the other way round: the only entry is that of the bucket that is over, and is not deleted.
#[tokio::test]
async fn trap_d1_buckets_of_another_width_hide_nothing() {
    let home = prefix();
    let hourly = LeasesLayout { bucket: Duration::from_secs(3_600), ..layout() };
    let daily = LeasesLayout { bucket: Duration::from_secs(86_400), ..layout() };
    for (n, wide) in [hourly, daily].into_iter().enumerate() {
        let site = Site::at(ENGINE, &home, wide, None);
        acquire(&site, &key(&format!("k{n}")), TTL).await;
    }
    let site = Site::at(ENGINE, &home, layout(), None);
    // An entry of a minute that is over, for a lease that is: as a fleet with other settings leaves it.
    acquire(&site, &key("k3"), TTL).await;
    for name in names(&site, ".lease-index/").iter().filter(|name| name.ends_with("/k3")) {
        assert_eq!(by_hand("DELETE", &format!("/{name}")).status, 204);
    }
    for bucket in ["20200101", "2020010100", "202001010000", "20200101000000"] {
        let entry = format!("/{home}/n/.lease-index/{bucket}/k3");
        assert_eq!(by_hand("PUT", &entry).status, 200);
    }
    let odd = format!("/{home}/n/.lease-index/not-a-bucket/k3");
    assert_eq!(by_hand("PUT", &odd).status, 200);
    pass(&site.store, TTL + BUCKET).await;
    let f = site.fixture();
    let report = sweep(&f).await;
    assert_eq!(report.reclaimed, 1, "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    let left = names(site, ".lease-index/");
    assert_eq!(left.len(), 3, "two that are not over, one that is none: {left:?}");
}

/// D2: dies between index and record: an entry that points to nothing, and a sweep that removes it.
#[tokio::test]
async fn trap_d2_the_index_is_written_first() {
    let site = Site::proxied(ENGINE);
    sharpen(&site.store).await;
    let proxy = site.proxy.as_ref().unwrap();
    proxy.add(Rule::always("PUT", "/meta/", Fault::DropRequest));
    assert!(site.leases.acquire(&wish(&key("k"), TTL)).await.is_err());
    assert_eq!((names(&site, "/meta/").len(), names(&site, ".lease-index/").len()), (0, 1));
    proxy.clear();
    pass(&site.store, TTL + BUCKET).await;
    let f = site.fixture();
    let report = sweep(&f).await;
    assert_eq!((report.reclaimed, report.skipped.get("gone")), (0, Some(&1)), "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    assert!(names(site, ".lease-index/").is_empty());
}

/// D3: a process that loses the decisive write has changed nothing: no receipt, no decision, no entry removed.
#[tokio::test]
async fn trap_d3_the_loser_has_changed_nothing() {
    let home = prefix();
    let slow = Site::at(ENGINE, &home, layout(), None);
    let k = key("k");
    acquire(&slow, &k, TTL).await;
    pass(&slow.store, TTL + BUCKET).await;
    let f = slow.fixture();
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 1);
    let fast = Site::at(ENGINE, &home, layout(), None);
    pass(&fast.store, Duration::ZERO).await;
    let grant = acquire(&fast, &k, Duration::from_secs(600)).await;
    let entries = names(&fast, ".lease-index/");
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, [Outcome::Refused(Refusal::Moved)]);
    assert_eq!(names(&fast, ".lease-index/"), entries);
    assert!(f.receipts().await.is_empty());
    let now = fast.leases.peek(&k).await.unwrap().unwrap();
    assert_eq!((now.token, now.lease.unwrap().deadline_ms), (grant.token, grant.deadline_ms));
}

/// D4: of two processes that create the same record concurrently, one gets `Lost`.
#[tokio::test]
async fn trap_d4_of_two_makers_one_wins() {
    for engine in ObjectEngine::GOOD {
        let home = prefix();
        let sites: Vec<Site> = (0..4).map(|_| Site::at(engine, &home, layout(), None)).collect();
        for round in 0..3 {
            let k = key(&format!("k{round}"));
            let wish = wish(&k, Duration::from_secs(600));
            let all = sites.iter().map(|site| site.leases.acquire(&wish));
            let answers = futures::future::join_all(all).await;
            let won = answers
                .into_iter()
                .filter(|answer| matches!(answer.as_ref().unwrap().answer, Acquired::Granted(_)));
            assert_eq!(won.count(), 1, "{engine:?}");
            assert_eq!(sites[0].leases.peek(&k).await.unwrap().unwrap().token.0, 1);
        }
    }
}

/// D7: a change that came in between leaves the entry where it is, and the next pass finds it.
#[tokio::test]
async fn trap_d7_a_lost_race_leaves_the_entry() {
    let site = Site::proxied(ENGINE);
    acquire(&site, &key("k"), TTL).await;
    acquire(&site, &key("l"), TTL).await;
    pass(&site.store, TTL + BUCKET).await;
    let f = site.fixture();
    let suspects = f.suspects().await;
    let site = f.keep.downcast_ref::<Site>().unwrap();
    site.proxy.as_ref().unwrap().add(Rule::next("PUT", "/meta/k", Fault::Answer(412)));
    let answer = f.reclaim(suspects).await;
    let busy = answer.outcomes.iter().filter(|o| **o == Outcome::Refused(Refusal::Busy));
    assert_eq!(busy.count(), 1, "{answer:?}");
    assert_eq!(names(site, ".lease-index/").len(), 1);
    assert_eq!(sweep(&f).await.reclaimed, 1);
    assert_eq!(f.receipts().await.len(), 2);
}

/// D10: a namespace that this process has never heard of.
#[tokio::test]
async fn trap_d10_namespaces_are_found_in_the_store() {
    let home = prefix();
    let one = Site::at(ENGINE, &home, layout(), None);
    for namespace in ["a", "b.c", "Z_9"] {
        acquire(&one, &LeaseKey::new(namespace, "k").unwrap(), TTL).await;
    }
    one.leases.decide(&name("t"), Decision::Commit, 1_000).await.unwrap();
    pass(&one.store, TTL + BUCKET).await;
    drop(one);
    let f = Site::at(ENGINE, &home, layout(), None).fixture();
    f.now_ms().await;
    (f.advance)(Duration::ZERO).await;
    let report = sweep(&f).await;
    assert_eq!(report.reclaimed, 4, "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    assert!(names(site, ".lease-index/").is_empty());
    assert!(names(site, ".txn-decisions/").is_empty(), "the marker is gone, and its entry");
}

/// A record that cannot be read hides no other, and is not overwritten.
#[tokio::test]
async fn a_spoilt_record_hides_no_other() {
    let site = Site::new(ENGINE);
    for n in 0..3 {
        acquire(&site, &key(&format!("k{n}")), TTL).await;
    }
    let spoilt = format!("/{}/n/meta/k1.pb", site.prefix);
    assert_eq!(by_hand("PUT", &spoilt).status, 200);
    pass(&site.store, TTL + BUCKET).await;
    let listed = site.leases.list(&key("x").namespace, None, 10).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|one| one.key.to_string()).collect();
    assert_eq!(listed, ["k0", "k2"]);
    let f = site.fixture();
    let report = sweep(&f).await;
    assert_eq!((report.reclaimed, report.skipped.get("unreadable")), (2, Some(&1)), "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    let fresh = Site::at(ENGINE, &site.prefix, layout(), None);
    let error = fresh.leases.acquire(&wish(&key("k1"), TTL)).await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { what, .. } if what.contains("k1.pb")), "{error}");
    assert_eq!(names(site, ".lease-index/").len(), 1, "its entry stays");
}

/// A page is full as long as there is more: a reader stops at the first page that is not full.
#[tokio::test]
async fn a_spoilt_record_does_not_end_a_listing() {
    let site = Site::new(ENGINE);
    for n in 0..5 {
        acquire(&site, &key(&format!("k{n}")), TTL).await;
    }
    assert_eq!(by_hand("PUT", &format!("/{}/n/meta/k1.pb", site.prefix)).status, 200);
    let namespace = key("x").namespace;
    let keys = |page: Vec<lapsed_core::leases::LeaseInfo>| -> Vec<String> {
        page.iter().map(|one| one.key.to_string()).collect()
    };
    let page = site.leases.list(&namespace, None, 2).await.unwrap();
    assert_eq!(keys(page), ["k0", "k2"]);
    let page = site.leases.list(&namespace, Some(&name("k2")), 2).await.unwrap();
    assert_eq!(keys(page), ["k3", "k4"]);
}

/// A key so long that its name is cut: its entry does not tell it, and is kept all the same.
#[tokio::test]
async fn a_spoilt_record_of_a_long_key_keeps_its_entry() {
    let site = Site::new(ENGINE);
    acquire(&site, &key(&"ä".repeat(100)), TTL).await;
    let records = names(&site, "/meta/");
    assert_eq!(records.len(), 1);
    let spoilt = records[0].replace('%', "%25").replace('~', "%7E");
    assert_eq!(by_hand("PUT", &format!("/{spoilt}")).status, 200);
    assert_eq!(names(&site, "/meta/"), records, "the same object");
    pass(&site.store, TTL + BUCKET).await;
    let f = site.fixture();
    let report = sweep(&f).await;
    assert_eq!(report.skipped.get("unreadable"), Some(&1), "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    assert_eq!(names(site, ".lease-index/").len(), 1, "its entry stays");
}

/// A record copied to the name of another key is not that key's: its token and holder are not believed.
#[tokio::test]
async fn a_record_under_another_name_is_not_believed() {
    let site = Site::new(ENGINE);
    let grant = acquire(&site, &key("k"), Duration::from_secs(600)).await;
    let record = |key: &str| format!("/{}/n/meta/{key}.pb", site.prefix);
    let source = format!("/{PLACE}{}", record("k"));
    assert_eq!(by_hand_with("PUT", &record("l"), &[("x-amz-copy-source", &source)]).status, 200);
    let error = site.leases.acquire(&wish(&key("l"), TTL)).await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { what, .. } if what.contains("l.pb")), "{error}");
    let listed = site.leases.list(&key("x").namespace, None, 10).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    done(site.leases.release(&grant.ticket()).await.unwrap().answer);
}

/// Lost index entries are made again from the records; the cost is estimated before.
#[tokio::test]
async fn reconcile_makes_missing_entries_again() {
    let site = Site::new(ENGINE);
    for n in 0..5 {
        acquire(&site, &key(&format!("k{n}")), TTL).await;
    }
    site.leases.decide(&name("t"), Decision::Commit, 1_000).await.unwrap();
    let entries = names(&site, ".lease-index/");
    for name in entries.iter().take(3).chain(&names(&site, ".txn-decisions/e/")) {
        assert_eq!(by_hand("DELETE", &format!("/{name}")).status, 204);
    }
    assert_eq!(site.leases.extent().await.unwrap(), 6);
    assert_eq!(site.leases.cost().await.unwrap(), Some(13));
    for (act, wanted) in [(PassMode::DryRun, 4), (PassMode::Reclaim, 4), (PassMode::Reclaim, 0)] {
        let mut after = Cursor::default();
        let (mut added, mut examined, mut pages) = (0, 0, 0);
        loop {
            let page = site.leases.reconcile(after, 2, act).await.unwrap();
            assert!(page.examined <= 2 && page.changes.iter().all(|c| c.what == Healed::Added));
            added += page.changes.len();
            examined += page.examined;
            pages += 1;
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!((added, examined), (wanted, 6), "{act:?}, {pages} pages");
    }
    pass(&site.store, TTL + BUCKET).await;
    assert_eq!(sweep(&site.fixture()).await.reclaimed, 6);
}

/// More clears than a record may owe: they go to the log on the way, and all are there in the end.
#[tokio::test]
async fn a_record_that_owes_too_much_pays() {
    let site = Site::new(ENGINE);
    let k = key("k");
    for _ in 0..18 {
        acquire(&site, &k, TTL).await;
        pass(&site.store, TTL).await;
    }
    pass(&site.store, BUCKET).await;
    let f = site.fixture();
    assert_eq!(sweep(&f).await.reclaimed, 1);
    let receipts = f.receipts().await;
    let tokens: Vec<u64> = receipts.iter().map(|receipt| receipt.incarnation.0).collect();
    assert_eq!(tokens, (1..=18).collect::<Vec<_>>());
}

/// Old receipts go, the newest log object stays and numbers go on from it.
#[tokio::test]
async fn receipts_are_pruned_and_numbers_go_on() {
    use lapsed_core::receipt::{ReceiptQuery, Retention};
    use lapsed_core::store::Store;
    use lapsed_core::sweep::{Sweep, TidyLimits};
    let site = Site::new(ENGINE);
    for round in 0..3 {
        acquire(&site, &key(&format!("k{round}")), TTL).await;
        pass(&site.store, TTL + BUCKET).await;
        let f = Site::at(ENGINE, &site.prefix, layout(), None).fixture();
        (f.advance)(Duration::ZERO).await;
        assert_eq!(sweep(&f).await.reclaimed, 1);
    }
    let retention = Retention { age_ms: u64::MAX / 2, count: 1, ..Retention::default() };
    let limits = TidyLimits { rows: 100, undeclared_max: None, retention, term: None };
    assert_eq!(site.leases.tidy(limits).await.unwrap().receipts_pruned, 2);
    assert_eq!(names(&site, "/receipts/").len(), 1);
    let fresh = Site::at(ENGINE, &site.prefix, layout(), None);
    let newest = ReceiptQuery { limit: 10, ..ReceiptQuery::default() };
    let left = fresh.store.receipts(&crate::fixture::system(), newest).await.unwrap();
    assert_eq!((left.len(), left[0].id.seq), (1, 3_000));
    // And by way of a proxy, to be told apart from what was remembered.
    let proxy = HttpProxy::start(ObjectServer::shared(ENGINE).port()).unwrap();
    let other = Site::at(ENGINE, &site.prefix, layout(), Some(proxy));
    let one = other.store.receipt(&crate::fixture::system(), 3_000).await.unwrap();
    assert_eq!(one.as_ref(), left.first());
}
