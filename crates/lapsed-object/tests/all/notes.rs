//! Books, marks and turns on every server that holds what it promises.

use lapsed_core::notes::conformance::Fixture;
use lapsed_testbed::ObjectEngine;

use crate::fixture::{Site, system};

async fn fixture(engine: ObjectEngine) -> Fixture {
    let site = Site::new(engine);
    Fixture { store: site.store.clone(), system: system(), keep: Box::new(site) }
}

mod seaweed {
    async fn make() -> super::Fixture {
        super::fixture(super::ObjectEngine::Seaweed).await
    }
    lapsed_core::notes_conformance!(make);
}

mod azurite {
    async fn make() -> super::Fixture {
        super::fixture(super::ObjectEngine::Azurite).await
    }
    lapsed_core::notes_conformance!(make);
}
