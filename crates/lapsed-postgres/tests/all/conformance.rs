//! The conformance suite of `availability`, with its truth in PostgreSQL and a mirror in memory.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed::availability::conformance::Fixture;
use lapsed::availability::memory::MemoryMirror;
use lapsed::clock::SystemClock;

use crate::fixture::{Bench, system};

async fn make() -> Fixture {
    let bench = Bench::new().await;
    let clock = SystemClock::shared();
    let mirror = Arc::new(MemoryMirror::new(clock.clone(), None));
    let lost = mirror.clone();
    Fixture {
        id: system(),
        truth: Arc::new(bench.truth),
        mirror,
        stale: Duration::from_secs(1),
        advance: Box::new(|span| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(span)) }),
        lose: Box::new(move || {
            lost.lose();
            Box::pin(async {})
        }),
        clock,
        keep: Box::new(bench.postgres),
    }
}

lapsed::availability_conformance!(make, lapsed_testbed::steadily_async);
