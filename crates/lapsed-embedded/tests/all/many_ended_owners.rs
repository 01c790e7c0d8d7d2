//! What a pass does besides its suspects takes the same time however many owners have ended.

use std::time::{Duration, Instant};

use lapsed_core::receipt::Retention;
use lapsed_core::registry::conformance::{RegistryFixture, name};
use lapsed_core::sweep::TidyLimits;

use crate::fixture;

/// How many owners have ended in the system that is compared with an almost empty one.
const MANY: usize = 10_000;

/// A registry in which `count` owners have ended, and one is alive.
async fn with_ended(count: usize) -> RegistryFixture {
    let (f, _clock) = fixture::in_memory();
    for number in 0..count {
        let claim = f.start(&format!("gone-{number}")).await;
        f.registry.end(&claim).await.unwrap();
    }
    f.start("alive").await;
    // The store-away grace after the opening, during which the living are counted, is over.
    (f.advance)(f.ttl * 2).await;
    f.registry.beat(&lapsed_core::owner::Claim::newest(name("alive"))).await.unwrap();
    f
}

/// The least time that a census and the housekeeping of a pass took, of many tries.
async fn empty_pass(f: &RegistryFixture) -> Duration {
    let retention = Retention::default();
    let mut least = Duration::MAX;
    for _ in 0..100 {
        let began = Instant::now();
        let census = f.registry.census().await.unwrap();
        let limits = TidyLimits { rows: 100, undeclared_max: None, retention, term: None };
        let tidied = f.registry.tidy(limits).await.unwrap();
        least = least.min(began.elapsed());
        assert_eq!((census.owners_live, tidied.owners_forgotten), (1, 0));
    }
    least
}

#[tokio::test]
async fn an_empty_pass_takes_the_same_time_however_many_owners_have_ended() {
    let few = empty_pass(&with_ended(10).await).await;
    let many = empty_pass(&with_ended(MANY).await).await;
    assert!(many < few * 2, "{few:?} with 10 ended owners, {many:?} with {MANY}");
}
