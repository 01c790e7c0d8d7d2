//! The conformance suite of `leases`, on every server that holds what it promises.

use lapsed::leases::conformance::Fixture;
use lapsed_testbed::ObjectEngine;

use crate::fixture::Site;

mod seaweed {
    use super::*;

    async fn make() -> Fixture {
        Site::new(ObjectEngine::Seaweed).fixture()
    }

    lapsed::leases_conformance!(make, lapsed_testbed::steadily_async);
}

mod moto {
    use super::*;

    async fn make() -> Fixture {
        Site::new(ObjectEngine::Moto).fixture()
    }

    lapsed::leases_conformance!(make, lapsed_testbed::steadily_async);
}

mod azurite {
    use super::*;

    async fn make() -> Fixture {
        Site::new(ObjectEngine::Azurite).fixture()
    }

    lapsed::leases_conformance!(make, lapsed_testbed::steadily_async);
}
