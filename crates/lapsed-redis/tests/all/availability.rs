//! The conformance suite of `availability`, unchanged, with the embedded store as the truth and a mirror on
//! real servers: Redis, Valkey, a cluster.

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::conformance::AvailabilityFixture;
use lapsed_core::Kind;
use lapsed_core::clock::SystemClock;
use lapsed_embedded::{Embedded, Options};
use lapsed_redis::MirrorLayout;
use lapsed_testbed::RedisServer;

use crate::fixture::{connect, fresh, id, pass};

/// As short as it can be in whole seconds.
const STALE: Duration = Duration::from_secs(1);

/// Removes all keys with a name of their own, at once.
const LOSE: &str =
    "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end return 1";

/// `lose` is given the part that all keys have in common.
pub fn fixture(url: &str, lose: impl Fn(&str) + Send + Sync + 'static) -> AvailabilityFixture {
    let (redis, id) = (connect(url), id(Kind::Availability));
    let tag = format!("{{{}}}", fresh("availability"));
    let mirror = redis.mirror(id.clone(), MirrorLayout::under(&format!("{tag}:")), STALE).unwrap();
    let store = Embedded::in_memory(Options::default()).unwrap();
    AvailabilityFixture {
        truth: store.availability(id.clone()).unwrap(),
        id,
        mirror,
        stale: STALE,
        advance: Box::new(move |span| Box::pin(pass(redis.clone(), span))),
        lose: Box::new(move || {
            lose(&tag);
            Box::pin(async {})
        }),
        clock: SystemClock::shared(),
        keep: Box::new(Arc::new(store)),
    }
}

pub fn emptied(server: &RedisServer, tag: &str) {
    server.command(&["EVAL", LOSE, "1", tag, &format!("*{tag}*")]).unwrap();
}

mod on_redis {
    async fn make() -> lapsed_availability::conformance::AvailabilityFixture {
        let server = &crate::fixture::REDIS;
        super::fixture(&server.url(), |tag| super::emptied(server, tag))
    }
    lapsed_availability::availability_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_valkey {
    async fn make() -> lapsed_availability::conformance::AvailabilityFixture {
        let server = &crate::fixture::VALKEY;
        super::fixture(&server.url(), |tag| super::emptied(server, tag))
    }
    lapsed_availability::availability_conformance!(make, lapsed_testbed::steadily_async);
}

mod trap_x6_on_a_cluster {
    async fn make() -> lapsed_availability::conformance::AvailabilityFixture {
        let cluster = &crate::fixture::CLUSTER;
        super::fixture(&cluster.url(), |tag| {
            let node = cluster.master_of_slot(cluster.slot_of(tag)).unwrap();
            super::emptied(&cluster.nodes()[node], tag);
        })
    }
    lapsed_availability::availability_conformance!(make, lapsed_testbed::steadily_async);
}
