//! What may go wrong while jobs are put back: frozen workers, a server that is restarted, thousands of orphans, large and
//! half-written keys.

use std::time::Instant;

use lapsed_core::inflight::rules::OnDeath;
use lapsed_core::sweep::{Outcome, PassMode};
use lapsed_testbed::{Persistence, ServerOptions};

use super::*;
use crate::story::{reclaim, suspects};

lapsed_testbed::steady_async_tests! {
    ten_thousand_jobs_of_one_worker_are_put_back_in_short_calls,
    large_payloads_are_not_read_to_put_a_job_back,
    a_binary_payload_is_put_back_and_dropped_as_it_is,
    a_job_that_ends_between_suspicion_and_put_back_stays_ended,
    a_job_that_runs_again_elsewhere_is_not_put_back_for_its_first_worker,
    a_retried_job_whose_horse_begins_late_stays_with_its_worker,
    half_written_keys_are_cleaned_and_hide_nothing,
    a_key_of_another_type_does_not_hide_other_queues,
    a_restart_of_redis_spares_everybody_for_the_grace,
    a_stopped_rq_worker_keeps_its_job_while_it_is_connected,
    a_stopped_bullmq_worker_is_refused_when_it_completes_late,
    a_delayed_message_is_buried_where_dramatiq_looks_for_it,
}

pub const PROFILES: [&str; 3] = ["rq", "dramatiq", "bullmq"];

pub const GONE: &str = "306d24c2-4422-4f1e-a42b-6b7630a5d3ab";

/// Leaves jobs `j1`, `j2`… as a killed worker leaves them. KEYS none; ARGV count, payload, now_ms, worker.
pub fn leave_many(app: &App, profile: &str, jobs: usize, payload: &[u8]) {
    let script: &str = match profile {
        "rq" => {
            "redis.call('SADD', 'rq:queues', 'rq:queue:mails')
            for n = 1, ARGV[1] do
              local id, e = 'j' .. n, string.format('%032x', n)
              redis.call('HSET', 'rq:job:' .. id, 'status', 'started', 'origin', 'mails', 'worker_name', 'gone', 'data', ARGV[2],
                'started_at', '2026-11-18T12:00:00.000000Z')
              redis.call('HSET', 'rq:execution:' .. id .. ':' .. e, 'id', e, 'worker_name', 'gone', 'created_at', '1794926540.1')
              redis.call('ZADD', 'rq:executions:' .. id, '9999999999', e)
              redis.call('ZADD', 'rq:wip:mails', math.floor(ARGV[3] / 1000) + 80, id .. ':' .. e)
            end"
        }
        "dramatiq" => {
            "redis.call('ZADD', 'dramatiq:__heartbeats__', ARGV[3] - 100000, ARGV[4])
            for n = 1, ARGV[1] do
              redis.call('HSET', 'dramatiq:mails.msgs', 'j' .. n, ARGV[2])
              redis.call('SADD', 'dramatiq:__acks__.' .. ARGV[4] .. '.mails', 'j' .. n)
            end"
        }
        _ => {
            "redis.call('HSET', 'bull:mails:meta', 'version', 'bullmq:6.7.0', 'opts.maxLenEvents', '10000')
            for n = 1, ARGV[1] do
              redis.call('HSET', 'bull:mails:j' .. n, 'name', 'send', 'data', ARGV[2], 'pb', 'gone')
              redis.call('LPUSH', 'bull:mails:active', 'j' .. n)
            end"
        }
    };
    let (jobs, now) = (jobs.to_string(), now_ms(app).to_string());
    app.bytes(&[
        b"EVAL",
        script.as_bytes(),
        b"0",
        jobs.as_bytes(),
        payload,
        now.as_bytes(),
        GONE.as_bytes(),
    ]);
}

pub fn now_ms(app: &App) -> u64 {
    let time = app.text(&["TIME"]);
    let mut parts = time.lines().map(|line| line.parse::<u64>().unwrap());
    parts.next().unwrap() * 1_000 + parts.next().unwrap() / 1_000
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The ids on the queue, sorted.
pub fn waiting(app: &App, profile: &str) -> Vec<String> {
    let key = match profile {
        "rq" => "rq:queue:mails",
        "dramatiq" => "dramatiq:mails",
        _ => "bull:mails:wait",
    };
    lines(&app.text(&["LRANGE", key, "0", "-1"]))
}

pub fn ids(jobs: usize) -> Vec<String> {
    let mut ids: Vec<String> = (1..=jobs).map(|n| format!("j{n}")).collect();
    ids.sort();
    ids
}

/// The limit at which a worker that was killed long ago is dead.
pub fn short_limit(profile: &str) -> Duration {
    if profile == "dramatiq" { Duration::from_secs(1) } else { Duration::ZERO }
}

/// Calls of scripts since the statistics were reset, and the server's time for one.
fn script_calls(app: &App) -> (u64, Duration) {
    let stats = app.text(&["INFO", "commandstats"]);
    let (mut calls, mut micros) = (0, 0);
    for line in stats.lines().filter(|line| {
        ["evalsha", "eval", "fcall"].iter().any(|one| line.starts_with(&format!("cmdstat_{one}:")))
    }) {
        let field = |name: &str| -> u64 {
            let rest = line.split_once(name).unwrap().1;
            rest.split(',').next().unwrap().parse().unwrap()
        };
        calls += field("calls=");
        micros += field("usec=");
    }
    (calls, Duration::from_micros(micros / calls.max(1)))
}

async fn ten_thousand_jobs_of_one_worker_are_put_back_in_short_calls() {
    const JOBS: usize = 10_000;
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        leave_many(&app, profile, JOBS, b"{}");
        app.call(&["CONFIG", "RESETSTAT"]);
        let redis = connect(&server.url());
        let began = Instant::now();
        put_back(&rescued(&redis, profile, short_limit(profile)), &redis, JOBS as u64).await;
        let took = began.elapsed();
        let (calls, mean) = script_calls(&app);
        println!("{profile}: {JOBS} jobs in {took:.1?}, {calls} calls, {mean:.2?} each");
        assert_eq!(waiting(&app, profile), ids(JOBS), "{profile}");
        // The policy's `hold`. A single call may be longer because the machine is busy.
        assert!(mean < Duration::from_millis(2), "{profile}: {mean:?}");
        let found = receipts(&redis, &id()).await;
        assert_eq!(found.len(), JOBS, "{profile}");
    }
}

async fn large_payloads_are_not_read_to_put_a_job_back() {
    const JOBS: usize = 64;
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        leave_many(&app, profile, JOBS, &vec![b'x'; 1 << 20]);
        app.call(&["CONFIG", "RESETSTAT"]);
        let redis = connect(&server.url());
        put_back(&rescued(&redis, profile, short_limit(profile)), &redis, JOBS as u64).await;
        let (calls, mean) = script_calls(&app);
        println!("{profile}: {JOBS} jobs of 1 MB, {calls} calls, {mean:.2?} each");
        assert_eq!(waiting(&app, profile), ids(JOBS), "{profile}");
        // With the payloads it were 64 MB in three calls.
        assert!(mean < Duration::from_millis(1), "{profile}: {mean:?}");
    }
}

async fn a_binary_payload_is_put_back_and_dropped_as_it_is() {
    let payload: Vec<u8> = (0..=255).cycle().take(2_000).collect();
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Valkey).unwrap();
        let app = App::on(&server);
        let read = || {
            let (key, field) = match profile {
                "rq" => ("rq:job:j1", "data"),
                "dramatiq" => ("dramatiq:mails.msgs", "j1"),
                _ => ("bull:mails:j1", "data"),
            };
            app.call(&["HGET", key, field])
        };
        leave_many(&app, profile, 1, &payload);
        let before = read();
        let redis = connect(&server.url());
        put_back(&rescued(&redis, profile, short_limit(profile)), &redis, 1).await;
        assert_eq!(read(), before, "{profile}");
        app.call(&["FLUSHALL"]);
        leave_many(&app, profile, 1, &payload);
        let recovery = RecoveryPolicy { on_death: OnDeath::Drop, ..RecoveryPolicy::default() };
        let layout = RescueLayout { recovery, ..layout(profile, short_limit(profile)) };
        let redis = connect(&server.url());
        put_back(&Arc::new(redis.rescued_inflight(id(), layout).unwrap()), &redis, 1).await;
        assert!(waiting(&app, profile).is_empty(), "{profile}");
        assert_eq!(receipts(&redis, &id()).await.len(), 1, "{profile}");
    }
}

/// What one acting look finds suspect.
pub async fn look(sweep: &Arc<dyn Sweep>) -> Vec<lapsed_core::sweep::Suspect> {
    sweep.survey(PassMode::Reclaim).await.unwrap();
    suspects(&**sweep).await
}

async fn a_job_that_ends_between_suspicion_and_put_back_stays_ended() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    // Dramatiq: a worker that stood still for longer than the limit, and goes on.
    let work = Workplace::new("dramatiq", &server);
    let worker = work.start(&["work"], Some("2"));
    work.add(&["a"]);
    has_started(&worker);
    worker.freeze().unwrap();
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "dramatiq", Duration::from_secs(1));
    let found =
        eventually("a suspect", async || Some(look(&sweep).await).filter(|found| found.len() == 1))
            .await;
    worker.thaw().unwrap();
    work.runs(&worker, "a");
    eventually("the acknowledgement", async || {
        (app.number(&["EXISTS", "dramatiq:mails.msgs"]) == 0).then_some(())
    })
    .await;
    let answer = eventually("the end of the grace", async || {
        let answer = reclaim(&*sweep, now_ms(&app), found.clone()).await;
        let is_spared =
            matches!(answer.outcomes[0], Outcome::Refused(lapsed_core::sweep::Refusal::StoreAway));
        (!is_spared).then_some(answer)
    })
    .await;
    assert!(!matches!(answer.outcomes[0], Outcome::Reclaimed(_)), "{answer:?}");
    assert!(waiting(&app, "dramatiq").is_empty());
    // RQ: a worker whose subscription was cut is suspect for a moment, and its job ends.
    let work = Workplace::new("rq", &server);
    let worker = work.start(&["work", "w1"], Some("2"));
    work.add(&["b"]);
    has_started(&worker);
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::ZERO);
    let found = eventually("a suspect", async || {
        app.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        Some(look(&sweep).await).filter(|found| found.len() == 1)
    })
    .await;
    work.runs(&worker, "b");
    eventually("its end", async || {
        (app.text(&["HGET", "rq:job:b", "status"]) == "finished").then_some(())
    })
    .await;
    let answer = reclaim(&*sweep, now_ms(&app), found).await;
    assert!(matches!(answer.outcomes[0], Outcome::Gone), "{answer:?}");
    assert!(waiting(&app, "rq").is_empty());
    assert!(receipts(&redis, &id()).await.is_empty());
}

/// The application enqueued the job again, by hand or by RQ's own retry, before lapsed came.
async fn a_job_that_runs_again_elsewhere_is_not_put_back_for_its_first_worker() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    let (first, _, horse) = work.stuck("w1");
    kill_both(&first, horse);
    app.text(&["HSET", "rq:job:a", "status", "queued"]);
    app.text(&["RPUSH", "rq:queue:mails", "a"]);
    let (_second, job, _) = work.stuck("w2");
    assert_eq!((job.as_str(), app.number(&["ZCARD", "rq:wip:mails"])), ("a", 2));
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    eventually("the first execution to be removed", async || {
        pass(&sweeper).await;
        (app.number(&["ZCARD", "rq:wip:mails"]) == 1).then_some(())
    })
    .await;
    pass(&sweeper).await;
    assert!(waiting(&app, "rq").is_empty(), "its second worker lives");
    assert!(receipts(&redis, &id()).await.is_empty());
}

/// RQ keeps `started_at` of the run before, and a horse that imports much sets it late.
async fn a_retried_job_whose_horse_begins_late_stays_with_its_worker() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    app.text(&["HSET", "rq:job:a", "started_at", "2026-11-18T00:00:00.000000Z"]);
    let worker = work.start_with(&["work", "w1"], &[("HORSE_DELAY", "4"), ("SLOW", "0")]);
    eventually("the execution", async || {
        (app.number(&["ZCARD", "rq:wip:mails"]) == 1).then_some(())
    })
    .await;
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", SOON);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let mut lines = Vec::new();
    eventually("the job", async || {
        let report = pass(&sweeper).await;
        assert_eq!(report.reclaimed, 0, "its worker lives: {report:?}");
        lines.extend(worker.line(Duration::from_millis(50)).ok());
        lines.iter().any(|line| line == "ran a").then_some(())
    })
    .await;
}

async fn half_written_keys_are_cleaned_and_hide_nothing() {
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        leave_many(&app, profile, 2, b"{}");
        match profile {
            "rq" => {
                // In progress without a job; an execution that is not in progress.
                app.text(&["DEL", "rq:job:j1"]);
                app.text(&["HSET", "rq:execution:j9:e", "id", "e", "worker_name", "gone"]);
                app.text(&["ZADD", "rq:wip:mails", "9999999999", "no execution"]);
            }
            "dramatiq" => drop(app.text(&["HDEL", "dramatiq:mails.msgs", "j1"])),
            _ => drop(app.text(&["DEL", "bull:mails:j1"])),
        }
        let redis = connect(&server.url());
        put_back(&rescued(&redis, profile, short_limit(profile)), &redis, 1).await;
        assert_eq!(waiting(&app, profile), ["j2"], "{profile}");
        let left = match profile {
            "rq" => app.text(&["ZRANGE", "rq:wip:mails", "0", "-1"]),
            "dramatiq" => app.text(&["SMEMBERS", &format!("dramatiq:__acks__.{GONE}.mails")]),
            _ => app.text(&["LRANGE", "bull:mails:active", "0", "-1"]),
        };
        let expected: &[&str] = if profile == "rq" { &["no execution"] } else { &[] };
        assert_eq!(lines(&left), expected, "{profile}");
    }
}

async fn a_key_of_another_type_does_not_hide_other_queues() {
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Valkey).unwrap();
        let app = App::on(&server);
        leave_many(&app, profile, 2, b"{}");
        match profile {
            "rq" => {
                app.text(&["SADD", "rq:queues", "rq:queue:a", "rq:queue:b"]);
                app.text(&["SET", "rq:wip:a", "not a sorted set"]);
                app.text(&["SET", "rq:workers", "not a set"]);
            }
            "dramatiq" => {
                app.text(&["SET", &format!("dramatiq:__acks__.{GONE}.a"), "not a set"]);
            }
            _ => {
                app.text(&["HSET", "bull:a:meta", "version", "bullmq:6.7.0"]);
                app.text(&["SET", "bull:a:active", "not a list"]);
                app.text(&["SET", "bull:mails:j3", "not a hash"]);
                app.text(&["LPUSH", "bull:mails:active", "j3"]);
            }
        }
        let redis = connect(&server.url());
        put_back(&rescued(&redis, profile, short_limit(profile)), &redis, 2).await;
        assert_eq!(waiting(&app, profile), ["j1", "j2"], "{profile}");
    }
}

async fn a_restart_of_redis_spares_everybody_for_the_grace() {
    const GRACE: Duration = Duration::from_secs(4);
    let server = ServerOptions::new(Engine::Redis).persistence(Persistence::Aof).start().unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a", "b"]);
    let (dead, job, horse) = work.stuck("w1");
    let (_living, _, _) = work.stuck("w2");
    let redis = connect(&server.url());
    let layout = RescueLayout { grace: Some(GRACE), ..layout("rq", SOON) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    pass(&sweeper).await;
    kill_both(&dead, horse);
    server.restart().unwrap();
    let app = App::on(&server);
    let back_ms = now_ms(&app);
    eventually("the job to be put back", async || {
        pass(&sweeper).await;
        (waiting(&app, "rq") == [job.as_str()]).then_some(())
    })
    .await;
    for _ in 0..5 {
        pass(&sweeper).await;
    }
    let found = receipts(&redis, &id()).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].owner.as_str(), found[0].key.as_str()), ("w1", &*format!("mails/{job}")));
    let spared_ms = found[0].at_ms - back_ms;
    assert!(spared_ms >= 3_500, "put back {spared_ms} ms after Redis was back");
}

async fn a_stopped_rq_worker_keeps_its_job_while_it_is_connected() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("rq", &server);
    work.add(&["a"]);
    let worker = work.start(&["work", "w1"], Some("1"));
    let (job, horse) = has_started(&worker);
    worker.freeze().unwrap();
    signal(horse.unwrap(), "-STOP");
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", SOON);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let began = Instant::now();
    while began.elapsed() < 6 * SOON {
        let report = pass(&sweeper).await;
        assert_eq!((report.suspects, report.reclaimed), (0, 0), "{report:?}");
    }
    signal(horse.unwrap(), "-CONT");
    worker.thaw().unwrap();
    work.runs(&worker, &job);
}

async fn a_stopped_bullmq_worker_is_refused_when_it_completes_late() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
    work.add(&["a"]);
    let stopped = work.start(&["work", "w1"], Some("1500"));
    has_started(&stopped);
    stopped.freeze().unwrap();
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
    let other = work.start_with(&["work", "w2"], &[("LOCK", "30000")]);
    work.runs(&other, "a");
    eventually("its completion", async || {
        (app.number(&["ZCARD", "bull:mails:completed"]) == 1).then_some(())
    })
    .await;
    stopped.thaw().unwrap();
    let refused = loop {
        let line = stopped.line(LIMIT).unwrap();
        if line.starts_with("error") {
            break line;
        }
    };
    println!("{refused}");
    let events = app.text(&["XRANGE", "bull:mails:events", "-", "+"]);
    assert_eq!(events.lines().filter(|line| line.contains("completed")).count(), 1, "{events}");
    assert_eq!(app.text(&["HGET", "bull:mails:a", "pb"]), "w2");
}

/// xorshift: the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Dramatiq has one place for dead letters of a queue and of its delayed messages.
async fn a_delayed_message_is_buried_where_dramatiq_looks_for_it() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let stale = (now_ms(&app) - 100_000).to_string();
    app.text(&["ZADD", "dramatiq:__heartbeats__", &stale, GONE]);
    app.text(&["HSET", "dramatiq:mails.DQ.msgs", "m", "{}"]);
    app.text(&["SADD", &format!("dramatiq:__acks__.{GONE}.mails.DQ"), "m"]);
    let redis = connect(&server.url());
    let recovery = RecoveryPolicy { on_death: OnDeath::DeadLetter, ..RecoveryPolicy::default() };
    // The delayed messages of a queue are its messages.
    let queues = [Name::new("mails").unwrap()].into();
    let layout = RescueLayout { recovery, queues, ..layout("dramatiq", Duration::from_secs(5)) };
    put_back(&Arc::new(redis.rescued_inflight(id(), layout).unwrap()), &redis, 1).await;
    assert_eq!(app.text(&["HGET", "dramatiq:mails.XQ.msgs", "m"]), "{}");
    assert_eq!(app.text(&["ZRANGE", "dramatiq:mails.XQ", "0", "-1"]), "m");
}
