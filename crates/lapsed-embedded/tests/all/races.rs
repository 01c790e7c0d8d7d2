//! Real threads: heartbeats and registrations against sweepers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lapsed_core::Name;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::store::Store;
use lapsed_core::sweep::{Batch, BatchId, Cursor, Outcome, PageRequest, PassMode, Sweep};

lapsed_testbed::steady_tests! {
    a_heartbeat_and_a_sweep_never_disagree,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// P1 and P5 under load: owners whose heartbeats come close to their deadline, and three sweepers.
/// A heartbeat that was answered "alive until T" is never followed by a death judged before T, and
/// after `Lost` every answer is `Lost`.
fn a_heartbeat_and_a_sweep_never_disagree() {
    let folder = tempfile::tempdir().unwrap();
    let ttl = Duration::from_millis(260);
    let (store, registry) = crate::fixture::open(folder.path(), ttl);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let deadline = Instant::now() + Duration::from_secs(6);
    let stop = Arc::new(AtomicBool::new(false));
    let last_promise: Arc<std::sync::Mutex<HashMap<u64, u64>>> = Arc::default();
    let deaths = Arc::new(AtomicU64::new(0));

    runtime.block_on(async {
        let mut tasks = Vec::new();
        for o in 0..24u64 {
            let (registry, promises) = (registry.clone(), last_promise.clone());
            let (stop, deaths) = (stop.clone(), deaths.clone());
            tasks.push(tokio::spawn(async move {
                let owner = name(&format!("o{o}"));
                let mut salt = o;
                while !stop.load(Ordering::Relaxed) {
                    let beat = registry.start(&owner, 30).await.unwrap();
                    let claim = Claim::exact(owner.clone(), beat.incarnation);
                    promises.lock().unwrap().insert(beat.incarnation.0, beat.deadline_ms);
                    let key = [name(&format!("k{o}"))];
                    let _ = registry.register(&claim, &key, TakePolicy::Always).await;
                    loop {
                        salt = salt.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let nap = 22 + (salt >> 60);
                        tokio::time::sleep(Duration::from_millis(nap)).await;
                        match registry.beat(&claim).await {
                            Ok(beat) => {
                                let mut promises = promises.lock().unwrap();
                                let last = promises.entry(beat.incarnation.0).or_default();
                                *last = beat.deadline_ms.max(*last);
                            }
                            Err(_) => {
                                deaths.fetch_add(1, Ordering::Relaxed);
                                assert!(registry.beat(&claim).await.is_err());
                                assert!(
                                    registry
                                        .register(&claim, &key, TakePolicy::Always)
                                        .await
                                        .is_err()
                                );
                                break;
                            }
                        }
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                }
            }));
        }
        for s in 0..3 {
            let (registry, stop) = (registry.clone(), stop.clone());
            tasks.push(tokio::spawn(async move {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let request =
                        PageRequest { after: Cursor::default(), limit: 100, undeclared_max: None };
                    let suspects = registry.suspects(request).await.unwrap().suspects;
                    number += 1;
                    let id = BatchId { sweeper: format!("s{s}").into(), number };
                    let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
                    for outcome in registry.reclaim(batch).await.unwrap().outcomes {
                        assert_ne!(outcome, Outcome::InDoubt);
                    }
                    tokio::task::yield_now().await;
                }
            }));
        }
        while Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
    });

    let promises = last_promise.lock().unwrap();
    let query = ReceiptQuery { after: Some(0), limit: 1_000_000, ..ReceiptQuery::default() };
    let receipts = runtime.block_on(store.receipts(&crate::fixture::id(), query)).unwrap();
    let mut seen = HashMap::new();
    for receipt in &receipts {
        let promised = promises[&receipt.incarnation.0];
        assert!(
            receipt.evidence.judged_ms >= promised,
            "{} was promised life until {promised} and judged dead at {}",
            receipt.incarnation,
            receipt.evidence.judged_ms
        );
        let again = seen.insert((receipt.key.clone(), receipt.incarnation), ());
        assert!(again.is_none(), "{receipt:?} twice");
    }
    assert!(deaths.load(Ordering::Relaxed) > 20, "the race was run: {deaths:?} deaths");
}
