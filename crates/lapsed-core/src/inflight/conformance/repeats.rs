//! Cases about requests that are repeated because their answer was lost.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::{InflightFixture, ids_of, job, name};
use crate::Error;
use crate::inflight::rules::QueueEnd;
use crate::inflight::{Claimed, Enqueued, Finish, Finished, JobPlace, NewJob, Worker};
use crate::owner::Claim;
use crate::request::{REQUEST_AGE_MS, RequestId};

fn request(key: &str, attempt: &str) -> RequestId {
    RequestId::new(key, "f1", attempt).expect("a valid key")
}

async fn take(f: &InflightFixture, claim: &Claim, limit: usize, as_: &RequestId) -> Vec<Claimed> {
    f.inflight.take_once(as_, claim, &name("q"), limit).await.expect("take").jobs
}

async fn give_up(f: &InflightFixture, attempt: &RequestId) -> usize {
    f.inflight.give_up_take(attempt).await.expect("give up")
}

pub async fn a_repeated_take_gets_the_same_jobs(f: InflightFixture) {
    f.enqueue(&["a", "b", "c"]).await;
    let claim = f.start("w").await;
    let first = take(&f, &claim, 2, &request("k", "1")).await;
    assert_eq!(ids_of(&first), ["a", "b"]);
    assert_eq!(take(&f, &claim, 2, &request("k", "2")).await, first, "with the same tokens");
    f.complete(&claim, &first[0]).await;
    assert_eq!(take(&f, &claim, 2, &request("k", "3")).await, first[1..], "what is still held");
    assert_eq!(f.place("c").await, JobPlace::Queued);
    f.complete(&claim, &first[1]).await;
    assert!(take(&f, &claim, 2, &request("k", "4")).await.is_empty(), "and nothing instead of it");
    assert_eq!(ids_of(&take(&f, &claim, 2, &request("other", "5")).await), ["c"]);
    f.counts().await;
}

pub async fn a_take_of_nothing_is_not_kept(f: InflightFixture) {
    let claim = f.start("w").await;
    assert!(take(&f, &claim, 1, &request("k", "1")).await.is_empty());
    f.enqueue(&["a"]).await;
    assert_eq!(ids_of(&take(&f, &claim, 1, &request("k", "2")).await), ["a"]);
}

pub async fn an_undelivered_take_is_given_back_in_order(f: InflightFixture) {
    f.enqueue(&["a", "b", "c"]).await;
    let claim = f.start("w").await;
    let first = request("k", "1");
    take(&f, &claim, 2, &first).await;
    assert_eq!(give_up(&f, &first).await, 2);
    assert_eq!(give_up(&f, &first).await, 0, "repeating it is safe");
    let again = take(&f, &claim, 3, &request("k", "2")).await;
    assert_eq!(ids_of(&again), ["a", "b", "c"]);
    assert_eq!(again[0].crashes, 0, "no crash is counted");
    assert_eq!(f.counts().await.in_flight, 3);
}

/// The repetition was answered: its jobs are not taken from it because the first answer was lost.
pub async fn a_take_that_was_repeated_is_not_given_back(f: InflightFixture) {
    f.enqueue(&["a"]).await;
    let claim = f.start("w").await;
    let (first, second) = (request("k", "1"), request("k", "2"));
    let jobs = take(&f, &claim, 1, &first).await;
    assert_eq!(take(&f, &claim, 1, &second).await, jobs);
    assert_eq!(give_up(&f, &first).await, 0);
    assert_eq!(take(&f, &claim, 1, &request("k", "3")).await, jobs);
    // An attempt that took nothing is given up: nothing of the others changes.
    assert_eq!(give_up(&f, &request("k", "never-came")).await, 0);
    assert!(matches!(f.place("a").await, JobPlace::InFlight { .. }));
    // Both answers were lost.
    assert_eq!(give_up(&f, &second).await, 0, "the third was answered");
    assert_eq!(give_up(&f, &request("k", "3")).await, 1);
    assert_eq!(f.place("a").await, JobPlace::Queued);
}

/// The store comes to the attempt only after it was given up.
pub async fn an_attempt_that_was_given_up_takes_nothing_afterwards(f: InflightFixture) {
    f.enqueue(&["a"]).await;
    let claim = f.start("w").await;
    let late = request("k", "1");
    assert_eq!(give_up(&f, &late).await, 0);
    let refused = f.inflight.take_once(&late, &claim, &name("q"), 1).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert_eq!(f.place("a").await, JobPlace::Queued);
    assert_eq!(ids_of(&take(&f, &claim, 1, &request("k", "2")).await), ["a"]);
    let refused = f.inflight.take_once(&late, &claim, &name("q"), 1).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}

pub async fn a_key_with_another_fingerprint_is_refused(f: InflightFixture) {
    f.enqueue(&["a", "b"]).await;
    let claim = f.start("w").await;
    take(&f, &claim, 1, &request("k", "1")).await;
    let other = RequestId::new("k", "f2", "2").expect("a valid key");
    let refused = f.inflight.take_once(&other, &claim, &name("q"), 1).await;
    assert!(matches!(refused, Err(Error::KeyReused { .. })), "{refused:?}");
    let refused = f.inflight.start_once(&other, &name("w"), f.ttl_ms()).await;
    assert!(matches!(refused, Err(Error::KeyReused { .. })), "{refused:?}");
    assert_eq!(f.place("b").await, JobPlace::Queued);
}

/// The jobs of a dead worker are recovered, whatever request took them; its name comes back.
pub async fn another_incarnation_gets_nothing_of_a_take(f: InflightFixture) {
    let f = f.settled().await;
    f.enqueue(&["a"]).await;
    let dead = f.start("w").await;
    let first = request("k", "1");
    take(&f, &dead, 1, &first).await;
    (f.advance)(f.ttl).await;
    f.sweep().await;
    assert_eq!(f.place("a").await, JobPlace::Queued);
    let next = f.start("w").await;
    assert!(take(&f, &next, 1, &request("k", "2")).await.is_empty());
    let refused = f.inflight.take_once(&first, &dead, &name("q"), 1).await;
    assert!(matches!(refused, Err(Error::Lost(_))), "{refused:?}");
    let jobs = take(&f, &next, 1, &request("new", "3")).await;
    assert_eq!(ids_of(&jobs), ["a"]);
    // What is given up by then is somebody else's.
    assert_eq!(give_up(&f, &first).await + give_up(&f, &request("k", "2")).await, 0);
    assert!(
        matches!(f.place("a").await, JobPlace::InFlight { token, .. } if token == jobs[0].token)
    );
    f.counts().await;
}

/// The attempt of another incarnation got nothing, so that it is no reason to keep the jobs from their
/// queue when the first attempt is given up.
pub async fn a_take_that_another_incarnation_repeated_is_given_back(f: InflightFixture) {
    f.enqueue(&["a"]).await;
    let (older, newer) = (f.start("w").await, f.start("w").await);
    let (first, second) = (request("k", "1"), request("k", "2"));
    assert_eq!(ids_of(&take(&f, &older, 1, &first).await), ["a"]);
    assert!(take(&f, &newer, 1, &second).await.is_empty());
    assert_eq!(give_up(&f, &first).await, 1);
    assert_eq!(f.place("a").await, JobPlace::Queued);
    f.counts().await;
}

/// Without a key a repeated enqueue would run a job twice that was completed in between.
pub async fn a_repeated_enqueue_adds_nothing(f: InflightFixture) {
    let jobs = [job("a"), job("b")];
    let first = f.inflight.enqueue_once(&request("k", "1"), &jobs).await.unwrap();
    assert_eq!(first, [Enqueued::Queued, Enqueued::Queued]);
    let claim = f.start("w").await;
    for taken in f.take(&claim, 2).await {
        f.complete(&claim, &taken).await;
    }
    assert_eq!(f.inflight.enqueue_once(&request("k", "2"), &jobs).await.unwrap(), first);
    let counts = f.counts().await;
    assert_eq!((counts.entered, counts.completed, counts.queued), (2, 2, 0));
    let other = RequestId::new("k", "f2", "3").expect("a valid key");
    let refused = f.inflight.enqueue_once(&other, &[NewJob::new(name("c"), name("q"), "")]).await;
    assert!(matches!(refused, Err(Error::KeyReused { .. })), "{refused:?}");
    assert!(f.job("c").await.is_none());
}

pub async fn a_repeated_start_starts_nothing(f: InflightFixture) {
    let start = async |attempt: &str, owner: &str| {
        f.inflight.start_once(&request("k", attempt), &name(owner), 60_000).await.unwrap()
    };
    let (first, second) = (start("1", "w").await, start("2", "w").await);
    assert_eq!(second.incarnation, first.incarnation);
    assert!(first.started && second.started && second.ttl_ms == 60_000);
    assert_eq!(f.inflight.owners(None, 10).await.unwrap().len(), 1);
    let later = f.inflight.start_once(&request("k2", "3"), &name("w"), 60_000).await.unwrap();
    assert!(later.incarnation > first.incarnation);
    let claim = Claim::exact(name("w"), first.incarnation);
    f.inflight.beat(&claim).await.expect("both are alive");
}

/// Polls `call` up to `polls` times and then drops it, as a caller does that no longer waits.
async fn drop_after<T>(polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let mut call = std::pin::pin!(call);
    for _ in 0..polls {
        if let Poll::Ready(answer) = futures::poll!(call.as_mut()) {
            return Some(answer);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// A caller that no longer waits leaves no job with an owner that sends heartbeats.
pub async fn a_dropped_take_is_given_back_without_a_crash(f: InflightFixture) {
    let system = Arc::new(f.system());
    f.enqueue(&["a"]).await;
    let claim = f.start("w").await;
    for polls in 1..6 {
        let queue = name("q");
        let take = system.take_or_give_back(&claim, &queue, 1, Duration::ZERO);
        let job = match drop_after(polls, take).await {
            Some(taken) => taken.expect("take").jobs.remove(0),
            None => next_job(&f, &claim).await,
        };
        assert_eq!((job.id.as_str(), job.crashes), ("a", 0));
        assert_eq!(f.finish(&claim, &job, Finish::GiveBack(QueueEnd::Front)).await, Finished::Done);
    }
    f.counts().await;
}

/// The job that comes to queue `q` in time.
async fn next_job(f: &InflightFixture, claim: &Claim) -> Claimed {
    for _ in 0..4_000 {
        if let Some(job) = f.take(claim, 1).await.pop() {
            return job;
        }
        f.inflight.beat(claim).await.expect("its owner is alive");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the job stays with an owner that does not know of it")
}

/// The first call is dropped, so that its caller does not know whether it was carried out. It makes
/// the call again on the same handle.
pub async fn a_repeated_end_of_a_claim_is_known_as_its_own(f: InflightFixture) {
    let system = Arc::new(f.system());
    let worker = Worker::start(system, "w").await.unwrap();
    let fail = Finish::Fail { error: "unlucky".to_owned() };
    let ways = [Finish::Complete, fail, Finish::GiveBack(QueueEnd::Front)];
    for (how, polls) in ways.iter().flat_map(|how| (1..6).map(move |polls| (how, polls))) {
        let id = format!("{how:?}{polls}").replace(['"', '{', '}', ' '], "");
        f.enqueue(&[&id]).await;
        let job = worker.take(&name("q"), 1, Duration::ZERO).await.unwrap().remove(0);
        let held = worker.held(&job);
        let first = drop_after(polls, held.finish(how)).await;
        let again = held.finish(how).await.unwrap();
        match first {
            Some(first) => assert!(first.unwrap() == Finished::Done && again.is_lost(), "{how:?}"),
            None => assert_eq!(again, Finished::Done, "{how:?}"),
        }
        let left = worker.take(&name("q"), 1, Duration::ZERO).await.unwrap();
        assert_eq!(left.len(), usize::from(matches!(how, Finish::GiveBack(_))), "{how:?}");
        for job in left {
            assert_eq!((job.id.as_str(), job.crashes), (id.as_str(), 0));
            assert_eq!(worker.held(&job).finish(&Finish::Complete).await.unwrap(), Finished::Done);
        }
    }
    f.counts().await;
}

/// The claim was not ended by the call that was dropped: its owner had ended before.
pub async fn a_repeated_end_of_a_recovered_claim_is_refused(f: InflightFixture) {
    for polls in 1..6 {
        let worker = Worker::start(Arc::new(f.system()), "w").await.unwrap();
        let id = format!("a{polls}");
        f.enqueue(&[&id]).await;
        let job = worker.take(&name("q"), 1, Duration::ZERO).await.unwrap().remove(0);
        let held = worker.held(&job);
        f.inflight.end(worker.owner().claim()).await.unwrap();
        drop_after(polls, held.finish(&Finish::GiveBack(QueueEnd::Back))).await;
        assert_eq!(f.sweep().await.reclaimed, 1);
        let again = held.finish(&Finish::GiveBack(QueueEnd::Back)).await.unwrap();
        assert!(again.is_lost(), "{again:?}");
        assert_eq!(f.place(&id).await, JobPlace::Queued);
        let claim = f.start("other").await;
        let job = f.take(&claim, 1).await.remove(0);
        f.complete(&claim, &job).await;
    }
}

/// For stores whose clock can be moved that far.
pub async fn requests_are_forgotten_after_their_age(f: InflightFixture) {
    let claim = f.inflight.start(&name("w"), 3 * REQUEST_AGE_MS).await.unwrap();
    let claim = Claim::exact(name("w"), claim.incarnation);
    f.enqueue(&["a", "b"]).await;
    assert_eq!(ids_of(&take(&f, &claim, 1, &request("k", "1")).await), ["a"]);
    (f.advance)(Duration::from_millis(REQUEST_AGE_MS)).await;
    assert_eq!(ids_of(&take(&f, &claim, 1, &request("k", "2")).await), ["b"]);
}
