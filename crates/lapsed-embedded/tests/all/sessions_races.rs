//! Real threads: clients connect and disconnect while sweepers delete sessions without references.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lapsed_core::Name;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sessions::{SessionProfile, SessionsStore};
use lapsed_core::sweep::{Batch, BatchId, Cursor, Outcome, PageRequest, PassMode, Sweep};
use lapsed_embedded::{Embedded, EmbeddedSessions, Options};

lapsed_testbed::steady_async_tests! {
    a_connected_session_is_never_deleted,
}

const SESSIONS: u64 = 8;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Connects and disconnects; a client that was answered as connected finds the session until it
/// leaves.
async fn visit(sessions: &EmbeddedSessions, who: u64, stop: &AtomicBool) -> u64 {
    let owner = name(&format!("o{who}"));
    let beat = sessions.start(&owner, 60_000).await.unwrap();
    let claim = Claim::exact(owner, beat.incarnation);
    let (mut salt, mut visits) = (who, 0);
    while !stop.load(Ordering::Relaxed) {
        salt = salt.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let id = name(&format!("s{}", (salt >> 33) % SESSIONS));
        let Some(standing) = sessions.connect(Some(&claim), &id).await.unwrap() else {
            sessions.activate(&id, &SessionProfile::default()).await.unwrap();
            continue;
        };
        assert_eq!((standing.yours, standing.disconnected_ms), (1, None));
        tokio::time::sleep(Duration::from_millis(salt >> 62)).await;
        let session = sessions.get(&id).await.unwrap().expect("somebody is connected to it");
        assert!(session.references >= 1 && session.due_ms.is_none(), "{session:?}");
        let standing = sessions.disconnect(Some(&claim), &id).await.unwrap().unwrap();
        assert!(standing.changed);
        visits += 1;
    }
    visits
}

/// Lists and reclaims without a pause; counts what it deleted.
async fn sweep(sessions: &EmbeddedSessions, who: u64, stop: &AtomicBool, deleted: &AtomicU64) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let request = PageRequest { after: Cursor::default(), limit: 100, undeclared_max: None };
        let suspects = sessions.suspects(request).await.unwrap().suspects;
        number += 1;
        let id = BatchId { sweeper: format!("sweeper-{who}").into(), number };
        let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
        for outcome in sessions.reclaim(batch).await.unwrap().outcomes {
            assert_ne!(outcome, Outcome::Released, "everybody lives");
            deleted.fetch_add(u64::from(outcome.receipt().is_some()), Ordering::Relaxed);
        }
        tokio::task::yield_now().await;
    }
}

/// B2 and B3 under fire; and at the end the index agrees with the rows.
async fn a_connected_session_is_never_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path(), Options::default()).unwrap();
    let (ttl, grace) = (Duration::from_secs(60), Duration::from_millis(1));
    let sessions = store.sessions(crate::fixture::sessions_id(), ttl, grace).unwrap();
    let (stop, deleted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let visitors: Vec<_> = (0..12)
        .map(|who| {
            let (sessions, stop) = (sessions.clone(), stop.clone());
            tokio::spawn(async move { visit(&sessions, who, &stop).await })
        })
        .collect();
    let sweepers: Vec<_> = (0..3)
        .map(|who| {
            let (sessions, stop, deleted) = (sessions.clone(), stop.clone(), deleted.clone());
            tokio::spawn(async move { sweep(&sessions, who, &stop, &deleted).await })
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut visits = 0;
    for visitor in visitors {
        visits += visitor.await.unwrap();
    }
    for sweeper in sweepers {
        sweeper.await.unwrap();
    }
    let deleted = deleted.load(Ordering::Relaxed);
    assert!(visits > 50 && deleted > 10, "the race was run: {visits} visits, {deleted} deleted");
    let (mut there, mut disconnected) = (0, 0);
    for i in 0..SESSIONS {
        if let Some(session) = sessions.get(&name(&format!("s{i}"))).await.unwrap() {
            assert_eq!(session.references, 0);
            there += 1;
            disconnected += u64::from(session.disconnected_ms.is_some());
        }
    }
    assert_eq!(sessions.census().await.unwrap().population, there);
    assert_eq!(sessions.disconnected_count().await.unwrap(), disconnected);
}
