//! The conformance suite of `inflight` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

mod in_memory {
    async fn make() -> lapsed_core::inflight::conformance::InflightFixture {
        crate::fixture::inflight_in_memory().0
    }
    lapsed_core::inflight_conformance!(make);

    #[tokio::test]
    async fn requests_are_forgotten_after_their_age() {
        use lapsed_core::inflight::conformance::repeats;
        repeats::requests_are_forgotten_after_their_age(make().await).await;
    }
}

mod in_a_folder {
    async fn make() -> lapsed_core::inflight::conformance::InflightFixture {
        crate::fixture::inflight_in_folder()
    }
    lapsed_core::inflight_conformance!(make, lapsed_testbed::steadily_async);
}
