//! The conformance suite of `sessions`, unchanged, on real servers: Redis, Valkey, a cluster.

use lapsed_core::sessions_conformance;
use lapsed_testbed::steadily_async;

use crate::fixture::{CLUSTER, REDIS, VALKEY, native_sessions};

sessions_conformance!(on_redis, native_sessions(&REDIS.url(), 1), steadily_async);
sessions_conformance!(on_redis_in_shards, native_sessions(&REDIS.url(), 3), steadily_async);
sessions_conformance!(on_valkey, native_sessions(&VALKEY.url(), 1), steadily_async);
sessions_conformance!(on_a_cluster, native_sessions(&CLUSTER.url(), 3), steadily_async);
