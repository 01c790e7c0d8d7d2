//! Jobs of dead workers that wait before they may run again, in the delayed set of their own system: the real programs run them at
//! their time, and not before.

use super::*;
use crate::rescue::sidekiq;
use lapsed_core::inflight::RecoveredJob;
use lapsed_core::inflight::rules::Backoff;

lapsed_testbed::steady_async_tests! {
    a_delayed_job_of_rq_waits_for_rqs_scheduler_and_its_time,
    a_delayed_job_of_bullmq_runs_at_its_time,
    a_delayed_message_of_dramatiq_runs_at_its_time_and_its_crashes_are_counted_on,
    a_delayed_job_of_sidekiq_runs_at_its_time,
    a_delayed_task_of_asynq_runs_at_its_time,
    jobs_of_bullmq_that_are_due_at_once_keep_their_order,
    a_moved_job_of_sidekiq_belongs_to_its_new_queue,
    a_system_without_delayed_jobs_refuses_a_delay,
    a_delayed_set_of_another_type_is_left_alone,
}

/// Long enough to be seen waiting on a busy machine.
const DELAY: Duration = Duration::from_secs(4);

fn delaying(profile: &str, limit: Duration) -> RescueLayout {
    let backoff = Backoff { first_ms: DELAY.as_millis() as u64, max_ms: 60_000 };
    RescueLayout { backoff: Some(backoff), ..layout(profile, limit) }
}

fn delayed(redis: &Redis, profile: &str, limit: Duration) -> Arc<RescuedInflight> {
    Arc::new(redis.rescued_inflight(id(), delaying(profile, limit)).unwrap())
}

/// What the newest receipt says.
async fn newest(redis: &Redis) -> RecoveredJob {
    let receipts = receipts(redis, &id()).await;
    let newest = receipts.iter().max_by_key(|receipt| receipt.id.seq).unwrap();
    let done: RecoveredJob = serde_json::from_value(newest.removed.clone()).unwrap();
    let waits = done.due_ms.unwrap() - newest.at_ms;
    assert_eq!(waits, DELAY.as_millis() as u64 * (1 << (done.crashes - 1)), "{done:?}");
    done
}

fn now_ms(app: &App) -> u64 {
    let time = app.text(&["TIME"]);
    let parts: Vec<u64> = time.lines().map(|part| part.parse().unwrap()).collect();
    parts[0] * 1_000 + parts[1] / 1_000
}

/// Nobody starts it before it is due.
fn is_not_started_before(worker: &Program, app: &App, due_ms: u64) {
    while now_ms(app) < due_ms {
        let left = Duration::from_millis(due_ms.saturating_sub(now_ms(app)));
        if let Ok(line) = worker.line(left) {
            assert!(
                !line.starts_with("started") || now_ms(app) >= due_ms,
                "{line} before its time"
            );
        }
    }
}

async fn a_delayed_job_of_rq_waits_for_rqs_scheduler_and_its_time() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let (worker, job, horse) = work.stuck("w1");
    kill_both(&worker, horse);
    let (redis, app) = (connect(&server.url()), App::on(&server));
    put_back(&delayed(&redis, "rq", SOON), &redis, 1).await;
    let due_ms = newest(&redis).await.due_ms.unwrap();
    assert_eq!(app.text(&["HGET", "rq:job:a", "status"]), "scheduled");
    let score = app.text(&["ZSCORE", "rq:scheduled:mails", "a"]);
    assert_eq!(score, due_ms.div_ceil(1_000).to_string(), "whole seconds, and not before");
    assert_eq!(app.text(&["LLEN", "rq:queue:mails"]), "0");
    // A worker without a scheduler works on other jobs, and never looks at this one.
    let other = work.start(&["work", "w2"], None);
    eventually("its time", async || (now_ms(&app) > due_ms + 1_000).then_some(())).await;
    work.add(&["b"]);
    work.runs(&other, "b");
    assert_eq!(app.text(&["HGET", "rq:job:a", "status"]), "scheduled");
    let scheduler = work.start_with(&["work", "w3"], &[("SCHEDULER", "1")]);
    let ran = eventually("the job to run", async || {
        let lines = [other.line(SOON), scheduler.line(SOON)];
        lines.into_iter().flatten().find(|line| *line == format!("ran {job}"))
    })
    .await;
    assert_eq!(ran, "ran a");
}

async fn a_delayed_job_of_bullmq_runs_at_its_time() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("bullmq", &server);
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("w1");
    let idle = work.start(&["work", "w2"], None);
    assert_eq!(idle.line(LIMIT).unwrap(), "ready");
    worker.kill().unwrap();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    put_back(&delayed(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
    let due_ms = newest(&redis).await.due_ms.unwrap();
    let score: f64 = app.text(&["ZSCORE", "bull:mails:delayed", "a"]).parse().unwrap();
    assert_eq!((score / 4_096.0) as u64, due_ms);
    assert_eq!(app.text(&["HGET", "bull:mails:a", "delay"]), DELAY.as_millis().to_string());
    assert_eq!(app.text(&["HGET", "bull:mails:a", "stc"]), "1");
    work.runs(&idle, &job);
    let started: u64 = app.text(&["HGET", "bull:mails:a", "processedOn"]).parse().unwrap();
    assert!(started >= due_ms, "{started} is before {due_ms}");
    assert_eq!(app.number(&["ZCARD", "bull:mails:delayed"]), 0);
}

async fn a_delayed_message_of_dramatiq_runs_at_its_time_and_its_crashes_are_counted_on() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("dramatiq", &server);
    work.add(&["a"]);
    let (redis, app) = (connect(&server.url()), App::on(&server));
    let inflight = delayed(&redis, "dramatiq", Duration::from_secs(3));
    let (worker, job, _) = work.stuck("");
    let before = app.text(&["HVALS", "dramatiq:mails.msgs"]);
    worker.kill().unwrap();
    put_back(&inflight, &redis, 1).await;
    let due_ms = newest(&redis).await.due_ms.unwrap();
    let after = app.text(&["HVALS", "dramatiq:mails.DQ.msgs"]);
    let back = after.replace("\"mails.DQ\"", "\"mails\"");
    assert_eq!(back.replace(&format!(",\"eta\":{due_ms}"), ""), before, "every other byte stays");
    assert_ne!(back, after);
    let again = work.start(&["work"], Some("600000"));
    is_not_started_before(&again, &app, due_ms);
    assert_eq!(has_started(&again).0, job);
    again.kill().unwrap();
    put_back(&inflight, &redis, 1).await;
    assert_eq!(
        newest(&redis).await.crashes,
        2,
        "the message has a new id, and its crashes are kept"
    );
}

async fn a_delayed_job_of_sidekiq_runs_at_its_time() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    let inflight = delayed(&redis, "sidekiq", SOON);
    let before = sidekiq::killed_with_job(&server, &app, &inflight, &redis, "a").await;
    put_back(&inflight, &redis, 1).await;
    let due_ms = newest(&redis).await.due_ms.unwrap();
    assert_eq!(app.text(&["ZRANGE", "schedule", "0", "-1"]), before, "byte for byte");
    let other = sidekiq::worker(&server, "ready", &[("POLL", "1")]);
    is_not_started_before(&other, &app, due_ms);
    sidekiq::hears(&other, "ran a");
}

async fn a_delayed_task_of_asynq_runs_at_its_time() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = super::asynq::Asynq::on(&server) else { return };
    asynq.add(&["a"]);
    let (worker, task) = asynq.stuck();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    worker.kill().unwrap();
    super::asynq::end_lease(&app, &task);
    put_back(&delayed(&redis, "asynq", SOON), &redis, 1).await;
    let due_ms = newest(&redis).await.due_ms.unwrap();
    assert_eq!(app.text(&["HGET", "asynq:{mails}:t:a", "state"]), "scheduled");
    let other = asynq.start(&["work"], None);
    is_not_started_before(&other, &app, due_ms);
    asynq.runs(&other, &task);
    assert_eq!(app.number(&["ZCARD", "asynq:{mails}:scheduled"]), 0);
}

async fn jobs_of_bullmq_that_are_due_at_once_keep_their_order() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_orphans(&app, 3);
    let redis = connect(&server.url());
    put_back(&delayed(&redis, "bullmq", Duration::ZERO), &redis, 3).await;
    let rows = app.text(&["ZRANGE", "bull:mails:delayed", "0", "-1", "WITHSCORES"]);
    let scores: Vec<f64> = rows.lines().skip(1).step_by(2).map(|s| s.parse().unwrap()).collect();
    assert!(scores.windows(2).all(|pair| pair[0] < pair[1]), "{rows}");
    let marker: f64 = app.text(&["ZSCORE", "bull:mails:marker", "1"]).parse().unwrap();
    assert!((marker - scores[0] / 4_096.0).abs() < 1.0, "{marker} {rows}");
    assert_eq!(app.number(&["XLEN", "bull:mails:events"]), 6);
}

async fn a_moved_job_of_sidekiq_belongs_to_its_new_queue() {
    for delay in [None, Some(Backoff { first_ms: 60_000, max_ms: 60_000 })] {
        let server = RedisServer::start(Engine::Valkey).unwrap();
        let (redis, app) = (connect(&server.url()), App::on(&server));
        let recovery =
            RecoveryPolicy { move_to: Name::new("slow \"q\"").ok(), ..RecoveryPolicy::default() };
        let layout = RescueLayout { recovery, backoff: delay, ..layout("sidekiq", SOON) };
        let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
        let before = sidekiq::killed_with_job(&server, &app, &inflight, &redis, "a").await;
        put_back(&inflight, &redis, 1).await;
        let after = match delay {
            None => app.text(&["LRANGE", "queue:slow \"q\"", "0", "-1"]),
            Some(_) => app.text(&["ZRANGE", "schedule", "0", "-1"]),
        };
        assert!(before.contains("\"queue\":\"mails\""), "{before}");
        let expected = before.replace("\"queue\":\"mails\"", "\"queue\":\"slow \\\"q\\\"\"");
        assert_eq!(after, expected, "only the name of the queue changes");
        assert_eq!(app.number(&["LLEN", "queue:mails"]), 0);
    }
}

async fn a_system_without_delayed_jobs_refuses_a_delay() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let redis = connect(&server.url());
    for (profile, why) in
        [("celery", "no set of delayed"), ("resque", "no delayed jobs"), ("streams", "no place")]
    {
        let refused = redis.rescued_inflight(id(), delaying(profile, SOON)).err().unwrap();
        let refused = refused.to_string();
        assert!(refused.contains(why) && refused.contains("Use on_death"), "{refused}");
    }
}

async fn a_delayed_set_of_another_type_is_left_alone() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_orphans(&app, 2);
    app.text(&["SET", "bull:mails:delayed", "not a set"]);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = delayed(&redis, "bullmq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let report = eventually("a pass", async || {
        Some(pass(&sweeper).await).filter(|report| report.stopped == Stopped::Done)
    })
    .await;
    assert_eq!((report.reclaimed, report.skipped.values().sum::<u64>()), (0, 2), "{report:?}");
    assert_eq!(app.text(&["LLEN", "bull:mails:active"]), "2");
}
