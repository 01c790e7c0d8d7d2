//! Versions and layouts of BullMQ: each job goes to the list that its version knows, and what is not known is left alone. And what
//! lapsed keeps of its own.

use super::*;

lapsed_testbed::steady_async_tests! {
    trap_f9_a_job_of_a_paused_queue_goes_to_the_list_of_its_version,
    trap_f11_an_unknown_version_is_refused_with_what_was_found,
    trap_f11_only_the_configured_prefix_is_touched,
    crashes_before_the_window_are_forgotten,
}

/// One orphan of a queue, as a killed worker of that version leaves it.
pub fn leave_one(app: &App, base: &str, version: &str) {
    app.text(&["HSET", &format!("{base}:meta"), "version", version, "opts.maxLenEvents", "10000"]);
    app.text(&["HSET", &format!("{base}:a"), "name", "send", "data", "{}"]);
    app.text(&["LPUSH", &format!("{base}:active"), "a"]);
}

pub fn list(app: &App, key: &str) -> String {
    app.text(&["LRANGE", key, "0", "-1"])
}

async fn trap_f9_a_job_of_a_paused_queue_goes_to_the_list_of_its_version() {
    for (version, paused, wait) in [("bullmq:5.81.5", "a", ""), ("bullmq:6.7.0", "", "a")] {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        leave_one(&app, "bull:mails", version);
        app.text(&["HSET", "bull:mails:meta", "paused", "1"]);
        let redis = connect(&server.url());
        put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
        let lists = (list(&app, "bull:mails:paused"), list(&app, "bull:mails:wait"));
        assert_eq!((lists.0.as_str(), lists.1.as_str()), (paused, wait), "{version}");
        assert_eq!(app.text(&["EXISTS", "bull:mails:marker"]), "0", "a paused queue wakes nobody");
    }
}

async fn trap_f11_an_unknown_version_is_refused_with_what_was_found() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_one(&app, "bull:mails", "bullmq:9.0.0");
    let redis = connect(&server.url());
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    assert_eq!((found.len(), found[0].version.as_str()), (1, "unknown"), "{found:?}");
    assert!(found[0].notes[0].contains("9.0.0"), "{found:?}");
    let sweep: Arc<dyn Sweep> = rescued(&redis, "bullmq", Duration::ZERO);
    let report = pass(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Error), "{report:?}");
    assert_eq!(list(&app, "bull:mails:active"), "a");
}

async fn trap_f11_only_the_configured_prefix_is_touched() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let app = App::on(&server);
    leave_one(&app, "{ours}:mails", "bullmq:6.7.0");
    leave_one(&app, "theirs:mails", "bullmq:6.7.0");
    let redis = connect(&server.url());
    let layout =
        RescueLayout { prefix: Some("{ours}".to_owned()), ..layout("bullmq", Duration::ZERO) };
    put_back(&Arc::new(redis.rescued_inflight(id(), layout).unwrap()), &redis, 1).await;
    assert_eq!(list(&app, "{ours}:mails:wait"), "a");
    assert_eq!(list(&app, "theirs:mails:active"), "a");
}

async fn crashes_before_the_window_are_forgotten() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    let redis = connect(&server.url());
    let recovery = RecoveryPolicy { crash_window_ms: 1, ..RecoveryPolicy::default() };
    let layout = RescueLayout { recovery, ..layout("bullmq", Duration::ZERO) };
    let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
    leave_one(&app, "bull:mails", "bullmq:6.7.0");
    put_back(&inflight, &redis, 1).await;
    app.text(&["HSET", "bull:mails:b", "name", "send", "data", "{}"]);
    app.text(&["LPUSH", "bull:mails:active", "b"]);
    put_back(&inflight, &redis, 1).await;
    let key = app.text(&["KEYS", "lapsed:*:crashes"]);
    assert_eq!(app.text(&["HKEYS", &key]), "mails/b");
    assert_eq!(app.text(&["ZCARD", &format!("{key}_at")]), "1");
}
