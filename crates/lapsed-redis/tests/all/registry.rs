//! The conformance suite of `registry`, unchanged, on real servers: Redis, Valkey, a cluster.

use lapsed_core::registry_conformance;
use lapsed_testbed::steadily_async;

use crate::fixture::{CLUSTER, REDIS, VALKEY, native};

registry_conformance!(on_redis, native(&REDIS.url(), 1), steadily_async);
registry_conformance!(on_redis_in_shards, native(&REDIS.url(), 3), steadily_async);
registry_conformance!(on_valkey, native(&VALKEY.url(), 1), steadily_async);
registry_conformance!(on_a_cluster, native(&CLUSTER.url(), 3), steadily_async);
