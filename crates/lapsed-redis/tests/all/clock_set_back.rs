//! The server's clock was hours ahead, and is right again. What was written down meanwhile lies in the
//! future: a brake that waits for it would hold for hours (X3), and everybody has beaten long since.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::sweep::Sweep;
use lapsed_core::sweep::policy::Policy;
use lapsed_testbed::{Engine, RedisServer};

use crate::story::{
    App, Sum, connect, eventually, id, keys, layout, on_both_engines, pass, receipts, sweep_until,
    sweeper,
};

on_both_engines! {
    an_absence_in_the_future_holds_for_one_threshold,
}

const THRESHOLD: Duration = Duration::from_millis(500);

async fn an_absence_in_the_future_holds_for_one_threshold(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let registry = redis.adopted_registry(id(), layout(THRESHOLD)).unwrap();
    let sweep: Arc<dyn Sweep> = Arc::new(registry);
    let sweeper = sweeper(&sweep, &redis, Policy::default());
    let meta = "lapsed:{connections:registry}:registry/devices:meta";
    eventually("the server to be known", async || {
        pass(&sweeper).await;
        (app.number(&["EXISTS", meta]) == 1).then_some(())
    })
    .await;
    let now_ms = || {
        let time = app.text(&["TIME"]);
        let (s, us) = time.split_once('\n').unwrap();
        s.parse::<u64>().unwrap() * 1_000 + us.parse::<u64>().unwrap() / 1_000
    };
    let began_ms = now_ms();
    app.call(&["HSET", meta, "back", &(began_ms + 3 * 3_600_000).to_string()]);
    app.register("i-dead", &keys("dead", 5));
    sweep.confirm_adoption().await.unwrap();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().is_empty()).await;
    let receipts = receipts(&redis, &id()).await;
    assert_eq!((receipts.len() as u64, sum.reclaimed), (5, 5));
    let early = receipts.iter().filter(|r| r.at_ms < began_ms + THRESHOLD.as_millis() as u64);
    assert_eq!(early.count(), 0, "it is an absence like any other");
    let back_ms: u64 = app.text(&["HGET", meta, "back"]).parse().unwrap();
    assert!(back_ms <= now_ms(), "and written down as one");
}
