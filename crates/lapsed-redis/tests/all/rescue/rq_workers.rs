//! Which workers of RQ are alive, beside the subscription that most of them have.

use super::*;
use crate::rescue::faults::{leave_many, waiting};

lapsed_testbed::steady_async_tests! {
    trap_f1_a_worker_that_may_not_subscribe_keeps_its_job,
    trap_f1_a_simple_worker_that_may_not_subscribe_keeps_its_job,
    trap_f2_a_work_horse_is_not_taken_for_the_next_worker_of_the_same_name,
    trap_f1_a_job_that_no_horse_has_begun_is_not_its_last_workers,
    a_job_that_was_put_back_expires_as_if_rq_had_queued_it,
    trap_f11_jobs_of_rq_1_are_left_alone_without_a_worker_that_tells_the_version,
}

/// An application whose user has no right to channels, as new users of Redis 7 have none.
fn without_channels(server: &RedisServer, app: &App) -> Workplace {
    app.text(&["ACL", "SETUSER", "app", "on", ">pw", "resetchannels", "~*", "+@all"]);
    let mut work = Workplace::new("rq", server);
    work.url = server.url().replace("redis://", "redis://app:pw@");
    work
}

/// A proxy that answers `PUBSUB NUMSUB` with 0 looks the same.
async fn trap_f1_a_worker_that_may_not_subscribe_keeps_its_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let work = without_channels(&server, &app);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::from_secs(1));
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let beat = ("BEAT", "2");
    let worker = work.start_with(&["work", "w1"], &[beat, ("SLOW", "12")]);
    eventually("the worker", async || {
        pass(&sweeper).await;
        (app.number(&["SCARD", "rq:workers"]) == 1).then_some(())
    })
    .await;
    work.add(&["a"]);
    let mut lines = Vec::new();
    eventually("the job", async || {
        let report = pass(&sweeper).await;
        assert_eq!(report.reclaimed, 0, "its worker lives: {report:?}");
        let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
        assert_eq!(found[0].orphans, 0, "{found:?}");
        lines.extend(worker.line(Duration::from_millis(50)).ok());
        lines.iter().any(|line| line == "ran a").then_some(())
    })
    .await;
    worker.kill().unwrap();
    work.add(&["b"]);
    let dead = work.start_with(&["work", "w2"], &[beat, ("SLOW", "600000")]);
    let (job, horse) = has_started(&dead);
    kill_both(&dead, horse);
    eventually("the job to be put back", async || {
        pass(&sweeper).await;
        (waiting(&app, "rq") == [job.as_str()]).then_some(())
    })
    .await;
}

/// It does not beat while it works: only the deadline of its job tells.
async fn trap_f1_a_simple_worker_that_may_not_subscribe_keeps_its_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let work = without_channels(&server, &app);
    work.add(&["a"]);
    let worker = work.start_with(&["work", "w1"], &[("SIMPLE", "1"), ("SLOW", "4")]);
    has_started(&worker);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::from_millis(100));
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let mut lines = Vec::new();
    eventually("the job", async || {
        let report = pass(&sweeper).await;
        assert_eq!((report.suspects, report.reclaimed), (0, 0), "its worker lives: {report:?}");
        let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
        assert_eq!(found[0].orphans, 0, "{found:?}");
        lines.extend(worker.line(Duration::from_millis(50)).ok());
        lines.iter().any(|line| line == "ran a").then_some(())
    })
    .await;
}

async fn trap_f2_a_work_horse_is_not_taken_for_the_next_worker_of_the_same_name() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    let (worker, job, horse) = work.stuck("same");
    worker.kill().unwrap();
    // As it does after 60 to 90 s.
    app.text(&["DEL", "rq:worker:same"]);
    work.add(&["b"]);
    let (_second, _, _) = work.stuck("same");
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "rq", Duration::ZERO);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    for _ in 0..5 {
        let report = pass(&sweeper).await;
        assert_eq!((report.suspects, report.reclaimed), (0, 0), "its horse works: {report:?}");
    }
    kill(horse.unwrap());
    put_back(&inflight, &redis, 1).await;
    assert_eq!(receipts(&redis, &id()).await[0].key.as_str(), format!("mails/{job}"));
}

/// Executions of RQ 2.0 to 2.10 do not name their worker, and the job names the worker of the run before until its work horse has
/// begun.
async fn trap_f1_a_job_that_no_horse_has_begun_is_not_its_last_workers() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_many(&app, "rq", 1, b"x");
    app.text(&["HSET", "rq:job:j1", "status", "queued", "worker_name", "gone"]);
    app.text(&["HDEL", &format!("rq:execution:j1:{:032x}", 1), "worker_name"]);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    past_the_grace(&app, &redis, Duration::from_millis(300)).await;
    for _ in 0..3 {
        let report = pass(&sweeper).await;
        assert_eq!(report.reclaimed, 0, "its deadline has not passed: {report:?}");
    }
}

async fn trap_f11_jobs_of_rq_1_are_left_alone_without_a_worker_that_tells_the_version() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    app.text(&["SADD", "rq:queues", "rq:queue:mails"]);
    app.text(&["HSET", "rq:job:report:42", "status", "started", "origin", "mails"]);
    app.text(&["ZADD", "rq:wip:mails", "1", "report:42"]);
    let redis = connect(&server.url());
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert_eq!((found.len(), found[0].version.as_str()), (1, "unknown"), "{found:?}");
    assert!(found[0].notes[0].contains("RQ 1"), "{found:?}");
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::ZERO);
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!(report.stopped, Stopped::Error, "{report:?}");
    assert_eq!(app.text(&["ZRANGE", "rq:wip:mails", "0", "-1"]), "report:42");
}

async fn a_job_that_was_put_back_expires_as_if_rq_had_queued_it() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_many(&app, "rq", 2, b"x");
    app.text(&["HSET", "rq:job:j1", "ttl", "600"]);
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "rq", Duration::ZERO), &redis, 2).await;
    let left = app.number(&["TTL", "rq:job:j1"]);
    assert!((500..=600).contains(&left), "{left}");
    assert_eq!(app.number(&["TTL", "rq:job:j2"]), -1);
}
