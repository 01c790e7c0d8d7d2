//! The server is killed, or replaced by a replica: what it still knows, it knows; everybody has a whole
//! threshold to beat again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lapsed_core::Error;
use lapsed_core::owner::OwnerStore;
use lapsed_core::receipt::ReceiptQuery;
use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_testbed::{Engine, Persistence, Proxy, RedisServer, ServerOptions};

use crate::story::{
    App, Living, Sum, TTL, audit, eventually, held_by, id, keys, name, on_both_engines, pass,
    slowly, sweep_until,
};

use super::{World, seqs};

on_both_engines! {
    killed_in_the_middle_of_a_sweep_with_its_data_on_disk,
    killed_with_all_its_data,
    trap_x7_a_replica_is_promoted_that_missed_the_last_writes,
}

/// kill -9 and a restart that finds everything on disk. Who was not declared dead before has a whole
/// threshold to send a heartbeat, and then the sweep continues where it was.
async fn killed_in_the_middle_of_a_sweep_with_its_data_on_disk(engine: Engine) {
    let world = World::new(ServerOptions::new(engine).persistence(Persistence::Aof));
    let mine = keys("live", 50);
    let dead = world.dying_owners("dead", 5, 60).await;
    let living = Living::new(&world.registry, "live", &mine).await;
    let sweeper = world.sweeper(slowly());
    let mut sum = Sum::default();
    let app = world.app();
    let half = || app.number(&["HLEN", "connections:registry"]) < 350 - 70;
    let over = AtomicBool::new(false);
    let killing = async {
        eventually("the middle of the sweep", async || half().then_some(())).await;
        world.server.kill().unwrap();
        let killed_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        world.server.restart().unwrap();
        over.store(true, Ordering::SeqCst);
        killed_ms
    };
    let sweeping = async {
        while !over.load(Ordering::SeqCst) {
            sum.add(&pass(&sweeper).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (killed_ms, ()) = tokio::join!(killing, sweeping);
    let app = world.app();
    let before: BTreeSet<String> = eventually("an answer", async || {
        let query = ReceiptQuery { after: Some(0), limit: 10_000, ..ReceiptQuery::default() };
        world.redis.receipts(&id(), query).await.ok()
    })
    .await
    .iter()
    .map(|receipt| receipt.owner.to_string())
    .collect();
    assert!(before.len() < 5, "the kill came in the middle: {before:?}");
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 50).await;
    living.beats().await;
    let receipts = world.receipts().await;
    for receipt in receipts.iter().filter(|receipt| !before.contains(receipt.owner.as_str())) {
        let whole = receipt.at_ms >= killed_ms + TTL.as_millis() as u64;
        assert!(whole, "`{}` had no whole threshold", receipt.owner);
    }
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &mine));
}

/// Nothing is left, not even the counters. Owners get `Lost`, start again, and no
/// number comes a second time.
async fn killed_with_all_its_data(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let first = world.dying_owners("dead", 3, 2_000).await;
    let living = Living::new(&world.registry, "live", &keys("live", 20)).await;
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    let app = world.app();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 20).await;
    let claim = living.claim.clone();
    drop(living);
    let old = world.receipts().await;
    audit(&app, &old, sum.reclaimed, &first, &held_by("live", &keys("live", 20)));

    world.server.kill().unwrap();
    world.server.restart().unwrap();
    let app = world.app();
    let lost = eventually("an answer", async || match world.registry.beat(&claim).await {
        Err(Error::Unavailable { .. }) => None,
        other => Some(other),
    })
    .await;
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    let second = world.dying_owners("dead", 1, 30).await;
    let living = Living::new(&world.registry, "live", &keys("live", 20)).await;
    assert!(living.claim.incarnation > claim.incarnation, "{living:?}", living = living.claim);
    let registered = Instant::now();
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 20).await;
    assert!(registered.elapsed() >= TTL / 2);
    living.beats().await;
    let new = world.receipts().await;
    audit(&app, &new, sum.reclaimed, &second, &held_by("live", &keys("live", 20)));
    let (highest, lowest) = (seqs(&old).last().copied(), seqs(&new).first().copied());
    assert!(lowest > highest, "receipt {lowest:?} comes after {highest:?}");
}

/// The primary continues for a while after the last write that the replica got: incarnations start, entries
/// reclaimed, a term is won. Then the replica takes over, and all of that never happened.
async fn trap_x7_a_replica_is_promoted_that_missed_the_last_writes(engine: Engine) {
    let primary = RedisServer::start(engine).unwrap();
    let replica = RedisServer::replica_of(&primary).unwrap();
    let proxy = Proxy::start(primary.port()).unwrap();
    let world = World::by(primary, &proxy.url());
    let dead = world.dying_owners("dead", 3, 50).await;
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    let term = world.redis.campaign(&id(), "me", 100).await.unwrap().unwrap();
    world.suspect(150).await;
    replica.wait_synced().unwrap();
    replica.promote().unwrap();
    // What the replica never sees.
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    let app = world.app();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
    let old = world.receipts().await;
    let mut incarnations = BTreeSet::new();
    for n in 0..40 {
        let beat = world.registry.start(&name(&format!("short-{n}")), 60_000).await.unwrap();
        incarnations.insert(beat.incarnation);
    }
    let second = eventually("the next term", async || {
        world.redis.campaign(&id(), "you", 100).await.unwrap()
    })
    .await;
    assert!(second.number > term.number);

    proxy.redirect(replica.port());
    let promoted = Instant::now();
    let app = App::on(&replica);
    assert_eq!(app.registry().len(), 160, "the replica never saw it");
    living.beats().await;
    let third = eventually("the term after it", async || {
        world.redis.campaign(&id(), "she", 100).await.ok().flatten()
    })
    .await;
    assert!(third.number > second.number, "{third:?} after {second:?}");
    let beat = world.registry.start(&name("late"), 600_000).await.unwrap();
    assert!(Some(&beat.incarnation) > incarnations.last(), "{beat:?} after {incarnations:?}");
    let mut again = Sum::default();
    while promoted.elapsed() < TTL / 2 {
        again.add(&pass(&sweeper).await);
        assert_eq!((again.reclaimed, app.registry().len()), (0, 160), "{again:?}");
    }
    sweep_until(&sweeper, &mut again, || app.registry().len() == 10).await;
    assert!(promoted.elapsed() >= TTL * 3 / 4, "everybody had a whole threshold");
    let new = world.receipts().await;
    audit(&app, &new, again.reclaimed, &dead, &held_by("live", &keys("live", 10)));
    assert!(seqs(&new).is_disjoint(&seqs(&old)));
    assert!(seqs(&new).first() > seqs(&old).last());
    living.assert_alive();
}
