//! The settings of each kind of system: its durations, and the layout of its keys on a store that applications
//! also write to.

use std::time::Duration;

use lapsed_availability::{BreakerPolicy, MIRROR_TIMEOUT, SNAPSHOT_MS};
use lapsed_core::inflight::rules::RecoveryPolicy;

#[derive(Clone, Debug)]
pub struct RegistrySpec {
    /// How long an owner may be silent before it is dead.
    pub ttl: Duration,
    #[cfg(feature = "redis")]
    pub redis: RedisRegistry,
}

/// The layout of a registry on Redis, native or adopted from an application.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub enum RedisRegistry {
    Native(lapsed_redis::RegistryLayout),
    Adopt(lapsed_redis::RegistryLayout),
}

impl RegistrySpec {
    pub fn new(ttl: Duration) -> Self {
        RegistrySpec {
            ttl,
            #[cfg(feature = "redis")]
            redis: RedisRegistry::Native(lapsed_redis::RegistryLayout::new(ttl)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SessionsSpec {
    /// How long an owner of references may be silent before it is dead.
    pub ttl: Duration,
    /// How long a session is kept without connections.
    pub grace: Duration,
    #[cfg(feature = "redis")]
    pub redis: RedisSessionsKeys,
}

/// The layout of sessions on Redis, native or adopted from an application.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub enum RedisSessionsKeys {
    Native(lapsed_redis::SessionsLayout),
    Adopt(lapsed_redis::SessionsLayout),
}

impl SessionsSpec {
    pub fn new(ttl: Duration, grace: Duration) -> Self {
        SessionsSpec {
            ttl,
            grace,
            #[cfg(feature = "redis")]
            redis: RedisSessionsKeys::Native(lapsed_redis::SessionsLayout::new(ttl, grace)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct InflightSpec {
    /// How long a worker may be silent before it is dead.
    pub ttl: Duration,
    /// How often a worker of this process sends heartbeats.
    pub beat_every: Duration,
    pub recovery: RecoveryPolicy,
    #[cfg(feature = "redis")]
    pub redis: RedisInflight,
}

/// The layout of jobs in flight on Redis, native or adopted from an application.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
pub enum RedisInflight {
    Native(lapsed_redis::InflightLayout),
    Adopt(lapsed_redis::AdoptedInflightLayout),
}

impl InflightSpec {
    pub fn new(ttl: Duration, beat_every: Duration, recovery: RecoveryPolicy) -> Self {
        InflightSpec {
            ttl,
            beat_every,
            #[cfg(feature = "redis")]
            redis: RedisInflight::Native(lapsed_redis::InflightLayout::new(ttl, recovery.clone())),
            recovery,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LeasesSpec {
    /// How long a lease lasts from each renewal unless the caller says otherwise.
    pub ttl: Duration,
    /// How long a decision is kept unless the caller says otherwise.
    pub decision_ttl: Duration,
    /// The width of the index buckets on an object store; none: the store's default.
    pub bucket: Option<Duration>,
}

impl LeasesSpec {
    pub fn new(ttl: Duration, decision_ttl: Duration) -> Self {
        LeasesSpec { ttl, decision_ttl, bucket: None }
    }
}

#[derive(Clone, Debug)]
pub struct AvailabilitySpec {
    /// How long a provider may be silent before it is set offline.
    pub threshold: Duration,
    pub mirror_timeout: Duration,
    pub breaker: BreakerPolicy,
    pub snapshot_ttl: Duration,
    /// The names of the application's tables.
    #[cfg(feature = "postgres")]
    pub tables: lapsed_postgres::Layout,
    /// The names of the keys in the mirror.
    #[cfg(feature = "redis")]
    pub keys: lapsed_redis::MirrorLayout,
}

impl AvailabilitySpec {
    pub fn new(threshold: Duration) -> Self {
        AvailabilitySpec {
            threshold,
            mirror_timeout: MIRROR_TIMEOUT,
            breaker: BreakerPolicy::default(),
            snapshot_ttl: Duration::from_millis(SNAPSHOT_MS),
            #[cfg(feature = "postgres")]
            tables: lapsed_postgres::Layout::default(),
            #[cfg(feature = "redis")]
            keys: lapsed_redis::MirrorLayout::default(),
        }
    }
}
