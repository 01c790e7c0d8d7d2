//! The name of the consumers' heartbeat key is in the configuration and may be wrong. Then every consumer looks dead, and what the
//! living work on must stay with them.

use std::time::Instant;

use lapsed_core::sweep::{Outcome, PassMode, PassReport, Refusal};

use super::streams::{by_heartbeat, opened, streams};
use super::*;
use crate::story::{dry, reclaim, suspects};

lapsed_testbed::steady_async_tests! {
    with_a_wrong_heartbeat_key_nothing_is_put_back_until_an_operator_confirms,
    a_healthy_group_needs_no_confirmation,
    another_heartbeat_key_is_observed_anew,
    consumers_that_call_for_their_group_keep_their_entries_whatever_the_key_says,
    consumers_that_fall_silent_one_after_another_are_a_mass_death,
}

/// Each consumer is given one entry, and its heartbeat key is there.
fn consumers(app: &App, names: &[String]) {
    app.text(&["XGROUP", "CREATE", "mails", "workers", "0", "MKSTREAM"]);
    for name in names {
        app.text(&["XADD", "mails", "*", "id", name]);
        call(app, name);
        app.text(&["SET", &format!("alive:{name}"), "1"]);
    }
}

/// Asks for one more entry, as a consumer does that has time.
fn call(app: &App, name: &str) {
    app.text(&["XREADGROUP", "GROUP", "workers", name, "COUNT", "1", "STREAMS", "mails", ">"]);
}

fn names(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("c{n}")).collect()
}

fn with_wrong_key(limit: Duration) -> RescueLayout {
    RescueLayout { heartbeat_key: Some("instance:{consumer}".to_owned()), ..streams(limit) }
}

/// One pass of a process that has seen nothing before, as from a crontab.
async fn single_pass(redis: &Redis, layout: RescueLayout) -> PassReport {
    let sweep: Arc<dyn Sweep> = opened(redis, layout);
    pass(&sweeper(&sweep, redis, Policy::default())).await
}

/// Single passes until one is not held because the server has just been found.
async fn settled(redis: &Redis, layout: &RescueLayout) {
    eventually("a pass that nothing holds", async || {
        let report = single_pass(redis, layout.clone()).await;
        assert_eq!(report.reclaimed, 0, "{report:?}");
        (report.stopped == Stopped::Done).then_some(())
    })
    .await;
}

async fn with_a_wrong_heartbeat_key_nothing_is_put_back_until_an_operator_confirms() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    consumers(&app, &names(4));
    let wrong = with_wrong_key(Duration::ZERO);
    let began = Instant::now();
    let mut last = None;
    // Far longer than the grace, after which nothing but the observation holds.
    while began.elapsed() < Duration::from_secs(3) {
        let report = single_pass(&redis, wrong.clone()).await;
        assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
        last = report.detail;
    }
    let said = last.unwrap();
    let found = "0 of 4 consumers that hold entries have a heartbeat (`instance:{consumer}`)";
    assert!(said.contains(found), "{said}");
    let sweep: Arc<dyn Sweep> = opened(&redis, wrong.clone());
    let listed = dry(&sweeper(&sweep, &redis, Policy::default())).await;
    assert_eq!((listed.entries.len(), listed.skipped.get("brake")), (4, Some(&4)), "{listed:?}");
    let first = opened(&redis, wrong.clone()).confirm_adoption().await.unwrap();
    let second = opened(&redis, wrong.clone()).confirm_adoption().await.unwrap();
    assert_eq!(first, second, "the first time counts");
    put_back(&opened(&redis, wrong), &redis, 4).await;
}

async fn a_healthy_group_needs_no_confirmation() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    consumers(&app, &names(2));
    let right = by_heartbeat(Duration::ZERO);
    settled(&redis, &right).await;
    // Both die. Who was alive is known from the store: every pass is of another process.
    app.text(&["DEL", "alive:c1", "alive:c2"]);
    let mut done = 0;
    eventually("both entries to be put back", async || {
        done += single_pass(&redis, right.clone()).await.reclaimed;
        (done == 2).then_some(())
    })
    .await;
    let alone = redis.rescued_inflight(id(), streams(SOON)).unwrap();
    assert_eq!(alone.survey(PassMode::DryRun).await.unwrap().unwrap().observation, None);
    assert!(alone.confirm_adoption().await.is_err(), "without a key there is nothing to confirm");
}

async fn another_heartbeat_key_is_observed_anew() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    consumers(&app, &names(2));
    settled(&redis, &by_heartbeat(Duration::ZERO)).await;
    let report = single_pass(&redis, with_wrong_key(Duration::ZERO)).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
    assert!(
        report.detail.as_ref().unwrap().contains("0 of them were ever seen alive"),
        "{report:?}"
    );
}

/// The operator has confirmed the wrong name, so that only their calls speak for them.
async fn consumers_that_call_for_their_group_keep_their_entries_whatever_the_key_says() {
    let limit = Duration::from_secs(2);
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    consumers(&app, &names(2));
    let inflight = opened(&redis, with_wrong_key(limit));
    inflight.confirm_adoption().await.unwrap();
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let began = Instant::now();
    while began.elapsed() < 3 * limit {
        names(2).iter().for_each(|name| call(&app, name));
        let report = pass(&sweeper).await;
        assert_eq!((report.reclaimed, report.suspects), (0, 0), "{report:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = eventually("silence for the limit", async || {
        inflight.survey(PassMode::Reclaim).await.unwrap();
        Some(suspects(&*sweep).await).filter(|found| found.len() == 2)
    })
    .await;
    // The guard itself sees a call that came after the suspicion.
    call(&app, "c1");
    let outcomes = reclaim(&*sweep, 1, found).await.outcomes;
    let spared = outcomes.iter().filter(|one| **one == Outcome::Refused(Refusal::Alive)).count();
    assert_eq!(spared, 1, "{outcomes:?}");
}

async fn consumers_that_fall_silent_one_after_another_are_a_mass_death() {
    const ALL: usize = 12;
    let server = RedisServer::start(Engine::Redis).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    consumers(&app, &names(ALL));
    let grace = Duration::from_secs(6);
    let layout = RescueLayout { grace: Some(grace), ..by_heartbeat(Duration::ZERO) };
    past_the_grace(&app, &redis, grace).await;
    settled(&redis, &layout).await;
    let (began, mut done, mut held) = (Instant::now(), 0, false);
    for name in names(ALL) {
        app.text(&["DEL", &format!("alive:{name}")]);
        // The silence is noted by the first pass and judged by the second.
        for _ in 0..2 {
            let report = single_pass(&redis, layout.clone()).await;
            done += report.reclaimed;
            held |= report.stopped == Stopped::Brake;
        }
    }
    assert!(began.elapsed() < grace, "the machine was too slow: {:?}", began.elapsed());
    assert!(held, "all of them died within one threshold, and {done} entries were put back");
    assert_eq!(done, 6, "more than 0.55 of twelve is seven");
}
