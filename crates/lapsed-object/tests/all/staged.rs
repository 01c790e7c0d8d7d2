//! Work that is staged for a transaction, where several processes know the key, and where something was
//! spoilt: the transaction may be rolled back, and the pass continues.

use std::time::Duration;

use lapsed_core::leases::conformance::{done, key, name};
use lapsed_core::leases::rules::StagedState;
use lapsed_core::leases::{
    AcquireRequest, Acquired, Decision, Grant, LeaseKey, LeaseState, LeasesStore,
};
use lapsed_core::sweep::Outcome;
use lapsed_testbed::{BUCKET as PLACE, ObjectEngine, ObjectServer, http_call};

use crate::fixture::{BUCKET, Site, layout, pass, prefix, sharpen};

const TTL: Duration = Duration::from_secs(1);
const ENGINE: ObjectEngine = ObjectEngine::Moto;

fn wish(key: &LeaseKey, ttl: Duration) -> AcquireRequest {
    AcquireRequest {
        key: key.clone(),
        owner: name("a"),
        ttl_ms: ttl.as_millis() as u64,
        request: None,
    }
}

async fn acquire(site: &Site, key: &LeaseKey, ttl: Duration) -> Grant {
    sharpen(&site.store).await;
    match site.leases.acquire(&wish(key, ttl)).await.unwrap().answer {
        Acquired::Granted(grant) => grant,
        Acquired::Held(grant) => panic!("{grant:?}"),
    }
}

fn work(txn: &str) -> StagedState {
    StagedState { txn: name(txn), state: LeaseState::Json(serde_json::json!({"page": 7})) }
}

async fn stage(site: &Site, grant: &Grant, txn: &str) {
    done(site.leases.stage(&grant.ticket(), Some(&work(txn))).await.unwrap().answer);
}

/// D3: by what one process remembers the lease is over; the holder has renewed it by way of another.
/// Whoever asks there is held off, and the holder's transaction is still its own to decide.
#[tokio::test]
async fn trap_d3_what_is_only_remembered_rolls_nothing_back() {
    let home = prefix();
    let one = Site::at(ENGINE, &home, layout(), None);
    let other = Site::at(ENGINE, &home, layout(), None);
    let k = key("k");
    let grant = acquire(&one, &k, TTL).await;
    stage(&one, &grant, "t").await;
    let long = Some(600_000);
    done(other.leases.renew(&grant.ticket(), long).await.unwrap().answer);
    pass(&one.store, TTL).await;
    let rival = AcquireRequest { owner: name("b"), ..wish(&k, TTL) };
    let answer = one.leases.acquire(&rival).await.unwrap().answer;
    assert!(matches!(answer, Acquired::Held(_)), "{answer:?}");
    let decided = other.leases.decide(&name("t"), Decision::Commit, 60_000).await.unwrap().answer;
    assert_eq!((decided.decision, decided.first), (Decision::Commit, true));
}

/// The same for a release by a process that has not heard that the work was taken back meanwhile: the
/// transaction continues with other keys.
#[tokio::test]
async fn trap_d3_a_release_rolls_back_only_what_is_staged() {
    let home = prefix();
    let one = Site::at(ENGINE, &home, layout(), None);
    let other = Site::at(ENGINE, &home, layout(), None);
    let grant = acquire(&one, &key("k"), Duration::from_secs(600)).await;
    stage(&one, &grant, "t").await;
    done(other.leases.stage(&grant.ticket(), None).await.unwrap().answer);
    done(one.leases.release(&grant.ticket()).await.unwrap().answer);
    assert_eq!(other.leases.decision(&name("t")).await.unwrap().answer, None);
}

/// The same for a pass: what it listed was alive, and was renewed before its old deadline.
#[tokio::test]
async fn trap_d3_a_pass_rolls_nothing_back_by_what_it_listed() {
    let home = prefix();
    let one = Site::at(ENGINE, &home, layout(), None);
    let other = Site::at(ENGINE, &home, layout(), None);
    let k = key("k");
    let grant = acquire(&other, &k, TTL).await;
    stage(&other, &grant, "t").await;
    let soon = Some(6_000);
    done(other.leases.renew(&grant.ticket(), soon).await.unwrap().answer);
    pass(&one.store, TTL + BUCKET).await;
    let f = one.fixture();
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 1, "by the entry of its first deadline");
    done(other.leases.renew(&grant.ticket(), Some(600_000)).await.unwrap().answer);
    (f.advance)(Duration::from_secs(6)).await;
    let answer = f.reclaim(suspects).await;
    assert!(!matches!(answer.outcomes[0], Outcome::Reclaimed(_)), "{answer:?}");
    let decided = other.leases.decide(&name("t"), Decision::Commit, 60_000).await.unwrap().answer;
    assert_eq!((decided.decision, decided.first), (Decision::Commit, true));
}

/// A marker that cannot be read leaves its own lease as it is, and no other.
#[tokio::test]
async fn a_spoilt_marker_stops_no_pass() {
    let site = Site::new(ENGINE);
    let grant = acquire(&site, &key("a"), TTL).await;
    stage(&site, &grant, "t").await;
    acquire(&site, &key("b"), TTL).await;
    spoil(&format!("{}/.txn-decisions/m/t", site.prefix));
    pass(&site.store, TTL + BUCKET).await;
    let f = site.fixture();
    let report = f.sweep().await;
    let left = report.skipped.get("unreadable");
    assert_eq!((report.reclaimed, left, report.errors), (1, Some(&1), 0), "{report:?}");
    let site = f.keep.downcast_ref::<Site>().unwrap();
    let kept = site.leases.peek(&key("a")).await.unwrap().unwrap();
    assert_eq!(kept.staged, Some(work("t")), "for a person to look at");
}

/// moto checks no signatures: puts an empty object there.
fn spoil(path: &str) {
    let signed = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, \
                  SignedHeaders=host, Signature=none";
    let (port, limit) = (ObjectServer::shared(ENGINE).port(), Duration::from_secs(20));
    let target = format!("/{PLACE}/{path}");
    let answer = http_call(port, "PUT", &target, &[("authorization", signed)], limit).unwrap();
    assert_eq!(answer.status, 200);
}

/// A log object that cannot be read costs its own receipts and no others: passes go on, numbers go on.
#[tokio::test]
async fn a_spoilt_log_object_stops_neither_passes_nor_receipts() {
    let home = prefix();
    // What some tools leave in a folder; it comes before every log object.
    spoil(&format!("{home}/.lapsed/leases-default/receipts/.keep"));
    let mut seen = 0;
    for (n, spoilt) in [(0, 0), (1, 1), (2, 2), (3, 0)] {
        let site = Site::at(ENGINE, &home, layout(), None);
        acquire(&site, &key(&format!("k{n}")), TTL).await;
        pass(&site.store, TTL + BUCKET).await;
        let f = site.fixture();
        let report = f.sweep().await;
        assert_eq!((report.reclaimed, report.errors), (1, 0), "{n}: {report:?}");
        let newest = f.receipts().await.iter().map(|receipt| receipt.id.seq).max().unwrap();
        assert!(newest > seen, "{newest} after {seen}");
        seen = newest;
        // The newest of all, each time: that is where numbers go on from.
        if spoilt > 0 {
            spoil(&format!(
                "{home}/.lapsed/leases-default/receipts/{:020}",
                u64::MAX - seen / 1_000
            ));
        }
    }
    let f = Site::at(ENGINE, &home, layout(), None).fixture();
    let left: Vec<String> = f.receipts().await.iter().map(|r| r.key.to_string()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
