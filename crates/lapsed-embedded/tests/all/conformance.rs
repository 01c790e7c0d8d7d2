//! The conformance suite of `registry` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

mod in_memory {
    async fn make() -> lapsed_core::registry::conformance::RegistryFixture {
        crate::fixture::in_memory().0
    }
    lapsed_core::registry_conformance!(make);
}

mod in_a_folder {
    async fn make() -> lapsed_core::registry::conformance::RegistryFixture {
        crate::fixture::in_folder()
    }
    lapsed_core::registry_conformance!(make, lapsed_testbed::steadily_async);
}
