//! Streams with a consumer group, read by redis-py.

use std::collections::BTreeSet;

use lapsed_core::Name;

use super::*;

lapsed_testbed::steady_async_tests! {
    an_entry_of_a_killed_consumer_runs_on_another_consumer,
    trap_f1_a_long_job_stays_with_a_consumer_whose_heartbeat_lives,
    trap_f10_a_consumer_that_claims_at_the_same_instant_leaves_each_entry_once,
    two_sweepers_put_each_entry_back_once,
    trap_f12_an_entry_that_kills_its_consumers_is_in_the_dead_stream,
    a_stream_with_several_groups_is_left_alone,
    a_key_that_is_no_stream_and_an_entry_that_was_deleted_are_left_alone,
    streams_are_rescued_only_by_name,
    detect_finds_pending_entries_of_idle_consumers,
}

/// The digest of the first entry's fields.
const FIELDS: &str =
    "return redis.sha1hex(table.concat(redis.call('XRANGE', KEYS[1], '-', '+')[1][2], '|'))";

pub fn streams(limit: Duration) -> RescueLayout {
    let queues = BTreeSet::from([Name::new("mails").unwrap()]);
    RescueLayout { queues, ..layout("streams", limit) }
}

pub fn by_heartbeat(limit: Duration) -> RescueLayout {
    RescueLayout { heartbeat_key: Some("alive:{consumer}".to_owned()), ..streams(limit) }
}

pub fn opened(redis: &Redis, layout: RescueLayout) -> Arc<RescuedInflight> {
    Arc::new(redis.rescued_inflight(id(), layout).unwrap())
}

/// By heartbeat, and an operator has confirmed the name of its key.
async fn confirmed(redis: &Redis, limit: Duration) -> Arc<RescuedInflight> {
    let inflight = opened(redis, by_heartbeat(limit));
    inflight.confirm_adoption().await.unwrap();
    inflight
}

async fn an_entry_of_a_killed_consumer_runs_on_another_consumer() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("streams", &server);
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("c1");
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let before = app.text(&["EVAL", FIELDS, "1", "mails"]);
    let inflight = opened(&redis, by_heartbeat(SOON));
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "its consumer lives: {report:?}");
    worker.kill().unwrap();
    put_back(&inflight, &redis, 1).await;
    let found = receipts(&redis, &id()).await;
    assert_eq!(found[0].owner.as_str(), "mails/workers/c1");
    assert_eq!(app.text(&["EVAL", FIELDS, "1", "mails"]), before, "byte for byte");
    assert_eq!(app.text(&["XLEN", "mails"]), "1", "moved, not copied");
    let other = work.start(&["work", "c2"], None);
    work.runs(&other, &job);
}

async fn trap_f1_a_long_job_stays_with_a_consumer_whose_heartbeat_lives() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let work = Workplace::new("streams", &server);
    work.add(&["a"]);
    let (worker, job, _) = work.stuck("c1");
    let redis = connect(&server.url());
    let by_beat: Arc<dyn Sweep> = opened(&redis, by_heartbeat(Duration::ZERO));
    let beating = sweeper(&by_beat, &redis, Policy::default());
    for _ in 0..5 {
        let report = pass(&beating).await;
        assert_eq!((report.reclaimed, report.suspects), (0, 0), "its consumer lives: {report:?}");
    }
    worker.kill().unwrap();
    // Without a heartbeat key, the idle time decides.
    put_back(&opened(&redis, streams(SOON)), &redis, 1).await;
    let other = work.start(&["work", "c2"], None);
    work.runs(&other, &job);
}

/// Entries that a consumer was given and left.
pub fn leave_entries(app: &App, entries: std::ops::Range<usize>) {
    if app.number(&["EXISTS", "mails"]) == 0 {
        app.text(&["XGROUP", "CREATE", "mails", "workers", "0", "MKSTREAM"]);
    }
    for n in entries {
        app.text(&["XADD", "mails", "*", "id", &n.to_string()]);
    }
    app.text(&["XREADGROUP", "GROUP", "workers", "c1", "COUNT", "1000", "STREAMS", "mails", ">"]);
}

fn ids(app: &App) -> Vec<String> {
    let text = app.text(&["XRANGE", "mails", "-", "+"]);
    // Each entry is three lines: its own id, the field's name, the value.
    let mut ids: Vec<String> = text.lines().skip(2).step_by(3).map(str::to_owned).collect();
    ids.sort();
    ids
}

async fn trap_f10_a_consumer_that_claims_at_the_same_instant_leaves_each_entry_once() {
    const ENTRIES: usize = 300;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let inflight = confirmed(&redis, Duration::ZERO).await;
    app.text(&["SET", "alive:c2", "1"]);
    leave_entries(&app, 0..1);
    // From then on nobody is spared because the server has just been found.
    put_back(&inflight, &redis, 1).await;
    leave_entries(&app, 1..ENTRIES);
    let sweep: Arc<dyn Sweep> = inflight;
    let sweeper = sweeper(&sweep, &redis, bit_by_bit());
    let sweeping = eventually("the dead consumer to hold nothing", async || {
        assert!(pass(&sweeper).await.stopped != Stopped::Error);
        let left = app.text(&["XPENDING", "mails", "workers", "-", "+", "1", "c1"]);
        left.is_empty().then_some(())
    });
    // From the newest entries on, as lapsed begins with the oldest.
    let newest = app.text(&["XREVRANGE", "mails", "+", "-", "COUNT", "150"]);
    let newest: Vec<&str> = newest.lines().step_by(3).collect();
    let claiming = async {
        for id in &newest {
            app.text(&["XCLAIM", "mails", "workers", "c2", "0", id, "JUSTID"]);
            tokio::task::yield_now().await;
        }
    };
    let began = async {
        let waiting = async || (receipts(&redis, &super::id()).await.len() > 5).then_some(());
        eventually("lapsed to begin", waiting).await;
        claiming.await;
    };
    tokio::join!(sweeping, began);
    let held = app.text(&["XPENDING", "mails", "workers", "-", "+", "1000", "c2"]);
    let put_back = receipts(&redis, &id()).await.len();
    eprintln!("{put_back} entries were put back, {} were claimed", held.lines().count() / 4);
    assert!(!held.is_empty(), "the claimer had its share");
    let mut all = ids(&app);
    assert_eq!(all.len(), ENTRIES);
    all.dedup();
    assert_eq!(all.len(), ENTRIES, "no entry is there twice");
}

async fn two_sweepers_put_each_entry_back_once() {
    const ENTRIES: usize = 200;
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    leave_entries(&app, 0..ENTRIES);
    let (one, other) = (connect(&server.url()), connect(&server.url()));
    confirmed(&one, Duration::ZERO).await;
    let both =
        [&one, &other].map(|redis| opened(redis, by_heartbeat(Duration::ZERO)) as Arc<dyn Sweep>);
    let small = Policy { batch: 7, ..Policy::default() };
    let sweepers = [sweeper(&both[0], &one, small.clone()), sweeper(&both[1], &other, small)];
    eventually("all to be put back", async || {
        let (left, right) = tokio::join!(pass(&sweepers[0]), pass(&sweepers[1]));
        assert!(left.stopped != Stopped::Error && right.stopped != Stopped::Error);
        let left = app.text(&["XPENDING", "mails", "workers", "-", "+", "1"]);
        left.is_empty().then_some(())
    })
    .await;
    let mut all = ids(&app);
    assert_eq!((all.len(), receipts(&one, &id()).await.len()), (ENTRIES, ENTRIES));
    all.dedup();
    assert_eq!(all.len(), ENTRIES);
}

async fn trap_f12_an_entry_that_kills_its_consumers_is_in_the_dead_stream() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let work = Workplace::new("streams", &server);
    work.add(&["poison"]);
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let recovery = RecoveryPolicy { crashes_max: 2, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..by_heartbeat(Duration::ZERO) };
    let inflight = opened(&redis, layout);
    inflight.confirm_adoption().await.unwrap();
    for name in ["c1", "c2"] {
        let (worker, _, _) = work.stuck(name);
        worker.kill().unwrap();
        put_back(&inflight, &redis, 1).await;
    }
    assert!(app.text(&["XRANGE", "mails:dead", "-", "+"]).contains("poison"));
    assert_eq!(app.text(&["XLEN", "mails"]), "0", "the count goes on under the new id");
}

async fn a_stream_with_several_groups_is_left_alone() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    leave_entries(&app, 0..3);
    app.text(&["XGROUP", "CREATE", "mails", "audit", "0"]);
    let sweep: Arc<dyn Sweep> = opened(&redis, by_heartbeat(Duration::ZERO));
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.suspects), (0, 0), "{report:?}");
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert!(found[0].notes[0].contains("several groups (audit, workers)"), "{found:?}");
    assert_eq!(app.text(&["XLEN", "mails"]), "3");
}

async fn a_key_that_is_no_stream_and_an_entry_that_was_deleted_are_left_alone() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    leave_entries(&app, 0..2);
    app.text(&["SET", "mails:dead", "not a stream"]);
    let sweep: Arc<dyn Sweep> = confirmed(&redis, Duration::ZERO).await;
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let report = eventually("a pass", async || {
        Some(pass(&sweeper).await).filter(|report| report.suspects == 2)
    })
    .await;
    assert_eq!((report.reclaimed, report.skipped.values().sum()), (0, 2u64), "{report:?}");
    app.text(&["DEL", "mails:dead"]);
    app.text(&["XTRIM", "mails", "MAXLEN", "0"]);
    eventually("what points to nothing to be removed", async || {
        assert_eq!(pass(&sweeper).await.reclaimed, 0);
        let left = app.text(&["XPENDING", "mails", "workers", "-", "+", "1"]);
        left.is_empty().then_some(())
    })
    .await;
}

async fn streams_are_rescued_only_by_name() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "streams", SOON);
    let error = inflight.survey(lapsed_core::sweep::PassMode::Reclaim).await.unwrap_err();
    assert!(error.to_string().contains("name the streams in `queues`"), "{error}");
}

async fn detect_finds_pending_entries_of_idle_consumers() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    leave_entries(&app, 0..3);
    app.text(&["XADD", "mails", "*", "id", "waits"]);
    app.text(&["XADD", "no group", "*", "a", "b"]);
    let look = async || redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    let found = look().await;
    assert_eq!((found.len(), found[0].preset.as_str()), (1, "streams"), "{found:?}");
    assert_eq!((found[0].in_flight, found[0].orphans, found[0].workers_alive), (3, 0, 1));
    assert_eq!(found[0].queues, ["mails"]);
}
