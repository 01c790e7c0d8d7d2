//! Resque's layout: node-resque as the real program, and Ruby's heartbeats as fixtures. A heartbeat is overdue after 15 s, so
//! most stories date the last ping of a killed worker back: to Redis that is the same as time that has passed.

use super::*;

lapsed_testbed::steady_async_tests! {
    a_job_of_a_killed_node_resque_worker_runs_on_another_worker,
    trap_f3_a_new_worker_under_the_old_name_gives_back_the_old_ones_job,
    trap_f10_node_resques_own_clean_up_at_the_same_instant_loses_nothing,
    two_sweepers_put_each_resque_job_back_once,
    trap_f12_a_job_that_kills_its_resque_workers_is_failed_in_resques_format,
    trap_f7_a_ruby_payload_is_put_back_byte_for_byte,
    a_worker_that_beats_or_never_beat_keeps_its_job,
    a_wrong_type_is_left_alone_and_reported,
    records_that_cannot_be_read_hide_no_job,
    large_jobs_go_one_by_one,
    equal_jobs_that_die_together_are_no_crash_of_each_other,
    detect_finds_resques_dead_workers,
}

const QUEUE: &str = "resque:queue:mails";

fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_secs()
}

/// The last ping of a killed worker was a minute ago.
pub fn date_back(app: &App, name: &str) {
    let ping = format!(r#"{{"time":{},"name":"{name}","queues":"mails"}}"#, now_s() - 60);
    app.text(&["SET", &format!("resque:worker:ping:{name}"), &ping]);
}

async fn a_job_of_a_killed_node_resque_worker_runs_on_another_worker() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("resque", &server);
    work.add(&["a", "idle"]);
    let (worker, job, _) = work.stuck("w1");
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let inflight = rescued(&redis, "resque", SOON);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "its worker lives: {report:?}");
    worker.kill().unwrap();
    date_back(&app, "w1");
    put_back(&inflight, &redis, 1).await;
    let found = receipts(&redis, &id()).await;
    assert!(found[0].key.as_str().starts_with("mails/send/"), "{found:?}");
    assert!(found[0].owner.as_str().starts_with("w1:mails, last seen "), "{found:?}");
    let left = ["resque:worker:w1:mails", "resque:worker:w1:mails:started", "resque:workers"];
    assert_eq!(app.text(&[&["EXISTS"], &left[..]].concat()), "0", "it is unregistered");
    let other = work.start(&["work", "w2"], None);
    work.runs(&other, &job);
    // A job without arguments, which node-resque's own record shows as an object.
    work.runs(&other, "idle 0");
}

async fn trap_f3_a_new_worker_under_the_old_name_gives_back_the_old_ones_job() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("resque", &server);
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("same");
    worker.kill().unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    // Starts are told in whole seconds.
    let started = now_s();
    eventually("the clock to go on", async || (now_s() > started + 3).then_some(())).await;
    let second = work.start(&["work", "same"], None);
    assert_eq!(second.line(LIMIT).unwrap(), "ready");
    put_back(&rescued(&redis, "resque", SOON), &redis, 1).await;
    assert!(receipts(&redis, &id()).await[0].owner.as_str().contains("same:mails, before "));
    work.runs(&second, &job);
    assert_eq!(app.text(&["SMEMBERS", "resque:workers"]), "same:mails", "the new one stays");
}

/// Workers of Node that were killed with a job an hour ago.
pub fn leave_jobs(app: &App, jobs: std::ops::Range<usize>) {
    app.text(&["SADD", "resque:queues", "mails"]);
    for n in jobs {
        let (name, id) = (format!("vm:{n}"), format!("vm:{n}:mails"));
        let record = format!(
            r#"{{"run_at":"Wed Nov 18 2020 12:00:00 GMT+0000 (UTC)","queue":"mails","worker":"{name}","payload":{{"class":"send","queue":"mails","args":["{n}"]}}}}"#
        );
        app.text(&["SADD", "resque:workers", &id]);
        app.text(&["SET", &format!("resque:worker:{id}"), &record]);
        app.text(&["SET", &format!("resque:worker:{id}:started"), "1605700000"]);
        date_back(app, &name);
    }
}

async fn trap_f10_node_resques_own_clean_up_at_the_same_instant_loses_nothing() {
    const JOBS: usize = 300;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("resque", &server);
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let inflight = rescued(&redis, "resque", Duration::ZERO);
    leave_jobs(&app, 0..1);
    // From then on nobody is spared because the server has just been found.
    put_back(&inflight, &redis, 1).await;
    leave_jobs(&app, 1..JOBS);
    let sweep: Arc<dyn Sweep> = inflight;
    let sweeper = sweeper(&sweep, &redis, bit_by_bit());
    let clean = work.start(&["clean", "1000"], None);
    assert_eq!(clean.line(LIMIT).unwrap(), "ready");
    let sweeping = eventually("nobody to hold a job", async || {
        assert!(pass(&sweeper).await.stopped != Stopped::Error);
        (app.text(&["EXISTS", "resque:workers"]) == "0").then_some(())
    });
    let cleaning = async {
        eventually("lapsed to begin", async || (app.number(&["LLEN", QUEUE]) > 5).then_some(()))
            .await;
        clean.say("clean").unwrap();
    };
    tokio::join!(sweeping, cleaning);
    assert_eq!(clean.line(LIMIT).unwrap(), "cleaned");
    let lines = |key| {
        let text = app.text(&["LRANGE", key, "0", "-1"]);
        let mut ids: Vec<String> = text
            .lines()
            .map(|line| {
                let at = line.find(r#""args":[""#).unwrap() + 9;
                line[at..].split('"').next().unwrap().to_owned()
            })
            .collect();
        ids.sort();
        ids
    };
    let (queued, failed) = (lines(QUEUE), lines("resque:failed"));
    let mut all = [queued.clone(), failed.clone()].concat();
    all.sort();
    let both = all.len();
    all.dedup();
    eprintln!(
        "{} put back by lapsed, {} failed by node-resque, {} of them both",
        queued.len(),
        failed.len(),
        both - all.len()
    );
    assert_eq!(all.len(), JOBS, "no job is lost");
    assert!(!failed.is_empty(), "node-resque's clean-up had its share");
    let mut once = queued.clone();
    once.dedup();
    assert_eq!((once.len(), receipts(&redis, &id()).await.len()), (queued.len(), queued.len()));
}

async fn two_sweepers_put_each_resque_job_back_once() {
    const JOBS: usize = 200;
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    leave_jobs(&app, 0..JOBS);
    let (one, other) = (connect(&server.url()), connect(&server.url()));
    let both =
        [&one, &other].map(|redis| rescued(redis, "resque", Duration::ZERO) as Arc<dyn Sweep>);
    let small = Policy { batch: 7, ..Policy::default() };
    let sweepers = [sweeper(&both[0], &one, small.clone()), sweeper(&both[1], &other, small)];
    eventually("all to be put back", async || {
        let (left, right) = tokio::join!(pass(&sweepers[0]), pass(&sweepers[1]));
        assert!(left.stopped != Stopped::Error, "{left:?}");
        assert!(right.stopped != Stopped::Error, "{right:?}");
        (app.text(&["EXISTS", "resque:workers"]) == "0").then_some(())
    })
    .await;
    assert_eq!(app.text(&["LLEN", QUEUE]), JOBS.to_string());
    assert_eq!(receipts(&one, &id()).await.len(), JOBS);
}

async fn trap_f12_a_job_that_kills_its_resque_workers_is_failed_in_resques_format() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("resque", &server);
    work.add(&["poison"]);
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("resque", Duration::ZERO) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    for name in ["w1", "w2"] {
        let (worker, _, _) = work.stuck(name);
        worker.kill().unwrap();
        date_back(&app, name);
        put_back(&inflight, &redis, 1).await;
    }
    let reader = work.start(&["failed"], None);
    assert_eq!(reader.line(LIMIT).unwrap(), "mails poison Resque::DirtyExit");
    assert_eq!(reader.line(LIMIT).unwrap(), "end");
    assert_eq!(app.text(&["GET", "resque:stat:failed"]), "1");
    assert_eq!(app.text(&["LLEN", QUEUE]), "0");
}

/// A host dies with several jobs that have the same class and arguments: each of them died once.
async fn equal_jobs_that_die_together_are_no_crash_of_each_other() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let payload = r#"{"class":"Send","args":[1]}"#;
    for worker in ["vm:1:mails", "vm:2:mails", "vm:3:mails", "vm:4:mails"] {
        leave_ruby_worker(&app, worker, payload, 3_600);
    }
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("resque", Duration::ZERO) };
    put_back(&Arc::new(redis.rescued_inflight(id(), layout).unwrap()), &redis, 4).await;
    assert_eq!(app.number(&["LLEN", QUEUE]), 4);
    assert_eq!(app.number(&["LLEN", "resque:failed"]), 0);
}

/// A worker of Ruby with a job, whose last heartbeat was so long ago.
fn leave_ruby_worker(app: &App, worker: &str, payload: &str, seconds_ago: u64) {
    let beat = jiff::Timestamp::from_second((now_s() - seconds_ago) as i64).unwrap().to_string();
    let record =
        format!(r#"{{"queue":"mails","run_at":"2026-11-18T12:00:00Z","payload":{payload}}}"#);
    app.text(&["SADD", "resque:workers", worker]);
    app.text(&["SET", &format!("resque:worker:{worker}"), &record]);
    app.text(&["SET", &format!("resque:worker:{worker}:started"), "2026-11-18 11:00:00 +0000"]);
    app.text(&["HSET", "resque:workers:heartbeat", worker, &beat]);
}

async fn trap_f7_a_ruby_payload_is_put_back_byte_for_byte() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let payload = r#"{"class":"Send","args":[1.0,9007199254740993,"\u00e9/\"}",{},[]] }"#;
    leave_ruby_worker(&app, "vm:1:mails", payload, 120);
    app.text(&["SET", "resque:pruning_dead_workers_in_progress", "vm:2:mails"]);
    let inflight = rescued(&redis, "resque", Duration::ZERO);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let report = eventually("a suspect", async || {
        Some(pass(&sweeper).await).filter(|report| report.suspects > 0)
    })
    .await;
    assert_eq!(report.reclaimed, 0, "Resque itself cleans up: {report:?}");
    app.text(&["DEL", "resque:pruning_dead_workers_in_progress"]);
    put_back(&inflight, &redis, 1).await;
    assert_eq!(app.text(&["LRANGE", QUEUE, "0", "-1"]), payload);
    assert_eq!(app.text(&["EXISTS", "resque:workers", "resque:workers:heartbeat"]), "0");
}

async fn a_worker_that_beats_or_never_beat_keeps_its_job() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let payload = r#"{"class":"Send","args":[1]}"#;
    leave_ruby_worker(&app, "vm:1:mails", payload, 10);
    leave_ruby_worker(&app, "vm:2:mails", payload, 10);
    app.text(&["HDEL", "resque:workers:heartbeat", "vm:2:mails"]);
    let sweep: Arc<dyn Sweep> = rescued(&redis, "resque", SOON);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    // A clock that is an hour slow: every heartbeat looks overdue, but each is another one.
    let begin = std::time::Instant::now();
    let mut beats = 0;
    while begin.elapsed() < 4 * SOON {
        leave_ruby_worker(&app, "vm:3:mails", payload, 3_600 - beats);
        beats += 1;
        let report = pass(&sweeper).await;
        assert_eq!(report.reclaimed, 0, "{report:?}");
    }
    assert_eq!(app.text(&["SCARD", "resque:workers"]), "3");
}

async fn a_wrong_type_is_left_alone_and_reported() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    leave_jobs(&app, 0..2);
    app.text(&["SET", QUEUE, "not a list"]);
    let sweep: Arc<dyn Sweep> = rescued(&redis, "resque", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let report = eventually("a pass", async || {
        Some(pass(&sweeper).await).filter(|report| report.suspects == 2)
    })
    .await;
    assert_eq!((report.reclaimed, report.skipped.values().sum()), (0, 2u64), "{report:?}");
    assert_eq!(app.text(&["SCARD", "resque:workers"]), "2");
}

/// Half of a record, a record without a payload, and a worker without a record, as a crash or another program leaves them.
async fn records_that_cannot_be_read_hide_no_job() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    leave_jobs(&app, 0..4);
    let record = app.text(&["GET", "resque:worker:vm:0:mails"]);
    app.text(&["SET", "resque:worker:vm:0:mails", &record[..record.len() / 2]]);
    app.text(&["SET", "resque:worker:vm:1:mails", r#"{"queue":"mails","worker":"vm:1"}"#]);
    app.text(&["DEL", "resque:worker:vm:2:mails"]);
    put_back(&rescued(&redis, "resque", Duration::ZERO), &redis, 1).await;
    let left = app.text(&["SMEMBERS", "resque:workers"]);
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    assert_eq!(left, ["vm:0:mails", "vm:1:mails", "vm:2:mails"]);
    assert!(app.text(&["LRANGE", QUEUE, "0", "-1"]).contains(r#""args":["3"]"#));
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    let notes = found[0].notes.join("; ");
    assert!(notes.contains("the job of worker `vm:0:mails` cannot be read"), "{notes}");
    assert!(notes.contains("the job of worker `vm:1:mails` cannot be read"), "{notes}");
}

async fn detect_finds_resques_dead_workers() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("resque", &server);
    work.add(&["a", "b"]);
    let (_worker, ..) = work.stuck("w1");
    let (app, redis) = (App::on(&server), connect(&server.url()));
    leave_jobs(&app, 0..3);
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert_eq!((found.len(), found[0].preset.as_str()), (1, "resque"), "{found:?}");
    assert_eq!((found[0].in_flight, found[0].orphans, found[0].workers_alive), (4, 3, 1));
    assert_eq!((found[0].workers_dead, &found[0].queues[..]), (3, &["mails".to_owned()][..]));
}

/// The decisive step reads the record of a worker as a whole.
async fn large_jobs_go_one_by_one() {
    const JOBS: usize = 8;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    for n in 0..JOBS {
        let text = "x".repeat(200_000);
        let payload = format!(r#"{{"class":"Send","args":[{n},"{text}"]}}"#);
        leave_ruby_worker(&app, &format!("vm:{n}:mails"), &payload, 3_600);
    }
    let inflight = rescued(&redis, "resque", Duration::ZERO);
    put_back(&inflight, &redis, JOBS as u64).await;
    let batches: std::collections::BTreeSet<u64> =
        receipts(&redis, &id()).await.iter().map(|receipt| receipt.batch).collect();
    assert_eq!(batches.len(), JOBS, "more than one in a batch");
}
