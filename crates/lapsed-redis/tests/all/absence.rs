//! Whose fault was the silence? A server that stood still gives every owner a whole threshold. A client that could not
//! reach it, while others could, makes nobody else wait.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Stopped, Sweep};
use lapsed_redis::{NativeRegistry, Redis};
use lapsed_testbed::{Engine, Proxy, RedisServer};

use crate::story::{
    App, TTL, connect, eventually, holding, id, keys, layout, on_both_engines, pass, settled,
    sweeper,
};

on_both_engines! {
    a_client_that_was_cut_off_alone_makes_nobody_wait,
    a_server_that_stood_still_for_all_observers_gives_everybody_a_threshold,
    a_server_that_stood_still_for_its_only_observer_gives_everybody_a_threshold,
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
    let again = back_ms(&app);
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
