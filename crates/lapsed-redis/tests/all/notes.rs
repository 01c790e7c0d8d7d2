//! Notes, marks and turns on real servers: Redis, Valkey, a cluster.

use lapsed_core::conformance::TestStore;
use lapsed_core::notes::conformance::NotesFixture;
use lapsed_core::notes_conformance;
use lapsed_core::sweep::Sweep;

use crate::fixture::{CLUSTER, REDIS, VALKEY, registry};

fn notes(url: &str, shards: usize) -> NotesFixture {
    let (redis, registry) = registry(url, shards);
    let system = registry.system().clone();
    NotesFixture { system, on: TestStore::waiting(redis).keeping(registry) }
}

notes_conformance!(on_redis, notes(&REDIS.url(), 1));
notes_conformance!(on_valkey, notes(&VALKEY.url(), 1));
notes_conformance!(on_a_cluster, notes(&CLUSTER.url(), 3));
