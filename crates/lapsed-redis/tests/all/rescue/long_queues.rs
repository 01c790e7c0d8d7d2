//! Jobs of RQ that no work horse has begun, beside a queue of half a million: nothing holds the server for long, and a job that waits on its
//! queue is never put there a second time.

use std::time::Instant;

use lapsed_core::sweep::{Cursor, Outcome, PageRequest, PassMode};

use super::*;
use crate::rescue::faults::leave_many;
use crate::rescue::many_orphans::patient;
use crate::story::batch;

lapsed_testbed::steady_async_tests! {
    a_job_that_no_horse_began_returns_to_a_queue_of_half_a_million_in_short_calls,
    a_job_that_waits_in_a_long_queue_is_not_put_back_again,
    a_job_that_was_enqueued_since_the_search_is_not_put_back_again,
}

const QUEUE: &str = "rq:queue:mails";

/// The sweep waits no longer than a test can.
const GONE: Duration = Duration::from_millis(300);

/// Adds jobs to a queue.
fn fill(app: &App, from: usize, to: usize) {
    let script = "for n = ARGV[1], ARGV[2] do redis.call('RPUSH', KEYS[1], '5b3c6c1e-8a4e-4a53-9d7b-' .. n) end";
    for from in (from..to).step_by(5_000) {
        let last = (to.min(from + 5_000) - 1).to_string();
        app.text(&["EVAL", script, "1", QUEUE, &from.to_string(), &last]);
    }
}

/// How many times an id is on the queue.
fn on_queue(app: &App, id: &str) -> usize {
    let found = app.text(&["LPOS", QUEUE, id, "COUNT", "0"]);
    found.lines().filter(|line| !line.is_empty()).count()
}

/// The server's mean time for each call of a command since the statistics were reset; zero if there was none.
fn mean(app: &App, command: &str) -> Duration {
    let stats = app.text(&["INFO", "commandstats"]);
    let name = format!("cmdstat_{command}:");
    let Some(line) = stats.lines().find(|line| line.starts_with(&name)) else {
        return Duration::ZERO;
    };
    let field = |name: &str| -> u64 {
        line.split_once(name).unwrap().1.split(',').next().unwrap().parse().unwrap()
    };
    Duration::from_micros(field("usec=") / field("calls="))
}

/// LPOS over half a million ids takes 15 to 20 ms.
fn assert_short_calls(app: &App) {
    let means = ["lpos", "lrange", "evalsha"].map(|command| (command, mean(app, command)));
    println!("{means:?}");
    assert!(means.iter().all(|(_, mean)| *mean < Duration::from_millis(2)), "{means:?}");
}

async fn a_job_that_no_horse_began_returns_to_a_queue_of_half_a_million_in_short_calls() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    let worker = work.start_with(&["work", "w1"], &[("HORSE_DELAY", "600"), ("SLOW", "600")]);
    eventually("the worker to take the job", async || {
        (app.number(&["ZCARD", "rq:wip:mails"]) == 1).then_some(())
    })
    .await;
    assert_eq!(app.text(&["HGET", "rq:job:a", "status"]), "queued", "no horse has begun");
    fill(&app, 0, 500_000);
    // The parent may do nothing about the end of its horse.
    let parent = worker.pid().unwrap();
    signal(parent, "-STOP");
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    children.unwrap().split_whitespace().for_each(|pid| kill(pid.parse().unwrap()));
    worker.kill().unwrap();
    let redis = patient(&server);
    app.call(&["CONFIG", "RESETSTAT"]);
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", GONE);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let began = Instant::now();
    let mut passes = 1;
    while pass(&sweeper).await.reclaimed == 0 {
        passes += 1;
        assert!(began.elapsed() < 3 * LIMIT, "not put back within {passes} passes");
    }
    println!("put back after {passes} passes and {:.1?}", began.elapsed());
    assert_short_calls(&app);
    assert_eq!(app.text(&["LRANGE", QUEUE, "0", "0"]), "a");
    assert_eq!((on_queue(&app, "a"), app.number(&["LLEN", QUEUE])), (1, 500_001));
    let other = work.start(&["work", "w2"], None);
    work.runs(&other, "a");
}

/// It was enqueued again while an execution of it was left behind.
async fn a_job_that_waits_in_a_long_queue_is_not_put_back_again() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    leave_many(&app, "rq", 1, b"x");
    app.text(&["HSET", "rq:job:j1", "status", "queued", "enqueued_at", "2026-11-18T12:00:00Z"]);
    fill(&app, 0, 20_000);
    app.text(&["RPUSH", QUEUE, "j1"]);
    fill(&app, 20_000, 40_000);
    let redis = patient(&server);
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    past_the_grace(&app, &redis, GONE).await;
    app.call(&["CONFIG", "RESETSTAT"]);
    for _ in 0..5 {
        let report = pass(&sweeper).await;
        assert_eq!((report.suspects, report.reclaimed), (1, 0), "{report:?}");
    }
    assert_eq!((on_queue(&app, "j1"), app.number(&["ZCARD", "rq:wip:mails"])), (1, 1));
    assert_short_calls(&app);
    // It was searched for in the first look, and not again in each.
    let stats = app.text(&["INFO", "commandstats"]);
    let pages = stats.lines().find(|line| line.starts_with("cmdstat_lrange:")).unwrap();
    let pages = pages.split_once("calls=").unwrap().1.split(',').next().unwrap();
    assert!(pages.parse::<u64>().unwrap() < 60, "{pages} pages of a queue of 40");
    // Once its turn is near, what points to the old execution is removed.
    app.text(&["LTRIM", QUEUE, "19900", "-1"]);
    eventually("the end of the old execution", async || {
        assert_eq!(pass(&sweeper).await.reclaimed, 0);
        (app.number(&["ZCARD", "rq:wip:mails"]) == 0).then_some(())
    })
    .await;
    assert_eq!(on_queue(&app, "j1"), 1);
}

/// What the search has found out does not count for a job that was enqueued since.
async fn a_job_that_was_enqueued_since_the_search_is_not_put_back_again() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_many(&app, "rq", 2, b"x");
    for job in ["rq:job:j1", "rq:job:j2"] {
        app.text(&["HSET", job, "status", "queued", "enqueued_at", "2026-11-18T12:00:00Z"]);
    }
    fill(&app, 0, 30_000);
    let redis = patient(&server);
    let sweep: Arc<dyn Sweep> = rescued(&redis, "rq", Duration::ZERO);
    past_the_grace(&app, &redis, GONE).await;
    assert!(sweep.survey(PassMode::Reclaim).await.unwrap().is_some());
    // Between the search and the decisive step the application enqueues one of them.
    fill(&app, 30_000, 33_000);
    app.text(&["HSET", "rq:job:j2", "enqueued_at", "2026-11-19T12:00:00Z"]);
    app.text(&["RPUSH", QUEUE, "j2"]);
    fill(&app, 33_000, 36_000);
    let request = PageRequest { after: Cursor::default(), limit: 100, undeclared_max: None };
    let page = sweep.suspects(request).await.unwrap();
    assert_eq!(page.suspects.len(), 2);
    let answer = sweep.reclaim(batch("one", 1, page.suspects)).await.unwrap();
    let is_reclaimed = |one: &&Outcome| matches!(one, Outcome::Reclaimed(_));
    let reclaimed = answer.outcomes.iter().filter(is_reclaimed).count();
    assert_eq!(reclaimed, 1, "{answer:?}");
    assert_eq!((on_queue(&app, "j1"), on_queue(&app, "j2")), (1, 1));
}
