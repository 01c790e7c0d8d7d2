//! The conformance suite of `inflight` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

use lapsed_core::inflight_conformance;
use lapsed_testbed::steadily_async;

inflight_conformance!(in_memory, crate::fixture::inflight_in_memory().0);
inflight_conformance!(in_a_folder, crate::fixture::inflight_in_folder(), steadily_async);

#[tokio::test]
async fn requests_are_forgotten_after_their_age() {
    use lapsed_core::inflight::conformance::repeats;
    let jobs = crate::fixture::inflight_in_memory().0;
    repeats::requests_are_forgotten_after_their_age(jobs).await;
}
