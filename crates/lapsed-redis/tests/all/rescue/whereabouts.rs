//! Where a job is that is not an orphan: who holds it, and what proves that its holder lives, in the words of its system.

use super::*;
use crate::rescue::sidekiq;
use lapsed_core::inflight::{InflightStore, Whereabouts};

lapsed_testbed::steady_async_tests! {
    a_job_of_a_living_rq_worker_is_explained_by_its_subscription,
    a_job_of_a_living_bullmq_worker_is_explained_by_its_lock,
    a_message_of_a_living_dramatiq_worker_is_explained_by_its_last_command,
    a_job_of_a_living_sidekiq_process_is_explained_by_its_heartbeat,
    a_task_of_a_living_asynq_server_is_explained_by_its_list,
}

async fn whereabouts(inflight: &Arc<RescuedInflight>, job: &str) -> Option<Whereabouts> {
    inflight.whereabouts(&Name::new(job).unwrap()).await.unwrap()
}

/// All sentences in one text.
fn told(found: &Whereabouts) -> String {
    found.because.join("; ")
}

async fn a_job_of_a_living_rq_worker_is_explained_by_its_subscription() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a", "b"]);
    let (worker, job, horse) = work.stuck("w1");
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "rq", SOON);
    for name in [job.clone(), format!("mails/{job}")] {
        let found = whereabouts(&inflight, &name).await.unwrap();
        assert_eq!(found.state, "live", "{found:?}");
        assert!(told(&found).contains("that worker lives"), "{found:?}");
        assert!(
            told(&found).contains("`rq:pubsub:w1`") && told(&found).contains("`w1`"),
            "{found:?}"
        );
    }
    let waiting = if job == "a" { "b" } else { "a" };
    assert_eq!(whereabouts(&inflight, waiting).await.unwrap().state, "queued");
    assert_eq!(whereabouts(&inflight, "nobody").await, None);
    kill_both(&worker, horse);
    eventually("its connection to be gone", async || {
        let found = whereabouts(&inflight, &job).await.unwrap();
        (found.state == "silent" && told(&found).contains("nobody is subscribed")).then_some(())
    })
    .await;
}

async fn a_job_of_a_living_bullmq_worker_is_explained_by_its_lock() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("bullmq", &server);
    work.add(&["a", "b"]);
    let (_worker, job, _) = work.stuck("w1");
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "bullmq", Duration::ZERO);
    for name in [job.clone(), format!("mails/{job}")] {
        let found = whereabouts(&inflight, &name).await.unwrap();
        assert_eq!(found.state, "live", "{found:?}");
        assert!(told(&found).contains("worker `w1` has it"), "{found:?}");
        assert!(told(&found).contains("lock of the job runs out in"), "{found:?}");
    }
    let waiting = if job == "a" { "b" } else { "a" };
    assert_eq!(whereabouts(&inflight, waiting).await.unwrap().state, "queued");
    assert_eq!(whereabouts(&inflight, "nobody").await, None);
}

async fn a_message_of_a_living_dramatiq_worker_is_explained_by_its_last_command() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("dramatiq", &server);
    work.add(&["a"]);
    let (_worker, _, _) = work.stuck("");
    let (redis, app) = (connect(&server.url()), App::on(&server));
    let inflight = rescued(&redis, "dramatiq", Duration::from_secs(60));
    let id = app.text(&["HKEYS", "dramatiq:mails.msgs"]);
    let found = whereabouts(&inflight, &id).await.unwrap();
    assert_eq!(found.state, "live", "{found:?}");
    let worker = app.text(&["ZRANGE", "dramatiq:__heartbeats__", "-1", "-1"]);
    assert!(told(&found).contains(&format!("fetched by worker `{worker}`")), "{found:?}");
    assert!(told(&found).contains("the last command of that worker was"), "{found:?}");
    assert_eq!(whereabouts(&inflight, "nobody").await, None);
}

async fn a_job_of_a_living_sidekiq_process_is_explained_by_its_heartbeat() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (redis, app) = (connect(&server.url()), App::on(&server));
    let (_worker, process) = sidekiq::stuck_with_job(&server, &app, "a").await;
    let inflight = rescued(&redis, "sidekiq", Duration::from_secs(60));
    let found = whereabouts(&inflight, "a").await.unwrap();
    assert_eq!(found.state, "live", "{found:?}");
    assert!(told(&found).contains(&format!("process `{process}` shows job `a`")), "{found:?}");
    assert!(told(&found).contains("its key expires in"), "{found:?}");
    assert_eq!(whereabouts(&inflight, "nobody").await, None);
}

async fn a_task_of_a_living_asynq_server_is_explained_by_its_list() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let Some(asynq) = super::asynq::Asynq::on(&server) else { return };
    asynq.add(&["a", "b"]);
    let (_worker, task) = asynq.stuck();
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "asynq", SOON);
    let found = eventually("the server to show its task", async || {
        whereabouts(&inflight, &task).await.filter(|found| found.state == "live")
    })
    .await;
    assert!(told(&found).contains("shows the task as its own"), "{found:?}");
    let waiting = if task == "a" { "b" } else { "a" };
    let found = whereabouts(&inflight, &format!("mails/{waiting}")).await.unwrap();
    assert_eq!(found.state, "pending", "{found:?}");
}
