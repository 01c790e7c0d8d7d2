//! Sessions across crashes, failing disks and restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::fragile::{Fragile, survivor};
use crate::fixture::{SharedBytes, sessions_on_bytes};
use lapsed_core::clock::ManualClock;
use lapsed_core::sessions::conformance::{SessionsFixture, keys_of, name, profile};
use lapsed_core::sweep::{Batch, BatchId, Outcome, PassMode, Stopped};

const START_MS: u64 = 1_700_000_000_000;

fn open(fragile: &Fragile, clock: &ManualClock) -> SessionsFixture {
    let fragile = fragile.clone();
    sessions_on_bytes(move |file| fragile.file(file), clock)
}

/// Two orphans of broadcasters, and two sessions whose only server has retired.
async fn prepare(f: &SessionsFixture) {
    for id in ["a", "b"] {
        f.sessions.activate(&name(id), &profile("v", &format!("of-{id}"))).await.unwrap();
    }
    let server = f.connected("retired", &["r1", "r2"]).await;
    f.sessions.end(&server).await.unwrap();
    (f.advance)(f.grace).await;
}

fn batch(suspects: Vec<lapsed_core::sweep::Suspect>) -> Batch {
    let id = BatchId { sweeper: "s".into(), number: 1 };
    Batch { id, suspects, act: PassMode::Reclaim, term: None }
}

/// Whether the batch has happened; everything must agree about it.
async fn all_or_nothing(f: &SessionsFixture, when: &str) -> bool {
    let done = f.session("a").await.is_none();
    let is = |session: bool| session != done;
    for id in ["a", "b"] {
        assert_eq!(f.session(id).await.is_some(), is(true), "{when}: session {id}");
        let current = f.sessions.of_broadcaster(&name(&format!("of-{id}"))).await.unwrap();
        assert_eq!(current.is_some(), is(true), "{when}: the pointer to {id}");
    }
    for id in ["r1", "r2"] {
        let session = f.session(id).await.unwrap();
        assert_eq!(session.references, u64::from(!done), "{when}: {id}");
        assert_eq!(session.disconnected_ms.is_some(), done, "{when}: {id}");
    }
    let (receipts, population) = if done { (2, 2) } else { (0, 4) };
    assert_eq!(f.receipts().await.len(), receipts, "{when}");
    let census = f.sessions.census().await.unwrap();
    assert_eq!(census.population, population, "{when}");
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), receipts as u64, "{when}");
    done
}

/// The process is killed before any one write of a batch: opened again, all of it has happened or
/// nothing has, in the sessions, the references, the pointers, the receipts and the index alike.
#[tokio::test]
async fn trap_b1_a_crash_during_a_batch_leaves_no_partial_write() {
    let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
    let f = open(&fragile, &clock).settled().await;
    prepare(&f).await;
    let suspects = f.suspects().await;
    assert_eq!(keys_of(&suspects), ["a", "b", "r1", "r2"]);
    *fragile.crashes.lock().unwrap() = Some(vec![fragile.all()]);
    f.sessions.reclaim(batch(suspects)).await.unwrap();
    let mut crashes = fragile.crashes.lock().unwrap().take().unwrap();
    crashes.push(fragile.all());
    assert!(all_or_nothing(&f, "without a crash").await);
    assert!(crashes.len() > 4, "{} places to crash at", crashes.len());
    let mut outcomes = Vec::new();
    for (at, left) in crashes.iter().enumerate() {
        let bytes = survivor(left);
        let survivor = sessions_on_bytes(move |file| bytes.file(file), &clock);
        outcomes.push(all_or_nothing(&survivor, &format!("crash {at}")).await);
        (survivor.advance)(survivor.ttl).await;
        survivor.sweep().await;
        assert!(survivor.session("a").await.is_none(), "crash {at}: and it goes on");
    }
    assert_eq!(outcomes.first().zip(outcomes.last()), Some((&false, &true)));
}

/// The disk fails once in the middle of a batch: the batch is undone in memory as well, and the next
/// pass does all of it.
#[tokio::test]
async fn trap_b1_an_undone_batch_leaves_no_partial_write() {
    for writes in 0..40 {
        let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
        let f = open(&fragile, &clock).settled().await;
        prepare(&f).await;
        let suspects = f.suspects().await;
        fragile.left.store(writes, Ordering::SeqCst);
        let answer = f.sessions.reclaim(batch(suspects)).await;
        let when = format!("{writes} writes, then {answer:?}");
        let done = all_or_nothing(&f, &when).await;
        assert!(done || answer.is_err(), "{when}");
        let report = f.sweep().await;
        let (reclaimed, released) = if done { (0, 0) } else { (2, 2) };
        assert_eq!((report.reclaimed, report.released), (reclaimed, released), "{when} {report:?}");
        if answer.is_ok() {
            assert!(writes > 4, "{writes} writes were enough");
            return;
        }
    }
    panic!("a batch of forty writes");
}

/// P7: a client that disconnected before the store was away has a whole grace after it, whatever was left
/// of theirs; and what was counted before is counted again.
#[tokio::test]
async fn after_an_absence_sessions_get_a_whole_grace() {
    let (bytes, clock) = (SharedBytes::default(), ManualClock::at(START_MS));
    let reopen = || {
        let bytes = bytes.clone();
        sessions_on_bytes(move |file| bytes.file(file), &clock)
    };
    let f = reopen().settled().await;
    f.disconnected(&["s", "t"]).await;
    f.activate(&["u"]).await;
    drop(f);
    clock.advance(Duration::from_secs(3_600));
    let f = reopen();
    let back_ms = f.store.info().await.unwrap().back_ms;
    assert_eq!(f.session("s").await.unwrap().due_ms, Some(back_ms + f.grace_ms()));
    assert_eq!(f.sessions.disconnected_count().await.unwrap(), 2);
    clock.advance(f.grace - Duration::from_millis(1));
    assert!(f.sessions.orphans(10).await.unwrap().is_empty());
    let census = f.sessions.census().await.unwrap();
    assert_eq!((census.orphans, census.suspects, census.orphans_spared), (0, 0, 3));
    let held = f.sweep().await;
    assert_eq!((held.reclaimed, held.stopped), (0, Stopped::Brake), "{held:?}");
    assert!(held.detail.unwrap().contains("the store was away"));
    clock.advance(Duration::from_millis(1));
    assert_eq!(f.sessions.census().await.unwrap().orphans, 3);
    let report = f.sweep().await;
    assert_eq!((report.reclaimed, report.stopped), (3, Stopped::Done), "{report:?}");
}

/// A guard that was asked before the absence and answers after it spares as well.
#[tokio::test]
async fn a_suspect_listed_before_the_absence_is_spared_after_it() {
    let (bytes, clock) = (SharedBytes::default(), ManualClock::at(START_MS));
    let reopen = || {
        let bytes = bytes.clone();
        sessions_on_bytes(move |file| bytes.file(file), &clock)
    };
    let f = reopen().settled().await;
    f.orphaned(&["s"]).await;
    let suspects = f.suspects().await;
    drop(f);
    let f = reopen();
    let answer = f.reclaim(suspects).await;
    assert_eq!(answer.outcomes, [Outcome::Refused(lapsed_core::sweep::Refusal::StoreAway)]);
}

/// The operator who knows better waives the grace that an absence grants, in the guard too.
#[tokio::test]
async fn an_override_waives_the_grace_after_an_absence() {
    let (bytes, clock) = (SharedBytes::default(), ManualClock::at(START_MS));
    let reopen = || {
        let bytes = bytes.clone();
        sessions_on_bytes(move |file| bytes.file(file), &clock)
    };
    let f = reopen().settled().await;
    f.orphaned(&["s"]).await;
    f.disconnected(&["t"]).await;
    drop(f);
    let f = reopen();
    assert_eq!(f.sweep().await.reclaimed, 0);
    let overridden =
        lapsed_core::sweep::brake::BrakeSetting::Override { reason: "they are gone".into() };
    f.store.set_brake(f.sessions.system(), overridden).await.unwrap();
    assert_eq!(f.sweep().await.reclaimed, 1, "its own grace is not waived");
    assert_eq!(f.session("s").await, None);
    assert!(f.session("t").await.is_some());
}

/// Registry and sessions side by side on one store: the operator's word to one is not the other's.
#[tokio::test]
async fn systems_on_one_store_share_nothing() {
    let (f, clock) = crate::fixture::sessions_in_memory();
    let f = f.settled().await;
    f.orphaned(&["s"]).await;
    let registry = crate::fixture::id();
    let overridden =
        lapsed_core::sweep::brake::BrakeSetting::Override { reason: "they are gone".into() };
    f.store.set_brake(&registry, overridden).await.unwrap();
    assert_eq!(f.sweep().await.reclaimed, 1);
    clock.advance(Duration::from_secs(1));
    assert!(f.store.receipts(&registry, Default::default()).await.unwrap().is_empty());
}
