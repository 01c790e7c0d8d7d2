//! Redis is restarted while one worker of a system works and another one is dead: the real programs. Everybody has a whole grace from
//! then on. Then the job of the dead worker goes back, and the living one keeps its own. When that one is killed, too, so that no
//! worker is left, its job goes back as well, and a new worker runs both.

use lapsed_testbed::{Persistence, ServerOptions};

use super::faults::now_ms;
use super::systems::System;
use super::*;

lapsed_testbed::steady_async_tests! {
    after_a_restart_of_redis_a_living_dramatiq_worker_keeps_its_message,
    after_a_restart_of_redis_a_living_bullmq_worker_keeps_its_job,
    after_a_restart_of_redis_a_living_celery_worker_keeps_its_task,
    after_a_restart_of_redis_a_living_sidekiq_process_keeps_its_job,
    after_a_restart_of_redis_a_living_asynq_server_keeps_its_task,
    after_a_restart_of_redis_a_living_resque_worker_keeps_its_job,
    after_a_restart_of_redis_a_living_consumer_keeps_its_entry,
}

async fn after_a_restart_of_redis_a_living_dramatiq_worker_keeps_its_message() {
    restart("dramatiq").await;
}

async fn after_a_restart_of_redis_a_living_bullmq_worker_keeps_its_job() {
    restart("bullmq").await;
}

async fn after_a_restart_of_redis_a_living_celery_worker_keeps_its_task() {
    restart("celery").await;
}

async fn after_a_restart_of_redis_a_living_sidekiq_process_keeps_its_job() {
    restart("sidekiq").await;
}

async fn after_a_restart_of_redis_a_living_asynq_server_keeps_its_task() {
    restart("asynq").await;
}

async fn after_a_restart_of_redis_a_living_resque_worker_keeps_its_job() {
    restart("resque").await;
}

async fn after_a_restart_of_redis_a_living_consumer_keeps_its_entry() {
    restart("streams").await;
}

/// Dramatiq's workers wait for 3 s before they connect again.
const GRACE: Duration = Duration::from_secs(8);

async fn restart(profile: &'static str) {
    let server = ServerOptions::new(Engine::Redis).persistence(Persistence::Aof).start().unwrap();
    let Some(system) = System::on(profile, server) else { return };
    system.work.add(&["a"]);
    let dead = system.works("w1", 600);
    system.work.add(&["b"]);
    let living = system.works("w2", 600);
    let inflight = system.inflight(GRACE);
    system.seen_alive(&inflight, 2).await;
    dead.kill();
    system.server.restart().unwrap();
    let app = system.app();
    let back_ms = now_ms(&app);
    system.overdue(&dead);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &system.redis, Policy::default());
    eventually("the job to be put back", async || {
        pass(&sweeper).await;
        (!receipts(&system.redis, &id()).await.is_empty()).then_some(())
    })
    .await;
    for _ in 0..5 {
        pass(&sweeper).await;
    }
    let found = receipts(&system.redis, &id()).await;
    assert_eq!(found.len(), 1, "{profile}: `{}` has a living worker: {found:?}", living.job);
    let spared_ms = found[0].at_ms - back_ms;
    let whole_ms = GRACE.as_millis() as u64;
    assert!(spared_ms + 500 >= whole_ms, "{profile}: put back {spared_ms} ms after the restart");
    living.kill();
    system.overdue(&living);
    // Once it has connected again, a worker of Celery fetches beyond its limit: it may have the other task, too.
    let held = match profile {
        "celery" => app.number(&["HLEN", "unacked"]) as u64,
        _ => 1,
    };
    put_back(&inflight, &system.redis, held).await;
    let found = receipts(&system.redis, &id()).await;
    let _last = system.runs_all(&[&dead.job, &living.job]);
    println!(
        "{profile}: jobs 2, put back {}, the first {spared_ms} ms after the restart, run 2, lost 0",
        found.len()
    );
    assert_eq!(found.len() as u64, 1 + held, "{profile}: {found:?}");
}
