//! Keys of foreign job systems that contradict each other: reported, left alone by a dry run, healed once, and never found where
//! a system works.

use std::collections::BTreeMap;

use lapsed_core::clock::SystemClock;
use lapsed_core::reconcile::{
    self, Healed, IndexChange, Reconcile, ReconcilePlan, ReconcileReport,
};
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{Cursor, PassMode};

use super::*;

lapsed_testbed::steady_async_tests! {
    an_rq_job_that_was_lost_between_two_commands_is_put_back_once,
    rq_entries_that_point_to_nothing_are_removed,
    an_rq_job_of_a_connected_worker_is_not_drift,
    a_bullmq_lock_or_id_without_a_job_is_removed_unless_it_expires_by_itself,
    a_dramatiq_message_that_nobody_has_is_put_back_and_ids_without_one_are_removed,
    a_celery_message_and_its_place_in_the_index_are_brought_together,
    a_sidekiq_process_without_a_record_is_removed_unless_its_jobs_are_still_to_be_put_back,
    what_only_one_of_two_looks_finds_is_not_drift,
    two_runs_at_once_heal_a_finding_once,
    only_the_configured_queues_are_healed,
    a_key_of_another_type_is_not_healed,
    rq_in_normal_use_shows_no_drift,
    dramatiq_and_bullmq_in_normal_use_show_no_drift,
}

/// Long enough for the second look to be another one.
const APART: Duration = Duration::from_millis(300);

pub fn searched(redis: &Redis, profile: &str) -> RescuedInflight {
    redis.rescued_inflight(id(), layout(profile, SOON)).unwrap().drift_looks_apart(APART)
}

/// What one run found, and what it changed unless it was a dry run.
pub async fn look_from(
    inflight: &RescuedInflight,
    after: Cursor,
    act: PassMode,
) -> (ReconcileReport, Vec<IndexChange>) {
    let (_stopper, stop) = StopSignal::channel();
    let plan = ReconcilePlan { after, page: 100, pause: Duration::from_millis(1), act };
    let mut changes = Vec::new();
    let mut tell = |page: &reconcile::Reconciled| changes.extend(page.changes.iter().cloned());
    let clock = SystemClock::shared();
    let report = reconcile::run(&id(), inflight, &*clock, plan, &stop, &mut tell).await.unwrap();
    assert!(report.finished);
    (report, changes)
}

pub async fn look(inflight: &RescuedInflight, act: PassMode) -> Vec<IndexChange> {
    look_from(inflight, Cursor::default(), act).await.1
}

/// Every key and its value.
pub fn dump(app: &App) -> BTreeMap<String, String> {
    let keys = app.text(&["KEYS", "*"]);
    keys.lines().map(|key| (key.to_owned(), app.text(&["DUMP", key]))).collect()
}

/// A dry run reports so many and changes nothing; healing heals as many; then nothing is left. Returns what was reported.
pub async fn heals(inflight: &RescuedInflight, app: &App, count: usize) -> Vec<IndexChange> {
    let before = dump(app);
    let mut reported = look(inflight, PassMode::DryRun).await;
    assert_eq!(reported.len(), count, "{reported:?}");
    assert_eq!(dump(app), before, "a dry run leaves every key as it is");
    let mut healed = look(inflight, PassMode::Reclaim).await;
    let place = |change: &IndexChange| (change.key.clone(), change.why.clone());
    reported.sort_by_key(place);
    healed.sort_by_key(place);
    assert_eq!(healed, reported);
    assert_eq!(look(inflight, PassMode::Reclaim).await, []);
    reported
}

pub fn said(changes: &[IndexChange], key: &str, what: Healed, words: &str) {
    let found = changes
        .iter()
        .any(|change| change.key == key && change.what == what && change.why.contains(words));
    assert!(found, "nothing says {words:?} of {key}: {changes:?}");
}

async fn an_rq_job_that_was_lost_between_two_commands_is_put_back_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["lost", "waiting"]);
    // As a worker of two queues that is killed after it has taken the job.
    assert_eq!(app.text(&["LPOP", "rq:queue:mails"]), "lost");
    let redis = connect(&server.url());
    let found = heals(&searched(&redis, "rq"), &app, 1).await;
    said(&found, "rq:job:lost", Healed::Added, "job `lost` is queued, but it is on no list");
    assert_eq!(app.text(&["LRANGE", "rq:queue:mails", "0", "-1"]), "waiting\nlost");
    let worker = work.start(&["work", "w1"], None);
    work.runs(&worker, "lost");
}

async fn rq_entries_that_point_to_nothing_are_removed() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["waiting"]);
    let (gone, deleted) = (format!("gone:{:032x}", 1), format!("deleted:{:032x}", 2));
    app.text(&["ZADD", "rq:wip:mails", "1700000000", &gone, "99999999999", &deleted]);
    app.text(&["HSET", &format!("rq:execution:{gone}"), "id", "1"]);
    app.text(&["RPUSH", "rq:queue:mails:intermediate", "taken"]);
    app.text(&["SADD", "rq:workers", "rq:worker:ghost"]);
    app.text(&["SADD", "rq:workers:mails", "rq:worker:ghost"]);
    let redis = connect(&server.url());
    let found = heals(&searched(&redis, "rq"), &app, 4).await;
    said(&found, "rq:wip:mails", Healed::Removed, "job `gone` does not exist");
    said(&found, "rq:queue:mails:intermediate", Healed::Removed, "job `taken` does not exist");
    said(&found, "rq:workers", Healed::Removed, "worker `ghost`");
    said(&found, "rq:workers:mails", Healed::Removed, "worker `ghost`");
    // The deadline of the other one has not passed: a worker may still run a job that was deleted.
    assert_eq!(app.text(&["ZRANGE", "rq:wip:mails", "0", "-1"]), deleted);
    assert_eq!(app.number(&["EXISTS", &format!("rq:execution:{gone}"), "rq:workers"]), 0);
}

/// A job that its worker still has, although its entry among the running ones is gone.
async fn an_rq_job_of_a_connected_worker_is_not_drift() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    let (worker, _, horse) = work.stuck("w1");
    app.text(&["DEL", "rq:wip:mails"]);
    let redis = connect(&server.url());
    let inflight = searched(&redis, "rq");
    assert_eq!(look(&inflight, PassMode::Reclaim).await, []);
    kill_both(&worker, horse);
    let found = eventually("the end of its connection", async || {
        Some(look(&inflight, PassMode::Reclaim).await).filter(|found| !found.is_empty())
    })
    .await;
    said(&found, "rq:job:a", Healed::Added, "job `a` is started, but it is on no list");
    assert_eq!(app.text(&["LRANGE", "rq:queue:mails", "0", "-1"]), "a");
}

async fn a_bullmq_lock_or_id_without_a_job_is_removed_unless_it_expires_by_itself() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
    work.add(&["waiting"]);
    app.text(&["LPUSH", "bull:mails:active", "gone"]);
    app.text(&["SADD", "bull:mails:stalled", "gone", "old"]);
    app.text(&["SET", "bull:mails:gone2:lock", "token:0"]);
    app.text(&["SET", "bull:mails:waiting:lock", "token:1"]);
    app.text(&["SET", "bull:mails:gone3:lock", "token:2", "PX", "600000"]);
    let redis = connect(&server.url());
    let inflight = searched(&redis, "bullmq");
    let (report, _) = look_from(&inflight, Cursor::default(), PassMode::DryRun).await;
    let left: Vec<&str> = report.left.keys().map(String::as_str).collect();
    assert!(left.len() == 1 && left[0].contains("`gone3` is locked"), "{left:?}");
    let found = heals(&inflight, &app, 4).await;
    said(&found, "bull:mails:active", Healed::Removed, "job `gone` does not exist");
    said(&found, "bull:mails:stalled", Healed::Removed, "`old` counts as stalled");
    said(&found, "bull:mails:gone2:lock", Healed::Removed, "does not exist");
    said(&found, "bull:mails:waiting:lock", Healed::Removed, "is not active");
    assert_eq!(app.number(&["EXISTS", "bull:mails:gone3:lock"]), 1);
    assert_eq!(app.number(&["EXISTS", "bull:mails:active", "bull:mails:stalled"]), 0);
}

async fn a_dramatiq_message_that_nobody_has_is_put_back_and_ids_without_one_are_removed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("dramatiq", &server), App::on(&server));
    work.add(&["a", "b"]);
    let lost = app.text(&["LPOP", "dramatiq:mails"]);
    let (ghost, worker) =
        ("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002");
    let acks = format!("dramatiq:__acks__.{worker}.mails");
    app.text(&["RPUSH", "dramatiq:mails", ghost]);
    app.text(&["SADD", &acks, ghost]);
    let redis = connect(&server.url());
    let found = heals(&searched(&redis, "dramatiq"), &app, 3).await;
    said(&found, "dramatiq:mails.msgs", Healed::Added, &format!("message `{lost}` is on no queue"));
    said(&found, "dramatiq:mails", Healed::Removed, "has no message");
    said(&found, &acks, Healed::Removed, "has no message");
    assert_eq!(app.number(&["LLEN", "dramatiq:mails"]), 2);
    let worker = work.start(&["work"], None);
    work.runs(&worker, "a");
}

async fn a_celery_message_and_its_place_in_the_index_are_brought_together() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    app.text(&[
        "SADD",
        "_kombu.binding.celery.pidbox",
        "\u{6}\u{16}\u{6}\u{16}w1@vm.celery.pidbox",
    ]);
    app.text(&["HSET", "unacked", "both", "[]", "message", "[]"]);
    app.text(&["ZADD", "unacked_index", "1794926630.5", "both", "1794926630.5", "index"]);
    let redis = connect(&server.url());
    let found = heals(&searched(&redis, "celery"), &app, 2).await;
    said(&found, "unacked", Healed::Added, "delivery tag `message` is not in `unacked_index`");
    said(&found, "unacked_index", Healed::Removed, "delivery tag `index` has no message");
    assert_eq!(app.text(&["ZRANGE", "unacked_index", "0", "-1"]), "both\nmessage");
    assert_eq!(app.number(&["HLEN", "unacked"]), 2);
}

async fn a_sidekiq_process_without_a_record_is_removed_unless_its_jobs_are_still_to_be_put_back() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let (gone, alive, copied) = ("vm:1:aaaaaaaaaaaa", "vm:2:bbbbbbbbbbbb", "vm:3:cccccccccccc");
    app.text(&["SADD", "processes", gone, alive, copied]);
    app.text(&["HSET", alive, "busy", "0", "beat", "1794926644.92"]);
    let redis = connect(&server.url());
    let inflight = redis.rescued_inflight(id(), layout("sidekiq", SOON)).unwrap();
    // The picture of a heartbeat, of which a pass makes a copy, and then the process is gone.
    let payload = r#"{"queue":"mails","class":"Job","args":[],"jid":"59198e10","retry":true}"#;
    let entry = serde_json::json!({ "queue": "mails", "payload": payload, "run_at": 1794926642 });
    app.text(&["HSET", copied, "busy", "1", "beat", "1794926644.92"]);
    app.text(&["HSET", &format!("{copied}:work"), "tid", &entry.to_string()]);
    app.text(&["EXPIRE", copied, "60"]);
    app.text(&["EXPIRE", &format!("{copied}:work"), "60"]);
    let sweep: Arc<dyn Sweep> = Arc::new(inflight);
    let copies = eventually("the copy", async || {
        pass(&sweeper(&sweep, &redis, Policy::default())).await;
        let keys = app.text(&["KEYS", "lapsed:*copies"]);
        (!keys.is_empty() && app.number(&["HEXISTS", &keys, copied]) == 1).then_some(keys)
    })
    .await;
    app.text(&["DEL", copied]);
    app.text(&["DEL", &format!("{copied}:work")]);
    let inflight = searched(&redis, "sidekiq");
    let found = look(&inflight, PassMode::Reclaim).await;
    said(&found, "processes", Healed::Removed, &format!("process `{gone}` is listed"));
    assert_eq!((found.len(), app.number(&["SCARD", "processes"])), (1, 2));
    app.text(&["HDEL", &copies, copied]);
    assert_eq!(look(&inflight, PassMode::Reclaim).await.len(), 1);
    assert_eq!(app.text(&["SMEMBERS", "processes"]), alive);
}

/// The first looks of one run. Returns where it goes on.
pub async fn until_the_second_look(inflight: &RescuedInflight) -> Cursor {
    let mut cursor = Cursor::default();
    while !cursor.0.as_ref().is_some_and(|at| at.ends_with(":wait")) {
        let page = inflight.reconcile(cursor, 100, PassMode::Reclaim).await.unwrap();
        cursor = page.next.unwrap();
    }
    cursor
}

/// A worker was between two steps in the first look and has gone on before the second one.
async fn what_only_one_of_two_looks_finds_is_not_drift() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a", "b"]);
    app.text(&["DEL", "rq:queue:mails"]);
    let redis = connect(&server.url());
    let inflight = searched(&redis, "rq");
    let cursor = until_the_second_look(&inflight).await;
    // One is on its queue again; the other was taken once more meanwhile, and is between two steps again.
    app.text(&["RPUSH", "rq:queue:mails", "a"]);
    app.text(&["HSET", "rq:job:b", "enqueued_at", "2026-11-18T12:00:00.000000Z"]);
    let (report, changes) = look_from(&inflight, cursor, PassMode::Reclaim).await;
    assert_eq!((changes, report.agree), (vec![], true));
    assert_eq!(app.text(&["LRANGE", "rq:queue:mails", "0", "-1"]), "a");
}

async fn two_runs_at_once_heal_a_finding_once() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    let ids: Vec<String> = (0..50).map(|n| format!("j{n}")).collect();
    work.add(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    app.text(&["DEL", "rq:queue:mails"]);
    let (one, other) = (connect(&server.url()), connect(&server.url()));
    let (one, other) = (searched(&one, "rq"), searched(&other, "rq"));
    let (one, other) = tokio::join!(look(&one, PassMode::Reclaim), look(&other, PassMode::Reclaim));
    assert_eq!(one.len() + other.len(), 50);
    assert_eq!(app.number(&["LLEN", "rq:queue:mails"]), 50);
}

async fn only_the_configured_queues_are_healed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    app.text(&["DEL", "rq:queue:mails"]);
    let redis = connect(&server.url());
    let layout =
        RescueLayout { queues: [Name::new("other").unwrap()].into(), ..layout("rq", SOON) };
    let inflight = redis.rescued_inflight(id(), layout).unwrap().drift_looks_apart(APART);
    assert_eq!(look(&inflight, PassMode::Reclaim).await, []);
    assert_eq!(app.number(&["EXISTS", "rq:queue:mails"]), 0);
}

async fn a_key_of_another_type_is_not_healed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    work.add(&["a"]);
    app.text(&["DEL", "rq:queue:mails"]);
    app.text(&["SET", "rq:failed:mails", "not a sorted set"]);
    let redis = connect(&server.url());
    let before = dump(&app);
    let inflight = searched(&redis, "rq");
    let (report, changes) = look_from(&inflight, Cursor::default(), PassMode::Reclaim).await;
    assert_eq!(changes, []);
    let left: Vec<&String> = report.left.keys().collect();
    assert!(left.len() == 1 && left[0].contains("`rq:failed:mails` is a string"), "{left:?}");
    assert_eq!(dump(&app), before);
}

/// Workers of one queue (which have a list of what they took) and of two (which have none), all busy, and looks that would heal.
async fn rq_in_normal_use_shows_no_drift() {
    const JOBS: usize = 60;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("rq", &server), App::on(&server));
    let workers: Vec<Program> = ["", "other"]
        .into_iter()
        .enumerate()
        .map(|(n, also)| {
            let (interpreter, file) = program("rq");
            Program::start(&interpreter, |command| {
                command.args(file).args(["work", &format!("w{n}")]);
                command.env("REDIS_URL", server.url()).env("ALSO", also);
            })
            .unwrap()
        })
        .collect();
    let ids: Vec<String> = (0..JOBS).map(|n| format!("j{n}")).collect();
    work.add(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let redis = connect(&server.url());
    let inflight = searched(&redis, "rq");
    let mut looks = 0;
    while app.number(&["ZCARD", "rq:finished:mails"]) < JOBS as i64 {
        assert_eq!(look(&inflight, PassMode::Reclaim).await, [], "after {looks} looks");
        looks += 1;
        assert!(looks < 100_000, "the jobs do not end");
    }
    assert!(looks > 5, "only {looks} looks while the workers were busy");
    assert_eq!(app.number(&["LLEN", "rq:queue:mails"]), 0);
    for id in &ids {
        assert_eq!(app.number(&["XLEN", &format!("rq:results:{id}")]), 1, "{id}");
    }
    drop(workers);
}

async fn dramatiq_and_bullmq_in_normal_use_show_no_drift() {
    const JOBS: usize = 200;
    let ids: Vec<String> = (0..JOBS).map(|n| format!("j{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    for (profile, slow) in [("dramatiq", "0.02"), ("bullmq", "20")] {
        let work = Workplace::new(profile, &server);
        work.add(&ids);
        let _workers =
            [work.start(&["work", "w1"], Some(slow)), work.start(&["work", "w2"], Some(slow))];
        let inflight = searched(&redis, profile);
        let left = || match profile {
            "dramatiq" => app.number(&["HLEN", "dramatiq:mails.msgs"]),
            _ => JOBS as i64 - app.number(&["ZCARD", "bull:mails:completed"]),
        };
        let mut looks = 0;
        while left() > 0 {
            assert_eq!(
                look(&inflight, PassMode::Reclaim).await,
                [],
                "{profile}: after {looks} looks"
            );
            looks += 1;
        }
        assert!(looks > 5, "only {looks} looks while the workers of {profile} were busy");
    }
}
