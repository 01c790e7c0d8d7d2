//! The conformance suite of `registry`, unchanged, on real servers: Redis, Valkey, a cluster.
#![allow(clippy::unwrap_used)]

mod fixture;

mod on_redis {
    async fn make() -> lapsed::registry::conformance::Fixture {
        super::fixture::native(&super::fixture::REDIS.url(), 1)
    }
    lapsed::registry_conformance!(make);
}

mod on_redis_in_shards {
    async fn make() -> lapsed::registry::conformance::Fixture {
        super::fixture::native(&super::fixture::REDIS.url(), 3)
    }
    lapsed::registry_conformance!(make);
}

mod on_valkey {
    async fn make() -> lapsed::registry::conformance::Fixture {
        super::fixture::native(&super::fixture::VALKEY.url(), 1)
    }
    lapsed::registry_conformance!(make);
}

mod on_a_cluster {
    async fn make() -> lapsed::registry::conformance::Fixture {
        super::fixture::native(&super::fixture::CLUSTER.url(), 3)
    }
    lapsed::registry_conformance!(make);
}
