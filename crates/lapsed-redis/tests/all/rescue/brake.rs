//! A mass death among the workers of a foreign job system: by workers where its keys show the living, by jobs where they do not.
//! Every pass is of a process that has seen nothing before, as from a crontab.

use lapsed_core::sweep::PassReport;

use super::faults::{leave_many, now_ms, waiting};
use super::*;

lapsed_testbed::steady_async_tests! {
    bullmq_jobs_that_all_lose_their_lock_at_once_are_held_and_go_in_steps,
    bullmq_jobs_whose_locks_run_out_one_after_another_are_a_mass_death,
    a_few_bullmq_jobs_without_a_lock_are_not_held,
    a_process_that_makes_no_passes_sees_the_end_of_a_mass_death,
    rq_workers_that_all_die_at_once_are_held_and_go_in_steps,
}

const GRACE: Duration = Duration::from_secs(3);

fn slow(profile: &str) -> RescueLayout {
    RescueLayout { grace: Some(GRACE), ..layout(profile, Duration::ZERO) }
}

async fn single_pass(redis: &Redis, profile: &str) -> PassReport {
    let sweep: Arc<dyn Sweep> = Arc::new(redis.rescued_inflight(id(), slow(profile)).unwrap());
    let policy = Policy { every: Duration::from_millis(200), ..Policy::default() };
    pass(&sweeper(&sweep, redis, policy)).await
}

/// What each step put back, after a hold of a whole threshold.
async fn steps(app: &App, redis: &Redis, profile: &str, jobs: u64) -> Vec<u64> {
    let held = single_pass(redis, profile).await;
    assert_eq!((held.stopped, held.reclaimed), (Stopped::Brake, 0), "{held:?}");
    assert!(waiting(app, profile).is_empty(), "no job is on its queue");
    let until_ms = redis.brake(&id()).await.unwrap().hold.expect("the brake holds").until_ms;
    let mut steps = Vec::new();
    eventually("all to be put back", async || {
        let report = single_pass(redis, profile).await;
        if report.reclaimed > 0 {
            assert!(now_ms(app) >= until_ms, "not before the hold is over: {report:?}");
            steps.push(report.reclaimed);
        }
        (steps.iter().sum::<u64>() == jobs).then_some(())
    })
    .await;
    steps
}

/// BullMQ's workers leave no name, so that the share of the jobs tells.
async fn bullmq_jobs_that_all_lose_their_lock_at_once_are_held_and_go_in_steps() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    past_the_grace(&app, &redis, GRACE).await;
    leave_many(&app, "bullmq", 40, b"{}");
    let steps = steps(&app, &redis, "bullmq", 40).await;
    assert_eq!(steps[..2], [4, 8], "a tenth of all, then a fifth of the rest: {steps:?}");
}

/// All workers were cut off at once. Each had renewed its lock at another moment, so that every pass finds few jobs
/// without a lock, of those that are left.
async fn bullmq_jobs_whose_locks_run_out_one_after_another_are_a_mass_death() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    past_the_grace(&app, &redis, GRACE).await;
    leave_many(&app, "bullmq", 40, b"{}");
    for n in 1..=40 {
        let left_ms = (500 + n * 50).to_string();
        app.text(&["SET", &format!("bull:mails:j{n}:lock"), "token", "PX", &left_ms]);
    }
    let (mut done, began_ms) = (0, now_ms(&app));
    for pass in 1.. {
        eventually("the next pass", async || (now_ms(&app) >= began_ms + pass * 200).then_some(()))
            .await;
        let report = single_pass(&redis, "bullmq").await;
        done += report.reclaimed;
        // 22, and what becomes due between the count and the first page.
        assert!(done <= 24, "{done} of 40 before the first hold: {report:?}");
        if report.stopped == Stopped::Brake {
            break;
        }
    }
    assert!(done > 0, "they were not all due at once");
    assert_eq!(waiting(&app, "bullmq").len() as u64, done);
}

async fn a_few_bullmq_jobs_without_a_lock_are_not_held() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    past_the_grace(&app, &redis, GRACE).await;
    leave_many(&app, "bullmq", 40, b"{}");
    for n in 5..=40 {
        app.text(&["SET", &format!("bull:mails:j{n}:lock"), "token", "PX", "600000"]);
    }
    let mut done = 0;
    eventually("the four to be put back", async || {
        let report = single_pass(&redis, "bullmq").await;
        assert_eq!(report.stopped, Stopped::Done, "{report:?}");
        done += report.reclaimed;
        (done == 4).then_some(())
    })
    .await;
}

/// A follower looks once, while nobody renews a lock, and makes no passes.
async fn a_process_that_makes_no_passes_sees_the_end_of_a_mass_death() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    past_the_grace(&app, &redis, GRACE).await;
    leave_many(&app, "bullmq", 40, b"{}");
    let follower = redis.rescued_inflight(id(), slow("bullmq")).unwrap();
    assert_eq!(follower.census().await.unwrap().suspects, 40);
    for n in 1..=40 {
        app.text(&["SET", &format!("bull:mails:j{n}:lock"), "token", "PX", "600000"]);
    }
    eventually("the follower to see the locks", async || {
        let census = follower.census().await.unwrap();
        (census.suspects == 0 && census.owners_overdue == 0).then_some(())
    })
    .await;
}

/// Twelve workers with one job each, as a host that lost its power leaves them.
async fn rq_workers_that_all_die_at_once_are_held_and_go_in_steps() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    past_the_grace(&app, &redis, GRACE).await;
    leave_many(&app, "rq", 12, b"{}");
    for n in 1..=12 {
        let (job, execution) = (format!("rq:job:j{n}"), format!("rq:execution:j{n}:{n:032x}"));
        for key in [job, execution] {
            app.text(&["HSET", &key, "worker_name", &format!("w{n}")]);
        }
    }
    let steps = steps(&app, &redis, "rq", 12).await;
    assert_eq!(steps[..2], [2, 3], "a tenth of twelve workers, then a fifth of twelve: {steps:?}");
}
