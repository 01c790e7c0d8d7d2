//! The conformance suite of `registry`, unchanged, on real servers: Redis, Valkey, a cluster.

mod on_redis {
    async fn make() -> lapsed_core::registry::conformance::RegistryFixture {
        crate::fixture::native(&crate::fixture::REDIS.url(), 1)
    }
    lapsed_core::registry_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_redis_in_shards {
    async fn make() -> lapsed_core::registry::conformance::RegistryFixture {
        crate::fixture::native(&crate::fixture::REDIS.url(), 3)
    }
    lapsed_core::registry_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_valkey {
    async fn make() -> lapsed_core::registry::conformance::RegistryFixture {
        crate::fixture::native(&crate::fixture::VALKEY.url(), 1)
    }
    lapsed_core::registry_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_a_cluster {
    async fn make() -> lapsed_core::registry::conformance::RegistryFixture {
        crate::fixture::native(&crate::fixture::CLUSTER.url(), 3)
    }
    lapsed_core::registry_conformance!(make, lapsed_testbed::steadily_async);
}
