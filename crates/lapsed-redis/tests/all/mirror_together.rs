//! Concurrent queries for available providers share calls, and none gets an answer that was
//! found before they asked. And heartbeats that are compared as texts, beside those that have to be read.

use futures::future::{join, try_join_all};
use lapsed_availability::Mirror;
use lapsed_core::sweep::Cursor;
use lapsed_testbed::Engine;

use crate::mirror_world::{World, online, settings};
use crate::story::on_both_engines;

on_both_engines! {
    concurrent_queries_for_the_same_providers_take_few_calls,
    what_differs_is_answered_apart,
    a_beat_counts_the_same_in_every_form,
}

async fn concurrent_queries_for_the_same_providers_take_few_calls(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(100).await;
    assert_eq!(world.available().await.unwrap().len(), 100);
    let before = world.redis.requests();
    let (settings, start) = (settings(3), Cursor::default());
    let look = || world.mirror.available(&settings, &start, 500, false);
    let pages = try_join_all((0..200).map(|_| look())).await.unwrap();
    assert!(pages.into_iter().all(|page| page.unwrap().available.len() == 100));
    let sent = world.redis.requests() - before;
    assert!(sent <= 20, "{sent} calls for 200 who asked at once");
    // Whoever asks after somebody went is told so, whoever else asks.
    world.tell(lapsed_availability::ProviderState { online: false, ..online("m0", 2) }).await;
    let pages = try_join_all((0..200).map(|_| look())).await.unwrap();
    assert!(pages.into_iter().all(|page| page.unwrap().available.len() == 99));
}

async fn what_differs_is_answered_apart(engine: Engine) {
    let world = World::on(engine);
    world.seed_online(100).await;
    let (few, many, start) = (settings(0), settings(3), Cursor::default());
    let none = try_join_all((0..50).map(|_| world.mirror.available(&few, &start, 500, false)));
    let counts = try_join_all((0..50).map(|_| world.mirror.available(&many, &start, 500, true)));
    let (none, counts) = join(none, counts).await;
    assert!(none.unwrap().into_iter().all(|page| page.unwrap().count == 0));
    let has_count_alone =
        |page: lapsed_availability::AvailablePage| page.count == 100 && page.available.is_empty();
    assert!(counts.unwrap().into_iter().all(|page| has_count_alone(page.unwrap())));
}

async fn a_beat_counts_the_same_in_every_form(engine: Engine) {
    let world = World::on(engine);
    world.seed(&[online("a", 1)]).await;
    let now = world.app.text(&["GET", "mitra:heartbeat:a"]);
    let (date, time) = (&now[..10], &now[11..19]);
    let fresh = [
        now.clone(),
        format!("{date}T{time}Z"),
        format!("{date} {time}.500+00:00"),
        // A clock that is ahead.
        format!("2999{}", &now[4..]),
    ];
    let stale = [
        format!("{date}T24:00:00.000Z"),
        format!("{date}T00:60:00.000Z"),
        format!("{date}T{time}.000"),
        format!("{date}T{time}.000Zoo"),
        format!("1999{}", &now[4..]),
        date.to_owned(),
        "zzzz".to_owned(),
        String::new(),
    ];
    for (texts, is_available) in [(&fresh[..], true), (&stale[..], false)] {
        for text in texts {
            world.app.call(&["SET", "mitra:heartbeat:a", text]);
            let found = world.available().await.unwrap();
            assert_eq!(found.len(), usize::from(is_available), "{text:?} at {now}");
        }
    }
}
