//! Whose fault was the silence? A server that stood still gives every owner a whole threshold. A client that could not
//! reach it, while others could, makes nobody else wait. A clock of the server that jumps ahead is an absence, too: a
//! machine that was suspended goes on with the time of day, and its owners could not send heartbeats meanwhile.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::ManualClock;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Stopped, Sweep};
use lapsed_redis::{NativeRegistry, Redis, RedisAddress};
use lapsed_testbed::{Engine, Proxy, RedisServer, ServerOptions, SettableClock};

use crate::story::{
    App, TTL, connect, eventually, holding, id, keys, layout, on_both_engines, pass, settled,
    sweeper,
};

on_both_engines! {
    a_client_that_was_cut_off_alone_makes_nobody_wait,
    a_server_that_stood_still_for_all_observers_gives_everybody_a_threshold,
    a_server_that_stood_still_for_its_only_observer_gives_everybody_a_threshold,
    a_client_whose_machine_was_suspended_alone_makes_nobody_wait,
}

const META: &str = "lapsed:{connections:registry}:registry/devices:meta";

fn registry_by(url: &str) -> (Redis, NativeRegistry) {
    let redis = connect(url);
    let registry = redis.registry(id(), layout(TTL)).unwrap();
    (redis, registry)
}

/// Since when the server is back, as it has recorded.
fn back_ms(app: &App) -> u64 {
    app.text(&["HGET", META, "back"]).parse().unwrap_or(0)
}

/// When anybody last probed the server, as it has recorded.
fn contact_ms(app: &App) -> u64 {
    app.text(&["HGET", META, "contact"]).parse().unwrap_or(0)
}

async fn another_probe(app: &App) {
    let before = contact_ms(app);
    eventually("a probe", async || (contact_ms(app) > before).then_some(())).await;
}

async fn a_client_that_was_cut_off_alone_makes_nobody_wait(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let app = App::on(&server);
    let (lonely_redis, cut_off) = registry_by(&proxy.url());
    let (redis, healthy) = registry_by(&server.url());
    let sweep: Arc<dyn Sweep> = Arc::new(healthy.clone());
    let lonely: Arc<dyn Sweep> = Arc::new(cut_off.clone());
    settled(&*sweep).await;
    settled(&*lonely).await;
    let before = sweeper(&lonely, &lonely_redis, Policy::default());
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    pass(&before).await;
    pass(&sweeper).await;
    another_probe(&app).await;
    let back = back_ms(&app);
    proxy.cut();
    tokio::time::sleep(TTL).await;
    proxy.mend().unwrap();
    eventually("an answer", async || lonely.census().await.ok()).await;
    pass(&before).await;
    another_probe(&app).await;
    assert_eq!(back_ms(&app), back, "the server was there all the while");
    holding(&healthy, "i-1", Duration::from_millis(100), &keys("k", 5)).await;
    eventually("its end", async || {
        let report = pass(&sweeper).await;
        assert_ne!(report.stopped, Stopped::Brake, "{report:?}");
        (report.reclaimed == 5).then_some(())
    })
    .await;
}

async fn stands_still(engine: Engine, observers: usize) {
    let server = RedisServer::start(engine).unwrap();
    let app = App::on(&server);
    let all: Vec<_> = (0..observers).map(|_| registry_by(&server.url())).collect();
    for (redis, registry) in &all {
        settled(registry).await;
        let sweep: Arc<dyn Sweep> = Arc::new(registry.clone());
        pass(&sweeper(&sweep, redis, Policy::default())).await;
    }
    holding(&all[0].1, "i-1", TTL, &keys("k", 5)).await;
    another_probe(&app).await;
    let back = back_ms(&app);
    server.freeze().unwrap();
    tokio::time::sleep(TTL + TTL / 3).await;
    server.thaw().unwrap();
    eventually("the absence to be recorded", async || (back_ms(&app) > back).then_some(())).await;
    everybody_has_a_threshold(&server, back_ms(&app)).await;
}

/// A process that has seen nothing of the absence waits for it, and then takes the five entries.
async fn everybody_has_a_threshold(server: &RedisServer, again: u64) {
    let (redis, registry) = registry_by(&server.url());
    let sweep: Arc<dyn Sweep> = Arc::new(registry);
    let fresh = sweeper(&sweep, &redis, Policy::default());
    let report = pass(&fresh).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Brake), "{report:?}");
    let taken = eventually("the end of the grace", async || {
        Some(pass(&fresh).await).filter(|report| report.reclaimed == 5)
    })
    .await;
    let at_ms = crate::story::receipts(&redis, &id()).await[0].at_ms;
    assert!(at_ms >= again + TTL.as_millis() as u64, "{at_ms} after {again}: {taken:?}");
}

async fn a_server_that_stood_still_for_all_observers_gives_everybody_a_threshold(engine: Engine) {
    stands_still(engine, 3).await;
}

async fn a_server_that_stood_still_for_its_only_observer_gives_everybody_a_threshold(
    engine: Engine,
) {
    stands_still(engine, 1).await;
}

/// What the clock is set ahead by: longer than a TTL, so that every deadline has passed.
const AHEAD: Duration = Duration::from_secs(75);

/// Redis, lapsed and the owners are on a machine that was suspended: their monotonic clocks stood still, and the time
/// of day goes on where it should be. Debian's Redis cannot be started with a clock that is set.
async fn a_clock_set_forward(observers: usize) {
    let clock = SettableClock::ahead_by(0).unwrap();
    let server = ServerOptions::new(Engine::Valkey).clock(&clock).start().unwrap();
    let app = App::on(&server);
    let all: Vec<_> = (0..observers).map(|_| registry_by(&server.url())).collect();
    for (redis, registry) in &all {
        settled(registry).await;
        let sweep: Arc<dyn Sweep> = Arc::new(registry.clone());
        pass(&sweeper(&sweep, redis, Policy::default())).await;
    }
    holding(&all[0].1, "i-1", TTL, &keys("k", 5)).await;
    another_probe(&app).await;
    let (back, before) = (back_ms(&app), contact_ms(&app));
    clock.run_ahead_by(AHEAD.as_secs() as i64).unwrap();
    let ahead = before + AHEAD.as_millis() as u64;
    eventually("a probe", async || (contact_ms(&app) > ahead).then_some(())).await;
    eventually("the absence to be recorded", async || (back_ms(&app) > back).then_some(())).await;
    everybody_has_a_threshold(&server, back_ms(&app)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_forward_gives_everybody_a_threshold() {
    lapsed_testbed::steadily_async(async || a_clock_set_forward(1).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_forward_under_several_observers_gives_everybody_a_threshold() {
    lapsed_testbed::steadily_async(async || a_clock_set_forward(3).await).await;
}

/// Its monotonic clock stood still while the server's clock went on, as if that had been set forward. Another process
/// reached the server all the while.
async fn a_client_whose_machine_was_suspended_alone_makes_nobody_wait(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let app = App::on(&server);
    let own = ManualClock::at(0);
    let address = RedisAddress::new(&server.url());
    let suspended_redis = Redis::with_clock(&address, Arc::new(own.clone())).unwrap();
    let suspended = suspended_redis.registry(id(), layout(TTL)).unwrap();
    let (redis, healthy) = registry_by(&server.url());
    settled(&healthy).await;
    for (redis, registry) in [(&redis, &healthy), (&suspended_redis, &suspended)] {
        let sweep: Arc<dyn Sweep> = Arc::new(registry.clone());
        pass(&sweeper(&sweep, redis, Policy::default())).await;
    }
    another_probe(&app).await;
    let back = back_ms(&app);
    tokio::time::sleep(TTL).await;
    own.advance(TTL / 4);
    let sweep: Arc<dyn Sweep> = Arc::new(suspended);
    pass(&sweeper(&sweep, &suspended_redis, Policy::default())).await;
    another_probe(&app).await;
    assert_eq!(back_ms(&app), back, "others reached the server, and its clock was not set");
}
