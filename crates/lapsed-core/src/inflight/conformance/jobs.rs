//! Cases about jobs while no worker dies.

use std::time::Duration;

use super::{InflightFixture, bare, ids_of, job, name};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{Enqueued, Finish, Finished, JobPlace, JobTicket, JobToken, NewJob, Tracked};
use crate::owner::Claim;

pub async fn a_job_is_taken_once_and_completed(f: InflightFixture) {
    f.enqueue(&["a"]).await;
    assert_eq!(f.place("a").await, JobPlace::Queued);
    let (one, two) = (f.start("one").await, f.start("two").await);
    let taken = f.take(&one, 10).await;
    assert_eq!(ids_of(&taken), ["a"]);
    assert_eq!((taken[0].payload.as_str(), taken[0].crashes), ("payload of a", 0));
    assert!(f.take(&two, 10).await.is_empty(), "it is somebody's");
    match f.place("a").await {
        JobPlace::InFlight { owner, incarnation, token, ended, .. } => {
            assert_eq!((owner, Some(incarnation)), (one.owner.clone(), one.incarnation));
            assert_eq!((token, ended), (taken[0].token, None));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(f.complete(&one, &taken[0]).await, Finished::Done);
    assert_eq!(f.job("a").await, None);
    assert_eq!(f.complete(&one, &taken[0]).await, Finished::Gone);
    let counts = f.counts().await;
    assert_eq!((counts.entered, counts.completed, counts.in_flight), (1, 1, 0));
}

pub async fn jobs_are_taken_in_queue_order(f: InflightFixture) {
    let ids: Vec<String> = (0..25).map(|i| format!("j{i:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    f.enqueue(&ids[..20]).await;
    f.enqueue(&ids[20..]).await;
    let claim = f.start("w").await;
    let mut seen = Vec::new();
    for expected in [10, 10, 5, 0] {
        let jobs = f.take(&claim, 10).await;
        assert_eq!(jobs.len(), expected);
        seen.extend(jobs.into_iter().map(|job| job.id.to_string()));
    }
    assert_eq!(seen, ids);
}

pub async fn queues_do_not_share_jobs(f: InflightFixture) {
    let on = |id: &str, queue: &str| NewJob::new(name(id), name(queue), "");
    f.inflight.enqueue(&[on("a", "high"), on("b", "low"), on("c", "low")]).await.unwrap();
    assert_eq!(f.inflight.queues(None, 10).await.unwrap(), [(name("high"), 1), (name("low"), 2)]);
    assert_eq!(f.inflight.queues(Some(&name("high")), 10).await.unwrap(), [(name("low"), 2)]);
    let claim = f.start("w").await;
    let low = f.inflight.take(&claim, &name("low"), 10).await.unwrap().jobs;
    assert_eq!((ids_of(&low), &low[0].queue), (vec!["b", "c"], &name("low")));
    assert_eq!(f.inflight.queues(None, 10).await.unwrap(), [(name("high"), 1)]);
    assert!(f.take(&claim, 10).await.is_empty(), "there is nothing on `q`");
}

/// Repeating an enqueue whose answer was lost puts nothing there twice, wherever the job is by now.
pub async fn the_same_id_is_queued_once(f: InflightFixture) {
    let again = || async { f.inflight.enqueue(&[job("a")]).await.unwrap().remove(0) };
    assert_eq!(again().await, Enqueued::Queued);
    assert_eq!(again().await, Enqueued::Exists);
    let twice = f.inflight.enqueue(&[job("b"), job("b")]).await.unwrap();
    assert_eq!(twice, [Enqueued::Queued, Enqueued::Exists]);
    let claim = f.start("w").await;
    let taken = f.take(&claim, 10).await;
    assert_eq!(ids_of(&taken), ["a", "b"]);
    assert_eq!(again().await, Enqueued::Exists);
    f.finish(&claim, &taken[0], Finish::Fail { error: String::new() }).await;
    assert_eq!(again().await, Enqueued::Exists);
    assert!(f.inflight.delete(&name("a")).await.unwrap());
    assert_eq!(again().await, Enqueued::Queued, "it is free again");
    f.counts().await;
}

pub async fn the_first_take_of_a_new_name_starts_it(f: InflightFixture) {
    f.enqueue(&["a"]).await;
    let taken = f.inflight.take(&Claim::newest(name("new")), &name("q"), 1).await.unwrap();
    assert!(taken.started.is_some_and(|beat| beat.incarnation == taken.incarnation));
    let claim = Claim::newest(name("new"));
    let again = f.inflight.take(&claim, &name("q"), 1).await.unwrap();
    assert_eq!((again.started, again.incarnation), (None, taken.incarnation));
    assert_eq!(f.inflight.in_flight(&claim, None, 10).await.unwrap(), [name("a")]);
}

/// It is there within the wait; and a wait that is in vain ends.
pub async fn a_waiting_take_gets_a_job_that_arrives(f: InflightFixture) {
    let claim = f.start("w").await;
    let (system, queue) = (f.system(), name("q"));
    let empty = system.take(&claim, &queue, 1, Duration::from_millis(30)).await.unwrap();
    assert!(empty.jobs.is_empty());
    let waiting = system.take(&claim, &queue, 1, Duration::from_secs(60));
    let arriving = async {
        tokio::task::yield_now().await;
        f.enqueue(&["a"]).await;
    };
    let (taken, ()) = futures::join!(waiting, arriving);
    assert_eq!(ids_of(&taken.unwrap().jobs), ["a"]);
}

pub async fn tokens_only_grow(f: InflightFixture) {
    let claim = f.start("w").await;
    let mut last = JobToken(0);
    f.enqueue(&["a", "b", "c"]).await;
    for _ in 0..3 {
        let jobs = f.take(&claim, 3).await;
        assert_eq!(jobs.len(), 3);
        for job in &jobs {
            assert!(job.token > last, "{job:?} after {last}");
            last = job.token;
        }
        for job in &jobs {
            f.finish(&claim, job, Finish::GiveBack(QueueEnd::Back)).await;
        }
    }
}

/// There is no moment at which a job is in a worker's memory only: a worker that dies right after
/// the pop, before it has said anything, loses nothing.
pub async fn trap_e13_taking_registers_in_the_same_step(f: InflightFixture) {
    f.enqueue(&["a", "b"]).await;
    let claim = f.start("w").await;
    drop(f.inflight.take(&claim, &name("q"), 2).await.unwrap());
    assert_eq!(f.inflight.in_flight(&claim, None, 10).await.unwrap(), [name("a"), name("b")]);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 2);
    assert_eq!(f.counts().await.queued, 2);
}

/// A job that never was on a queue of ours is tracked, completed, and goes back to its queue.
pub async fn jobs_popped_by_the_application_are_tracked(f: InflightFixture) {
    let claim = f.start("w").await;
    let answer = f.inflight.register(&claim, &[job("a"), job("b")]).await.unwrap();
    assert_eq!(Some(answer.incarnation), claim.incarnation);
    let [Tracked::Tracked { token: a }, Tracked::Tracked { token: b }] = answer.jobs[..] else {
        panic!("{answer:?}")
    };
    assert!(b > a);
    let ticket = JobTicket { id: name("a"), token: a, incarnation: claim.incarnation };
    let done = f.inflight.finish(&[ticket], &Finish::Complete).await.unwrap();
    assert_eq!(done, [Finished::Done]);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 1);
    let other = f.start("other").await;
    let taken = f.take(&other, 10).await;
    assert_eq!((ids_of(&taken), taken[0].payload.as_str()), (vec!["b"], "payload of b"));
    assert_eq!(f.counts().await.entered, 2);
}

/// The same incarnation keeps the job; every other one is refused, wherever the job is.
pub async fn an_existing_job_is_not_registered_again(f: InflightFixture) {
    let (one, two) = (f.start("one").await, f.start("two").await);
    let register = |claim: Claim, id: &'static str| {
        let inflight = f.inflight.clone();
        async move { inflight.register(&claim, &[job(id)]).await.unwrap().jobs.remove(0) }
    };
    let Tracked::Tracked { token } = register(one.clone(), "a").await else { panic!() };
    assert_eq!(register(one.clone(), "a").await, Tracked::Kept { token });
    assert_eq!(register(two.clone(), "a").await, Tracked::Taken);
    f.enqueue(&["b"]).await;
    assert_eq!(register(two.clone(), "b").await, Tracked::Taken);
    assert_eq!(f.counts().await.entered, 2);
}

/// It is the next to be taken, by a new claim, and the old one is over.
pub async fn giving_back_counts_no_crash(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["a"]).await;
    f.enqueue(&["b"]).await;
    let given = f.finish(&claim, &jobs[0], Finish::GiveBack(QueueEnd::Front)).await;
    assert_eq!(given, Finished::Done);
    assert_eq!(f.complete(&claim, &jobs[0]).await, Finished::Superseded);
    let again = f.take(&claim, 1).await;
    assert_eq!((ids_of(&again), again[0].crashes), (vec!["a"], 0));
    assert!(again[0].token > jobs[0].token);
    assert!(f.receipts().await.is_empty(), "nothing was reclaimed");
}

pub async fn a_job_is_given_back_to_the_chosen_end(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["a", "b"]).await;
    f.enqueue(&["x", "y"]).await;
    f.finish(&claim, &jobs[0], Finish::GiveBack(QueueEnd::Back)).await;
    f.finish(&claim, &jobs[1], Finish::GiveBack(QueueEnd::Front)).await;
    assert_eq!(ids_of(&f.take(&claim, 10).await), ["b", "x", "y", "a"]);
}

pub async fn a_claim_can_be_ended_without_naming_its_incarnation(f: InflightFixture) {
    let (_, jobs) = f.working("w", &["a", "b"]).await;
    let wrong = JobTicket { token: JobToken(jobs[0].token.0 + 1_000), ..bare(&jobs[0]) };
    let tickets = [wrong, bare(&jobs[0]), bare(&jobs[1])];
    let done = f.inflight.finish(&tickets, &Finish::Complete).await.unwrap();
    assert_eq!(done, [Finished::Superseded, Finished::Done, Finished::Done]);
    let nobody = JobTicket { id: name("nobody"), token: JobToken(1), incarnation: None };
    let gone = f.inflight.finish(&[nobody], &Finish::Complete).await.unwrap();
    assert_eq!(gone, [Finished::Gone]);
}

/// Byte for byte: through the queue, a recovery, and the queue again.
pub async fn payloads_are_returned_unchanged(f: InflightFixture) {
    let payloads = [
        String::new(),
        "{\"args\":[],\"n\":12345678901234567890,\"f\":1.0}".to_owned(),
        "é ✓ \u{0} \r\n\t\" \\ : , | 🦀".to_owned(),
        "x".repeat(100_000),
    ];
    let job = |(i, payload): (usize, &String)| {
        NewJob::new(name(&format!("j:{i} é|,")), name("q"), payload)
    };
    let jobs: Vec<NewJob> = payloads.iter().enumerate().map(job).collect();
    f.inflight.enqueue(&jobs).await.unwrap();
    let check = |taken: Vec<crate::inflight::Claimed>| {
        assert_eq!(taken.len(), jobs.len());
        for (taken, job) in taken.iter().zip(&jobs) {
            assert_eq!((&taken.id, &taken.payload), (&job.id, &job.payload));
        }
    };
    let first = f.start("first").await;
    check(f.take(&first, 10).await);
    (f.advance)(f.ttl).await;
    assert_eq!(f.sweep().await.reclaimed, 4);
    let second = f.start("second").await;
    let mut taken = f.take(&second, 10).await;
    taken.sort_by(|a, b| a.id.cmp(&b.id));
    check(taken);
}

pub async fn entries_of_an_owner_are_paged(f: InflightFixture) {
    let (claim, _) = f.working("w", &["c", "a", "b"]).await;
    let page = |after: Option<&'static str>| {
        let (inflight, claim) = (f.inflight.clone(), claim.clone());
        async move { inflight.in_flight(&claim, after.map(name).as_ref(), 2).await.unwrap() }
    };
    assert_eq!(page(None).await, [name("a"), name("b")]);
    assert_eq!(page(Some("b")).await, [name("c")]);
    assert_eq!(page(Some("c")).await, []);
    let info = f.inflight.owner(&claim).await.unwrap().unwrap();
    assert_eq!(info.held, 3);
}

pub async fn the_totals_balance(f: InflightFixture) {
    let (claim, jobs) = f.working("w", &["done", "failed", "deleted", "held"]).await;
    f.enqueue(&["queued"]).await;
    f.complete(&claim, &jobs[0]).await;
    for job in &jobs[1..3] {
        f.finish(&claim, job, Finish::Fail { error: "no".to_owned() }).await;
    }
    assert!(f.inflight.delete(&name("deleted")).await.unwrap());
    let counts = f.counts().await;
    let seen = (counts.entered, counts.completed, counts.queued, counts.in_flight);
    assert_eq!(seen, (5, 1, 1, 1));
    assert_eq!((counts.dead, counts.dropped), (1, 1));
    assert_eq!(f.inflight.census().await.unwrap().population, 1);
}

pub async fn several_claims_end_at_once(f: InflightFixture) {
    let ids: Vec<String> = (0..300).map(|i| format!("j{i:03}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let (claim, jobs) = f.working("w", &ids).await;
    assert_eq!(f.complete(&claim, &jobs[7]).await, Finished::Done);
    let inc = claim.incarnation.unwrap();
    let tickets: Vec<JobTicket> = jobs.iter().map(|job| job.ticket(inc)).collect();
    let done = f.inflight.finish(&tickets, &Finish::Complete).await.unwrap();
    assert_eq!(done.iter().filter(|one| **one == Finished::Done).count(), 299);
    assert_eq!(done[7], Finished::Gone);
    let twice = [tickets[0].clone(), tickets[0].clone()];
    f.enqueue(&["again"]).await;
    let again = f.take(&claim, 1).await;
    let same = [bare(&again[0]), bare(&again[0])];
    let done = f.inflight.finish(&same, &Finish::Complete).await.unwrap();
    assert_eq!(done, [Finished::Done, Finished::Gone], "named twice, ended once");
    let gone = f.inflight.finish(&twice, &Finish::Complete).await.unwrap();
    assert_eq!(gone, [Finished::Gone; 2]);
    let counts = f.counts().await;
    assert_eq!((counts.completed, counts.in_flight), (301, 0));
}
