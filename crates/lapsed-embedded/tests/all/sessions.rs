//! The conformance suite of `sessions` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

mod in_memory {
    async fn make() -> lapsed_core::sessions::conformance::SessionsFixture {
        crate::fixture::sessions_in_memory().0
    }
    lapsed_core::sessions_conformance!(make);
}

mod in_a_folder {
    async fn make() -> lapsed_core::sessions::conformance::SessionsFixture {
        crate::fixture::sessions_in_folder()
    }
    lapsed_core::sessions_conformance!(make, lapsed_testbed::steadily_async);
}
