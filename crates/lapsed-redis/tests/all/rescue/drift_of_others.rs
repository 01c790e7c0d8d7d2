//! Keys of asynq, Resque and streams that contradict each other: reported, left alone by a dry run, and healed once.

use lapsed_core::reconcile::Healed;
use lapsed_core::sweep::{Cursor, PassMode};

use super::drift::{dump, heals, look, look_from, said, searched};
use super::streams::streams;
use super::*;

lapsed_testbed::steady_async_tests! {
    asynq_ids_without_a_task_and_tasks_without_a_place_are_brought_together,
    an_asynq_task_that_moves_meanwhile_is_not_drift,
    a_resque_worker_without_a_trace_is_removed_and_a_job_of_nobody_is_reported,
    pending_entries_that_were_trimmed_and_consumers_that_nobody_is_are_removed,
}

fn key(what: &str) -> String {
    format!("asynq:{{mails}}:{what}")
}

fn task(app: &App, id: &str, state: &str) {
    app.text(&["HSET", &key(&format!("t:{id}")), "state", state, "msg", "bytes"]);
}

async fn asynq_ids_without_a_task_and_tasks_without_a_place_are_brought_together() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    app.text(&["SADD", "asynq:queues", "mails"]);
    // In order: what lies where it says.
    for (id, place) in [("ok1", "pending"), ("ok2", "active")] {
        task(&app, id, place);
        app.text(&["LPUSH", &key(place), id]);
    }
    app.text(&["ZADD", &key("lease"), "99999999999", "ok2"]);
    for (id, place) in [("ok3", "scheduled"), ("ok4", "retry"), ("ok5", "archived")] {
        task(&app, id, place);
        app.text(&["ZADD", &key(place), "99999999999", id]);
    }
    task(&app, "ok6", "aggregating");
    // Out of order.
    app.text(&["LPUSH", &key("pending"), "ghost1"]);
    app.text(&["LPUSH", &key("active"), "ghost2"]);
    app.text(&["ZADD", &key("retry"), "1", "ghost3"]);
    app.text(&["ZADD", &key("lease"), "1", "ghost4"]);
    for (id, state) in [("lost1", "pending"), ("lost2", "active"), ("lost3", "retry")] {
        task(&app, id, state);
    }
    task(&app, "over", "archived");
    let redis = connect(&server.url());
    let inflight = searched(&redis, "asynq");
    let (report, _) = look_from(&inflight, Cursor::default(), PassMode::DryRun).await;
    let left: Vec<&str> = report.left.keys().map(String::as_str).collect();
    assert!(left.len() == 1 && left[0].contains("task `over` is archived"), "{left:?}");
    let found = heals(&inflight, &app, 7).await;
    said(&found, &key("pending"), Healed::Removed, "`ghost1` is pending");
    said(&found, &key("active"), Healed::Removed, "`ghost2` is active");
    said(&found, &key("retry"), Healed::Removed, "`ghost3` is retry");
    said(&found, &key("lease"), Healed::Removed, "task `ghost4` has a lease");
    said(&found, &key("t:lost1"), Healed::Added, "goes to the end of its queue");
    let mut pending: Vec<String> =
        app.text(&["LRANGE", &key("pending"), "0", "-1"]).lines().map(str::to_owned).collect();
    assert_eq!(pending.pop().unwrap(), "ok1", "what waited before is next");
    pending.sort();
    assert_eq!(pending, ["lost1", "lost2", "lost3"]);
    assert_eq!(app.text(&["HGET", &key("t:lost2"), "state"]), "pending");
    assert_eq!(app.text(&["LRANGE", &key("active"), "0", "-1"]), "ok2");
}

/// Between the two looks it was taken and lost again by another server.
async fn an_asynq_task_that_moves_meanwhile_is_not_drift() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    app.text(&["SADD", "asynq:queues", "mails"]);
    task(&app, "moves", "pending");
    task(&app, "back", "pending");
    let redis = connect(&server.url());
    let inflight = searched(&redis, "asynq");
    let cursor = super::drift::until_the_second_look(&inflight).await;
    app.text(&["HSET", &key("t:moves"), "state", "active"]);
    app.text(&["LPUSH", &key("pending"), "back"]);
    let before = dump(&app);
    let (_, changes) = look_from(&inflight, cursor, PassMode::Reclaim).await;
    assert_eq!(changes, []);
    assert_eq!(dump(&app), before);
}

async fn a_resque_worker_without_a_trace_is_removed_and_a_job_of_nobody_is_reported() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("resque", &server), App::on(&server));
    let worker = work.start(&["work", "w1"], None);
    assert_eq!(worker.line(LIMIT).unwrap(), "ready");
    app.text(&["SADD", "resque:workers", "vm:9:mails", "vm:8:mails"]);
    // Resque 1 has no heartbeats, but says when it was started.
    app.text(&["SET", "resque:worker:vm:8:mails:started", "1605700000"]);
    let job = r#"{"queue":"mails","payload":{"class":"send","args":[]}}"#;
    app.text(&["SET", "resque:worker:vm:7:mails", job]);
    let redis = connect(&server.url());
    let inflight = searched(&redis, "resque");
    let (report, changes) = look_from(&inflight, Cursor::default(), PassMode::Reclaim).await;
    said(&changes, "resque:workers", Healed::Removed, "worker `vm:9:mails` is listed");
    assert_eq!(changes.len(), 1, "{changes:?}");
    let left: Vec<&str> = report.left.keys().map(String::as_str).collect();
    assert!(left.len() == 1 && left[0].contains("worker `vm:7:mails` has a job"), "{left:?}");
    let mut workers: Vec<String> =
        app.text(&["SMEMBERS", "resque:workers"]).lines().map(str::to_owned).collect();
    workers.sort();
    assert_eq!(workers, ["vm:8:mails", "w1:mails"]);
    assert_eq!(app.text(&["GET", "resque:worker:vm:7:mails"]), job);
    assert_eq!(look(&inflight, PassMode::Reclaim).await, []);
    work.add(&["a"]);
    work.runs(&worker, "a");
}

async fn pending_entries_that_were_trimmed_and_consumers_that_nobody_is_are_removed() {
    const ENTRIES: usize = 250;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    app.text(&["XGROUP", "CREATE", "mails", "workers", "0", "MKSTREAM"]);
    let add = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'n', n) end";
    app.text(&["EVAL", add, "1", "mails", &ENTRIES.to_string()]);
    app.text(&["XREADGROUP", "GROUP", "workers", "busy", "STREAMS", "mails", ">"]);
    app.text(&["XTRIM", "mails", "MAXLEN", "100"]);
    app.text(&["XGROUP", "CREATECONSUMER", "mails", "workers", "idle"]);
    let redis = connect(&server.url());
    // A consumer is superfluous when it has been idle for 1,008 limits, here for a second.
    let layout = streams(Duration::from_millis(1));
    let open = |layout| redis.rescued_inflight(id(), layout).unwrap();
    let inflight = open(layout).drift_looks_apart(Duration::from_millis(300));
    eventually("the second in which nobody calls", async || {
        let idle = app.text(&[
            "EVAL",
            "return redis.call('XINFO', 'CONSUMERS', 'mails', 'workers')[2][6]",
            "0",
        ]);
        (idle.parse::<u64>().unwrap() > 1_100).then_some(())
    })
    .await;
    let found = heals(&inflight, &app, ENTRIES - 100 + 1).await;
    said(&found, "mails", Healed::Removed, "is pending for consumer `busy`");
    said(&found, "mails", Healed::Removed, "consumer `idle` of group `workers` has no entries");
    let pending = app.text(&["XPENDING", "mails", "workers"]);
    assert_eq!(pending.lines().next().unwrap(), "100");
    assert_eq!(app.number(&["XLEN", "mails"]), 100);
    // Its program comes back, and is there again.
    app.text(&["XADD", "mails", "*", "n", "new"]);
    app.text(&["XREADGROUP", "GROUP", "workers", "idle", "STREAMS", "mails", ">"]);
    assert_eq!(look(&inflight, PassMode::Reclaim).await, []);
    let usual = open(streams(Duration::from_secs(600)));
    let usual = usual.drift_looks_apart(Duration::from_millis(300));
    assert_eq!(look(&usual, PassMode::Reclaim).await, [], "nobody has been idle for a week");
}
