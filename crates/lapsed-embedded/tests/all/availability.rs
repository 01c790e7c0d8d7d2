//! The conformance suite of `availability` on the embedded truth and a mirror in memory: under a clock
//! that is moved by hand, and in a folder under the real one.

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::conformance::AvailabilityFixture;
use lapsed_availability::memory::MemoryMirror;
use lapsed_core::clock::{Clock, ManualClock, SystemClock};
use lapsed_core::{Kind, SystemId};
use lapsed_embedded::{Embedded, Options};

fn id() -> SystemId {
    SystemId::new(Kind::Availability, "default").unwrap()
}

/// Both stores on one clock.
fn fixture(
    store: Embedded,
    clock: Arc<dyn Clock>,
    advance: impl Fn(Duration) -> futures::future::BoxFuture<'static, ()> + Send + Sync + 'static,
    stale: Duration,
    keep: Box<dyn std::any::Any + Send + Sync>,
) -> AvailabilityFixture {
    let mirror = Arc::new(MemoryMirror::new(clock.clone(), None));
    let lost = mirror.clone();
    AvailabilityFixture {
        id: id(),
        truth: store.availability(id()).unwrap(),
        mirror,
        stale,
        advance: Box::new(advance),
        lose: Box::new(move || {
            lost.lose();
            Box::pin(async {})
        }),
        clock,
        keep,
    }
}

mod in_memory {
    use super::*;

    async fn make() -> AvailabilityFixture {
        let clock = ManualClock::at(1_700_000_000_000);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let options = Options { clock: shared.clone(), ..Options::default() };
        let store = Embedded::in_memory(options).unwrap();
        let advance = move |span| -> futures::future::BoxFuture<'static, ()> {
            clock.advance(span);
            Box::pin(async {})
        };
        fixture(store, shared, advance, Duration::from_secs(90), Box::new(()))
    }
    lapsed_availability::availability_conformance!(make);
}

mod in_a_folder {
    use super::*;

    async fn make() -> AvailabilityFixture {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(folder.path(), Options::default()).unwrap();
        let advance = |span| -> futures::future::BoxFuture<'static, ()> {
            Box::pin(tokio::time::sleep(span))
        };
        fixture(store, SystemClock::shared(), advance, Duration::from_secs(1), Box::new(folder))
    }
    lapsed_availability::availability_conformance!(make, lapsed_testbed::steadily_async);
}
