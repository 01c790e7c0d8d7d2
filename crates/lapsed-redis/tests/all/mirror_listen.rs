//! Notifications of the server, and that a listener learns when it may have missed some.

use std::time::Duration;

use lapsed_availability::{Mirror, ProviderState};
use lapsed_redis::{MirrorEvent, MirrorLayout};
use lapsed_testbed::{Engine, ServerOptions};
use tokio::sync::mpsc::Receiver;

use crate::mirror_world::{STALE_MS, World, online};
use crate::story::{LIMIT, eventually, name, on_both_engines};

on_both_engines! {
    a_changed_setting_reaches_everybody,
    after_a_reconnection_something_may_have_been_missed,
    instant_a_provider_that_falls_silent_is_reported,
    a_receiver_that_falls_behind_is_told_that_events_were_missed,
}

async fn next(events: &mut Receiver<MirrorEvent>) -> MirrorEvent {
    tokio::time::timeout(LIMIT, events.recv()).await.unwrap().unwrap()
}

async fn a_changed_setting_reaches_everybody(engine: Engine) {
    let world = World::on(engine);
    let (mut here, mut there) = (world.mirror.listen(), world.beside().listen());
    for events in [&mut here, &mut there] {
        assert_eq!(next(events).await, MirrorEvent::MaybeMissed, "it is there from now on");
    }
    world.mirror.announce("stale_after_seconds").await.unwrap();
    world.app.call(&["PUBLISH", "config:invalidate", "require_ping"]);
    world.app.call(&["PUBLISH", "something:else", "no"]);
    for events in [&mut here, &mut there] {
        for setting in ["stale_after_seconds", "require_ping"] {
            assert_eq!(next(events).await, MirrorEvent::Invalidated(setting.to_owned()));
        }
        assert!(events.try_recv().is_err());
    }
    drop((here, there));
    eventually("the end of their connections", async || {
        let channels = world.app.text(&["PUBSUB", "NUMSUB", "config:invalidate"]);
        channels.ends_with('0').then_some(())
    })
    .await;
}

async fn after_a_reconnection_something_may_have_been_missed(engine: Engine) {
    let mut world = World::on(engine);
    let mut events = world.mirror.listen();
    assert_eq!(next(&mut events).await, MirrorEvent::MaybeMissed);
    world.app.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(next(&mut events).await, MirrorEvent::MaybeMissed);
    world.server.kill().unwrap();
    world.server.restart().unwrap();
    world.reconnect_app();
    assert_eq!(next(&mut events).await, MirrorEvent::MaybeMissed);
    world.app.call(&["PUBLISH", "config:invalidate", "again"]);
    assert_eq!(next(&mut events).await, MirrorEvent::Invalidated("again".to_owned()));
}

async fn instant_a_provider_that_falls_silent_is_reported(engine: Engine) {
    let options = ServerOptions::new(engine).extra("notify-keyspace-events", "Ex");
    let layout = MirrorLayout { instant: true, ..MirrorLayout::default() };
    let world = World::with(options, layout);
    let mut events = world.mirror.listen();
    assert_eq!(next(&mut events).await, MirrorEvent::MaybeMissed);
    world.mirror.presence(STALE_MS).await.unwrap();
    world.seed(&[online("m0", 1), online("m1", 1)]).await;
    world.app.call(&["SET", "unrelated", "1", "PX", "1"]);
    // One goes offline by itself: nobody is told that it fell silent. The other has beaten.
    world.mirror.beat(&[name("m0"), name("m1")]).await.unwrap();
    world.tell(ProviderState { online: false, ..online("m1", 2) }).await;
    assert_eq!(next(&mut events).await, MirrorEvent::Silent(name("m0")));
    // It only makes it faster: the guard decides.
    world.silenced("m0", 1).await;
    tokio::time::sleep(Duration::from_millis(STALE_MS / 2)).await;
    assert!(events.try_recv().is_err(), "and nobody else is told of");
}

async fn a_receiver_that_falls_behind_is_told_that_events_were_missed(engine: Engine) {
    let world = World::on(engine);
    let mut events = world.mirror.listen();
    assert_eq!(next(&mut events).await, MirrorEvent::MaybeMissed);
    let mut heard = 0;
    eventually("what was missed", async || {
        // More than fit each time, because the listener may still be busy with those before.
        for n in 0..1_500 {
            world.app.call(&["PUBLISH", "config:invalidate", &n.to_string()]);
        }
        while let Ok(event) = events.try_recv() {
            if event == MirrorEvent::MaybeMissed {
                return Some(());
            }
            heard += 1;
        }
        None
    })
    .await;
    assert!(heard >= 1_024, "{heard}");
}
