//! Books, marks and turns on real servers: Redis, Valkey, a cluster.

use lapsed_core::notes::conformance::NotesFixture;

fn fixture(url: &str, shards: usize) -> NotesFixture {
    let native = crate::fixture::native(url, shards);
    let system = native.registry.system().clone();
    NotesFixture { store: native.store.clone(), system, keep: Box::new(native.registry) }
}

mod on_redis {
    async fn make() -> super::NotesFixture {
        super::fixture(&crate::fixture::REDIS.url(), 1)
    }
    lapsed_core::notes_conformance!(make);
}

mod on_valkey {
    async fn make() -> super::NotesFixture {
        super::fixture(&crate::fixture::VALKEY.url(), 1)
    }
    lapsed_core::notes_conformance!(make);
}

mod on_a_cluster {
    async fn make() -> super::NotesFixture {
        super::fixture(&crate::fixture::CLUSTER.url(), 3)
    }
    lapsed_core::notes_conformance!(make);
}
