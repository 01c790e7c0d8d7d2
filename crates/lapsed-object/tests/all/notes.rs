//! Books, marks and turns on every server that holds what it promises.

use lapsed_core::notes::conformance::NotesFixture;
use lapsed_testbed::ObjectEngine;

use crate::fixture::{Site, system};

async fn fixture(engine: ObjectEngine) -> NotesFixture {
    let site = Site::new(engine);
    NotesFixture { store: site.store.clone(), system: system(), keep: Box::new(site) }
}

mod seaweed {
    async fn make() -> super::NotesFixture {
        super::fixture(super::ObjectEngine::Seaweed).await
    }
    lapsed_core::notes_conformance!(make);
}

mod azurite {
    async fn make() -> super::NotesFixture {
        super::fixture(super::ObjectEngine::Azurite).await
    }
    lapsed_core::notes_conformance!(make);
}
