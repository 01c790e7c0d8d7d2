//! Tasks that killed Celery workers left: the real Celery, asked through its own remote control.
//!
//! What is left alone matters as much as what is put back: Celery's living workers are silent for many reasons.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_core::owner::OwnerStore;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Stopped, Sweep};
use lapsed_redis::{DetectOptions, FoundSystem, Redis, RescueLayout, RescuedInflight};
use lapsed_testbed::{Engine, Program, RedisServer};

use super::{LIMIT, id, layout, program, put_back, rescued};
use crate::story::{App, connect, eventually, pass, receipts, sweeper};

lapsed_testbed::steady_async_tests! {
    a_task_of_a_killed_celery_worker_runs_on_another_worker,
    tasks_are_back_15_s_after_the_kill_at_the_latest,
    trap_f1_tasks_of_living_workers_stay_and_their_score_is_renewed,
    trap_f3_a_celery_worker_under_the_old_name_does_not_hide_the_death_of_the_old_one,
    trap_f4_a_busy_solo_worker_decides_nothing,
    trap_f4_a_frozen_celery_worker_decides_nothing,
    trap_f5_the_late_acknowledgement_of_a_thawed_worker_removes_nothing,
    trap_f7_a_celery_message_is_put_back_byte_for_byte,
    trap_f9_a_task_keeps_its_priority,
    trap_f11_a_prefix_is_found_and_an_unknown_layout_is_refused,
    trap_f12_a_task_that_kills_its_workers_ends_as_a_dead_letter,
    prefetched_tasks_are_put_back_under_default_settings,
    a_worker_that_was_told_to_stop_keeps_its_task,
    tasks_that_wait_for_their_rate_limit_stay,
    without_remote_control_nothing_is_decided,
    two_sweepers_put_each_celery_task_back_once,
    half_written_messages_do_no_harm,
    messages_of_other_programs_and_without_a_queue_stay,
    detect_reports_orphans_and_leaves_no_key_behind,
}

const SOON: Duration = Duration::from_millis(300);

/// Tasks are acknowledged after they ran, and do not end.
pub const STUCK: &[(&str, &str)] = &[("LATE", "1"), ("SLOW", "600")];

pub const LATE: &[(&str, &str)] = &[("LATE", "1")];

pub struct Place {
    pub server: RedisServer,
    pub app: App,
    pub redis: Redis,
}

impl Place {
    pub fn new(engine: Engine) -> Place {
        let server = RedisServer::start(engine).unwrap();
        let (app, redis) = (App::on(&server), connect(&server.url()));
        Place { server, app, redis }
    }

    pub fn start(&self, args: &[&str], env: &[(&str, &str)]) -> Program {
        let (interpreter, file) = program("celery");
        Program::start(&interpreter, |command| {
            command.args(file).args(args).env("REDIS_URL", self.server.url());
            command.envs(env.iter().copied());
        })
        .unwrap()
    }

    pub fn add(&self, ids: &[&str], env: &[(&str, &str)]) {
        let client = self.start(&[&["add"], ids].concat(), env);
        assert_eq!(client.line(LIMIT).unwrap(), "added");
    }

    /// A worker that takes tasks.
    fn worker(&self, name: &str, env: &[(&str, &str)], options: &[&str]) -> Program {
        let worker = self.start(&[&["work", name], options].concat(), env);
        wait(&worker, "ready");
        worker
    }

    /// A worker that has begun with a task.
    pub fn stuck(&self, name: &str, env: &[(&str, &str)]) -> (Program, String) {
        let worker = self.start(&["work", name], env);
        let job = started(&worker);
        (worker, job)
    }

    fn unacked(&self) -> i64 {
        self.app.number(&["HLEN", "unacked"])
    }

    pub fn inflight(&self) -> Arc<RescuedInflight> {
        rescued(&self.redis, "celery", SOON)
    }

    /// Passes that put nothing back.
    pub async fn leaves_alone(&self, inflight: &Arc<RescuedInflight>, passes: usize) {
        let sweep: Arc<dyn Sweep> = inflight.clone();
        let sweeper = sweeper(&sweep, &self.redis, Policy::default());
        for _ in 0..passes {
            let report = pass(&sweeper).await;
            assert_eq!((report.reclaimed, report.suspects), (0, 0), "{report:?}");
        }
    }

    /// What `detect` says of Celery.
    pub async fn detected(&self) -> Option<FoundSystem> {
        let found = self.redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap();
        found.found.into_iter().find(|one| one.preset == "celery")
    }

    /// Waits until as many workers answer the remote control.
    pub async fn answering(&self, inflight: &Arc<RescuedInflight>, workers: usize) {
        eventually("the workers to answer", async || {
            let owners = inflight.owners(None, 100).await.ok()?;
            let living = owners.iter().filter(|owner| owner.owner.as_str().ends_with("@host"));
            (living.count() == workers).then_some(())
        })
        .await;
    }
}

pub fn wait(worker: &Program, wanted: &str) {
    while worker.line(LIMIT).unwrap() != wanted {}
}

fn started(worker: &Program) -> String {
    loop {
        let line = worker.line(LIMIT).unwrap();
        if let ["started", job, _pid] = line.split_whitespace().collect::<Vec<_>>()[..] {
            return job.to_owned();
        }
    }
}

async fn a_task_of_a_killed_celery_worker_runs_on_another_worker() {
    let place = Place::new(Engine::Redis);
    place.add(&["a"], &[]);
    let (worker, job) = place.stuck("w1", STUCK);
    let other = place.worker("w2", LATE, &[]);
    let inflight = place.inflight();
    place.answering(&inflight, 2).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    put_back(&inflight, &place.redis, 1).await;
    let found = receipts(&place.redis, &id()).await;
    assert_eq!((found[0].key.as_str(), found[0].owner.as_str()), (&*job, "w1@host"));
    wait(&other, &format!("ran {job}"));
}

/// The daemon looks every 3 s.
async fn tasks_are_back_15_s_after_the_kill_at_the_latest() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a"], &[]);
    let (worker, job) = place.stuck("w1", STUCK);
    let other = place.worker("w2", LATE, &[]);
    let grace = Some(Duration::from_millis(300));
    let layout = RescueLayout { grace, ..RescueLayout::new("celery", RecoveryPolicy::default()) };
    let inflight = Arc::new(place.redis.rescued_inflight(id(), layout).unwrap());
    place.answering(&inflight, 2).await;
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &place.redis, Policy::default());
    let mut every = tokio::time::interval(Duration::from_secs(3));
    every.tick().await;
    pass(&sweeper).await;
    worker.kill().unwrap();
    let killed = Instant::now();
    loop {
        every.tick().await;
        if pass(&sweeper).await.reclaimed == 1 {
            break;
        }
    }
    let took = killed.elapsed();
    println!("from the kill until the task was back: {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    wait(&other, &format!("ran {job}"));
}

async fn trap_f1_tasks_of_living_workers_stay_and_their_score_is_renewed() {
    let place = Place::new(Engine::Redis);
    place.add(&["long"], &[]);
    let (_worker, _) = place.stuck("w1", &[STUCK, &[("PREFETCH", "8")]].concat());
    place.add(&["later", "much-later"], &[("COUNTDOWN", "3000")]);
    eventually("the scheduled tasks", async || (place.unacked() == 3).then_some(())).await;
    let index = |at: &str| place.app.text(&["ZCOUNT", "unacked_index", at, "+inf"]);
    for tag in place.app.text(&["HKEYS", "unacked"]).split_whitespace() {
        place.app.text(&["ZADD", "unacked_index", "XX", "1000", tag]);
    }
    assert_eq!(index("1001"), "0");
    let inflight = place.inflight();
    eventually("a pass in which the worker answers", async || {
        place.leaves_alone(&inflight, 1).await;
        (index("1001") == "3").then_some(())
    })
    .await;
    place.leaves_alone(&inflight, 2).await;
    assert_eq!(place.unacked(), 3);
}

async fn trap_f3_a_celery_worker_under_the_old_name_does_not_hide_the_death_of_the_old_one() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a"], &[]);
    let (worker, job) = place.stuck("same", STUCK);
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    let second = place.worker("same", LATE, &[]);
    put_back(&inflight, &place.redis, 1).await;
    wait(&second, &format!("ran {job}"));
}

async fn trap_f4_a_busy_solo_worker_decides_nothing() {
    let place = Place::new(Engine::Redis);
    place.add(&["a"], &[]);
    let (worker, _) = place.stuck("w1", STUCK);
    place.add(&["b"], &[]);
    let busy = place.start(&["work", "w2", "-P", "solo"], STUCK);
    started(&busy);
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    place.leaves_alone(&inflight, 3).await;
    assert_eq!(place.unacked(), 2);
    let found = place.detected().await.unwrap();
    assert!(found.notes.iter().any(|note| note.contains("0 of 1 listeners")), "{found:?}");
}

async fn trap_f4_a_frozen_celery_worker_decides_nothing() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a"], &[]);
    let (worker, job) = place.stuck("w1", STUCK);
    let other = place.worker("w2", LATE, &[]);
    let inflight = place.inflight();
    place.answering(&inflight, 2).await;
    place.leaves_alone(&inflight, 1).await;
    other.freeze().unwrap();
    worker.kill().unwrap();
    place.leaves_alone(&inflight, 3).await;
    other.thaw().unwrap();
    put_back(&inflight, &place.redis, 1).await;
    wait(&other, &format!("ran {job}"));
}

async fn trap_f5_the_late_acknowledgement_of_a_thawed_worker_removes_nothing() {
    let place = Place::new(Engine::Redis);
    place.add(&["a"], &[]);
    let (worker, job) = place.stuck("w1", &[("LATE", "1"), ("SLOW", "4")]);
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    let old = place.app.text(&["HKEYS", "unacked"]);
    // Its child ends the task, and the worker will acknowledge it when it goes on. The server has closed its connections.
    worker.freeze().unwrap();
    wait(&worker, &format!("ran {job}"));
    for kind in ["normal", "pubsub"] {
        place.app.text(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    put_back(&inflight, &place.redis, 1).await;
    let (_second, again) = place.stuck("w2", STUCK);
    assert_eq!(again, job);
    let new = place.app.text(&["HKEYS", "unacked"]);
    assert_ne!(old, new, "a fresh delivery tag");
    worker.thaw().unwrap();
    place.answering(&inflight, 2).await;
    place.leaves_alone(&inflight, 2).await;
    assert_eq!(place.app.text(&["HKEYS", "unacked"]), new);
    assert_eq!(place.app.text(&["ZRANGE", "unacked_index", "0", "-1"]), new);
}

async fn trap_f7_a_celery_message_is_put_back_byte_for_byte() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a"], &[]);
    let before = place.app.text(&["LRANGE", "mails", "0", "-1"]);
    assert!(before.contains("12345678901234567890123") && before.contains("\\u2028"), "{before}");
    let (worker, _) = place.stuck("w1", STUCK);
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    // No worker lives.
    put_back(&inflight, &place.redis, 1).await;
    let after = place.app.text(&["LRANGE", "mails", "0", "-1"]);
    let tag = |message: &str| {
        let rest = message.split("\"delivery_tag\": \"").nth(1).unwrap().to_owned();
        rest.split('"').next().unwrap().to_owned()
    };
    assert_ne!(tag(&after), tag(&before));
    assert_eq!(after.matches(", \"redelivered\": true").count(), 2);
    let undone = after.replace(", \"redelivered\": true", "").replace(&tag(&after), &tag(&before));
    assert_eq!(undone, before);
    assert_eq!(place.app.text(&["EXISTS", "unacked", "unacked_index"]), "0");
}

async fn trap_f9_a_task_keeps_its_priority() {
    let place = Place::new(Engine::Redis);
    place.add(&["a"], &[("PRIORITY", "5")]);
    let list = "mails\u{6}\u{16}3";
    assert_eq!(place.app.text(&["LLEN", list]), "1");
    let (worker, job) = place.stuck("w1", STUCK);
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    put_back(&inflight, &place.redis, 1).await;
    assert_eq!(place.app.text(&["LLEN", list]), "1");
    let other = place.start(&["work", "w2"], LATE);
    wait(&other, &format!("ran {job}"));
}

async fn trap_f11_a_prefix_is_found_and_an_unknown_layout_is_refused() {
    let place = Place::new(Engine::Valkey);
    let env = [STUCK, &[("PREFIX", "shop:")]].concat();
    place.add(&["a"], &env);
    let (worker, _) = place.stuck("w1", &env);
    let layout = RescueLayout { prefix: Some("shop:".to_owned()), ..layout("celery", SOON) };
    let inflight = Arc::new(place.redis.rescued_inflight(id(), layout).unwrap());
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    put_back(&inflight, &place.redis, 1).await;
    assert_eq!(place.app.text(&["LLEN", "shop:mails"]), "1");
    place.app.text(&["SET", "shop:unacked", "not a hash"]);
    let found = place.detected().await.unwrap();
    assert!(found.notes[0].contains("`shop:unacked` is a string"), "{found:?}");
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &place.redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Error), "{report:?}");
}

async fn trap_f12_a_task_that_kills_its_workers_ends_as_a_dead_letter() {
    let place = Place::new(Engine::Redis);
    place.add(&["poison"], &[]);
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("celery", SOON) };
    let inflight = Arc::new(place.redis.rescued_inflight(id(), layout).unwrap());
    for name in ["w1", "w2"] {
        let (worker, _) = place.stuck(name, STUCK);
        place.answering(&inflight, 1).await;
        place.leaves_alone(&inflight, 1).await;
        worker.kill().unwrap();
        put_back(&inflight, &place.redis, 1).await;
    }
    assert_eq!((place.unacked(), place.app.number(&["LLEN", "mails"])), (0, 0));
    let letters = place.app.text(&["KEYS", "lapsed:*:dead_letters"]);
    assert_eq!(place.app.text(&["LLEN", &letters]), "1");
    // As the page says.
    place.app.text(&["LMOVE", &letters, "mails", "RIGHT", "RIGHT"]);
    let other = place.start(&["work", "w3"], LATE);
    wait(&other, "ran poison");
}

async fn prefetched_tasks_are_put_back_under_default_settings() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a", "b", "c", "d", "e"], &[]);
    let (worker, running) = place.stuck("w1", &[("SLOW", "600"), ("PREFETCH", "4")]);
    eventually("the prefetched tasks", async || (place.unacked() >= 3).then_some(())).await;
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    let found = place.detected().await.unwrap();
    assert!(found.notes.iter().any(|note| note.contains("task_acks_late")), "{found:?}");
    let held = place.unacked();
    worker.kill().unwrap();
    put_back(&inflight, &place.redis, held as u64).await;
    assert_eq!(
        place.app.number(&["LLEN", "mails"]),
        4,
        "all but {running}, which Celery acknowledged"
    );
}

async fn a_worker_that_was_told_to_stop_keeps_its_task() {
    let place = Place::new(Engine::Redis);
    place.add(&["a"], &[]);
    let (worker, job) = place.stuck("w1", &[("LATE", "1"), ("SLOW", "15")]);
    let _other = place.worker("w2", LATE, &[]);
    let inflight = place.inflight();
    place.answering(&inflight, 2).await;
    place.leaves_alone(&inflight, 1).await;
    let pid = worker.pid().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 2).await;
    wait(&worker, &format!("ran {job}"));
    eventually("its acknowledgement", async || (place.unacked() == 0).then_some(())).await;
    place.leaves_alone(&inflight, 1).await;
}

async fn tasks_that_wait_for_their_rate_limit_stay() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a", "b", "c"], &[]);
    let env = [LATE, &[("RATE", "1/h"), ("PREFETCH", "8")]].concat();
    let worker = place.worker("w1", &env, &[]);
    wait(&worker, "ran a");
    eventually("the others to wait", async || (place.unacked() == 2).then_some(())).await;
    let inflight = place.inflight();
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 3).await;
    assert_eq!(place.unacked(), 2);
    let found = place.detected().await.unwrap();
    assert!(found.notes.iter().any(|note| note.contains("rate limit")), "{found:?}");
}

async fn without_remote_control_nothing_is_decided() {
    let place = Place::new(Engine::Redis);
    place.add(&["a"], &[]);
    let env = [STUCK, &[("CONTROL", "0")]].concat();
    let (worker, _) = place.stuck("w1", &env);
    let inflight = place.inflight();
    place.leaves_alone(&inflight, 2).await;
    worker.kill().unwrap();
    place.leaves_alone(&inflight, 2).await;
    let found = place.detected().await.unwrap();
    assert_eq!((found.in_flight, found.orphans), (1, 0));
    assert!(found.notes.iter().any(|note| note.contains("remote control")), "{found:?}");
}

/// Messages as a killed worker leaves them, made by hand because hundreds of real ones would take minutes.
fn leave_orphans(app: &App, tasks: usize) {
    app.text(&[
        "SADD",
        "_kombu.binding.celery.pidbox",
        "\u{6}\u{16}\u{6}\u{16}w1@host.celery.pidbox",
    ]);
    let now = app.text(&["TIME"]).split_whitespace().next().unwrap().to_owned();
    for n in 0..tasks {
        let (tag, value) = (format!("tag-{n}"), message(&n.to_string(), "", "mails"));
        app.text(&["HSET", "unacked", &tag, &value]);
        app.text(&["ZADD", "unacked_index", &now, &tag]);
    }
}

pub fn message(id: &str, exchange: &str, key: &str) -> String {
    format!(
        r#"[{{"body": "W10=", "headers": {{"task": "job", "id": "{id}", "eta": null}}, "properties": {{"delivery_info": {{"exchange": "{exchange}", "routing_key": "{key}"}}, "priority": 0, "delivery_tag": "t"}}}}, "{exchange}", "{key}"]"#
    )
}

async fn two_sweepers_put_each_celery_task_back_once() {
    let place = Place::new(Engine::Redis);
    leave_orphans(&place.app, 300);
    let other = connect(&place.server.url());
    let sweeps: [Arc<dyn Sweep>; 2] = [place.inflight(), rescued(&other, "celery", SOON)];
    let small = Policy { batch: 7, ..Policy::default() };
    let sweepers = [
        sweeper(&sweeps[0], &place.redis, small.clone()),
        sweeper(&sweeps[1], &other, small.clone()),
    ];
    eventually("all to be put back", async || {
        let (left, right) = tokio::join!(pass(&sweepers[0]), pass(&sweepers[1]));
        assert!(left.stopped != Stopped::Error && right.stopped != Stopped::Error);
        (place.unacked() == 0).then_some(())
    })
    .await;
    assert_eq!(place.app.text(&["LLEN", "mails"]), "300");
    let found = receipts(&place.redis, &id()).await;
    let mut keys: Vec<_> = found.iter().map(|receipt| receipt.key.clone()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), found.len()), (300, 300));
}

async fn half_written_messages_do_no_harm() {
    let place = Place::new(Engine::Valkey);
    leave_orphans(&place.app, 1);
    place.app.text(&["ZADD", "unacked_index", "1700000000", "without-a-message"]);
    place.app.text(&["HSET", "unacked", "without-a-score", &message("x", "", "mails")]);
    place.app.text(&["HSET", "unacked", "broken", "[{\"headers\": {\"task\""]);
    put_back(&place.inflight(), &place.redis, 2).await;
    assert_eq!(place.app.text(&["HKEYS", "unacked"]), "broken");
    assert_eq!(place.app.text(&["ZRANGE", "unacked_index", "0", "-1"]), "without-a-message");
    assert_eq!(place.app.text(&["LLEN", "mails"]), "2");
}

async fn messages_of_other_programs_and_without_a_queue_stay() {
    let place = Place::new(Engine::Redis);
    leave_orphans(&place.app, 1);
    place.app.text(&["HSET", "unacked", "unrouted", &message("lost", "post", "mail")]);
    let foreign = message("f", "", "mails").replace("\"task\": \"job\", ", "");
    place.app.text(&["HSET", "unacked", "foreign", &foreign]);
    place.app.text(&["SET", "letters", "not a list"]);
    place.app.text(&["HSET", "unacked", "wrong", &message("w", "", "letters")]);
    let inflight = place.inflight();
    put_back(&inflight, &place.redis, 1).await;
    assert_eq!(place.unacked(), 3);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &place.redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.skipped.values().sum::<u64>()), (0, 1), "{report:?}");
    let found = place.detected().await.unwrap();
    assert!(found.notes.iter().any(|note| note.contains("exchange `post`")), "{found:?}");
    assert!(found.notes.iter().any(|note| note.contains("not tasks of Celery")), "{found:?}");
    place.app.text(&["DEL", "_kombu.binding.celery.pidbox", "unacked"]);
    place.app.text(&["HSET", "unacked", "foreign", &foreign]);
    assert_eq!(place.detected().await, None, "kombu without Celery");
}

async fn detect_reports_orphans_and_leaves_no_key_behind() {
    let place = Place::new(Engine::Valkey);
    place.add(&["a"], &[]);
    let (worker, _) = place.stuck("w1", STUCK);
    let _other = place.worker("w2", LATE, &[]);
    eventually("both workers to answer", async || {
        let found = place.detected().await?;
        (found.workers_alive == 2 && found.orphans == 0).then_some(())
    })
    .await;
    worker.kill().unwrap();
    let keys = || place.app.text(&["KEYS", "*"]).split_whitespace().count();
    let before = keys();
    let found = eventually("the orphan", async || {
        place.detected().await.filter(|found| found.orphans == 1)
    })
    .await;
    assert_eq!((found.in_flight, found.workers_alive, found.workers_dead), (1, 1, 1), "{found:?}");
    assert_eq!(found.queues, ["mails"]);
    assert_eq!(keys(), before);
    assert_eq!(place.app.text(&["EXISTS", "_kombu.binding.reply.celery.pidbox"]), "0");
    // A user that may only read learns what can be known without asking.
    let only_read = ["on", "nopass", "~*", "&*", "+@read", "+@connection", "+info", "+time"];
    place.app.call(&[&["ACL", "SETUSER", "reader"], &only_read[..]].concat());
    let url = place.server.url().replacen("redis://", "redis://reader:any@", 1);
    let found = connect(&url).detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    let celery = found.iter().find(|one| one.preset == "celery").unwrap();
    assert!(celery.notes.iter().any(|note| note.contains("may not ask")), "{celery:?}");
}
