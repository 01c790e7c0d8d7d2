//! The conformance suite of `registry` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.
#![allow(clippy::unwrap_used)]

mod fixture;

mod in_memory {
    async fn make() -> lapsed::registry::conformance::Fixture {
        super::fixture::in_memory().0
    }
    lapsed::registry_conformance!(make);
}

mod in_a_folder {
    async fn make() -> lapsed::registry::conformance::Fixture {
        super::fixture::in_folder()
    }
    lapsed::registry_conformance!(make);
}
