//! A worker is stopped (SIGSTOP) for longer than its system's own limit and goes on (SIGCONT) when its job runs elsewhere: the real
//! programs. RQ, BullMQ, Celery and Sidekiq have stories of their own. The job is put back once, the late end of the first run takes
//! nothing from the queue, and no job is lost.

use super::systems::System;
use super::*;

lapsed_testbed::steady_async_tests! {
    the_late_end_of_a_stopped_dramatiq_worker_leaves_the_message_to_its_second_worker,
    the_late_end_of_a_stopped_resque_worker_leaves_the_job_to_its_second_worker,
    the_late_end_of_a_stopped_consumer_leaves_the_entry_to_its_second_consumer,
    the_late_end_of_a_stopped_asynq_server_ends_the_task_once,
}

async fn the_late_end_of_a_stopped_dramatiq_worker_leaves_the_message_to_its_second_worker() {
    second_worker_keeps_its_job("dramatiq").await;
}

async fn the_late_end_of_a_stopped_resque_worker_leaves_the_job_to_its_second_worker() {
    second_worker_keeps_its_job("resque").await;
}

async fn the_late_end_of_a_stopped_consumer_leaves_the_entry_to_its_second_consumer() {
    second_worker_keeps_its_job("streams").await;
}

const GRACE: Duration = Duration::from_millis(300);

/// A job whose first worker was stopped, put back, and begun by a second one. The first one has gone on and ended it.
async fn begun_twice(
    system: &System,
    inflight: &Arc<RescuedInflight>,
) -> [crate::rescue::systems::Held; 2] {
    system.work.add(&["a"]);
    let first = system.works("w1", 5);
    system.seen_alive(inflight, 1).await;
    first.worker.freeze().unwrap();
    system.overdue(&first);
    put_back(inflight, &system.redis, 1).await;
    let second = system.works("w2", 600);
    assert_eq!(first.job, second.job);
    first.worker.thaw().unwrap();
    system.work.runs(&first.worker, "a");
    [first, second]
}

async fn second_worker_keeps_its_job(profile: &'static str) {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(system) = System::on(profile, server) else { return };
    let inflight = system.inflight(GRACE);
    let [first, second] = begun_twice(&system, &inflight).await;
    system.seen_alive(&inflight, 1).await;
    // What the second one holds is still its own: it is found when that one dies.
    first.kill();
    second.kill();
    system.overdue(&second);
    put_back(&inflight, &system.redis, 1).await;
    let _last = system.runs_all(&["a"]);
    assert_eq!(receipts(&system.redis, &id()).await.len(), 2, "{profile}");
}

/// asynq has one entry for a task, whoever runs it: the end of the first run is the end of the task.
async fn the_late_end_of_a_stopped_asynq_server_ends_the_task_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(system) = System::on("asynq", server) else { return };
    let inflight = system.inflight(GRACE);
    let [_first, second] = begun_twice(&system, &inflight).await;
    let app = system.app();
    eventually("the end of the task", async || {
        (app.number(&["EXISTS", "asynq:{mails}:t:a"]) == 0).then_some(())
    })
    .await;
    second.kill();
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &system.redis, Policy::default());
    for _ in 0..5 {
        let report = pass(&sweeper).await;
        assert_eq!(report.reclaimed, 0, "it has ended: {report:?}");
    }
    assert_eq!(receipts(&system.redis, &id()).await.len(), 1);
    let left = ["asynq:{mails}:active", "asynq:{mails}:pending", "asynq:{mails}:lease"];
    assert_eq!(app.number(&[&["EXISTS"], &left[..]].concat()), 0);
}
