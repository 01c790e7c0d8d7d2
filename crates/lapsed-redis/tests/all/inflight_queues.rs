//! Queues that are the application's: a list, Sidekiq's, a stream. What is popped there is in flight in
//! the same step, and goes back as it came, byte for byte.

use lapsed_core::inflight::rules::{DeadLetterReason, QueueEnd, RecoveryPolicy};
use lapsed_core::inflight::{
    Finish, Finished, InflightStore, JobPlace, NewJob, RecoveredJob, RecoveryAction,
};
use lapsed_core::sweep::{Outcome, Refusal, Sweep};
use lapsed_core::{Error, Kind, SystemId};
use lapsed_redis::{InflightLayout, QueueFormat, Template};
use lapsed_testbed::resp::Reply;
use lapsed_testbed::{Engine, ServerOptions};

use crate::fixture::CLUSTER;
use crate::jobs::{World, layout};
use crate::story::{App, connect, name, on_both_engines, reclaim, suspects};

on_both_engines! {
    a_sidekiq_job_keeps_its_jid_and_its_bytes,
    what_has_no_jid_gets_an_id_of_its_own,
    trap_e7_crashes_are_counted_over_the_application_s_queue,
    a_list_of_any_bytes,
    a_stream_is_put_back_to,
    a_queue_of_another_type_is_refused_alone,
    jobs_are_given_back_and_fail_on_the_applications_queue,
}

/// With all that re-encoding would spoil: an empty array, a number beyond doubles, `1.0`.
const JOB: &str = r#"{"class":"Mail","args":[[],{"jid":"inner"},12345678901234567890,1.0,"é\u0000"],"jid":"b4a577edbccf1d805744efa9","queue":"mail","retry":true}"#;

fn world(engine: Engine, format: QueueFormat) -> World {
    World::new(ServerOptions::new(engine), layout(format))
}

fn list(app: &App, key: &str) -> Vec<String> {
    match app.call(&["LRANGE", key, "0", "-1"]) {
        Reply::List(items) => items.iter().map(ToString::to_string).collect(),
        other => panic!("{other}"),
    }
}

/// Lets every worker that holds a job die, and puts the jobs back.
async fn crash(world: &World, count: usize) -> Vec<Outcome> {
    world.suspect(count).await;
    static BATCH: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let number = BATCH.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    reclaim(&world.jobs, number, suspects(&world.jobs).await).await.outcomes
}

fn recovered(outcome: &Outcome) -> RecoveredJob {
    match outcome {
        Outcome::Reclaimed(Some(receipt)) => {
            serde_json::from_value(receipt.removed.clone()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Popped where Sidekiq pops, put back where Sidekiq itself puts what it could not finish.
async fn a_sidekiq_job_keeps_its_jid_and_its_bytes(engine: Engine) {
    let world = world(engine, QueueFormat::Sidekiq);
    let app = world.app();
    app.call(&["LPUSH", "queue:mail", JOB]);
    app.call(&["LPUSH", "queue:mail", r#"{"jid":"later"}"#]);
    let claim = world.start("w").await;
    let taken = world.jobs.take(&claim, &name("mail"), 1).await.unwrap().jobs;
    assert_eq!(
        (taken[0].id.as_str(), taken[0].payload.as_str()),
        ("b4a577edbccf1d805744efa9", JOB)
    );
    assert_eq!(list(&app, "queue:mail"), [r#"{"jid":"later"}"#]);
    let outcomes = crash(&world, 1).await;
    assert_eq!(recovered(&outcomes[0]).did, RecoveryAction::PutBack);
    assert_eq!(list(&app, "queue:mail"), [r#"{"jid":"later"}"#, JOB], "the next to be popped");
    assert_eq!(app.number(&["SISMEMBER", "queues", "mail"]), 1);
    assert_eq!(world.jobs.job(&taken[0].id).await.unwrap(), None, "it is the application's again");
    world.audit("sidekiq").await;
    let claim = world.start("w").await;
    let again = world.jobs.take(&claim, &name("mail"), 10).await.unwrap().jobs;
    assert_eq!((again.len(), again[0].crashes, again[1].crashes), (2, 1, 0));
    assert_eq!(world.jobs.queues(None, 10).await.unwrap(), []);
    let tickets: Vec<_> = again.iter().map(|job| job.ticket(claim.incarnation.unwrap())).collect();
    let done = world.jobs.finish(&tickets, &Finish::Complete).await.unwrap();
    assert_eq!(done, [Finished::Done, Finished::Done]);
    assert_eq!(world.audit("sidekiq, completed").await.completed, 2);
    let refused = world.jobs.enqueue(&[NewJob::new(name("a"), name("mail"), "{}")]).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

/// Not JSON, no jid, a jid that is in flight already: nothing is lost, nothing is overwritten.
async fn what_has_no_jid_gets_an_id_of_its_own(engine: Engine) {
    let world = world(engine, QueueFormat::Sidekiq);
    let app = world.app();
    let jobs = [JOB, JOB, "not json", r#"{"args":[{"jid":"inner"}]}"#, r#"{"jid":7}"#, "[1]"];
    jobs.iter().for_each(|job| drop(app.call(&["LPUSH", "queue:mail", job])));
    let claim = world.start("w").await;
    let mut taken = Vec::new();
    for limit in [1, 10] {
        taken.extend(world.jobs.take(&claim, &name("mail"), limit).await.unwrap().jobs);
    }
    let payloads: Vec<&str> = taken.iter().map(|job| job.payload.as_str()).collect();
    assert_eq!(payloads, jobs);
    let mut ids: Vec<&str> = taken.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids[0], "b4a577edbccf1d805744efa9");
    assert!(ids[1].starts_with("b4a577edbccf1d805744efa9#"), "{ids:?}");
    assert!(ids[2..].iter().all(|id| id.starts_with("job#")), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    crash(&world, 6).await;
    let back: Vec<String> = list(&app, "queue:mail").into_iter().rev().collect();
    assert_eq!(back, jobs, "in the order in which they were popped");
}

/// While it waits on the application's queue nothing is known of a job; its crashes are found again
/// by what it carries.
async fn trap_e7_crashes_are_counted_over_the_application_s_queue(engine: Engine) {
    for format in [QueueFormat::Sidekiq, QueueFormat::List] {
        let world = world(engine, format);
        let app = world.app();
        app.call(&["LPUSH", "queue:mail", JOB]);
        for crashes in 1..=3 {
            let claim = world.start("w").await;
            let taken = world.jobs.take(&claim, &name("mail"), 10).await.unwrap().jobs;
            assert_eq!((taken.len(), taken[0].crashes), (1, crashes - 1), "{format:?}");
            let done = recovered(&crash(&world, 1).await[0]);
            let did =
                if crashes < 3 { RecoveryAction::PutBack } else { RecoveryAction::DeadLetter };
            assert_eq!((done.crashes, done.did), (crashes, did), "{format:?}");
        }
        assert!(list(&app, "queue:mail").is_empty());
        let letters = world.jobs.dead(None, 10).await.unwrap();
        assert!(matches!(letters[0].place, JobPlace::Dead { why: DeadLetterReason::Crashes, .. }));
        assert_eq!(letters[0].payload, JOB);
        assert!(world.jobs.put_back(&letters[0].id, QueueEnd::Back).await.unwrap());
        assert_eq!(list(&app, "queue:mail"), [JOB]);
        let claim = world.start("w").await;
        let taken = world.jobs.take(&claim, &name("mail"), 1).await.unwrap().jobs;
        assert_eq!(taken[0].crashes, 0, "somebody has looked at it");
        world.audit("crashes").await;
    }
}

/// Elements are no text: they are shown as well as they can be, and go back as they are.
async fn a_list_of_any_bytes(engine: Engine) {
    let world = world(engine, QueueFormat::List);
    let app = world.app();
    let wild: &[u8] = b"\xff\x00\n:\xfe";
    app.bytes(&[b"LPUSH", b"queue:raw", wild, b"", b"same", b"same"]);
    let claim = world.start("w").await;
    let taken = world.jobs.take(&claim, &name("raw"), 10).await.unwrap().jobs;
    assert_eq!(taken.len(), 4);
    assert_eq!(app.number(&["EXISTS", "queue:raw"]), 0);
    let outcomes = crash(&world, 4).await;
    assert!(outcomes.iter().all(|one| recovered(one).did == RecoveryAction::PutBack));
    let Reply::List(back) = app.call(&["LRANGE", "queue:raw", "0", "-1"]) else { panic!() };
    let same = |text: &[u8]| Reply::Text(text.to_vec());
    assert_eq!(back, [same(b"same"), same(b"same"), same(b""), same(wild)]);
}

/// Whoever reads a stream registers what it has read; what is put back is at its end.
async fn a_stream_is_put_back_to(engine: Engine) {
    let world = world(engine, QueueFormat::Stream);
    let app = world.app();
    let claim = world.start("w").await;
    let refused = world.jobs.take(&claim, &name("events"), 1).await;
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    let jobs = [JOB, "two"].iter().enumerate();
    let jobs: Vec<NewJob> =
        jobs.map(|(n, job)| NewJob::new(name(&format!("{n}")), name("events"), job)).collect();
    world.jobs.register(&claim, &jobs).await.unwrap();
    crash(&world, 2).await;
    let items = app.call(&["XRANGE", "queue:events", "-", "+"]).to_string();
    assert!(items.contains(JOB) && items.contains("two"), "{items}");
    assert_eq!(app.number(&["XLEN", "queue:events"]), 2);
    assert_eq!(world.jobs.queues(None, 10).await.unwrap(), [(name("events"), 2)]);
    world.audit("stream").await;
}

/// Its jobs stay registered, for the next pass to try; those of others go back.
async fn a_queue_of_another_type_is_refused_alone(engine: Engine) {
    let world = world(engine, QueueFormat::Sidekiq);
    let app = world.app();
    let on = |id: &str, queue: &str| NewJob::new(name(id), name(queue), id);
    let claim = world.start("w").await;
    world.jobs.register(&claim, &[on("a", "bad"), on("b", "good")]).await.unwrap();
    app.call(&["SET", "queue:bad", "surprise"]);
    let outcomes = crash(&world, 2).await;
    assert_eq!(outcomes[0], Outcome::Refused(Refusal::NotTaken));
    assert_eq!(
        (recovered(&outcomes[1]).did, list(&app, "queue:good")),
        (RecoveryAction::PutBack, vec!["b".into()])
    );
    app.call(&["DEL", "queue:bad"]);
    app.call(&["SET", "queues", "surprise"]);
    assert_eq!(crash(&world, 1).await, [Outcome::Refused(Refusal::NotTaken)]);
    app.call(&["DEL", "queues"]);
    assert_eq!(recovered(&crash(&world, 1).await[0]).did, RecoveryAction::PutBack);
    assert_eq!(list(&app, "queue:bad"), ["a"]);
    world.audit("a queue of another type").await;
}

/// A clean shutdown, and a failure, on the application's queue.
async fn jobs_are_given_back_and_fail_on_the_applications_queue(engine: Engine) {
    let world = world(engine, QueueFormat::List);
    let app = world.app();
    app.call(&["LPUSH", "queue:q", "one", "two", "three"]);
    let claim = world.start("w").await;
    let taken = world.jobs.take(&claim, &name("q"), 2).await.unwrap().jobs;
    let ticket = |n: usize| taken[n].ticket(claim.incarnation.unwrap());
    let back = Finish::GiveBack(QueueEnd::Front);
    assert_eq!(world.jobs.finish(&[ticket(0)], &back).await.unwrap(), [Finished::Done]);
    assert_eq!(list(&app, "queue:q"), ["three", "one"]);
    assert_eq!(world.jobs.finish(&[ticket(0)], &back).await.unwrap(), [Finished::Gone]);
    let failed = Finish::Fail { error: "no".to_owned() };
    assert_eq!(world.jobs.finish(&[ticket(1)], &failed).await.unwrap(), [Finished::Done]);
    let counts = world.audit("given back and failed").await;
    assert_eq!((counts.entered, counts.queued, counts.dead), (2, 1, 1));
    assert!(world.jobs.delete(&taken[1].id).await.unwrap());
    assert_eq!(world.audit("deleted").await.dropped, 1);
}

lapsed_testbed::steady_async_tests! {
    on_a_cluster_everything_lies_in_one_slot,
}

/// Or it is said so when the system is opened.
async fn on_a_cluster_everything_lies_in_one_slot() {
    let redis = connect(&CLUSTER.url());
    let id = SystemId::new(Kind::Inflight, &crate::fixture::fresh("slots")).unwrap();
    let open = |prefix: &str, key: &str| {
        let layout = InflightLayout {
            prefix: prefix.to_owned(),
            queue_key: Template::new(key, "queue").unwrap(),
            recovery: RecoveryPolicy::default(),
            ..layout(QueueFormat::Sidekiq)
        };
        redis.inflight(id.clone(), layout)
    };
    let Err(apart) = open("lapsed:inflight", "queue:{queue}") else { panic!("it cannot work") };
    assert!(apart.to_string().contains("one slot"), "{apart}");
    let jobs = open("{mail}:inflight", "{mail}:queue:{queue}").unwrap();
    let beat = lapsed_core::owner::OwnerStore::start(&jobs, &name("w"), 60_000).await.unwrap();
    let claim = lapsed_core::owner::Claim::exact(name("w"), beat.incarnation);
    assert!(jobs.take(&claim, &name("q"), 1).await.unwrap().jobs.is_empty());
    let job = NewJob::new(name("a"), name("q"), "payload");
    jobs.register(&claim, std::slice::from_ref(&job)).await.unwrap();
    let info = lapsed_core::owner::OwnerStore::end(&jobs, &claim).await.unwrap();
    assert_eq!(info.held, 1);
    let left = jobs.held_by(&claim, 10).await.unwrap();
    let outcomes = reclaim(&jobs, 1, left).await.outcomes;
    assert_eq!(recovered(&outcomes[0]).did, RecoveryAction::PutBack);
    let beat = lapsed_core::owner::OwnerStore::start(&jobs, &name("w"), 60_000).await.unwrap();
    let claim = lapsed_core::owner::Claim::exact(name("w"), beat.incarnation);
    assert_eq!(jobs.take(&claim, &name("q"), 9).await.unwrap().jobs[0].payload, "payload");
}
