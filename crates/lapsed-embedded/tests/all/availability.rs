//! The conformance suite of `availability` on the embedded truth and a mirror in memory: under a clock
//! that is moved by hand, and in a folder under the real one.

use std::sync::Arc;
use std::time::Duration;

use lapsed_availability::availability_conformance;
use lapsed_availability::conformance::{AvailabilityFixture, memory_mirror};
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::{Kind, SystemId};
use lapsed_testbed::steadily_async;

use crate::fixture::{Opened, folder, memory};

/// Both stores on one clock.
fn fixture((store, on): Opened, clock: Arc<dyn Clock>, stale: Duration) -> AvailabilityFixture {
    let id = SystemId::new(Kind::Availability, "default").unwrap();
    let mirror = memory_mirror(clock.clone());
    let truth = store.availability(id.clone()).unwrap();
    AvailabilityFixture::new(id, truth, mirror, stale, clock, on)
}

fn in_memory() -> AvailabilityFixture {
    let (opened, clock) = memory();
    fixture(opened, Arc::new(clock), Duration::from_secs(90))
}

availability_conformance!(in_memory, in_memory());
availability_conformance!(
    in_a_folder,
    fixture(folder(), SystemClock::shared(), Duration::from_secs(1)),
    steadily_async
);
