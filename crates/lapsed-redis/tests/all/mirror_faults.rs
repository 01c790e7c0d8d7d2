//! The server is emptied, restarted, restored from an old file, out of memory; keys are dropped, or are of
//! another type: the mirror then says that it does not know, and no provider becomes pending offline.

use std::time::Duration;

use lapsed_availability::{Mirror, MirrorBeat, ProviderBeat, ProviderState, SeenBeat};
use lapsed_core::Error;
use lapsed_core::sweep::Refusal;
use lapsed_redis::MirrorLayout;
use lapsed_testbed::{Engine, Persistence, ServerOptions};

use crate::mirror_world::{NEVER_MS, STALE_MS, World, batch, online, told};
use crate::story::{eventually, name, on_both_engines};

on_both_engines! {
    a_flushed_mirror_does_not_answer_until_it_is_seeded,
    a_mirror_restarted_empty_does_not_answer_until_it_is_seeded,
    restored_from_an_old_file,
    trap_x7_a_replica_takes_over_that_missed_the_last_writes,
    the_online_set_is_dropped,
    the_deactivated_set_is_dropped,
    the_versions_are_dropped,
    an_attempt_to_seed_is_void_once_data_was_lost,
    two_seed_at_once,
    trap_c4_a_heartbeat_of_another_type_sets_nobody_offline,
    trap_c4_a_key_of_another_type_fails_the_whole_script,
    trap_c4_out_of_memory_sets_nobody_offline,
    trap_c4_a_command_that_is_not_permitted_sets_nobody_offline,
    after_an_absence_everybody_has_a_whole_threshold,
    a_waived_grace_is_over,
}

/// Every query is answered with "not known".
async fn knows_nothing(world: &World) {
    let mirror = &world.mirror;
    assert!(!world.is_seeded().await);
    assert_eq!(world.beat("m0").await, None);
    assert_eq!(world.available().await, None);
    assert_eq!(mirror.count_online().await.unwrap(), None);
    assert_eq!(mirror.snapshot(1_000).await.unwrap(), None);
    assert_eq!(mirror.beats(&Default::default(), 10, 0).await.unwrap(), None);
    for refused in world.decide(&["m0"], 1).await {
        assert!(matches!(refused, Err(Refusal::StoreAway | Refusal::Moved)), "{refused:?}");
    }
}

/// The server answers again, and so does the connection of the mirror.
async fn answers(world: &World) {
    eventually("an answer", async || world.mirror.now_ms().await.ok()).await;
}

async fn a_flushed_mirror_does_not_answer_until_it_is_seeded(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    world.settled().await;
    world.app.call(&["FLUSHALL"]);
    knows_nothing(&world).await;
    // A toggle in between is taken over, and does not make it know the others.
    world.tell(online("m0", 2)).await;
    assert_eq!(world.beat("m0").await, None);
    world.seed_online(2).await;
    assert_eq!(world.beat("m0").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    // Everybody has a whole threshold from now on.
    let presence = world.mirror.presence(NEVER_MS).await.unwrap();
    assert!(presence.seeded && presence.back_ms > 0, "{presence:?}");
    world.silenced("m1", 1).await;
}

async fn a_mirror_restarted_empty_does_not_answer_until_it_is_seeded(engine: Engine) {
    let mut world = World::on(engine);
    world.seed_online(2).await;
    let before = world.mirror.presence(STALE_MS).await.unwrap().incarnation;
    world.server.restart().unwrap();
    world.reconnect_app();
    answers(&world).await;
    knows_nothing(&world).await;
    let after = world.mirror.presence(STALE_MS).await.unwrap();
    assert_ne!(before, after.incarnation);
    world.seed_online(2).await;
    assert_eq!(world.available().await.unwrap(), ["m0", "m1"]);
}

/// Seeded, written to the file, toggled, killed, started from the old file: all that says "seeded" is in
/// that file, and so is who used to be online.
async fn restored_from_an_old_file(engine: Engine) {
    let options = ServerOptions::new(engine).persistence(Persistence::Rdb);
    let mut world = World::with(options, MirrorLayout::default());
    world.seed_online(2).await;
    let attempt = world.mirror.begin_seed().await.unwrap();
    world.app.call(&["SAVE"]);
    let away = ProviderState { online: false, epoch: 2, ..online("m0", 2) };
    world.tell(away.clone()).await;
    assert_eq!(world.available().await.unwrap(), ["m1"]);
    world.server.kill().unwrap();
    world.server.restart().unwrap();
    world.reconnect_app();
    // Nobody has seen this life yet: the very first read is told.
    let other = world.beside();
    let first = eventually("an answer", async || other.count_online().await.ok()).await;
    assert_eq!(first, None, "not seeded");
    answers(&world).await;
    assert!(world.is_member("mitras:online", "m0"), "the old file says so");
    knows_nothing(&world).await;
    // An attempt of that life is void in this one.
    assert_eq!(
        world.mirror.apply(&told(&[online("m1", 9)], 0), Some(&attempt)).await.unwrap(),
        None
    );
    assert!(!world.mirror.end_seed(&attempt).await.unwrap());
    // The state is the same as before, and is taken over with its beat all the same: what this server has of
    // it is old.
    let silent =
        |state: ProviderState, age_ms| ProviderState { beat_age_ms: Some(age_ms), ..state };
    world.app.call(&["SET", "mitra:heartbeat:m1", "2020-01-01T00:00:00.000Z"]);
    world.seed(&[away, silent(online("m1", 1), 10)]).await;
    assert_eq!(world.available().await.unwrap(), ["m1"]);
    assert!(!world.is_member("mitras:online", "m0"));
}

/// The replica did not have the last toggle when it took over; its data says "seeded".
async fn trap_x7_a_replica_takes_over_that_missed_the_last_writes(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    let replica = lapsed_testbed::RedisServer::replica_of(&world.server).unwrap();
    replica.promote().unwrap();
    world.tell(ProviderState { online: false, epoch: 2, ..online("m0", 2) }).await;
    world.server.kill().unwrap();
    replica.command(&["CONFIG", "SET", "port", &world.server.port().to_string()]).unwrap();
    let first = eventually("an answer", async || world.mirror.beat(&[name("m1")]).await.ok()).await;
    assert_eq!(first, None, "not seeded");
    knows_nothing(&world).await;
    // The truth goes on from its own versions: they never go back.
    world
        .seed(&[ProviderState { online: false, epoch: 2, ..online("m0", 2) }, online("m1", 1)])
        .await;
    assert_eq!(world.available().await.unwrap(), ["m1"]);
}

async fn dropped(engine: Engine, key: &str) {
    let world = World::on(engine);
    let off = ProviderState { active: false, ..online("off", 1) };
    let states = [online("m0", 1), online("m1", 1), off];
    world.seed(&states).await;
    let full = match key {
        "versions" => "lapsed:{mitras:online}:availability/mitras:versions",
        key => key,
    };
    assert_eq!(world.app.number(&["DEL", full]), 1, "{full}");
    knows_nothing(&world).await;
    // Somebody new makes the key again: what was lost is lost all the same.
    world.tell(ProviderState { active: false, ..online("new", 1) }).await;
    assert!(world.exists(full));
    knows_nothing(&world).await;
    world.seed(&states).await;
    assert_eq!(world.available().await.unwrap(), ["m0", "m1"]);
    assert_eq!(world.beat("off").await, Some(MirrorBeat::Told(ProviderBeat::Deactivated)));
}

async fn the_online_set_is_dropped(engine: Engine) {
    dropped(engine, "mitras:online").await;
}

async fn the_deactivated_set_is_dropped(engine: Engine) {
    dropped(engine, "mitras:deactivated").await;
}

async fn the_versions_are_dropped(engine: Engine) {
    dropped(engine, "versions").await;
}

async fn an_attempt_to_seed_is_void_once_data_was_lost(engine: Engine) {
    let world = World::on(engine);
    for lose in [&["FLUSHALL"][..], &["DEL", "mitras:online"]] {
        let attempt = world.mirror.begin_seed().await.unwrap();
        let some = told(&[online("m0", 1)], 0);
        assert!(world.mirror.apply(&some, Some(&attempt)).await.unwrap().is_some());
        world.app.call(lose);
        let more = told(&[online("m1", 1)], 0);
        assert_eq!(world.mirror.apply(&more, Some(&attempt)).await.unwrap(), None, "{lose:?}");
        // Nor once somebody else has written there again.
        world.tell(online("m2", 1)).await;
        assert_eq!(world.mirror.apply(&more, Some(&attempt)).await.unwrap(), None, "{lose:?}");
        assert!(!world.mirror.end_seed(&attempt).await.unwrap(), "{lose:?}");
        assert!(!world.is_seeded().await, "{lose:?}");
    }
    assert!(!world.mirror.end_seed("nobody began this").await.unwrap());
    let attempt = world.mirror.begin_seed().await.unwrap();
    assert!(world.mirror.end_seed(&attempt).await.unwrap());
    assert!(!world.mirror.end_seed(&attempt).await.unwrap(), "it has ended");
    assert!(world.is_seeded().await);
}

async fn two_seed_at_once(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(1).await;
    world.app.call(&["DEL", "mitras:online"]);
    let other = world.beside();
    let slow = world.mirror.begin_seed().await.unwrap();
    let quick = other.begin_seed().await.unwrap();
    assert_ne!(slow, quick);
    // One has read the truth before a toggle, the other after it.
    let newer = ProviderState { online: false, epoch: 2, ..online("m0", 2) };
    assert_eq!(other.apply(&told(&[newer], 0), Some(&quick)).await.unwrap(), Some(1));
    let older = told(&[online("m0", 1), online("m1", 1)], 0);
    assert_eq!(world.mirror.apply(&older, Some(&slow)).await.unwrap(), Some(1));
    assert!(other.end_seed(&quick).await.unwrap());
    let since_ms = world.mirror.presence(NEVER_MS).await.unwrap().back_ms;
    assert!(world.is_seeded().await);
    assert!(world.mirror.end_seed(&slow).await.unwrap());
    assert!(!world.look("m0").await.online && world.look("m1").await.online);
    let again_ms = world.mirror.presence(NEVER_MS).await.unwrap().back_ms;
    assert!(since_ms > 0 && again_ms == since_ms, "the grace of the first one runs on");
}

async fn trap_c4_a_heartbeat_of_another_type_sets_nobody_offline(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(3).await;
    world.settled().await;
    world.app.call(&["DEL", "mitra:heartbeat:m1"]);
    world.app.call(&["LPUSH", "mitra:heartbeat:m1", "not a time"]);
    assert_eq!(world.look("m1").await.beat, SeenBeat::Unreadable);
    let page = world.mirror.beats(&Default::default(), 10, 0).await.unwrap().unwrap();
    let odd = page.beats.iter().find(|one| one.id == name("m1")).unwrap();
    assert_eq!((odd.beat, page.examined), (SeenBeat::Unreadable, 3));
    // The others are judged as ever, in the same batch.
    eventually("the others' end", async || {
        let decided = world.decide(&["m0", "m1", "m2"], STALE_MS).await;
        assert_eq!(decided[1], Err(Refusal::Unreadable));
        (decided[0].is_ok() && decided[2].is_ok()).then_some(())
    })
    .await;
    assert_eq!(world.app.text(&["SMEMBERS", "mitras:online"]), "m1");
    assert_eq!(world.app.text(&["TYPE", "mitra:heartbeat:m1"]), "list", "left for a person");
    assert_eq!(world.beat("m1").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    assert!(matches!(world.look("m1").await.beat, SeenBeat::At(_)), "its next beat heals it");
}

async fn trap_c4_a_key_of_another_type_fails_the_whole_script(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    world.settled().await;
    let own = |what: &str| format!("lapsed:{{mitras:online}}:availability/mitras:{what}");
    for key in [own("doomed"), own("doomed_at"), own("missing")] {
        world.app.call(&["SET", &key, "odd"]);
        let decided = world.mirror.decide(&batch(&["m0", "m1"], 1), 1).await;
        assert!(matches!(decided, Err(Error::Corrupt { .. })), "{key}: {decided:?}");
        let told = world.mirror.apply(&told(&[online("m0", 2)], 0), None).await;
        assert!(matches!(told, Err(Error::Corrupt { .. })), "{key}: {told:?}");
        assert_eq!(world.app.number(&["SCARD", "mitras:online"]), 2, "{key}");
        assert!(world.exists("mitra:heartbeat:m0") && world.exists("mitra:heartbeat:m1"));
        world.app.call(&["DEL", &key]);
    }
    assert_eq!(world.look("m0").await.version, Some(1));
    world.app.call(&["RENAME", "mitras:online", "put-aside"]);
    world.app.call(&["SET", "mitras:online", "odd"]);
    let beat = world.mirror.beat(&[name("m0")]).await;
    assert!(matches!(beat, Err(Error::Corrupt { .. })), "{beat:?}");
    assert!(world.mirror.decide(&batch(&["m0"], 1), 1).await.is_err());
    world.app.call(&["RENAME", "put-aside", "mitras:online"]);
    assert_eq!(world.beat("m0").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
}

async fn trap_c4_out_of_memory_sets_nobody_offline(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    world.settled().await;
    world.app.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let decided = world.mirror.decide(&batch(&["m0", "m1"], 1), 1).await;
    assert!(matches!(decided, Err(Error::Unavailable { .. })), "{decided:?}");
    let beat = world.mirror.beat(&[name("m0")]).await.unwrap_err();
    assert!(beat.to_string().contains("memory"), "{beat}");
    let away = ProviderState { online: false, ..online("m0", 2) };
    assert!(world.mirror.apply(&told(&[away], 0), None).await.is_err());
    assert_eq!(world.app.number(&["SCARD", "mitras:online"]), 2);
    assert!(world.exists("mitra:heartbeat:m0") && world.exists("mitra:heartbeat:m1"));
    assert_eq!(world.look("m0").await.version, Some(1));
    world.app.call(&["CONFIG", "SET", "maxmemory", "0"]);
    // Who could not beat meanwhile has a whole threshold.
    assert_eq!(world.beat("m0").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    assert!(world.decide(&["m0"], NEVER_MS).await[0].is_err());
    world.silenced("m1", 1).await;
}

async fn trap_c4_a_command_that_is_not_permitted_sets_nobody_offline(engine: Engine) {
    let world = World::on(engine);
    let may_not = |commands: &[&str]| {
        let mut rule = vec!["ACL", "SETUSER", "daemon", "on", ">pw", "~*", "&*", "+@all"];
        rule.extend(commands);
        world.app.call(&rule);
    };
    may_not(&[]);
    let url = format!("redis://daemon:pw@127.0.0.1:{}/0", world.server.port());
    let redis = crate::story::connect(&url);
    let mirror =
        redis.mirror(crate::mirror_world::id(), MirrorLayout::default(), Duration::from_secs(1));
    let mirror = mirror.unwrap();
    world.seed_online(2).await;
    world.settled().await;
    for command in ["srem", "del", "hset", "zadd", "mget", "info", "smismember", "hdel"] {
        may_not(&[&format!("-{command}")]);
        let decided = mirror.decide(&batch(&["m0", "m1"], 1), 1).await;
        let said =
            decided.map(|decided| assert!(decided.iter().all(Result::is_err), "{decided:?}"));
        if let Err(error) = said {
            assert!(error.to_string().contains("permission"), "-{command}: {error}");
        }
        let away = ProviderState { online: false, ..online("m0", 2) };
        let applied = mirror.apply(&told(&[away], 0), None).await;
        // What is told needs neither of these.
        assert_eq!(applied.is_ok(), ["zadd", "info"].contains(&command), "-{command}");
        assert!(world.look("m1").await.online, "-{command}");
        assert!(world.exists("mitra:heartbeat:m1"), "-{command}");
    }
}

/// Nobody could beat while the server stood still: then everybody has a whole threshold.
async fn after_an_absence_everybody_has_a_whole_threshold(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(2).await;
    world.settled().await;
    world.server.freeze().unwrap();
    // The fault itself, not a waiting for something.
    tokio::time::sleep(Duration::from_millis(STALE_MS + 700)).await;
    world.server.thaw().unwrap();
    let decided = eventually("an answer", async || {
        world.mirror.decide(&batch(&["m0", "m1"], 1), STALE_MS).await.ok()
    })
    .await;
    assert_eq!(decided, [Err(Refusal::StoreAway); 2]);
    assert!(world.is_seeded().await, "it has lost nothing");
    assert_eq!(world.beat("m0").await, Some(MirrorBeat::Told(ProviderBeat::Noted)));
    world.silenced("m1", 1).await;
}

async fn a_waived_grace_is_over(engine: Engine) {
    let world = World::on(engine);
    let old = ProviderState { beat_age_ms: Some(NEVER_MS), ..online("m0", 1) };
    world.seed(&[old]).await;
    assert_eq!(world.decide(&["m0"], 60_000).await, [Err(Refusal::StoreAway)]);
    let presence = world.mirror.presence(60_000).await.unwrap();
    assert!(presence.back_ms > 0 && presence.back_ms <= presence.now_ms);
    world.mirror.waive(presence.now_ms + 60_000).await.unwrap();
    assert_eq!(world.mirror.presence(60_000).await.unwrap().back_ms, 0);
    assert!(world.decide(&["m0"], 60_000).await[0].is_ok());
}
