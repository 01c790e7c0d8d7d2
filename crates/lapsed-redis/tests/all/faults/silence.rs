//! The server stands still, or what it answers is lost, or what it is asked never arrives.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Error;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Outcome, Refusal, Sweep};
use lapsed_testbed::{Engine, Proxy, RedisServer, ServerOptions};

use crate::story::{
    Living, Sum, TTL, audit, batch, eventually, held_by, holding, keys, name, on_both_engines,
    pass, reclaim, slowly, suspects, sweep_until,
};

use super::{LONG, World};

on_both_engines! {
    a_server_frozen_for_longer_than_a_ttl_costs_nobody_alive_anything,
    the_answer_to_a_reclaim_is_lost,
    a_reclaim_that_never_arrived_is_forbidden,
}

lapsed_testbed::steady_async_tests! {
    a_batch_that_slept_with_the_server_is_refused,
}

/// SIGSTOP: connections stay open, nothing is answered, clocks go on. What was on its way is carried
/// out when it wakes up, before anybody could beat.
async fn a_server_frozen_for_longer_than_a_ttl_costs_nobody_alive_anything(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let mine = keys("live", 40);
    let dead = world.dying_owners("dead", 4, 50).await;
    let living = Living::new(&world.registry, "live", &mine).await;
    // With one live owner among five, the brake would hold.
    holding(&world.registry, "live-too", LONG, &[]).await;
    world.suspect(200).await;
    let found = suspects(&world.registry).await;
    let sweeper = Arc::new(world.sweeper(slowly()));
    // One pass is in the middle, and one batch is on its way.
    let under_way = tokio::spawn({
        let sweeper = sweeper.clone();
        async move { pass(&sweeper).await }
    });
    let app = world.app();
    eventually("the middle of the pass", async || {
        (app.number(&["HLEN", "connections:registry"]) < 240 - 20).then_some(())
    })
    .await;
    world.server.freeze().unwrap();
    let late = batch("late", 1, found[150..].to_vec());
    let unanswered = world.registry.reclaim(late.clone()).await;
    assert!(matches!(unanswered, Err(Error::Unavailable { .. })), "{unanswered:?}");
    let mut sum = Sum::default();
    sum.add(&under_way.await.unwrap());
    tokio::time::sleep(TTL + Duration::from_millis(500)).await;
    world.server.thaw().unwrap();
    living.beats().await;
    sum.reclaimed += world.registry.settle(&late.id).await.unwrap().len() as u64;
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 40).await;
    living.beats().await;
    audit(&app, &world.receipts().await, sum.reclaimed, &dead, &held_by("live", &mine));
    assert!(sum.errors > 0, "{sum:?}");
}

/// It was carried out, and the connection broke before the answer came: in doubt, and settled by the
/// next pass.
async fn the_answer_to_a_reclaim_is_lost(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let world = World::by(server, &proxy.url());
    let app = world.app();
    let sweeper = world.sweeper(slowly());
    let mut sum = Sum::default();
    // So that the server knows the scripts: else it is the answer `NOSCRIPT` that is lost.
    let mut dead = world.dying_owners("first", 1, 1).await;
    sweep_until(&sweeper, &mut sum, || app.registry().is_empty()).await;
    dead.extend(world.dying_owners("dead", 3, 25).await);
    let living = Living::new(&world.registry, "live", &keys("live", 5)).await;
    world.suspect(75).await;
    for _ in 0..3 {
        let lost = proxy.dropped();
        proxy.drop_answers_matching("\r\nreclaim\r\n");
        eventually("an answer lost", async || {
            let report = pass(&sweeper).await;
            sum.add(&report);
            (proxy.dropped() > lost || app.registry().len() == 5).then_some(())
        })
        .await;
    }
    assert!(sweeper.is_in_doubt());
    assert!(sum.in_doubt > 0, "{sum:?}");
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 5).await;
    assert!(sum.settled > 0 && !sweeper.is_in_doubt(), "{sum:?}");
    audit(&app, &world.receipts().await, sum.reclaimed, &dead, &held_by("live", &keys("live", 5)));
    living.assert_alive();
}

/// The connection broke before the request arrived. Settling it forbids it, because it might still be
/// on its way, and would then not be counted at all.
async fn a_reclaim_that_never_arrived_is_forbidden(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let world = World::by(server, &proxy.url());
    let app = world.app();
    let dead = world.dying_owners("dead", 2, 20).await;
    world.suspect(40).await;
    let found = suspects(&world.registry).await;
    let sent = batch("cut-off", 1, found);
    proxy.cut();
    let answer = world.registry.reclaim(sent.clone()).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    proxy.mend().unwrap();
    let settled =
        eventually("an answer", async || world.registry.settle(&sent.id).await.ok()).await;
    assert!(settled.is_empty());
    // Here it comes after all, whatever the grace says by now.
    world.suspect(40).await;
    let late = world.registry.reclaim(sent).await.unwrap();
    assert_eq!(late.outcomes, vec![Outcome::Gone; 40]);
    assert_eq!((app.registry().len(), world.receipts().await.len()), (40, 0));
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().is_empty()).await;
    audit(&app, &world.receipts().await, sum.reclaimed, &dead, &[]);
}

/// What the guard says to a batch whose server stood still meanwhile, by itself.
async fn a_batch_that_slept_with_the_server_is_refused() {
    let world = World::new(ServerOptions::new(Engine::Valkey));
    let mine = keys("k", 5);
    holding(&world.registry, "i-1", TTL, &mine).await;
    world.suspect(5).await;
    let found = suspects(&world.registry).await;
    let registry = world.registry.clone();
    // The script is known to the server.
    let first = reclaim(&world.registry, 1, found[..1].to_vec()).await;
    assert!(matches!(first.outcomes[0], Outcome::Reclaimed(_)), "{first:?}");
    holding(&world.registry, "i-2", TTL, &keys("l", 5)).await;
    eventually("the end of the second", async || {
        let all = suspects(&world.registry).await;
        all.iter().any(|suspect| suspect.owner == name("i-2")).then_some(())
    })
    .await;
    let found: Vec<_> = suspects(&world.registry).await;
    let found: Vec<_> = found.into_iter().filter(|s| s.owner == name("i-2")).collect();
    world.server.freeze().unwrap();
    let late = batch("late", 1, found.clone());
    let sent = registry.reclaim(late.clone()).await;
    assert!(sent.is_err(), "{sent:?}");
    tokio::time::sleep(TTL).await;
    world.server.thaw().unwrap();
    let again = eventually("an answer", async || {
        world.registry.reclaim(batch("by-hand", 2, found.clone())).await.ok()
    })
    .await;
    assert_eq!(again.outcomes, vec![Outcome::Refused(Refusal::StoreAway); 5]);
    assert!(world.registry.settle(&late.id).await.unwrap().is_empty());
    assert_eq!(world.app().registry().len(), 9);
}
