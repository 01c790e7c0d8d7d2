//! The table of stores. A store is one element of [`DRIVERS`], and its code is a file below this one. The library,
//! the configuration file and the commands all ask this table. Not part of the public interface.
#![allow(missing_docs)]

mod driver;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "object")]
pub mod object;
mod opened;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use lapsed_core::Kind;

pub use driver::{
    KeyResult, NoKeys, StoreAddress, StoreCode, StoreDriver, StoreKeys, StoreLocation, StoreUse,
    WrongKey,
};
pub(crate) use opened::unsupported;
pub use opened::{CarriedKind, Carries, OpenStore, Opened, OpenedStore, SystemSpec};

/// The code of a store: how its address is read, its type, and what it opens for each kind that it carries. `None` if
/// the feature is off.
macro_rules! code {
    ($feature:literal, $read:path, $store:ty: $($kind:ident::$spec:ident),+) => {{
        #[cfg(feature = $feature)]
        {
            let carries =
                const { &[$(opened::carried::<$store, crate::$kind::$spec>()),+] };
            Some(StoreCode { read: $read, carries })
        }
        #[cfg(not(feature = $feature))]
        None
    }};
}

/// All drivers, in the order in which messages list them.
pub static DRIVERS: &[StoreDriver] = &[
    StoreDriver {
        name: "embedded",
        title: "an embedded store",
        feature: "embedded",
        schemes: &["embedded"],
        example: "embedded:./lapsed-data",
        forms: &["embedded:DIR"],
        keys: &[],
        keys_for: "",
        used_by: StoreUse::Exclusive,
        can_mirror: false,
        is_durable: true,
        refuses: |kind| format!("an embedded store does not keep {kind}"),
        code: code!("embedded", embedded::read, lapsed_embedded::Embedded:
            registry::RegistrySpec, sessions::SessionsSpec, inflight::InflightSpec, leases::LeasesSpec,
            availability::AvailabilityRequest),
    },
    StoreDriver {
        name: "memory",
        title: "an embedded store",
        feature: "embedded",
        schemes: &["memory"],
        example: "memory:",
        forms: &["memory:"],
        keys: &[],
        keys_for: "",
        used_by: StoreUse::Exclusive,
        can_mirror: false,
        is_durable: false,
        refuses: |kind| format!("an embedded store does not keep {kind}"),
        code: code!("embedded", embedded::read_memory, lapsed_embedded::Embedded:
            registry::RegistrySpec, sessions::SessionsSpec, inflight::InflightSpec, leases::LeasesSpec,
            availability::AvailabilityRequest),
    },
    StoreDriver {
        name: "redis",
        title: "Redis",
        feature: "redis",
        schemes: &[
            "redis",
            "rediss",
            "redis+cluster",
            "rediss+cluster",
            "valkey",
            "valkeys",
            "valkey+cluster",
            "valkeys+cluster",
        ],
        example: "redis://127.0.0.1:6379/0",
        forms: &["redis://HOST:PORT/0", "rediss://", "redis+cluster://HOST:PORT,HOST:PORT"],
        keys: &[],
        keys_for: "",
        used_by: StoreUse::Shared,
        can_mirror: true,
        is_durable: true,
        refuses: |kind| match kind {
            Kind::Availability => {
                "availability is true in an embedded store or in Postgres; Redis is its `mirror`"
                    .to_owned()
            }
            kind => format!(
                "{kind} are kept on an embedded store or an object store (s3://, az://, gs://), not \
                 on Redis"
            ),
        },
        code: code!("redis", redis::read, lapsed_redis::Redis:
            registry::RegistrySpec, sessions::SessionsSpec, inflight::InflightSpec),
    },
    StoreDriver {
        name: "postgres",
        title: "Postgres",
        feature: "postgres",
        schemes: &["postgres", "postgresql"],
        example: "postgres://lapsed@127.0.0.1/app",
        forms: &["postgres://USER:PASSWORD@HOST/DATABASE"],
        keys: &["connections", "table_prefix"],
        keys_for: "Postgres (postgres://)",
        used_by: StoreUse::Shared,
        can_mirror: false,
        is_durable: true,
        refuses: |kind| {
            format!(
                "Postgres keeps availability only; {kind} needs an embedded store or another server"
            )
        },
        code: code!("postgres", postgres::read, lapsed_postgres::Postgres:
            availability::AvailabilityRequest),
    },
    StoreDriver {
        name: "object",
        title: "an object store",
        feature: "object",
        schemes: &["s3", "az", "gs"],
        example: "s3://my-bucket/locks",
        forms: &["s3://BUCKET/PREFIX", "az://CONTAINER/PREFIX", "gs://BUCKET/PREFIX"],
        keys: &[
            "endpoint",
            "region",
            "access_key_id",
            "secret_access_key",
            "account",
            "account_key",
            "allow_http",
            "virtual_host",
            "requests_per_hour",
        ],
        keys_for: "object stores (s3://, az://, gs://)",
        used_by: StoreUse::PaidByRequest,
        can_mirror: false,
        is_durable: true,
        refuses: |kind| {
            format!("an object store keeps leases only; {kind} needs an embedded store or Redis")
        },
        code: code!("object", object::read, object::OpenObject: leases::LeasesSpec),
    },
];
