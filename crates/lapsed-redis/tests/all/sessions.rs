//! The conformance suite of `sessions`, unchanged, on real servers: Redis, Valkey, a cluster.

mod on_redis {
    async fn make() -> lapsed_core::sessions::conformance::SessionsFixture {
        crate::fixture::native_sessions(&crate::fixture::REDIS.url(), 1)
    }
    lapsed_core::sessions_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_redis_in_shards {
    async fn make() -> lapsed_core::sessions::conformance::SessionsFixture {
        crate::fixture::native_sessions(&crate::fixture::REDIS.url(), 3)
    }
    lapsed_core::sessions_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_valkey {
    async fn make() -> lapsed_core::sessions::conformance::SessionsFixture {
        crate::fixture::native_sessions(&crate::fixture::VALKEY.url(), 1)
    }
    lapsed_core::sessions_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_a_cluster {
    async fn make() -> lapsed_core::sessions::conformance::SessionsFixture {
        crate::fixture::native_sessions(&crate::fixture::CLUSTER.url(), 3)
    }
    lapsed_core::sessions_conformance!(make, lapsed_testbed::steadily_async);
}
