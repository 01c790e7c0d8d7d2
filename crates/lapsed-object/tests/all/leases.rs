//! The conformance suite of `leases`, on every server that holds what it promises.

use lapsed_core::leases_conformance;
use lapsed_testbed::{ObjectEngine, steadily_async};

use crate::fixture::Site;

leases_conformance!(
    seaweed,
    Site::new(ObjectEngine::Seaweed).sharp_fixture().await,
    steadily_async
);
leases_conformance!(moto, Site::new(ObjectEngine::Moto).sharp_fixture().await, steadily_async);
leases_conformance!(
    azurite,
    Site::new(ObjectEngine::Azurite).sharp_fixture().await,
    steadily_async
);
