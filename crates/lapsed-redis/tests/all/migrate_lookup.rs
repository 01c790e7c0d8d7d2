//! Between two passes an instance sends its own heartbeats, without lapsed. The deadline that
//! was last read from its heartbeat may be over by then: a lookup of its entries must not answer
//! that no live owner holds them.

use std::time::Duration;

use lapsed_core::clock::SystemClock;
use lapsed_core::owner::{Claim, OwnerStore};
use lapsed_core::reconcile::{self, ReconcilePlan};
use lapsed_core::registry::RegistryStore;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::{Cursor, PassMode};
use lapsed_testbed::{Engine, RedisServer};

use crate::caller::Caller;
use crate::story::{App, connect, eventually, id, keys, layout, name, names, on_both_engines};

on_both_engines! {
    an_owner_that_beats_without_lapsed_is_found_between_two_passes,
}

async fn an_owner_that_beats_without_lapsed_is_found_between_two_passes(engine: Engine) {
    let server = RedisServer::start(engine).unwrap();
    let (app, redis) = (App::on(&server), connect(&server.url()));
    let registry = redis.registry(id(), layout(Duration::from_millis(300))).unwrap();
    for owner in ["i-live", "i-long", "i-dead"] {
        app.register(owner, &keys(owner, 2));
        app.beat(owner, 200);
    }
    let (_stopper, stop) = StopSignal::channel();
    let plan = ReconcilePlan {
        after: Cursor::default(),
        page: 50,
        pause: Duration::ZERO,
        act: PassMode::Reclaim,
    };
    let clock = SystemClock::shared();
    reconcile::run(&id(), &registry, &*clock, plan, &stop, &mut |_| {}).await.unwrap();
    app.beat("i-live", 600_000);
    app.call(&["SET", "instance:heartbeat:i-long", "without an end"]);
    app.dies("i-dead").await;
    let asked = names(&["i-live-000000", "i-dead-000001", "i-long-000001"].map(str::to_owned));
    // No pass comes by: the one whose heartbeat is gone is overdue, and so was what is filed of the others.
    let found = eventually("the end of the dead", async || {
        let found = registry.find(&asked).await.unwrap();
        let dead = found[1].as_ref().unwrap();
        (dead.due_ms <= dead.now_ms).then_some(found)
    })
    .await;
    for (at, owner) in [(0, "i-live"), (2, "i-long")] {
        let found = found[at].as_ref().unwrap();
        assert_eq!(found.holder.owner, name(owner));
        assert!(found.due_ms > found.now_ms, "{found:?}");
        let info = registry.owner(&Claim::newest(name(owner))).await.unwrap().unwrap();
        assert!(info.due_ms > found.now_ms, "{info:?}");
        assert!(info.due_ms < found.now_ms + 60_000, "no more than a TTL is believed: {info:?}");
    }
    let info = registry.owner(&Claim::newest(name("i-dead"))).await.unwrap().unwrap();
    assert!(info.due_ms <= found[1].as_ref().unwrap().now_ms, "{info:?}");
    // A function cannot tell a heartbeat's key: what the application wrote is believed.
    let mut caller = Caller::on(&server).await;
    let said = caller.must(
        "lapsed_registry_lookup",
        &["connections:registry"],
        &["devices", "i-live-000000"],
    );
    assert_eq!(said, "i-live");
}
