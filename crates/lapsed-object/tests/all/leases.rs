//! The conformance suite of `leases`, on every server that holds what it promises.

use lapsed_core::leases::conformance::LeasesFixture;
use lapsed_testbed::ObjectEngine;

use crate::fixture::Site;

mod seaweed {
    use super::*;

    async fn make() -> LeasesFixture {
        Site::new(ObjectEngine::Seaweed).sharp_fixture().await
    }

    lapsed_core::leases_conformance!(make, lapsed_testbed::steadily_async);
}

mod moto {
    use super::*;

    async fn make() -> LeasesFixture {
        Site::new(ObjectEngine::Moto).sharp_fixture().await
    }

    lapsed_core::leases_conformance!(make, lapsed_testbed::steadily_async);
}

mod azurite {
    use super::*;

    async fn make() -> LeasesFixture {
        Site::new(ObjectEngine::Azurite).sharp_fixture().await
    }

    lapsed_core::leases_conformance!(make, lapsed_testbed::steadily_async);
}
