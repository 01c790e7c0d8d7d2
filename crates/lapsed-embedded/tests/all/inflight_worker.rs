//! The worker on a store whose answers get lost, and tasks that wait for a queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::inflight::conformance::{InflightFixture, ids_of, job, name};
use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{
    Enqueued, Finish, Finished, Inflight, InflightParts, InflightStore, Job, JobCounts, JobTicket,
    NewJob, Taken, TrackAnswer, Worker,
};
use lapsed_core::owner::{Beat, BeatHandle, Claim, Incarnation, OwnerInfo, OwnerStore};
use lapsed_core::receipt::Receipt;
use lapsed_core::request::RequestId;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Cursor, PageRequest, Suspect, SuspectPage, Sweep, Tidied,
    TidyLimits,
};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result, SystemId};
use tokio::sync::Notify;

/// Carries out every call, and loses every third answer to `take`, its give-up and to `finish`.
struct Forgetful {
    inner: Arc<dyn InflightStore>,
    calls: AtomicU64,
}

impl Forgetful {
    fn lose<T>(&self, answer: Result<T>) -> Result<T> {
        if self.calls.fetch_add(1, Ordering::Relaxed) % 3 != 1 {
            return answer;
        }
        let (store, what) = ("the store".to_owned(), "the answer was lost".to_owned());
        Err(Error::Unavailable { store, what })
    }
}

#[async_trait]
impl OwnerStore for Forgetful {
    async fn start(&self, owner: &Name, ttl_ms: u64) -> Result<Beat> {
        self.inner.start(owner, ttl_ms).await
    }
    async fn beat(&self, claim: &Claim) -> Result<Beat> {
        self.inner.beat(claim).await
    }
    async fn end(&self, claim: &Claim) -> Result<OwnerInfo> {
        self.inner.end(claim).await
    }
    async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.inner.owners(after, limit).await
    }
    async fn owner(&self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.inner.owner(claim).await
    }
    fn beat_handle(&self, owner: &Name, incarnation: Incarnation) -> Option<Arc<dyn BeatHandle>> {
        self.inner.beat_handle(owner, incarnation)
    }
}

#[async_trait]
impl Sweep for Forgetful {
    fn system(&self) -> &SystemId {
        self.inner.system()
    }
    fn threshold(&self) -> Duration {
        self.inner.threshold()
    }
    async fn census(&self) -> Result<Census> {
        self.inner.census().await
    }
    async fn suspects(&self, request: PageRequest) -> Result<SuspectPage> {
        self.inner.suspects(request).await
    }
    fn after(&self, suspect: &Suspect) -> Cursor {
        self.inner.after(suspect)
    }
    async fn held_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        self.inner.held_by(claim, limit).await
    }

    async fn reclaim(&self, batch: Batch) -> Result<BatchAnswer> {
        self.inner.reclaim(batch).await
    }
    async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        self.inner.settle(batch).await
    }
    async fn tidy(&self, limits: TidyLimits) -> Result<Tidied> {
        self.inner.tidy(limits).await
    }
}

#[async_trait]
impl InflightStore for Forgetful {
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.inner.enqueue(jobs).await
    }
    async fn take(&self, claim: &Claim, queue: &Name, limit: usize) -> Result<Taken> {
        self.lose(self.inner.take(claim, queue, limit).await)
    }
    async fn take_once(
        &self,
        request: &RequestId,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Result<Taken> {
        self.lose(self.inner.take_once(request, claim, queue, limit).await)
    }
    async fn give_up_take(&self, request: &RequestId) -> Result<usize> {
        self.lose(self.inner.give_up_take(request).await)
    }
    fn waiter(&self, queue: &Name) -> Option<Arc<Notify>> {
        self.inner.waiter(queue)
    }
    async fn register(&self, claim: &Claim, jobs: &[NewJob]) -> Result<TrackAnswer> {
        self.inner.register(claim, jobs).await
    }
    async fn finish(&self, tickets: &[JobTicket], how: &Finish) -> Result<Vec<Finished>> {
        self.lose(self.inner.finish(tickets, how).await)
    }
    async fn job(&self, id: &Name) -> Result<Option<Job>> {
        self.inner.job(id).await
    }
    async fn in_flight(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.inner.in_flight(claim, after, limit).await
    }
    async fn counts(&self) -> Result<JobCounts> {
        self.inner.counts().await
    }
    async fn queues(&self, after: Option<&Name>, limit: usize) -> Result<Vec<(Name, u64)>> {
        self.inner.queues(after, limit).await
    }
    async fn dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        self.inner.dead(after, limit).await
    }
    async fn put_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        self.inner.put_back(id, end).await
    }
    async fn delete(&self, id: &Name) -> Result<bool> {
        self.inner.delete(id).await
    }
    async fn restore(&self, seq: u64) -> Result<Restored> {
        self.inner.restore(seq).await
    }
}

/// The system on a store that loses answers.
fn system(f: &InflightFixture) -> Arc<Inflight> {
    let inflight = Arc::new(Forgetful { inner: f.inflight.clone(), calls: AtomicU64::new(0) });
    Arc::new(Inflight::new(
        InflightParts::new(inflight, f.store.clone(), f.ttl)
            .clock(crate::fixture::PausedClock::shared())
            .timeout(Duration::from_secs(5))
            .batch(3)
            .sweeper("forgetful".to_owned()),
    ))
}

/// A `take` whose answer was lost has taken a job that the worker does not know of: it is given back,
/// and every job is worked on once.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_take_without_an_answer_are_given_back() {
    let f = crate::fixture::inflight_in_memory().0.settled().await;
    let ids: Vec<String> = (0..40).map(|i| format!("j{i:02}")).collect();
    f.enqueue(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let worker = Worker::start(system(&f), "w").await.unwrap();
    let worked: Mutex<BTreeMap<Name, u32>> = Mutex::default();
    let (stopper, stop) = StopSignal::channel();
    let queue = name("q");
    let work = |job: lapsed_core::inflight::Claimed| {
        *worked.lock().unwrap().entry(job.id).or_default() += 1;
        std::future::ready(Ok::<(), String>(()))
    };
    let stopping = async {
        for _ in 0..100_000 {
            if f.counts().await.completed == 40 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stopper.stop();
    };
    let (ran, ()) = futures::join!(worker.run(&queue, 4, &stop, work), stopping);
    ran.unwrap();
    let worked = worked.into_inner().unwrap();
    assert_eq!(worked.len(), 40);
    assert!(worked.values().all(|times| *times == 1), "{worked:?}");
    let counts = f.counts().await;
    assert_eq!((counts.completed, counts.in_flight, counts.queued), (40, 0, 0));
}

/// Jobs that a sweep puts back notify waiting tasks like new jobs, and not before they are on the
/// queue.
#[tokio::test]
async fn a_waiter_is_notified_of_jobs_put_back() {
    let f = crate::fixture::inflight_in_memory().0.settled().await;
    f.working("w", &["a"]).await;
    let other = f.start("other").await;
    f.outlive(f.ttl, &[&other]).await;
    let waiter = f.inflight.waiter(&name("q")).unwrap();
    let waiting = async {
        waiter.notified().await;
        ids_of(&f.take(&other, 10).await).join(" ")
    };
    let sweeping = async {
        tokio::task::yield_now().await;
        assert_eq!(f.sweep().await.reclaimed, 1);
    };
    let (taken, ()) = futures::join!(waiting, sweeping);
    assert_eq!(taken, "a");
}

/// One job notifies one waiting task, because only one of them can take it.
#[tokio::test]
async fn each_job_notifies_one_waiter() {
    let f = crate::fixture::inflight_in_memory().0.settled().await;
    let waiter = f.inflight.waiter(&name("q")).unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(waiter.notified())).collect();
    waiting.iter_mut().for_each(|one| assert!(!one.as_mut().enable()));
    f.inflight.enqueue(&[job("a"), job("b")]).await.unwrap();
    let heard: Vec<bool> = waiting.iter_mut().map(|one| one.as_mut().enable()).collect();
    assert_eq!(heard, [true, true, false]);
}
