//! Jobs of the library on a Redis that stands still, and behind a proxy that loses answers.
//!
//! The race: the store carries out a call after the library gave up, or never gets it. The worker keeps
//! sending heartbeats, so nothing else would ever free the job.

use std::time::{Duration, Instant};

use lapsed::{InflightMember, InflightSystem, Manual};
use lapsed_testbed::{Engine, Proxy, RedisServer};

use crate::stores::until;

async fn jobs_on(url: &str) -> (InflightSystem, InflightMember) {
    let lapsed = lapsed::open(url).await.unwrap();
    let jobs = lapsed.inflight("jobs").sweep(Manual).start().await.unwrap();
    let me = jobs.join("worker-1").await.unwrap();
    // Redis knows the scripts from here on: the first answer to each is that it does not.
    jobs.enqueue("warm", "up").await.unwrap();
    me.take("warm").await.unwrap().unwrap().give_back().await.unwrap();
    me.take("warm").await.unwrap().unwrap().complete().await.unwrap();
    (jobs, me)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_redis_carries_out_after_the_library_gave_up_strands_no_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (jobs, me) = jobs_on(&server.url()).await;
    jobs.enqueue("mail", "one").await.unwrap();
    server.freeze().unwrap();
    let frozen = Instant::now();
    let refused = me.take("mail").await.err();
    assert!(matches!(refused, Some(lapsed::Error::Unavailable { .. })), "{refused:?}");
    until("Redis has stood still for 3 s", || async { frozen.elapsed() > Duration::from_secs(3) })
        .await;
    server.thaw().unwrap();
    let other = jobs.join("worker-2").await.unwrap();
    until("another worker gets the job", || async {
        match other.take("mail").await {
            Ok(Some(job)) => job.crashes() == 0 && job.complete().await.unwrap(),
            _ => false,
        }
    })
    .await;
    assert!(me.is_live());
}

/// The caller stops waiting: the call is dropped while Redis stands still.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_was_dropped_strands_no_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (jobs, me) = jobs_on(&server.url()).await;
    jobs.enqueue("mail", "one").await.unwrap();
    server.freeze().unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(200), me.take("mail")).await;
    assert!(dropped.is_err(), "Redis stands still");
    server.thaw().unwrap();
    let other = jobs.join("worker-2").await.unwrap();
    until("another worker gets the job", || async {
        matches!(other.take("mail").await, Ok(Some(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_whose_answer_is_lost_strands_no_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let (jobs, me) = jobs_on(&proxy.url()).await;
    jobs.enqueue("mail", "one").await.unwrap();
    proxy.drop_answers_matching("worker-1");
    let refused = me.take("mail").await.err();
    assert!(matches!(refused, Some(lapsed::Error::Unavailable { .. })), "{refused:?}");
    until("the job is back", || async {
        matches!(me.take("mail").await, Ok(Some(job)) if job.crashes() == 0)
    })
    .await;
}

/// A store keeps 100,000 requests. Takes whose answers arrived would displace the keys of those that are
/// still to be repeated or given up.
#[tokio::test(flavor = "multi_thread")]
async fn takes_whose_answers_arrived_are_not_kept() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (jobs, me) = jobs_on(&server.url()).await;
    for number in 0..30 {
        jobs.enqueue("mail", &number.to_string()).await.unwrap();
        me.take("mail").await.unwrap().unwrap().complete().await.unwrap();
    }
    let kept = server.command(&["KEYS", "*:requests"]).unwrap();
    let kept = server.command(&["HLEN", kept.trim()]).unwrap();
    assert_eq!(kept.trim(), "1", "the last one is forgotten with the next take");
}

/// The call never reaches Redis: the connection is cut. It is repeated until it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ends_while_redis_is_away_ends_when_redis_is_back() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let (jobs, me) = jobs_on(&proxy.url()).await;
    for how in ["complete", "fail", "give_back"] {
        jobs.enqueue("mail", how).await.unwrap();
        let job = me.take("mail").await.unwrap().unwrap();
        proxy.cut();
        let ending = async {
            match how {
                "complete" => job.complete().await,
                "fail" => job.fail("no such address").await,
                _ => job.give_back().await,
            }
        };
        let mending = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.mend().unwrap();
        };
        let (ended, ()) = tokio::join!(ending, mending);
        assert!(ended.unwrap(), "{how}");
        let left = me.take("mail").await.unwrap();
        assert_eq!(left.is_some(), how == "give_back", "{how}");
    }
}

/// Redis carries out the call, and the answer is lost: the repetition finds no claim and knows why.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_end_was_carried_out_without_an_answer_has_ended() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let (jobs, me) = jobs_on(&proxy.url()).await;
    for how in ["complete", "fail", "give_back"] {
        jobs.enqueue("mail", how).await.unwrap();
        let job = me.take("mail").await.unwrap().unwrap();
        let lost = proxy.dropped();
        proxy.drop_answers_matching(job.id());
        let ended = match how {
            "complete" => job.complete().await,
            "fail" => job.fail("no such address").await,
            _ => job.give_back().await,
        };
        assert!(ended.unwrap(), "{how}");
        assert_eq!(proxy.dropped(), lost + 1, "{how}");
        assert_eq!(me.take("mail").await.unwrap().is_some(), how == "give_back", "{how}");
    }
}
