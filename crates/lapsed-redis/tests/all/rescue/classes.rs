//! Jobs of classes that are in quarantine: they are not put back, but go where their system keeps jobs that it will not run again.

use super::*;
use crate::rescue::sidekiq;
use lapsed_core::inflight::RecoveredJob;
use lapsed_core::inflight::rules::DeadLetterReason;

lapsed_testbed::steady_async_tests! {
    a_function_of_rq_in_quarantine_has_failed,
    an_actor_of_dramatiq_in_quarantine_is_a_dead_letter,
    only_the_named_jobs_of_bullmq_are_in_quarantine,
    a_class_of_sidekiq_in_quarantine_is_among_the_dead_jobs,
    a_type_of_asynq_in_quarantine_is_archived,
    streams_have_no_classes,
}

fn quarantined(redis: &Redis, profile: &str, limit: Duration, class: &str) -> Arc<RescuedInflight> {
    let layout = RescueLayout { quarantine: vec![class.to_owned()], ..layout(profile, limit) };
    Arc::new(redis.rescued_inflight(id(), layout).unwrap())
}

async fn reasons(redis: &Redis) -> Vec<Option<DeadLetterReason>> {
    let receipts = receipts(redis, &id()).await;
    let why = |removed| serde_json::from_value::<RecoveredJob>(removed).unwrap().why;
    receipts.into_iter().map(|receipt| why(receipt.removed)).collect()
}

const QUARANTINED: Option<DeadLetterReason> = Some(DeadLetterReason::Quarantined);

async fn a_function_of_rq_in_quarantine_has_failed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let (worker, _, horse) = work.stuck("w1");
    kill_both(&worker, horse);
    let (redis, app) = (connect(&server.url()), App::on(&server));
    put_back(&quarantined(&redis, "rq", SOON, "rq_worker.*"), &redis, 1).await;
    assert_eq!(reasons(&redis).await, [QUARANTINED]);
    assert_eq!(app.text(&["ZRANGE", "rq:failed:mails", "0", "-1"]), "a");
    assert_eq!(app.number(&["LLEN", "rq:queue:mails"]), 0);
}

async fn an_actor_of_dramatiq_in_quarantine_is_a_dead_letter() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("dramatiq", &server);
    work.add(&["a"]);
    let (worker, _, _) = work.stuck("");
    worker.kill().unwrap();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    let limit = Duration::from_secs(3);
    put_back(&quarantined(&redis, "dramatiq", limit, "work_on"), &redis, 1).await;
    assert_eq!(reasons(&redis).await, [QUARANTINED]);
    assert_eq!(app.number(&["ZCARD", "dramatiq:mails.XQ"]), 1);
    assert_eq!(app.number(&["LLEN", "dramatiq:mails"]), 0);
}

async fn only_the_named_jobs_of_bullmq_are_in_quarantine() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_orphans(&app, 3);
    app.text(&["HSET", "bull:mails:1", "name", "resize"]);
    let redis = connect(&server.url());
    put_back(&quarantined(&redis, "bullmq", Duration::ZERO, "resi*"), &redis, 3).await;
    let mut why = reasons(&redis).await;
    why.sort_by_key(Option::is_some);
    assert_eq!(why, [None, None, QUARANTINED]);
    assert!(app.text(&["HGET", "bull:mails:1", "defa"]).contains("stalled"));
    assert_eq!(app.number(&["HEXISTS", "bull:mails:2", "defa"]), 0);
}

async fn a_class_of_sidekiq_in_quarantine_is_among_the_dead_jobs() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    let inflight = quarantined(&redis, "sidekiq", SOON, "Job");
    sidekiq::killed_with_job(&server, &app, &inflight, &redis, "a").await;
    put_back(&inflight, &redis, 1).await;
    assert_eq!(reasons(&redis).await, [QUARANTINED]);
    let dead = app.text(&["ZRANGE", "dead", "0", "-1"]);
    assert!(
        dead.contains("its class are in quarantine") && dead.contains("\"jid\":\"a\""),
        "{dead}"
    );
    assert_eq!(app.number(&["LLEN", "queue:mails"]), 0);
}

async fn a_type_of_asynq_in_quarantine_is_archived() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = super::asynq::Asynq::on(&server) else { return };
    asynq.add(&["a"]);
    let (worker, task) = asynq.stuck();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    worker.kill().unwrap();
    super::asynq::end_lease(&app, &task);
    put_back(&quarantined(&redis, "asynq", SOON, "send"), &redis, 1).await;
    assert_eq!(reasons(&redis).await, [QUARANTINED]);
    assert_eq!(app.text(&["HGET", "asynq:{mails}:t:a", "state"]), "archived");
}

async fn streams_have_no_classes() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let redis = connect(&server.url());
    let layout = RescueLayout { quarantine: vec!["a".to_owned()], ..layout("streams", SOON) };
    let refused = redis.rescued_inflight(id(), layout).err().unwrap().to_string();
    assert!(refused.contains("no class"), "{refused}");
}
