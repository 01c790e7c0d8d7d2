//! Jobs across crashes, failing disks and restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fixture::fragile::{Fragile, survivor};
use crate::fixture::{SharedBytes, inflight_on_bytes};
use lapsed_core::clock::ManualClock;
use lapsed_core::inflight::conformance::{InflightFixture, ids_of, job_with, name};
use lapsed_core::inflight::rules::OnDeath;
use lapsed_core::inflight::{Claimed, Finish, Finished, Job, JobCounts, JobPlace, JobTicket};
use lapsed_core::owner::Claim;
use lapsed_core::sweep::{Batch, BatchId, PassMode, Stopped, Suspect};

const START_MS: u64 = 1_700_000_000_000;

fn open(fragile: &Fragile, clock: &ManualClock) -> InflightFixture {
    let fragile = fragile.clone();
    inflight_on_bytes(move |file| fragile.file(file), clock)
}

/// Prepared jobs, and the operations on them.
struct Scene {
    claim: Claim,
    taken: Vec<Claimed>,
    suspects: Vec<Suspect>,
}

const IDS: [&str; 6] = ["back", "drop", "letter", "plain", "q1", "q2"];

/// Prepares an overdue worker with four jobs that each have another `on_death`, and two more jobs
/// on the queue.
async fn prepare(f: &InflightFixture) -> Scene {
    let jobs = [
        job_with("plain", OnDeath::Front),
        job_with("back", OnDeath::Back),
        job_with("letter", OnDeath::DeadLetter),
        job_with("drop", OnDeath::Drop),
    ];
    f.inflight.enqueue(&jobs).await.unwrap();
    let claim = f.start("w").await;
    let taken = f.take(&claim, 4).await;
    f.enqueue(&["q1", "q2"]).await;
    (f.advance)(f.ttl).await;
    let suspects = f.suspects().await;
    assert_eq!(suspects.len(), 4);
    Scene { claim, taken, suspects }
}

/// An operation that writes more than one row.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enqueue,
    Take,
    Complete,
    Fail,
    Reclaim,
}

const STEPS: [Step; 5] = [Step::Enqueue, Step::Take, Step::Complete, Step::Fail, Step::Reclaim];

async fn step(f: &InflightFixture, scene: &Scene, step: Step) -> lapsed_core::Result<()> {
    let tickets = || -> Vec<JobTicket> {
        scene.taken.iter().map(|job| job.ticket(scene.claim.incarnation.unwrap())).collect()
    };
    match step {
        Step::Enqueue => {
            let jobs = ["n1", "n2"].map(lapsed_core::inflight::conformance::job);
            f.inflight.enqueue(&jobs).await.map(|_| ())
        }
        Step::Take => f.inflight.take(&scene.claim, &name("q"), 2).await.map(|_| ()),
        Step::Complete => f.inflight.finish(&tickets(), &Finish::Complete).await.map(|_| ()),
        Step::Fail => {
            let how = Finish::Fail { error: "no".to_owned() };
            f.inflight.finish(&tickets(), &how).await.map(|_| ())
        }
        Step::Reclaim => {
            let id = BatchId { sweeper: "s".into(), number: 1 };
            let suspects = scene.suspects.clone();
            let batch = Batch { id, suspects, act: PassMode::Reclaim, term: None };
            f.inflight.reclaim(batch).await.map(|_| ())
        }
    }
}

/// Everything that can be read of the jobs, except what only depends on the clock, and except the
/// end of an incarnation: it happens first in memory, stays if its batch is undone, and is written
/// by the next batch.
#[derive(Debug, PartialEq)]
struct Seen {
    jobs: Vec<Option<Job>>,
    counts: JobCounts,
    queues: Vec<(lapsed_core::Name, u64)>,
    letters: usize,
    population: u64,
    receipts: usize,
    held: u64,
}

async fn see(f: &InflightFixture) -> Seen {
    let mut jobs = Vec::new();
    for id in IDS.iter().chain(&["n1", "n2"]) {
        let mut job = f.job(id).await;
        if let Some(job) = &mut job {
            job.now_ms = 0;
            if let JobPlace::InFlight { due_ms, ended, .. } = &mut job.place {
                (*due_ms, *ended) = (0, None);
            }
        }
        jobs.push(job);
    }
    let owner = f.inflight.owner(&Claim::newest(name("w"))).await.unwrap();
    Seen {
        jobs,
        counts: f.counts().await,
        queues: f.inflight.queues(None, 10).await.unwrap(),
        letters: f.inflight.dead(None, 10).await.unwrap().len(),
        population: f.inflight.census().await.unwrap().population,
        receipts: f.receipts().await.len(),
        held: owner.map_or(0, |owner| owner.held),
    }
}

/// The process is killed before each single write of every operation. After reopening, all of it
/// has happened or nothing: in queues, claims, dead letters, totals and receipts alike.
#[tokio::test]
async fn trap_e1_a_crash_during_a_step_leaves_no_partial_write() {
    for kind in STEPS {
        let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
        let f = open(&fragile, &clock).settled().await;
        let scene = prepare(&f).await;
        let before = see(&f).await;
        *fragile.crashes.lock().unwrap() = Some(vec![fragile.all()]);
        step(&f, &scene, kind).await.unwrap();
        let mut crashes = fragile.crashes.lock().unwrap().take().unwrap();
        crashes.push(fragile.all());
        let after = see(&f).await;
        assert_ne!(before, after, "{kind:?}");
        let mut outcomes = Vec::new();
        for (at, left) in crashes.iter().enumerate() {
            let bytes = survivor(left);
            let g = inflight_on_bytes(move |file| bytes.file(file), &clock);
            let seen = see(&g).await;
            assert!(seen == before || seen == after, "{kind:?}, crash {at}: {seen:?}");
            outcomes.push(seen == after);
            (g.advance)(g.ttl).await;
            g.sweep().await;
            assert_eq!(g.counts().await.in_flight, 0, "{kind:?}, crash {at}: and it goes on");
        }
        assert_eq!(outcomes.first().zip(outcomes.last()), Some((&false, &true)), "{kind:?}");
    }
}

/// The disk fails once during an operation: memory equals disk, whether or not the commit
/// succeeded.
#[tokio::test]
async fn an_undone_batch_is_undone_in_memory() {
    for kind in STEPS {
        let mut failed = 0;
        for writes in 0.. {
            let (fragile, clock) = (Fragile::unlimited(), ManualClock::at(START_MS));
            let f = open(&fragile, &clock).settled().await;
            let scene = prepare(&f).await;
            let before = see(&f).await;
            fragile.left.store(writes, Ordering::SeqCst);
            let answer = step(&f, &scene, kind).await;
            fragile.left.store(i64::MIN, Ordering::SeqCst);
            let when = format!("{kind:?}, {writes} writes, then {answer:?}");
            let seen = see(&f).await;
            assert!(answer.is_err() || seen != before, "{when}");
            let bytes = survivor(&fragile.all());
            let on_disk = inflight_on_bytes(move |file| bytes.file(file), &clock);
            assert_eq!(seen, see(&on_disk).await, "{when}: memory and disk");
            if answer.is_ok() {
                break;
            }
            failed += 1;
            assert!(writes < 60, "a step of sixty writes");
            // Repeated, the operation is carried out once.
            step(&f, &scene, kind).await.unwrap();
            f.counts().await;
        }
        assert!(failed > 2, "{kind:?}: {failed} places to fail at");
    }
}

/// P7: a worker from before the store was away has a whole TTL after it; if it comes back in time,
/// it keeps its jobs and completes them.
#[tokio::test]
async fn after_an_absence_workers_get_a_whole_ttl() {
    let (bytes, clock) = (SharedBytes::default(), ManualClock::at(START_MS));
    let reopen = || {
        let bytes = bytes.clone();
        inflight_on_bytes(move |file| bytes.file(file), &clock)
    };
    let f = reopen().settled().await;
    let (claim, jobs) = f.working("w", &["a", "b"]).await;
    drop(f);
    clock.advance(Duration::from_secs(3_600));
    let f = reopen();
    clock.advance(f.ttl - Duration::from_millis(1));
    let held = f.sweep().await;
    assert_eq!((held.reclaimed, held.stopped), (0, Stopped::Brake), "{held:?}");
    assert_eq!(f.complete(&claim, &jobs[0]).await, Finished::Done);
    clock.advance(Duration::from_millis(1));
    assert_eq!(f.sweep().await.reclaimed, 1);
    let counts = f.counts().await;
    assert_eq!((counts.completed, counts.queued, counts.in_flight), (1, 1, 0));
}

/// D5 for jobs: a claim from before the restart never becomes current again.
#[tokio::test]
async fn tokens_and_queue_order_survive_a_restart() {
    let (bytes, clock) = (SharedBytes::default(), ManualClock::at(START_MS));
    let reopen = || {
        let bytes = bytes.clone();
        inflight_on_bytes(move |file| bytes.file(file), &clock)
    };
    let f = reopen().settled().await;
    f.enqueue(&["a", "b", "c", "d"]).await;
    let claim = f.start("w").await;
    let first = f.take(&claim, 2).await;
    for job in &first {
        f.finish(&claim, job, Finish::GiveBack(lapsed_core::inflight::rules::QueueEnd::Back)).await;
    }
    drop(f);
    let f = reopen();
    let again = f.take(&claim, 10).await;
    assert_eq!(ids_of(&again), ["c", "d", "a", "b"]);
    assert!(again.iter().all(|job| job.token > first[1].token), "{again:?}");
    assert_eq!(f.complete(&claim, &first[0]).await, Finished::Superseded);
}
