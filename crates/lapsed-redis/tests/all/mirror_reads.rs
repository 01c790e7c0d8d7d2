//! What is read from a mirror: times, snapshots, traces, pages; and that beats of one moment are one call.

use std::collections::BTreeSet;

use lapsed_availability::{
    Mirror, MirrorBeat, MirrorUpdate, ProviderBeat, ProviderState, SeenBeat, Snapshot, SnapshotTurn,
};
use lapsed_core::sweep::Cursor;
use lapsed_redis::MirrorLayout;
use lapsed_testbed::{Engine, ServerOptions};

use crate::mirror_world::{World, names_of, online, settings, told};
use crate::story::{eventually, name, names, on_both_engines};

on_both_engines! {
    times_are_read_in_every_common_form,
    one_of_many_makes_the_snapshot,
    a_snapshot_that_was_dropped_is_not_handed_in,
    everybody_with_a_trace_is_found_and_forgotten,
    pages_go_through_everybody,
    many_beats_at_a_time_take_few_calls,
}

async fn times_are_read_in_every_common_form(engine: Engine) {
    let world = World::on(engine);
    let read = async |text: &str| {
        world.app.call(&["SET", "mitra:heartbeat:x", text]);
        world.look("x").await.beat
    };
    for (text, ms) in [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2000-02-29T23:59:59.999Z", 951_868_799_999),
        ("2024-12-31T12:00:00Z", 1_735_646_400_000),
        ("2001-09-09T01:46:40.123456+00:00", 1_000_000_000_123),
        ("2001-09-09T03:46:40.570+02:00", 1_000_000_000_570),
        ("2001-09-08 20:16:40-0530", 1_000_000_000_000),
    ] {
        assert_eq!(read(text).await, SeenBeat::At(ms), "{text}");
    }
    for text in [
        "",
        "0",
        "1735646400000",
        "2023-02-29T00:00:00.000Z",
        "2024-13-01T00:00:00.000Z",
        "2024-04-31T00:00:00.000Z",
        "2024-01-01T24:00:00.000Z",
        "2024-01-01T00:60:00.000Z",
        "2024-01-01T00:00:00.000",
        "2024-01-01",
        "2024-01-01T00:00:00.000Zoo",
        "\u{0}\u{ff}",
    ] {
        assert_eq!(read(text).await, SeenBeat::Unreadable, "{text:?}");
    }
    // What is written comes back, on every day of many years.
    for day in 0..500_u64 {
        let at_ms = day * 37 * 86_400_000 + day * 86_399_999 / 500;
        let told = [MirrorUpdate { state: online("y", day + 1), beat_ms: Some(at_ms) }];
        world.mirror.apply(&told, None).await.unwrap();
        assert_eq!(world.look("y").await.beat, SeenBeat::At(at_ms), "day {day}");
    }
}

async fn one_of_many_makes_the_snapshot(engine: Engine) {
    let world = World::on(engine);
    assert_eq!(world.mirror.snapshot(60_000).await.unwrap(), None, "not seeded");
    world.seed_online(1).await;
    let daemons = [world.beside(), world.beside(), world.beside(), world.beside()];
    let asking = (0..200).map(|n| daemons[n % 4].snapshot(60_000));
    let turns = futures::future::try_join_all(asking).await.unwrap();
    let mut yours = turns.into_iter().filter_map(|turn| match turn.unwrap() {
        SnapshotTurn::Yours(turn) => Some(turn),
        SnapshotTurn::Theirs => None,
        SnapshotTurn::There(_) => panic!("there is none"),
    });
    let turn = yours.next().unwrap();
    assert_eq!(yours.next(), None, "exactly one");
    let made = Snapshot { available: true, count: 7 };
    assert!(!world.mirror.put_snapshot("1", &made, 60_000).await.unwrap());
    assert!(!world.mirror.put_snapshot("", &made, 60_000).await.unwrap());
    assert!(world.mirror.put_snapshot(&turn, &made, 60_000).await.unwrap());
    assert!(!world.mirror.put_snapshot(&turn, &made, 60_000).await.unwrap(), "once");
    let there = Some(SnapshotTurn::There(made));
    assert_eq!(daemons[0].snapshot(60_000).await.unwrap(), there);
    assert_eq!(
        world.app.text(&["GET", "availability:snapshot"]),
        r#"{"available":true,"count":7}"#
    );
    assert!(world.app.number(&["PTTL", "availability:snapshot"]) > 0);
    // What makes no sense is not there; a turn that nobody finishes goes to the next.
    world.app.call(&["SET", "availability:snapshot", "garbage"]);
    let first = world.mirror.snapshot(1).await.unwrap();
    assert!(matches!(first, Some(SnapshotTurn::Yours(_))), "{first:?}");
    eventually("the next turn", async || {
        let turn = world.mirror.snapshot(60_000).await.unwrap();
        matches!(turn, Some(SnapshotTurn::Yours(_))).then_some(())
    })
    .await;
}

async fn a_snapshot_that_was_dropped_is_not_handed_in(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(1).await;
    let made = Snapshot { available: true, count: 1 };
    let turn = async || match world.mirror.snapshot(60_000).await.unwrap() {
        Some(SnapshotTurn::Yours(turn)) => turn,
        other => panic!("{other:?}"),
    };
    let first = turn().await;
    world.mirror.drop_snapshot().await.unwrap();
    assert!(!world.mirror.put_snapshot(&first, &made, 60_000).await.unwrap());
    // Whoever comes, goes or falls silent drops it; a change of sessions does not.
    let second = turn().await;
    assert!(world.mirror.put_snapshot(&second, &made, 60_000).await.unwrap());
    world.tell(ProviderState { sessions: 1, ..online("m0", 2) }).await;
    assert!(world.exists("availability:snapshot"));
    world.tell(ProviderState { active: false, ..online("m0", 3) }).await;
    assert!(!world.exists("availability:snapshot"));
    let third = turn().await;
    world.tell(online("new", 1)).await;
    assert!(!world.mirror.put_snapshot(&third, &made, 60_000).await.unwrap());
}

async fn everybody_with_a_trace_is_found_and_forgotten(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(3).await;
    world.app.call(&["SADD", "mitras:online", "in-the-set"]);
    world.app.call(&["SADD", "mitras:deactivated", "switched-off"]);
    world.app.call(&["SET", "mitra:heartbeat:beating", "2026-01-01T00:00:00.000Z"]);
    world.app.call(&["SET", "mitra:capacity:occupied", "1"]);
    world.app.call(&["LPUSH", "mitra:capacity:odd", "1"]);
    world.app.call(&["SET", "mitra:unrelated", "1"]);
    let (mut found, mut at) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = at {
        let (some, next) = world.mirror.traces(&cursor, 2).await.unwrap();
        found.extend(some);
        at = next;
    }
    let all = ["beating", "in-the-set", "m0", "m1", "m2", "occupied", "odd", "switched-off"];
    assert_eq!(names_of(&found), all);
    // One has changed since: it stays.
    world.tell(online("m1", 2)).await;
    let mut ids: Vec<_> = names(&all).into_iter().map(|id| (id, None)).collect();
    ids.iter_mut().filter(|(id, _)| id.as_str().starts_with('m')).for_each(|one| one.1 = Some(1));
    assert_eq!(world.mirror.forget(&ids).await.unwrap(), 7);
    assert_eq!(world.app.text(&["SMEMBERS", "mitras:online"]), "m1");
    let kept = world.app.text(&["KEYS", "mitra*"]);
    let kept: BTreeSet<&str> = kept.lines().collect();
    assert_eq!(kept, BTreeSet::from(["mitra:heartbeat:m1", "mitra:unrelated", "mitras:online"]));
    assert_eq!(world.mirror.forget(&ids).await.unwrap(), 0);
    assert!(world.is_seeded().await, "what lapsed removes itself is not lost");
    assert!(world.mirror.traces(&Cursor(Some("nowhere:0".into())), 1).await.is_err());
    assert!(world.mirror.beats(&Cursor(Some("x".into())), 1, 0).await.is_err());
}

async fn pages_go_through_everybody(engine: Engine) {
    let world = World::with(ServerOptions::new(engine), MirrorLayout::under("page:"));
    let states: Vec<ProviderState> = (0..1_203)
        .map(|n| ProviderState {
            active: n % 100 != 0,
            sessions: n % 4,
            ..online(&format!("provider-{n:05}"), 1)
        })
        .collect();
    world.seed(&states).await;
    let expected: BTreeSet<String> = states
        .iter()
        .filter(|state| state.active && state.sessions < 3)
        .map(|state| state.id.to_string())
        .collect();
    let (mut found, mut counted, mut beating, mut pages) = (BTreeSet::new(), 0, BTreeSet::new(), 0);
    let mut at = Some(Cursor::default());
    while let Some(cursor) = at {
        let page =
            world.mirror.available(&settings(3), &cursor, 100, false).await.unwrap().unwrap();
        assert!(page.available.len() <= 200, "{}", page.available.len());
        counted += page.count;
        found.extend(page.available.into_iter().map(|one| one.id.to_string()));
        (at, pages) = (page.next, pages + 1);
    }
    assert!(pages >= 6, "{pages}");
    assert_eq!((found, counted), (expected.clone(), expected.len() as u64));
    let mut at = Some(Cursor::default());
    while let Some(cursor) = at {
        let page = world.mirror.beats(&cursor, 100, 0).await.unwrap().unwrap();
        beating.extend(page.beats.into_iter().map(|one| one.id));
        at = page.next;
    }
    assert_eq!(beating.len(), states.len());
    assert_eq!(world.mirror.count_online().await.unwrap(), Some(1_203 - 13));
    let all: Vec<lapsed_core::Name> = states.iter().map(|state| state.id.clone()).collect();
    let seen = world.mirror.look(&all).await.unwrap().seen;
    assert!(seen.iter().zip(&states).all(|(seen, state)| {
        seen.id == state.id
            && seen.deactivated != state.active
            && seen.sessions == Some(state.sessions)
    }));
    let answers = world.mirror.beat(&all).await.unwrap().unwrap();
    assert_eq!(
        answers.iter().filter(|beat| **beat == MirrorBeat::Told(ProviderBeat::Deactivated)).count(),
        13
    );
    // Both sets are large: the smaller one is gone through in pages.
    let off: Vec<ProviderState> =
        states.iter().map(|s| ProviderState { active: false, version: 2, ..s.clone() }).collect();
    world.mirror.apply(&told(&off, 0), None).await.unwrap();
    assert_eq!(world.mirror.count_online().await.unwrap(), Some(0));
}

async fn many_beats_at_a_time_take_few_calls(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(100).await;
    world.beat("m0").await;
    let calls = || {
        let stats = world.app.text(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_mset:")).unwrap().to_owned();
        let calls = line.split("calls=").nth(1).unwrap().split(',').next().unwrap().to_owned();
        calls.parse::<u64>().unwrap()
    };
    let before = calls();
    let who: Vec<[lapsed_core::Name; 1]> =
        (0..1_000).map(|n| [name(&format!("m{}", n % 100))]).collect();
    let beats = futures::future::try_join_all(who.iter().map(|who| world.mirror.beat(who)));
    let beats = beats.await.unwrap();
    assert!(
        beats.into_iter().all(|beat| beat == Some(vec![MirrorBeat::Told(ProviderBeat::Noted)]))
    );
    let used = calls() - before;
    assert!(used <= 10, "{used} calls for 1,000 beats at once");
}
