//! The server answers, and says no: it is empty, full, holds something else, or does not allow it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lapsed_core::Error;
use lapsed_core::owner::OwnerStore;
use lapsed_core::registry::{RegistryStore, TakePolicy};
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{Stopped, Sweep};
use lapsed_testbed::resp::Reply;
use lapsed_testbed::{Engine, RedisServer, ServerOptions};

use crate::story::{
    App, Living, Sum, TTL, audit, batch, eventually, held_by, holding, id, keys, name, names,
    on_both_engines, pass, slowly, suspects, sweep_until,
};

use super::{LONG, World, seqs};

on_both_engines! {
    a_server_emptied_during_a_sweep_makes_nothing_up,
    something_else_under_a_key,
    a_server_out_of_memory_reclaims_nothing_by_halves_and_kills_nobody,
    a_missing_permission_is_named_and_nothing_is_done_by_halves,
}

/// FLUSHALL in the middle of a sweep.
async fn a_server_emptied_during_a_sweep_makes_nothing_up(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    world.dying_owners("dead", 3, 2_000).await;
    let old = holding(&world.registry, "live", LONG, &keys("live", 10)).await;
    world.suspect(3_000).await;
    let sweeper = world.sweeper(Policy::default());
    let emptied = async {
        eventually("the middle of the sweep", async || {
            (app.number(&["HLEN", "connections:registry"]) < 2_500).then_some(())
        })
        .await;
        let meta = format!("lapsed:{{connections:registry}}:{}:meta", id());
        app.call(&["MULTI"]);
        app.call(&["HGET", &meta, "receipt"]);
        app.call(&["FLUSHALL"]);
        match app.call(&["EXEC"]) {
            Reply::List(answers) => answers[0].to_string().parse::<u64>().unwrap(),
            other => panic!("{other}"),
        }
    };
    let sweeping = async {
        loop {
            let report = pass(&sweeper).await;
            assert_eq!(report.errors, 0, "{report:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // The pass is left where it is.
    let before: u64 = tokio::select! {
        last = emptied => last,
        () = sweeping => unreachable!(),
    };
    let told = world.registry.beat(&old).await;
    assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
    let told = world.registry.register(&old, &[name("x")], TakePolicy::Always).await;
    assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
    let ghosts = app.registry();
    assert!(ghosts.is_empty(), "{ghosts:?}");
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    assert!(living.claim.incarnation > old.incarnation);
    let dead = world.dying_owners("dead", 1, 20).await;
    let mut sum = Sum::default();
    let sweeper = world.sweeper(Policy::default());
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
    let after = world.receipts().await;
    audit(&app, &after, sum.reclaimed, &dead, &held_by("live", &keys("live", 10)));
    assert!(seqs(&after).first() > Some(&before), "{:?} after {before}", seqs(&after).first());
    living.beats().await;
}

/// A key of another type is reported, and nothing is half done; once it is corrected, passes continue.
async fn something_else_under_a_key(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    let dead = world.dying_owners("dead", 2, 20).await;
    let claim = holding(&world.registry, "live", LONG, &keys("live", 5)).await;
    // With one live owner among three, the brake would hold.
    holding(&world.registry, "live-too", LONG, &[]).await;
    world.suspect(40).await;
    let found = suspects(&world.registry).await;
    let own = |what: &str| format!("lapsed:{{connections:registry}}:{}:{what}", id());
    let held = own(&format!("held:{}", found[0].incarnation));
    assert_eq!(app.number(&["EXISTS", &held]), 1, "{}", app.text(&["KEYS", "*"]));
    let everything = || -> BTreeSet<(String, String)> {
        let listed = app.text(&["KEYS", "*"]);
        let own =
            listed.lines().filter(|key| !key.contains("heartbeat") && !key.ends_with(":meta"));
        own.map(|key| (key.to_owned(), app.text(&["DEBUG", "DIGEST-VALUE", key]))).collect()
    };
    let mut number = 0;
    for what in ["receipts", "counts", "ended", "deaths", "past", "batches", "batches_at"] {
        let key = own(what);
        let aside = app.number(&["EXISTS", &key]) == 1;
        if aside {
            app.call(&["RENAME", &key, "aside"]);
        }
        app.call(&["SET", &key, "mine"]);
        let before = everything();
        number += 1;
        let answer = world.registry.reclaim(batch("s", number, found.clone())).await;
        assert!(matches!(answer, Err(Error::Corrupt { .. })), "{what}: {answer:?}");
        assert_eq!(everything(), before, "{what}");
        app.call(&["DEL", &key]);
        if aside {
            app.call(&["RENAME", "aside", &key]);
        }
    }
    let live_held = own(&format!("held:{}", claim.incarnation.unwrap()));
    for key in ["connections:registry", held.as_str(), live_held.as_str()] {
        app.call(&["RENAME", key, "aside"]);
        app.call(&["SET", key, "mine"]);
        let before = everything();
        if key != live_held {
            number += 1;
            let answer = world.registry.reclaim(batch("s", number, found.clone())).await;
            assert!(matches!(answer, Err(Error::Corrupt { .. })), "{key}: {answer:?}");
            let report = pass(&world.sweeper(Policy::default())).await;
            assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Error), "{report:?}");
            let detail = report.detail.unwrap();
            assert!(detail.contains("WRONGTYPE"), "{detail}");
        }
        if key != held {
            let new = names(&["new-1", "new-2"]);
            let told = world.registry.register(&claim, &new, TakePolicy::Always).await;
            assert!(matches!(told, Err(Error::Corrupt { .. })), "{key}: {told:?}");
            let told = world.registry.unregister(&claim, &names(&keys("live", 2))).await;
            assert!(matches!(told, Err(Error::Corrupt { .. })), "{key}: {told:?}");
        }
        assert_eq!(everything(), before, "{key}");
        app.call(&["DEL", key]);
        app.call(&["RENAME", "aside", key]);
    }
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 5).await;
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &keys("live", 5)));
}

/// No write is taken any more. Nothing is reclaimed by halves; and who could not beat meanwhile is not
/// dead for it.
async fn a_server_out_of_memory_reclaims_nothing_by_halves_and_kills_nobody(engine: Engine) {
    let world = World::new(ServerOptions::new(engine));
    let app = world.app();
    let dead = world.dying_owners("dead", 3, 30).await;
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    world.suspect(90).await;
    let sweeper = world.sweeper(slowly());
    let mut sum = Sum::default();
    app.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = Instant::now();
    // Longer than a TTL: all of that time nobody can beat.
    while full.elapsed() < TTL + Duration::from_millis(500) {
        let report = pass(&sweeper).await;
        sum.add(&report);
        assert_eq!((report.reclaimed, app.registry().len()), (0, 100), "{report:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sum.details.iter().any(|d| d.contains("out of memory")), "{sum:?}");
    // The sweeper is first, by far: a new one, which has seen nothing of it.
    let other = world.sweeper(Policy::default());
    app.call(&["CONFIG", "SET", "maxmemory", "0"]);
    sum.add(&pass(&other).await);
    living.beats().await;
    sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &keys("live", 10)));
    living.beats().await;
}

/// A user that may not do all of it: nothing is done by halves, the error names what is missing, and
/// once it is granted, passes continue.
async fn a_missing_permission_is_named_and_nothing_is_done_by_halves(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let app = App::on(&server);
    app.call(&["ACL", "SETUSER", "sweep", "on", ">pw", "~*", "&*", "+@all"]);
    let url = format!("redis://sweep:pw@127.0.0.1:{}/0", server.port());
    let world = World::by(server, &url);
    let mut dead = Vec::new();
    let living = Living::new(&world.registry, "live", &keys("live", 10)).await;
    let sweeper = world.sweeper(Policy::default());
    let mut sum = Sum::default();
    for (nth, command) in ["xadd", "hdel", "info"].into_iter().enumerate() {
        dead.extend(world.dying_owners(&format!("dead-{nth}"), 2, 10).await);
        world.suspect(20).await;
        let found = suspects(&world.registry).await;
        app.call(&["ACL", "SETUSER", "sweep", &format!("-{command}")]);
        let error = world.registry.reclaim(batch("s", nth as u64 + 1, found)).await.unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, Error::Unavailable { .. }), "{words}");
        let named = words.to_lowercase().contains(command);
        assert!(named && words.contains("permission"), "{command}: {words}");
        if command == "hdel" {
            let before = app.text(&["DEBUG", "DIGEST-VALUE", "connections:registry"]);
            let own = names(&keys("live", 3));
            let error = world.registry.unregister(&living.claim, &own).await.unwrap_err();
            assert!(error.to_string().contains("permission"), "{error}");
            let held = world.registry.entries(&living.claim, None, 100).await.unwrap();
            assert_eq!(held.len(), 10, "nothing half-done");
            assert_eq!(app.text(&["DEBUG", "DIGEST-VALUE", "connections:registry"]), before);
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            sum.add(&pass(&sweeper).await);
        }
        assert_eq!(app.registry().len(), 30, "{command}");
        app.call(&["ACL", "SETUSER", "sweep", &format!("+{command}")]);
        sweep_until(&sweeper, &mut sum, || app.registry().len() == 10).await;
        living.beats().await;
    }
    let receipts = world.receipts().await;
    audit(&app, &receipts, sum.reclaimed, &dead, &held_by("live", &keys("live", 10)));
}
