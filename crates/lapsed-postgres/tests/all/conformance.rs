//! The conformance suite of `availability`, with its truth in PostgreSQL: beside a mirror in memory, and
//! beside the one that it is made for, on a real server.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_availability::Mirror;
use lapsed_availability::availability_conformance;
use lapsed_availability::conformance::{AvailabilityFixture, LoseMirror, memory_mirror};
use lapsed_core::clock::SystemClock;
use lapsed_core::conformance::TestStore;
use lapsed_redis::{MirrorLayout, Redis, RedisAddress};
use lapsed_testbed::{Engine, RedisServer, ServerOptions, steadily_async};

use crate::fixture::{Bench, system};

/// As short as settings allow.
pub const STALE: Duration = Duration::from_secs(1);

pub fn fixture(bench: Bench, mirror: (Arc<dyn Mirror>, LoseMirror)) -> AvailabilityFixture {
    let on = TestStore::waiting(bench.postgres);
    let truth = Arc::new(bench.truth);
    AvailabilityFixture::new(system(), truth, mirror, STALE, SystemClock::shared(), on)
}

/// A mirror in the next database of a server: one for each run of each case.
pub fn next_mirror(
    server: impl Deref<Target = RedisServer> + Send + Sync + 'static,
    databases: &AtomicUsize,
) -> (Arc<dyn Mirror>, LoseMirror) {
    let database = databases.fetch_add(1, Ordering::Relaxed).to_string();
    let url = format!("redis://127.0.0.1:{}/{database}", server.port());
    let redis = Redis::new(&RedisAddress::new(&url)).unwrap();
    let mirror = redis.mirror(system(), MirrorLayout::default(), STALE).unwrap();
    let lose = move || -> BoxFuture<'static, ()> {
        let mut connection = server.connect(Duration::from_secs(20)).unwrap();
        connection.call(&["SELECT", &database]).unwrap();
        connection.call(&["FLUSHDB"]).unwrap();
        Box::pin(async {})
    };
    (mirror, Box::new(lose))
}

static VALKEY: LazyLock<RedisServer> = LazyLock::new(|| {
    ServerOptions::new(Engine::Valkey).extra("databases", "1000").start().unwrap()
});
static DATABASES: AtomicUsize = AtomicUsize::new(0);

availability_conformance!(
    beside_memory,
    fixture(Bench::new().await, memory_mirror(SystemClock::shared())),
    steadily_async
);
availability_conformance!(
    beside_valkey,
    fixture(Bench::new().await, next_mirror(&*VALKEY, &DATABASES)),
    steadily_async
);

/// B12: the terms of availability are in PostgreSQL.
#[tokio::test]
async fn trap_b12_failed_renewals_cost_no_term() {
    use lapsed_core::conformance::leading::failed_renewals_cost_no_term;

    lapsed_testbed::steadily_async(async || {
        let f = fixture(Bench::new().await, memory_mirror(SystemClock::shared())).settled().await;
        for id in ["a", "b", "c", "d", "e", "f"] {
            f.online(id).await;
        }
        f.silence().await;
        let (led, _keep) = f.led(Duration::from_secs(2));
        failed_renewals_cost_no_term(led, 6).await;
    })
    .await;
}
