//! Thousands of orphans of one worker, and orphans with a payload of a megabyte, of the systems that `faults.rs` does not have:
//! keys as a killed worker leaves them, made by hand because so many real ones would take minutes.

use std::collections::BTreeSet;
use std::time::Instant;

use lapsed_redis::RedisAddress;

use super::celery::message;
use super::faults::{leave_many, now_ms, short_limit};
use super::*;

lapsed_testbed::steady_async_tests! {
    ten_thousand_orphans_of_one_worker_are_put_back_in_short_calls,
    payloads_of_a_megabyte_are_put_back_as_they_are_and_one_at_a_time,
    orphans_leave_their_list_from_its_end,
}

/// A grace that a test can afford to wait for.
pub const SHORT: Duration = Duration::from_millis(300);

/// A worker of Resque has one job: there are as many workers as orphans.
const PROFILES: [&str; 5] = ["celery", "sidekiq", "asynq", "resque", "streams"];

/// The payload that a queue has in the end.
fn payload(profile: &str, number: usize, filling: &str) -> String {
    match profile {
        "celery" => message(&format!("j{number}"), "", "mails").replace("W10=", filling),
        "sidekiq" => format!(r#"{{"class":"Job","jid":"j{number}","args":["{filling}"]}}"#),
        "resque" => {
            format!(r#"{{"class":"send","queue":"mails","args":["j{number}","{filling}"]}}"#)
        }
        _ => format!("{number} {filling}"),
    }
}

/// Leaves `jobs` orphans of one worker.
pub fn leave(app: &App, profile: &str, jobs: usize, filling: &str) {
    let begin = match profile {
        "celery" => {
            r"redis.call('SADD', '_kombu.binding.celery.pidbox', '\6\22\6\22w1@host.celery.pidbox')"
        }
        "sidekiq" => {
            "redis.call('SADD', 'processes', 'vm:1:ab') redis.call('SADD', 'queues', 'mails')"
        }
        "asynq" => "redis.call('SADD', 'asynq:queues', 'mails')",
        "resque" => "redis.call('SADD', 'resque:queues', 'mails')",
        _ => "redis.pcall('XGROUP', 'CREATE', 'mails', 'workers', '0', 'MKSTREAM')",
    };
    app.text(&["EVAL", begin, "0"]);
    let one = match profile {
        "celery" => {
            "redis.call('HSET', 'unacked', 'tag-' .. ARGV[1], ARGV[2])
            redis.call('ZADD', 'unacked_index', ARGV[3] / 1000, 'tag-' .. ARGV[1])"
        }
        "sidekiq" => "redis.call('LPUSH', 'working:queue:mails:vm:1:ab', ARGV[2])",
        "asynq" => {
            "redis.call('LPUSH', 'asynq:{mails}:active', ARGV[1])
            redis.call('ZADD', 'asynq:{mails}:lease', math.floor(ARGV[3] / 1000) - 60, ARGV[1])
            redis.call('HSET', 'asynq:{mails}:t:' .. ARGV[1], 'msg', ARGV[2], 'state', 'active')"
        }
        "resque" => {
            r#"local name = 'vm:' .. ARGV[1]
            local worker = 'resque:worker:' .. name .. ':mails'
            redis.call('SADD', 'resque:workers', name .. ':mails')
            redis.call('SET', worker, '{"run_at":"Wed Nov 18 2020 12:00:00 GMT+0000 (UTC)","queue":"mails","worker":"' .. name
              .. '","payload":' .. ARGV[2] .. '}')
            redis.call('SET', worker .. ':started', '1605700000')
            redis.call('SET', 'resque:worker:ping:' .. name, '{"time":' .. math.floor(ARGV[3] / 1000) - 60 .. ',"name":"' .. name
              .. '","queues":"mails"}')"#
        }
        _ => {
            "redis.call('XADD', 'mails', '*', 'body', ARGV[2])
            redis.call('XREADGROUP', 'GROUP', 'workers', 'gone', 'STREAMS', 'mails', '>')"
        }
    };
    let now = now_ms(app).to_string();
    for number in 0..jobs {
        let payload = payload(profile, number, filling);
        app.text(&["EVAL", one, "0", &number.to_string(), &payload, &now]);
    }
}

/// The rescue of one queue: streams are rescued only by their names.
pub fn of_mails(redis: &Redis, profile: &str, grace: Duration) -> Arc<RescuedInflight> {
    let queues = BTreeSet::from([Name::new("mails").unwrap()]);
    let layout = RescueLayout { queues, grace: Some(grace), ..layout(profile, Duration::ZERO) };
    Arc::new(redis.rescued_inflight(id(), layout).unwrap())
}

/// A client that waits for long answers.
pub fn patient(server: &RedisServer) -> Redis {
    let address = RedisAddress { response_timeout: LIMIT, ..RedisAddress::new(&server.url()) };
    Redis::new(&address).unwrap()
}

/// How many wait, and how many are still in flight.
pub fn account(app: &App, profile: &str) -> (i64, i64) {
    let (waiting, in_flight): ([&str; 2], [&str; 2]) = match profile {
        "celery" => (["LLEN", "mails"], ["HLEN", "unacked"]),
        "sidekiq" => (["LLEN", "queue:mails"], ["LLEN", "working:queue:mails:vm:1:ab"]),
        "asynq" => (["LLEN", "asynq:{mails}:pending"], ["LLEN", "asynq:{mails}:active"]),
        "resque" => (["LLEN", "resque:queue:mails"], ["SCARD", "resque:workers"]),
        _ => {
            let pending = app.text(&["XPENDING", "mails", "workers"]);
            let pending = pending.lines().next().unwrap().parse().unwrap();
            return (app.number(&["XLEN", "mails"]), pending);
        }
    };
    (app.number(&waiting), app.number(&in_flight))
}

/// Calls of scripts since the statistics were reset, and the server's time for one.
fn script_calls(app: &App) -> (u64, Duration) {
    let stats = app.text(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let field = |name: &str| -> u64 {
        line.split_once(name).unwrap().1.split(',').next().unwrap().parse().unwrap()
    };
    (field("calls="), Duration::from_micros(field("usec=") / field("calls=")))
}

async fn ten_thousand_orphans_of_one_worker_are_put_back_in_short_calls() {
    const JOBS: usize = 10_000;
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        leave(&app, profile, JOBS, "x");
        app.call(&["CONFIG", "RESETSTAT"]);
        let redis = patient(&server);
        let began = Instant::now();
        put_back(&of_mails(&redis, profile, SHORT), &redis, JOBS as u64).await;
        let took = began.elapsed();
        let (calls, mean) = script_calls(&app);
        println!("{profile}: {JOBS} jobs in {took:.1?}, {calls} calls, {mean:.2?} each");
        assert_eq!(account(&app, profile), (JOBS as i64, 0), "{profile}");
        // The policy's `hold`. A single call may be longer because the machine is busy.
        assert!(mean < Duration::from_millis(2), "{profile}: {mean:?}");
        assert_eq!(receipts(&redis, &id()).await.len(), JOBS, "{profile}");
    }
}

async fn payloads_of_a_megabyte_are_put_back_as_they_are_and_one_at_a_time() {
    const JOBS: usize = 16;
    let filling = "\u{e9}".repeat(1 << 19);
    for profile in PROFILES {
        let server = RedisServer::start(Engine::Valkey).unwrap();
        let app = App::on(&server);
        leave(&app, profile, JOBS, &filling);
        app.call(&["CONFIG", "RESETSTAT"]);
        let redis = patient(&server);
        put_back(&of_mails(&redis, profile, SHORT), &redis, JOBS as u64).await;
        let (calls, mean) = script_calls(&app);
        println!("{profile}: {JOBS} jobs of 1 MB, {calls} calls, {mean:.2?} each");
        assert_eq!(account(&app, profile), (JOBS as i64, 0), "{profile}");
        let queued = match profile {
            "celery" => app.text(&["LRANGE", "mails", "0", "-1"]),
            "sidekiq" => app.text(&["LRANGE", "queue:mails", "0", "-1"]),
            "asynq" => app.text(&["HGET", "asynq:{mails}:t:0", "msg"]),
            "resque" => app.text(&["LRANGE", "resque:queue:mails", "0", "-1"]),
            _ => app.text(&["XRANGE", "mails", "-", "+"]),
        };
        let expected = if profile == "asynq" { 1 } else { JOBS };
        assert_eq!(queued.matches(filling.as_str()).count(), expected, "{profile}");
        // What carries the message is not sent sixteen times at once.
        let is_alone = !matches!(profile, "celery" | "sidekiq" | "resque") || calls >= JOBS as u64;
        assert!(is_alone, "{profile}: {JOBS} jobs in {calls} calls");
    }
}

/// In BullMQ's order a batch finds its jobs where the list ends, whatever their ids are. In another order each would be searched for:
/// the server compared them one by one, a thousand million times for 50,000.
async fn orphans_leave_their_list_from_its_end() {
    const JOBS: usize = 3_000;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_many(&app, "bullmq", JOBS, b"{}");
    app.call(&["CONFIG", "RESETSTAT"]);
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "bullmq", short_limit("bullmq")), &redis, JOBS as u64).await;
    assert_eq!(app.number(&["LLEN", "bull:mails:wait"]), JOBS as i64);
    let stats = app.text(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_lpos:"), "each was searched for: {stats}");
}
