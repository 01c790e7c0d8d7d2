//! Who can take work, by plain reads and by the script: both say the same, whatever changes between two looks,
//! and where a transaction is not permitted the script looks.

use std::sync::Arc;

use lapsed_availability::{AvailablePage, Mirror, ProviderState};
use lapsed_core::sweep::Cursor;
use lapsed_redis::{MirrorLayout, RedisMirror};
use lapsed_testbed::Engine;

use crate::mirror_world::{STALE, World, id, online, settings};
use crate::story::{connect, on_both_engines};

on_both_engines! {
    reads_and_the_script_find_the_same,
    providers_that_come_or_go_between_two_reads_are_seen,
    a_mirror_that_lost_its_data_says_nothing,
    without_transactions_the_script_looks,
}

/// A mirror for a user who may not do some things.
fn without(world: &World, user: &str, commands: &[&str]) -> Arc<RedisMirror> {
    let mut rule = vec!["ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all"];
    rule.extend(commands);
    world.app.call(&rule);
    let url = format!("redis://{user}:pw@127.0.0.1:{}/0", world.server.port());
    connect(&url).mirror(id(), MirrorLayout::default(), STALE).unwrap()
}

async fn page(mirror: &RedisMirror, most: u64) -> Option<AvailablePage> {
    mirror.available(&settings(most), &Cursor::default(), 500, false).await.unwrap()
}

fn names(page: &AvailablePage) -> Vec<&str> {
    page.available.iter().map(|one| one.id.as_str()).collect()
}

fn calls(world: &World, verb: &str) -> u64 {
    let stats = world.app.text(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{verb}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

async fn reads_and_the_script_find_the_same(engine: Engine) {
    let world = World::on(engine);
    let scripted = without(&world, "plain", &["-multi"]);
    world.seed_online(40).await;
    let now = world.app.text(&["GET", "mitra:heartbeat:m0"]);
    let beats = [
        now.clone(),
        format!("{}Z", &now[..19]),
        format!("{} {}.500+00:00", &now[..10], &now[11..19]),
        format!("2999{}", &now[4..]),
        format!("1999{}", &now[4..]),
        format!("{}T24:00:00.000Z", &now[..10]),
        String::new(),
        "zzzz".to_owned(),
    ];
    let capacities = ["0", "1", "2", "3", "-1", " 1 ", "many", "", "nan", "1e9", "0002"];
    for n in 0..40 {
        let capacity = format!("mitra:capacity:m{n}");
        world.app.call(&["SET", &capacity, capacities[n % capacities.len()]]);
        world.app.call(&["SET", &format!("mitra:heartbeat:m{n}"), &beats[(n / 3) % beats.len()]]);
    }
    world.app.call(&["DEL", "mitra:heartbeat:m0", "mitra:capacity:m1"]);
    world.app.call(&["LPUSH", "mitra:capacity:m2x", "1"]);
    world.app.call(&["RENAME", "mitra:capacity:m2x", "mitra:capacity:m2"]);
    world.app.call(&["SADD", "mitras:deactivated", "m3", "m4", "somebody"]);
    for most in 0..5 {
        let (read, script) = (page(&world.mirror, most).await, page(&scripted, most).await);
        assert_eq!(read, script, "at most {most}");
        assert_eq!(read.is_some_and(|page| page.count > 0), most > 0, "at most {most}");
    }
    assert!(calls(&world, "exec") >= 5, "the one by reads");
    assert!(calls(&world, "evalsha") >= 5, "the other by the script");
}

async fn providers_that_come_or_go_between_two_reads_are_seen(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(3).await;
    let found = async || world.available().await.unwrap();
    assert_eq!(found().await, ["m0", "m1", "m2"]);
    // As many as before, but others; by the application itself.
    world.app.call(&["SREM", "mitras:online", "m1"]);
    world.app.call(&["SADD", "mitras:online", "new"]);
    assert_eq!(found().await, ["m0", "m2"], "whoever is new has not beaten");
    let now = world.app.text(&["GET", "mitra:heartbeat:m0"]);
    world.app.call(&["SET", "mitra:heartbeat:new", &now]);
    assert_eq!(found().await, ["m0", "m2", "new"]);
    world.app.call(&["SADD", "mitras:deactivated", "m0", "stranger"]);
    assert_eq!(found().await, ["m2", "new"]);
    world.tell(ProviderState { sessions: 3, ..online("m2", 2) }).await;
    assert_eq!(found().await, ["new"]);
    world.tell(ProviderState { active: true, ..online("m0", 2) }).await;
    assert_eq!(found().await, ["m0", "new"]);
    world.app.call(&["SADD", "mitras:online", "not a\nname"]);
    world.app.call(&["SET", "mitra:heartbeat:not a\nname", &now]);
    assert_eq!(found().await, ["m0", "new"]);
}

async fn a_mirror_that_lost_its_data_says_nothing(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(3).await;
    assert_eq!(world.available().await.unwrap().len(), 3);
    world.app.call(&["DEL", "mitras:online"]);
    assert_eq!(world.available().await, None, "its set is gone");
    world.seed_online(3).await;
    assert_eq!(world.available().await.unwrap().len(), 3);
    world.app.call(&["FLUSHALL"]);
    assert_eq!(world.available().await, None, "everything is gone");
    world.seed(&[]).await;
    assert_eq!(world.available().await, Some(Vec::new()), "nobody is there, and that is known");
}

async fn without_transactions_the_script_looks(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(3).await;
    for forbidden in ["-multi", "-exec", "-sscan", "-scard"] {
        let mirror = without(&world, &forbidden[1..], &[forbidden]);
        for _ in 0..2 {
            let Ok(found) = mirror.available(&settings(3), &Cursor::default(), 500, false).await
            else {
                assert_eq!(forbidden, "-scard", "the script needs it, too");
                continue;
            };
            assert_eq!(names(&found.unwrap()), ["m0", "m1", "m2"], "{forbidden}");
        }
    }
}
