//! The conformance suite of `availability`, unchanged, with the embedded store as the truth and a mirror on
//! real servers: Redis, Valkey, a cluster.

use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_availability::availability_conformance;
use lapsed_availability::conformance::AvailabilityFixture;
use lapsed_core::Kind;
use lapsed_core::clock::SystemClock;
use lapsed_core::conformance::TestStore;
use lapsed_embedded::{Embedded, Options};
use lapsed_redis::MirrorLayout;
use lapsed_testbed::{Cluster, RedisServer, steadily_async};

use crate::fixture::{CLUSTER, REDIS, VALKEY, connect, fresh, id};

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
    let truth = store.availability(id.clone()).unwrap();
    let lose = Box::new(move || -> BoxFuture<'static, ()> {
        lose(&tag);
        Box::pin(async {})
    });
    let on = TestStore::waiting(redis).keeping(store);
    AvailabilityFixture::new(id, truth, (mirror, lose), STALE, SystemClock::shared(), on)
}

pub fn emptied(server: &RedisServer, tag: &str) {
    server.command(&["EVAL", LOSE, "1", tag, &format!("*{tag}*")]).unwrap();
}

/// A mirror on one server.
pub fn on_server(server: &'static RedisServer, url: &str) -> AvailabilityFixture {
    fixture(url, move |tag| emptied(server, tag))
}

fn on_cluster(cluster: &'static Cluster) -> AvailabilityFixture {
    fixture(&cluster.url(), move |tag| {
        let node = cluster.master_of_slot(cluster.slot_of(tag)).unwrap();
        emptied(&cluster.nodes()[node], tag);
    })
}

availability_conformance!(on_redis, on_server(&REDIS, &REDIS.url()), steadily_async);
availability_conformance!(on_valkey, on_server(&VALKEY, &VALKEY.url()), steadily_async);
availability_conformance!(trap_x6_on_a_cluster, on_cluster(&CLUSTER), steadily_async);
