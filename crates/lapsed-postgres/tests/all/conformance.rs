//! The conformance suite of `availability`, with its truth in PostgreSQL: beside a mirror in memory, and
//! beside the one that it is made for, on a real server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_availability::Mirror;
use lapsed_availability::conformance::AvailabilityFixture;
use lapsed_core::clock::SystemClock;

use crate::fixture::{Bench, system};

/// As short as settings allow.
const STALE: Duration = Duration::from_secs(1);

async fn fixture(
    mirror: Arc<dyn Mirror>,
    lose: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
) -> AvailabilityFixture {
    let bench = Bench::new().await;
    AvailabilityFixture {
        id: system(),
        truth: Arc::new(bench.truth),
        mirror,
        stale: STALE,
        advance: Box::new(|span| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(span)) }),
        lose: Box::new(lose),
        clock: SystemClock::shared(),
        keep: Box::new(bench.postgres),
    }
}

mod beside_memory {
    use lapsed_availability::memory::MemoryMirror;

    use super::*;

    async fn make() -> AvailabilityFixture {
        let mirror = Arc::new(MemoryMirror::new(SystemClock::shared(), None));
        let lost = mirror.clone();
        let lose = move || -> BoxFuture<'static, ()> {
            lost.lose();
            Box::pin(async {})
        };
        fixture(mirror, lose).await
    }
    lapsed_availability::availability_conformance!(make, lapsed_testbed::steadily_async);
}

mod beside_valkey {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lapsed_redis::{MirrorLayout, Redis, RedisAddress};
    use lapsed_testbed::{Engine, RedisServer, ServerOptions};

    use super::*;

    /// A database of its own for each telling of each case.
    static VALKEY: LazyLock<RedisServer> = LazyLock::new(|| {
        ServerOptions::new(Engine::Valkey).extra("databases", "1000").start().unwrap()
    });

    async fn make() -> AvailabilityFixture {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let database = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let url = format!("redis://127.0.0.1:{}/{database}", VALKEY.port());
        let redis = Redis::new(&RedisAddress::new(&url)).unwrap();
        let mirror = redis.mirror(system(), MirrorLayout::default(), STALE).unwrap();
        let lose = move || -> BoxFuture<'static, ()> {
            let mut connection = VALKEY.connect(Duration::from_secs(20)).unwrap();
            connection.call(&["SELECT", &database]).unwrap();
            connection.call(&["FLUSHDB"]).unwrap();
            Box::pin(async {})
        };
        fixture(mirror, lose).await
    }
    lapsed_availability::availability_conformance!(make, lapsed_testbed::steadily_async);
}
