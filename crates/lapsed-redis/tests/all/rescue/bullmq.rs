//! BullMQ 5 and 6 with the real programs: what differs between releases, and what its keys do not tell.

use super::*;
use crate::rescue::versions::{leave_one, list};

lapsed_testbed::steady_async_tests! {
    a_job_of_a_killed_worker_runs_on_another_worker_of_both_versions,
    trap_f9_a_job_of_a_queue_that_was_paused_runs_when_it_goes_on,
    trap_f12_a_bullmq_job_that_kills_its_workers_ends_among_the_failed_jobs,
    trap_f12_a_release_that_does_not_fail_deferred_jobs_never_runs_them_again,
    trap_f1_a_job_that_was_taken_by_hand_without_a_lock_stays,
    a_job_whose_stalls_cannot_be_counted_stays_where_it_is,
    queues_of_the_same_name_behind_two_prefixes_have_crashes_of_their_own,
}

/// The packages of both versions.
const PACKAGES: [&str; 2] = ["bullmq", "bullmq5"];

fn start(work: &Workplace, package: &str, args: &[&str], slow: Option<&str>) -> Program {
    let slow = slow.map(|slow| ("SLOW", slow));
    let env: Vec<(&str, &str)> = [("BULLMQ", package)].into_iter().chain(slow).collect();
    work.start_with(args, &env)
}

/// Runs a command of the application to its end.
fn call(work: &Workplace, package: &str, args: &[&str], answer: &str) {
    assert_eq!(start(work, package, args, None).line(LIMIT).unwrap(), answer);
}

/// How many workers `detect` counts.
async fn alive(redis: &Redis) -> u64 {
    let found = redis.detect(DetectOptions::default(), &mut |_, _| {}).await.unwrap().found;
    found[0].workers_alive
}

async fn a_job_of_a_killed_worker_runs_on_another_worker_of_both_versions() {
    for package in PACKAGES {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
        call(&work, package, &["add", "a"], "added");
        let worker = start(&work, package, &["work", "w1"], Some("600000"));
        has_started(&worker);
        let redis = connect(&server.url());
        let inflight = rescued(&redis, "bullmq", Duration::ZERO);
        assert_eq!(alive(&redis).await, 1, "{package}");
        worker.kill().unwrap();
        put_back(&inflight, &redis, 1).await;
        assert_eq!(alive(&redis).await, 0, "{package}");
        let other = start(&work, package, &["work", "w2"], None);
        work.runs(&other, "a");
        assert_eq!(app.text(&["HGET", "bull:mails:a", "stc"]), "1", "{package}");
        let major = if package == "bullmq5" { "bullmq:5." } else { "bullmq:6." };
        let version = app.text(&["HGET", "bull:mails:meta", "version"]);
        assert!(version.starts_with(major), "{version}");
    }
}

async fn trap_f9_a_job_of_a_queue_that_was_paused_runs_when_it_goes_on() {
    for (package, is_on) in [("bullmq", "wait"), ("bullmq5", "paused")] {
        let server = RedisServer::start(Engine::Valkey).unwrap();
        let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
        call(&work, package, &["add", "a"], "added");
        let worker = start(&work, package, &["work", "w1"], Some("600000"));
        has_started(&worker);
        call(&work, package, &["pause"], "paused");
        worker.kill().unwrap();
        let redis = connect(&server.url());
        put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
        assert_eq!(list(&app, &format!("bull:mails:{is_on}")), "a", "{package}");
        call(&work, package, &["resume"], "resumed");
        let other = start(&work, package, &["work", "w2"], None);
        work.runs(&other, "a");
    }
}

async fn trap_f12_a_bullmq_job_that_kills_its_workers_ends_among_the_failed_jobs() {
    // BullMQ's own limit of one stall; and lapsed's limit, where the application allows more.
    for (package, max_stalled, deaths) in [("bullmq5", None, 2), ("bullmq", Some(9), 3)] {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
        call(&work, package, &["add", "poison"], "added");
        let redis = connect(&server.url());
        let recovery = RecoveryPolicy { crashes_max: 3, ..RecoveryPolicy::default() };
        let layout = RescueLayout { recovery, max_stalled, ..layout("bullmq", Duration::ZERO) };
        let inflight = Arc::new(redis.rescued_inflight(id(), layout).unwrap());
        for _ in 0..deaths {
            let worker = start(&work, package, &["work", "w1"], Some("600000"));
            has_started(&worker);
            worker.kill().unwrap();
            put_back(&inflight, &redis, 1).await;
        }
        let _last = start(&work, package, &["work", "w2"], Some("600000"));
        eventually("the job to be failed", async || {
            (app.text(&["ZRANGE", "bull:mails:failed", "0", "-1"]) == "poison").then_some(())
        })
        .await;
        let started = app.text(&["HGET", "bull:mails:poison", "ats"]);
        println!("{package}: failed after {deaths} deaths, started {started} times");
    }
}

/// As BullMQ before 5.49.2 does itself: its workers do not know the field `defa`.
async fn trap_f12_a_release_that_does_not_fail_deferred_jobs_never_runs_them_again() {
    for (version, failed, wait) in [("5.49.1", "a", ""), ("5.49.2", "", "a"), ("5.81.5", "", "a")] {
        let server = RedisServer::start(Engine::Redis).unwrap();
        let app = App::on(&server);
        leave_one(&app, "bull:mails", &format!("bullmq:{version}"));
        app.text(&["HSET", "bull:mails:a", "stc", "1"]);
        let redis = connect(&server.url());
        put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 1).await;
        let ids = app.text(&["ZRANGE", "bull:mails:failed", "0", "-1"]);
        assert_eq!(
            (ids.as_str(), list(&app, "bull:mails:wait").as_str()),
            (failed, wait),
            "{version}"
        );
        assert_eq!(app.number(&["HEXISTS", "bull:mails:a", "defa"]), i64::from(failed.is_empty()));
        // Nothing tells its parent, so that it stays where it is.
        app.text(&["FLUSHDB"]);
        leave_one(&app, "bull:mails", &format!("bullmq:{version}"));
        app.text(&["HSET", "bull:mails:a", "parentKey", "bull:parents:1", "stc", "1"]);
        let sweep: Arc<dyn Sweep> = rescued(&redis, "bullmq", Duration::ZERO);
        let sweeper = sweeper(&sweep, &redis, Policy::default());
        past_the_grace(&app, &redis, Duration::from_millis(300)).await;
        let report = pass(&sweeper).await;
        assert_eq!(report.reclaimed, u64::from(failed.is_empty()), "{version}: {report:?}");
    }
}

/// With the token `0` BullMQ sets no lock, and nobody checks for stalled jobs.
async fn trap_f1_a_job_that_was_taken_by_hand_without_a_lock_stays() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (work, app) = (Workplace::new("bullmq", &server), App::on(&server));
    work.add(&["a"]);
    let hand = work.start(&["take"], None);
    has_started(&hand);
    assert_eq!(
        (app.number(&["EXISTS", "bull:mails:a:lock"]), list(&app, "bull:mails:active")),
        (0, "a".to_owned())
    );
    let redis = connect(&server.url());
    let inflight = rescued(&redis, "bullmq", Duration::ZERO);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    past_the_grace(&app, &redis, Duration::from_millis(300)).await;
    for _ in 0..3 {
        let report = pass(&sweeper).await;
        assert_eq!((report.suspects, report.reclaimed), (0, 0), "{report:?}");
    }
    hand.kill().unwrap();
    put_back(&inflight, &redis, 1).await;
}

async fn a_job_whose_stalls_cannot_be_counted_stays_where_it_is() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_one(&app, "bull:mails", "bullmq:6.7.0");
    app.text(&["HSET", "bull:mails:a", "stc", "many"]);
    let redis = connect(&server.url());
    let sweep: Arc<dyn Sweep> = rescued(&redis, "bullmq", Duration::ZERO);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    past_the_grace(&app, &redis, Duration::from_millis(300)).await;
    let report = pass(&sweeper).await;
    assert_eq!((report.reclaimed, report.skipped.values().sum::<u64>()), (0, 1), "{report:?}");
    assert_eq!(list(&app, "bull:mails:active"), "a");
    let found = receipts(&redis, &id()).await;
    assert!(found.is_empty(), "a receipt of what did not happen: {found:?}");
}

async fn queues_of_the_same_name_behind_two_prefixes_have_crashes_of_their_own() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let app = App::on(&server);
    leave_one(&app, "bull:mails", "bullmq:6.7.0");
    leave_one(&app, "shop:mails", "bullmq:6.7.0");
    let redis = connect(&server.url());
    put_back(&rescued(&redis, "bullmq", Duration::ZERO), &redis, 2).await;
    let mut keys: Vec<String> =
        receipts(&redis, &id()).await.iter().map(|one| one.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["mails/a", "shop:mails/a"]);
    let crashes = app.text(&["KEYS", "lapsed:*:crashes"]);
    assert_eq!(app.number(&["HLEN", &crashes]), 2);
}
