//! Jobs that killed workers of RQ, Dramatiq and BullMQ left, put back in place: the real programs, their own keys.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Stopped, Sweep};
use lapsed_core::{Kind, Name, SystemId};
use lapsed_redis::{DetectOptions, Redis, RescueLayout, RescuedInflight};
use lapsed_testbed::{Engine, Program, RedisServer, paths};

use crate::story::{App, connect, eventually, pass, receipts, sweeper};

mod asynq;
mod brake;
mod bullmq;
mod campaign;
mod celery;
mod celery_many;
mod celery_options;
mod classes;
mod delays;
mod dramatiq;
mod drift;
mod drift_of_others;
mod failover;
mod faults;
mod fixtures;
mod killed_lapsed;
mod letters;
mod long_queues;
pub mod many_orphans;
mod matrix;
mod own_recovery;
mod resque;
mod restarts;
mod rq_workers;
mod sidekiq;
mod stopped;
mod streams;
mod streams_observe;
mod systems;
mod versions;
mod whereabouts;

lapsed_testbed::steady_async_tests! {
    a_job_of_a_killed_rq_worker_runs_on_another_worker,
    trap_f2_a_work_horse_that_outlives_its_parent_keeps_its_job,
    trap_f3_a_new_worker_under_the_old_name_does_not_hide_the_death_of_the_old_one,
    a_message_of_a_killed_dramatiq_worker_runs_on_another_worker,
    trap_f8_an_idle_bullmq_worker_is_woken_for_a_job_that_was_put_back,
    trap_f7_a_payload_is_put_back_byte_for_byte,
    trap_f12_a_job_that_kills_its_workers_ends_among_the_failed_jobs,
    two_sweepers_put_each_job_back_once,
    with_rqs_own_rule_a_job_is_retried_and_then_failed,
    jobs_of_dead_workers_are_moved_to_another_queue,
    detect_finds_the_systems_their_dead_workers_and_their_orphans,
    a_key_of_another_type_is_left_alone_and_reported,
}

/// A busy machine may take long to start an interpreter.
const LIMIT: Duration = Duration::from_secs(120);

fn id() -> SystemId {
    SystemId::new(Kind::Inflight, "jobs").unwrap()
}

/// What runs the program of a profile, and where it is, unless that is a program by itself.
fn program(profile: &str) -> (PathBuf, Option<PathBuf>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/rescue");
    match profile {
        "bullmq" => (paths::node().unwrap(), Some(dir.join("bullmq_worker.mjs"))),
        "resque" => (paths::node().unwrap(), Some(dir.join("resque_worker.mjs"))),
        "sidekiq" => (paths::ruby().unwrap(), Some(dir.join("sidekiq_worker.rb"))),
        "asynq" => (paths::rescue_asynq().unwrap().expect("`go` is here"), None),
        other => (paths::rescue_python().unwrap(), Some(dir.join(format!("{other}_worker.py")))),
    }
}

/// Node finds packages only beside the program.
struct Workplace {
    dir: tempfile::TempDir,
    profile: &'static str,
    url: String,
}

impl Workplace {
    fn new(profile: &'static str, server: &RedisServer) -> Workplace {
        let dir = tempfile::tempdir().unwrap();
        symlink(paths::rescue_node_modules().unwrap(), dir.path().join("node_modules")).unwrap();
        if let (_, Some(file)) = program(profile) {
            std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
        Workplace { dir, profile, url: server.url() }
    }

    fn start(&self, args: &[&str], slow: Option<&str>) -> Program {
        self.start_with(args, slow.map(|slow| ("SLOW", slow)).as_slice())
    }

    fn start_with(&self, args: &[&str], env: &[(&str, &str)]) -> Program {
        let (interpreter, file) = program(self.profile);
        let copy = file.map(|file| self.dir.path().join(file.file_name().unwrap()));
        Program::start(&interpreter, |command| {
            command.args(copy).args(args).env("REDIS_URL", &self.url);
            command.envs(env.iter().copied());
        })
        .unwrap()
    }

    fn add(&self, ids: &[&str]) {
        let client = self.start(&[&["add"], ids].concat(), None);
        assert_eq!(client.line(LIMIT).unwrap(), "added");
    }

    /// A worker that has begun with a job and does not end it. Returns the job and its work horse, if there is one.
    fn stuck(&self, name: &str) -> (Program, String, Option<u32>) {
        let worker = self.start(&["work", name], Some("600000"));
        let (job, horse) = has_started(&worker);
        (worker, job, horse)
    }

    /// Waits until a worker has run that job.
    fn runs(&self, worker: &Program, job: &str) {
        let ran = format!("ran {job}");
        while worker.line(LIMIT).unwrap() != ran {}
    }
}

/// The next job that a worker begins with, and its work horse, if there is one.
fn has_started(worker: &Program) -> (String, Option<u32>) {
    loop {
        let line = worker.line(LIMIT).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["started", job, rest @ ..] = &words[..] {
            return ((*job).to_owned(), rest.first().and_then(|pid| pid.parse().ok()));
        }
    }
}

fn signal(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

fn kill(pid: u32) {
    signal(pid, "-9");
}

/// The parent first: a parent that sees its work horse die moves the job to the failed ones itself.
fn kill_both(worker: &Program, horse: Option<u32>) {
    worker.kill().unwrap();
    kill(horse.unwrap());
}

fn layout(profile: &str, limit: Duration) -> RescueLayout {
    RescueLayout {
        limit: Some(limit),
        grace: Some(Duration::from_millis(300)),
        ..RescueLayout::new(profile, RecoveryPolicy::default())
    }
}

fn rescued(redis: &Redis, profile: &str, limit: Duration) -> Arc<RescuedInflight> {
    Arc::new(redis.rescued_inflight(id(), layout(profile, limit)).unwrap())
}

/// Passes until so many were put back in all.
async fn put_back(inflight: &Arc<RescuedInflight>, redis: &Redis, jobs: u64) {
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, redis, Policy::default());
    let mut done = 0;
    eventually("the jobs to be put back", async || {
        done += pass(&sweeper).await.reclaimed;
        (done >= jobs).then_some(())
    })
    .await;
    assert_eq!(done, jobs);
}

/// Until nobody is spared any more because the server has just been started.
async fn past_the_grace(app: &App, redis: &Redis, grace: Duration) {
    let until_ms = redis.info().await.unwrap().back_ms + grace.as_millis() as u64 + 1_000;
    let is_over = async || (faults::now_ms(app) > until_ms).then_some(());
    eventually("the end of the grace", is_over).await;
}

/// So that others have time to act in the middle of a pass.
pub fn bit_by_bit() -> Policy {
    Policy { batch: 3, op_delay: Duration::from_millis(10), ..Policy::default() }
}

const SOON: Duration = Duration::from_millis(500);

async fn a_job_of_a_killed_rq_worker_runs_on_another_worker() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a", "b"]);
    let (worker, job, horse) = work.stuck("w1");
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "rq", SOON);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "its worker lives: {report:?}");
    kill_both(&worker, horse);
    put_back(&inflight, &redis, 1).await;
    let found = receipts(&redis, &id()).await;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].key.as_str(), found[0].owner.as_str()), (&*format!("mails/{job}"), "w1"));
    let other = work.start(&["work", "w2"], None);
    work.runs(&other, &job);
}

async fn trap_f2_a_work_horse_that_outlives_its_parent_keeps_its_job() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let (worker, _, horse) = work.stuck("w1");
    worker.kill().unwrap();
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "rq", Duration::ZERO);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    for _ in 0..5 {
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, report.suspects), (0, 0), "its horse works: {report:?}");
    }
    kill(horse.unwrap());
    put_back(&inflight, &redis, 1).await;
}

async fn trap_f3_a_new_worker_under_the_old_name_does_not_hide_the_death_of_the_old_one() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let (worker, job, horse) = work.stuck("same");
    kill_both(&worker, horse);
    // RQ refuses a second worker of the same name until the first one's record has expired.
    App::on(&server).text(&["DEL", "rq:worker:same"]);
    work.add(&["b"]);
    let (_second, other, _) = work.stuck("same");
    assert_ne!(job, other);
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "rq", SOON);
    put_back(&inflight, &redis, 1).await;
    assert_eq!(receipts(&redis, &id()).await[0].key.as_str(), format!("mails/{job}"));
}

async fn a_message_of_a_killed_dramatiq_worker_runs_on_another_worker() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("dramatiq", &server);
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("");
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "dramatiq", Duration::from_secs(3));
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "its worker lives: {report:?}");
    worker.kill().unwrap();
    put_back(&inflight, &redis, 1).await;
    let other = work.start(&["work"], None);
    work.runs(&other, &job);
}

async fn trap_f8_an_idle_bullmq_worker_is_woken_for_a_job_that_was_put_back() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("bullmq", &server);
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("w1");
    let idle = work.start(&["work", "w2"], None);
    assert_eq!(idle.line(LIMIT).unwrap(), "ready");
    worker.kill().unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
    work.runs(&idle, &job);
    assert_eq!(app.text(&["HGET", &format!("bull:mails:{job}"), "stc"]), "1");
    let waiting = app.text(&["LLEN", "bull:mails:active"]);
    assert!(waiting == "0" || waiting == "1", "{waiting}");
}

async fn trap_f7_a_payload_is_put_back_byte_for_byte() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("bullmq", &server);
    work.add(&["a"]);
    let app = App::on(&server);
    let before = app.text(&["HGET", "bull:mails:a", "data"]);
    let (worker, _, _) = work.stuck("w1");
    worker.kill().unwrap();
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
    assert_eq!(app.text(&["HGET", "bull:mails:a", "data"]), before);
    assert_eq!(app.text(&["LRANGE", "bull:mails:wait", "0", "-1"]), "a");
}

async fn trap_f12_a_job_that_kills_its_workers_ends_among_the_failed_jobs() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["poison"]);
    let redis = connect(&server.url());
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("rq", Duration::ZERO) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    for name in ["w1", "w2"] {
        let (worker, _, horse) = work.stuck(name);
        kill_both(&worker, horse);
        put_back(&inflight, &redis, 1).await;
    }
    let app = App::on(&server);
    assert_eq!(app.text(&["HGET", "rq:job:poison", "status"]), "failed");
    assert_eq!(app.text(&["ZRANGE", "rq:failed:mails", "0", "-1"]), "poison");
    assert_eq!(app.text(&["LLEN", "rq:queue:mails"]), "0");
}

/// Orphans as a killed worker leaves them, made by hand because thousands of real ones would take minutes.
fn leave_orphans(app: &App, jobs: usize) {
    app.text(&["HSET", "bull:mails:meta", "version", "bullmq:6.7.0", "opts.maxLenEvents", "10000"]);
    for n in 0..jobs {
        let n = n.to_string();
        app.text(&["HSET", &format!("bull:mails:{n}"), "name", "send", "data", "{}", "pb", "w1"]);
        app.text(&["LPUSH", "bull:mails:active", &n]);
    }
}

async fn two_sweepers_put_each_job_back_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_orphans(&app, 400);
    let (one, other) = (connect(&server.url()), connect(&server.url()));
    let sweeps: Vec<(Redis, Arc<dyn Sweep>)> = [one, other]
        .into_iter()
        .map(|redis| {
            let inflight: Arc<dyn Sweep> = rescued(&redis, "bullmq", Duration::ZERO);
            (redis, inflight)
        })
        .collect();
    let small = Policy { batch: 7, ..Policy::default() };
    let sweepers: Vec<_> =
        sweeps.iter().map(|(redis, sweep)| sweeper(sweep, redis, small.clone())).collect();
    eventually("all to be put back", async || {
        let (left, right) = tokio::join!(pass(&sweepers[0]), pass(&sweepers[1]));
        assert!(left.stopped != Stopped::Error && right.stopped != Stopped::Error);
        (app.text(&["LLEN", "bull:mails:active"]) == "0").then_some(())
    })
    .await;
    assert_eq!(app.text(&["LLEN", "bull:mails:wait"]), "400");
    let found = receipts(&sweeps[0].0, &id()).await;
    let mut keys: Vec<_> = found.iter().map(|receipt| receipt.key.clone()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), found.len()), (400, 400));
}

async fn detect_finds_the_systems_their_dead_workers_and_their_orphans() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let nothing = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap();
    assert!(nothing.found.is_empty(), "{nothing:?}");
    leave_orphans(&app, 3);
    let work = Workplace::new("rq", &server);
    work.add(&["a", "b"]);
    let (worker, _, horse) = work.stuck("w1");
    kill_both(&worker, horse);
    let found = eventually("RQ's orphan", async || {
        let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
        found.iter().any(|one| one.preset == "rq" && one.orphans == 1).then_some(found)
    })
    .await;
    let names: Vec<&str> = found.iter().map(|one| one.preset.as_str()).collect();
    assert_eq!(names, ["rq", "bullmq"]);
    let (rq, bullmq) = (&found[0], &found[1]);
    assert_eq!(
        (rq.in_flight, rq.workers_dead, rq.queues.as_slice()),
        (1, 1, &["mails".to_owned()][..])
    );
    assert!(rq.version.starts_with("2."), "{rq:?}");
    assert_eq!((bullmq.orphans, bullmq.version.as_str()), (3, "6.7.0"));
    let before = app.text(&["DBSIZE"]);
    redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap();
    assert_eq!(app.text(&["DBSIZE"]), before, "it only reads");
}

async fn a_key_of_another_type_is_left_alone_and_reported() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    leave_orphans(&app, 2);
    app.text(&["SET", "bull:mails:wait", "not a list"]);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "bullmq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let report = eventually("a pass", async || {
        Some(pass(&sweeper).await).filter(|report| report.stopped == Stopped::Done)
    })
    .await;
    assert_eq!(report.reclaimed, 0, "{report:?}");
    assert_eq!(report.skipped.values().sum::<u64>(), 2, "{report:?}");
    assert_eq!(app.text(&["LLEN", "bull:mails:active"]), "2");
}

async fn jobs_of_dead_workers_are_moved_to_another_queue() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let (worker, _, horse) = work.stuck("w1");
    kill_both(&worker, horse);
    let redis = connect(&server.url());
    let recovery =
        RecoveryPolicy { move_to: Some(Name::new("slow").unwrap()), ..RecoveryPolicy::default() };
    let moving = |profile| RescueLayout { recovery: recovery.clone(), ..layout(profile, SOON) };
    put_back(&Arc::new(redis.rescued_inflight(id(), moving("rq")).unwrap()), &redis, 1).await;
    let app = App::on(&server);
    assert_eq!(app.text(&["LRANGE", "rq:queue:slow", "0", "-1"]), "a");
    assert_eq!(app.text(&["HGET", "rq:job:a", "origin"]), "slow");
    assert_eq!(app.text(&["LLEN", "rq:queue:mails"]), "0");
    let receipt = &receipts(&redis, &id()).await[0];
    assert_eq!(
        (&receipt.removed["queue"], &receipt.removed["moved_to"]),
        (&"mails".into(), &"slow".into())
    );
    let refused = redis.rescued_inflight(id(), moving("bullmq")).err().unwrap();
    assert!(refused.to_string().contains("BullMQ"), "{refused}");
}

/// `on_death = "as-rq"`: what `StartedJobRegistry.cleanup` does, within seconds.
async fn with_rqs_own_rule_a_job_is_retried_and_then_failed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let app = App::on(&server);
    app.text(&["HSET", "rq:job:a", "retries_left", "2", "retry_intervals", "[60]"]);
    let redis = connect(&server.url());
    let layout = RescueLayout { as_system: true, ..layout("rq", Duration::ZERO) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    let kill_one = async |name: &str| {
        let (worker, _, horse) = work.stuck(name);
        kill_both(&worker, horse);
        put_back(&inflight, &redis, 1).await;
    };
    kill_one("w1").await;
    assert_eq!(app.text(&["HGET", "rq:job:a", "retries_left"]), "1");
    assert_eq!(app.text(&["HGET", "rq:job:a", "status"]), "scheduled");
    assert_eq!(app.text(&["ZRANGE", "rq:scheduled:mails", "0", "-1"]), "a");
    // Its time has come, and this time there is no interval.
    app.text(&["DEL", "rq:scheduled:mails"]);
    app.text(&["HSET", "rq:job:a", "status", "queued", "retry_intervals", "[0]"]);
    app.text(&["RPUSH", "rq:queue:mails", "a"]);
    kill_one("w2").await;
    assert_eq!(app.text(&["HGET", "rq:job:a", "retries_left"]), "0");
    assert_eq!(app.text(&["LRANGE", "rq:queue:mails", "0", "-1"]), "a");
    kill_one("w3").await;
    assert_eq!(app.text(&["HGET", "rq:job:a", "status"]), "failed");
    assert_eq!(app.text(&["ZRANGE", "rq:failed:mails", "0", "-1"]), "a");
}
