//! Real threads: workers that stall past their TTL and go on, against sweepers that put their jobs back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lapsed_core::inflight::conformance::{job, name};
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::inflight::{Finish, Finished, InflightStore};
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::sweep::{Batch, BatchId, Cursor, PageRequest, PassMode, Sweep};
use lapsed_core::{Error, Name};
use lapsed_embedded::{Embedded, EmbeddedInflight, Options};

const TTL: Duration = Duration::from_millis(400);

#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// How often each job was answered as completed, and to whom.
    completed: Mutex<HashMap<Name, u32>>,
    late: AtomicU64,
    put_back: AtomicU64,
}

impl Seen {
    fn was_raced(&self) -> bool {
        self.put_back.load(Ordering::Relaxed) > 0 && self.late.load(Ordering::Relaxed) > 0
    }
}

/// Takes jobs, sometimes stalls beyond its TTL, and completes the jobs nevertheless.
async fn work(jobs: &EmbeddedInflight, who: u64, seen: &Seen) {
    let (owner, mut salt) = (name(&format!("w{who}")), who);
    let mut claim: Option<Claim> = None;
    while !seen.stop.load(Ordering::Relaxed) {
        let mine = match &claim {
            Some(claim) => claim.clone(),
            None => {
                let beat = jobs.start(&owner, TTL.as_millis() as u64).await.unwrap();
                Claim::exact(owner.clone(), beat.incarnation)
            }
        };
        claim = match jobs.take(&mine, &name("q"), 3).await {
            Ok(taken) => {
                salt = salt.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let stall =
                    if (salt >> 59) == 0 { TTL * 3 } else { Duration::from_millis(salt >> 62) };
                tokio::time::sleep(stall).await;
                for job in &taken.jobs {
                    let ticket = job.ticket(taken.incarnation);
                    match jobs.finish(&[ticket], &Finish::Complete).await.unwrap()[0] {
                        Finished::Done => {
                            let mut completed = seen.completed.lock().unwrap();
                            *completed.entry(job.id.clone()).or_default() += 1;
                        }
                        _ => {
                            seen.late.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                jobs.beat(&mine).await.ok().map(|_| mine)
            }
            Err(Error::Lost(_)) => None,
            Err(other) => panic!("{other}"),
        };
    }
}

/// Lists and reclaims continuously, and records what it put back.
async fn sweep(jobs: &EmbeddedInflight, who: u64, seen: &Seen) {
    let mut number = 0;
    while !seen.stop.load(Ordering::Relaxed) {
        let request = PageRequest { after: Cursor::default(), limit: 50, undeclared_max: None };
        let suspects = jobs.suspects(request).await.unwrap().suspects;
        if !suspects.is_empty() {
            number += 1;
            let id = BatchId { sweeper: format!("sweeper-{who}").into(), number };
            let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
            for outcome in jobs.reclaim(batch).await.unwrap().outcomes {
                seen.put_back.fetch_add(u64::from(outcome.receipt().is_some()), Ordering::Relaxed);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// E9 under load: a job is completed once, by a worker that still held it, however many worked on
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_e9_every_job_is_completed_once_by_its_holder() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path(), Options::default()).unwrap();
    // No crash limit, because every job must be completed in the end.
    let recovery = RecoveryPolicy { crashes_max: 0, ..RecoveryPolicy::default() };
    let jobs = store.inflight(crate::fixture::inflight_id(), TTL, recovery).unwrap();
    let seen = Arc::new(Seen::default());
    let mut hands = Vec::new();
    for who in 0..8 {
        let (jobs, seen) = (jobs.clone(), seen.clone());
        hands.push(tokio::spawn(async move { work(&jobs, who, &seen).await }));
    }
    for who in 0..2 {
        let (jobs, seen) = (jobs.clone(), seen.clone());
        hands.push(tokio::spawn(async move { sweep(&jobs, who, &seen).await }));
    }
    let until = Instant::now() + Duration::from_secs(120);
    let mut entered = 0;
    while Instant::now() < until {
        let counts = jobs.counts().await.unwrap();
        assert!(counts.balances(), "{counts:?}");
        if counts.completed == entered {
            if entered > 0 && seen.was_raced() {
                break;
            }
            let more: Vec<_> = (entered..entered + 200).map(|i| job(&format!("j{i:05}"))).collect();
            jobs.enqueue(&more).await.unwrap();
            entered += more.len() as u64;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    seen.stop.store(true, Ordering::Relaxed);
    for hand in hands {
        hand.await.unwrap();
    }
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.completed, counts.entered), (entered, entered), "{counts:?}");
    let completed = seen.completed.lock().unwrap();
    assert_eq!(completed.len() as u64, entered);
    assert!(completed.values().all(|times| *times == 1), "nobody was told twice");
    assert!(seen.was_raced(), "some were put back while their worker went on");
}
