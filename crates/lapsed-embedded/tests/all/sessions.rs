//! The conformance suite of `sessions` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.
#![allow(clippy::unwrap_used)]

mod fixture;

mod in_memory {
    async fn make() -> lapsed::sessions::conformance::Fixture {
        super::fixture::sessions_in_memory().0
    }
    lapsed::sessions_conformance!(make);
}

mod in_a_folder {
    async fn make() -> lapsed::sessions::conformance::Fixture {
        super::fixture::sessions_in_folder()
    }
    lapsed::sessions_conformance!(make);
}
