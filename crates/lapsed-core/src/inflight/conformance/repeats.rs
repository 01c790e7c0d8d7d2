//! Cases about requests that are repeated because their answer was lost.

use super::{InflightFixture, ids_of, job, name};
use crate::Error;
use crate::inflight::{Claimed, Enqueued, JobPlace, NewJob};
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
    f.sweep("s").await;
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

/// For stores whose clock can be moved that far.
pub async fn requests_are_forgotten_after_their_age(f: InflightFixture) {
    let claim = f.inflight.start(&name("w"), 3 * REQUEST_AGE_MS).await.unwrap();
    let claim = Claim::exact(name("w"), claim.incarnation);
    f.enqueue(&["a", "b"]).await;
    assert_eq!(ids_of(&take(&f, &claim, 1, &request("k", "1")).await), ["a"]);
    (f.advance)(std::time::Duration::from_millis(REQUEST_AGE_MS)).await;
    assert_eq!(ids_of(&take(&f, &claim, 1, &request("k", "2")).await), ["b"]);
}
