//! The conformance suite of `inflight`, unchanged, on real servers: Redis, Valkey, a cluster.

mod on_redis {
    async fn make() -> lapsed_core::inflight::conformance::InflightFixture {
        crate::fixture::native_inflight(&crate::fixture::REDIS.url())
    }
    lapsed_core::inflight_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_valkey {
    async fn make() -> lapsed_core::inflight::conformance::InflightFixture {
        crate::fixture::native_inflight(&crate::fixture::VALKEY.url())
    }
    lapsed_core::inflight_conformance!(make, lapsed_testbed::steadily_async);
}

mod on_a_cluster {
    async fn make() -> lapsed_core::inflight::conformance::InflightFixture {
        crate::fixture::native_inflight(&crate::fixture::CLUSTER.url())
    }
    lapsed_core::inflight_conformance!(make, lapsed_testbed::steadily_async);
}
