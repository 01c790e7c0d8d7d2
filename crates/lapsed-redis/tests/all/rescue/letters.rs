//! Jobs that lapsed has given up: each is where its own system keeps such jobs, is listed and shown from there, and goes back to its queue from there.

use lapsed_core::Error;
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::inflight::{InflightStore, JobPlace};

use super::faults::{leave_many, short_limit};
use super::*;

lapsed_testbed::steady_async_tests! {
    given_up_jobs_of_every_system_are_listed_shown_and_forgotten,
    given_up_jobs_go_back_to_their_queue_once,
    systems_that_retry_by_themselves_say_with_which_command,
    a_given_up_job_of_rq_runs_again,
    a_given_up_message_of_dramatiq_runs_again,
    a_given_up_job_of_resque_is_no_longer_listed_once_it_was_removed,
}

const PROFILES: [&str; 7] = ["rq", "dramatiq", "bullmq", "celery", "sidekiq", "asynq", "streams"];

/// Every job of a dead worker is given up.
fn giving_up(redis: &Redis, profile: &str, limit: Duration) -> Arc<RescuedInflight> {
    let recovery = RecoveryPolicy { on_death: OnDeath::DeadLetter, ..RecoveryPolicy::default() };
    let queues = [Name::new("mails").unwrap()].into();
    let layout = RescueLayout { recovery, queues, ..layout(profile, limit) };
    Arc::new(redis.rescued_inflight(id(), layout).unwrap())
}

fn leave(app: &App, profile: &str, jobs: usize) {
    match profile {
        "rq" | "dramatiq" | "bullmq" => leave_many(app, profile, jobs, b"a payload"),
        _ => many_orphans::leave(app, profile, jobs, "a payload"),
    }
}

/// So many jobs of one system, given up.
async fn given_up(
    app: &App,
    redis: &Redis,
    profile: &str,
    jobs: usize,
) -> (Arc<RescuedInflight>, Vec<Name>) {
    leave(app, profile, jobs);
    let inflight = giving_up(redis, profile, short_limit(profile));
    put_back(&inflight, redis, jobs as u64).await;
    let found = inflight.dead(None, 100).await.unwrap();
    let ids: Vec<Name> = found.iter().map(|job| job.id.clone()).collect();
    assert_eq!(ids.len(), jobs, "{profile}: {found:?}");
    assert!(ids.is_sorted(), "{profile}: {ids:?}");
    (inflight, ids)
}

/// The keys where a system keeps them.
fn dead_keys(profile: &str) -> &'static [&'static str] {
    match profile {
        "rq" => &["rq:failed:mails"],
        "dramatiq" => &["dramatiq:mails.XQ", "dramatiq:mails.XQ.msgs"],
        "bullmq" => &["bull:mails:j1", "bull:mails:j2", "bull:mails:j3"],
        "sidekiq" => &["dead"],
        "asynq" => &["asynq:{mails}:archived"],
        _ => &["mails:dead"],
    }
}

async fn given_up_jobs_of_every_system_are_listed_shown_and_forgotten() {
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        let (inflight, ids) = given_up(&app, &redis, profile, 3).await;
        let page = inflight.dead(Some(&ids[0]), 1).await.unwrap();
        assert_eq!(page.len(), 1, "{profile}");
        assert_eq!(page[0].id, ids[1], "{profile}");
        let one = inflight.job(&ids[2]).await.unwrap().unwrap();
        assert_eq!((one.queue.as_str(), one.crashes), ("mails", 1), "{profile}");
        let JobPlace::Dead { kept_in: Some(kept_in), at_ms, .. } = &one.place else {
            panic!("{profile}: {one:?}")
        };
        assert!(*at_ms > 0 && kept_in.contains('`'), "{profile}: {kept_in}");
        // RQ's own data is a pickle: its description says what the job is, and these have none.
        let is_shown = profile == "rq" || one.payload.contains("a payload");
        assert!(is_shown, "{profile}: {}", one.payload);
        assert_eq!(inflight.counts().await.unwrap().dead, 3, "{profile}");
        let letters = match profile {
            "celery" => app.text(&["KEYS", "lapsed:*dead_letters"]),
            _ => String::new(),
        };
        let keys = if letters.is_empty() { dead_keys(profile).to_vec() } else { vec![&*letters] };
        assert!(app.number(&[&["DEL"], &keys[..]].concat()) > 0, "{profile}: {keys:?}");
        assert_eq!(inflight.dead(None, 100).await.unwrap(), [], "{profile}");
        if profile != "bullmq" {
            let again = inflight.put_back(&ids[0], QueueEnd::Back).await.unwrap();
            assert!(!again, "{profile}: the system itself has removed it");
        }
        let sweep: Arc<dyn Sweep> = inflight.clone();
        let sweeper = sweeper(&sweep, &redis, Policy::default());
        eventually("a pass that forgets them", async || {
            pass(&sweeper).await;
            (inflight.counts().await.unwrap().dead == 0).then_some(())
        })
        .await;
    }
}

/// The ids or messages that wait, in the order in which workers take them.
fn waiting(app: &App, profile: &str) -> Vec<String> {
    let (key, is_from_tail) = match profile {
        "rq" => ("rq:queue:mails", false),
        "dramatiq" => ("dramatiq:mails", false),
        "celery" => ("mails", true),
        "sidekiq" => ("queue:mails", true),
        "asynq" => ("asynq:{mails}:pending", true),
        _ => return app.text(&["XRANGE", "mails", "-", "+"]).lines().map(str::to_owned).collect(),
    };
    let list = app.text(&["LRANGE", key, "0", "-1"]);
    let mut list: Vec<String> =
        list.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if is_from_tail {
        list.reverse();
    }
    list
}

async fn given_up_jobs_go_back_to_their_queue_once() {
    for profile in ["rq", "dramatiq", "celery", "sidekiq", "asynq", "streams"] {
        let server = RedisServer::start(Engine::Valkey).unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        let (inflight, ids) = given_up(&app, &redis, profile, 3).await;
        assert!(inflight.put_back(&ids[0], QueueEnd::Back).await.unwrap(), "{profile}");
        assert!(inflight.put_back(&ids[1], QueueEnd::Front).await.unwrap(), "{profile}");
        for id in &ids[..2] {
            let again = inflight.put_back(id, QueueEnd::Back).await.unwrap();
            assert!(!again, "{profile}: {id} is not there any more");
        }
        let left = inflight.dead(None, 100).await.unwrap();
        assert_eq!(left.len(), 1, "{profile}");
        let found = waiting(&app, profile);
        if profile == "streams" {
            assert_eq!(app.number(&["XLEN", "mails"]), 2);
            assert_eq!(app.number(&["XLEN", "mails:dead"]), 1);
            continue;
        }
        assert_eq!(found.len(), 2, "{profile}: {found:?}");
        let name = |id: &Name| id.as_str().rsplit('/').next().unwrap().to_owned();
        assert!(found[0].contains(&name(&ids[1])), "{profile}: {found:?} of {ids:?}");
        assert!(found[1].contains(&name(&ids[0])), "{profile}: {found:?} of {ids:?}");
        let deleted = inflight.delete(&ids[2]).await;
        match profile {
            "celery" => assert!(deleted.unwrap()),
            _ => assert!(matches!(deleted, Err(Error::Unsupported { .. })), "{profile}"),
        }
    }
}

async fn systems_that_retry_by_themselves_say_with_which_command() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let (inflight, ids) = given_up(&app, &redis, "bullmq", 1).await;
    let refused = inflight.put_back(&ids[0], QueueEnd::Back).await.unwrap_err();
    assert!(refused.to_string().contains("Job.retry()"), "{refused}");
    assert_eq!(inflight.dead(None, 10).await.unwrap().len(), 1);
}

async fn a_given_up_job_of_rq_runs_again() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app, redis) =
        (Workplace::new("rq", &server), App::on(&server), connect(&server.url()));
    work.add(&["a"]);
    let (worker, job, horse) = work.stuck("w1");
    kill_both(&worker, horse);
    let inflight = giving_up(&redis, "rq", SOON);
    put_back(&inflight, &redis, 1).await;
    let letters = inflight.dead(None, 10).await.unwrap();
    assert!(letters[0].payload.contains("work_on('a'"), "{letters:?}");
    assert!(inflight.put_back(&letters[0].id, QueueEnd::Front).await.unwrap());
    assert_eq!(app.number(&["ZCARD", "rq:failed:mails"]), 0);
    let other = work.start(&["work", "w2"], None);
    work.runs(&other, &job);
    assert_eq!(inflight.dead(None, 10).await.unwrap(), []);
}

async fn a_given_up_message_of_dramatiq_runs_again() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (work, redis) = (Workplace::new("dramatiq", &server), connect(&server.url()));
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("");
    worker.kill().unwrap();
    let inflight = giving_up(&redis, "dramatiq", Duration::from_secs(3));
    put_back(&inflight, &redis, 1).await;
    let letters = inflight.dead(None, 10).await.unwrap();
    assert!(inflight.put_back(&letters[0].id, QueueEnd::Front).await.unwrap());
    let other = work.start(&["work"], None);
    work.runs(&other, &job);
}

async fn a_given_up_job_of_resque_is_no_longer_listed_once_it_was_removed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    super::resque::leave_jobs(&app, 0..2);
    let inflight = giving_up(&redis, "resque", Duration::ZERO);
    put_back(&inflight, &redis, 2).await;
    let letters = inflight.dead(None, 10).await.unwrap();
    assert_eq!(letters.len(), 2, "{letters:?}");
    assert!(letters[0].payload.contains("\"class\":\"send\""), "{letters:?}");
    let refused = inflight.put_back(&letters[0].id, QueueEnd::Back).await.unwrap_err();
    assert!(refused.to_string().contains("Resque::Failure.requeue"), "{refused}");
    app.text(&["LPOP", "resque:failed"]);
    assert_eq!(inflight.dead(None, 10).await.unwrap().len(), 1);
}
