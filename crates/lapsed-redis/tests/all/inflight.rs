//! The conformance suite of `inflight`, unchanged, on real servers: Redis, Valkey, a cluster.

use lapsed_core::inflight_conformance;
use lapsed_testbed::steadily_async;

use crate::fixture::{CLUSTER, REDIS, VALKEY, native_inflight};

inflight_conformance!(on_redis, native_inflight(&REDIS.url()), steadily_async);
inflight_conformance!(on_valkey, native_inflight(&VALKEY.url()), steadily_async);
inflight_conformance!(on_a_cluster, native_inflight(&CLUSTER.url()), steadily_async);
