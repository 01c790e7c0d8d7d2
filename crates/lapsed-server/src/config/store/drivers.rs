//! The drivers of stores: the forms of their addresses, the kinds of system that they support, and
//! how their section of the file is read. To add a store, add an element to [`DRIVERS`] and a
//! variant to [`StoreLocation`] here, and a variant to `OpenStore` in `lapsed::assembly`.

use std::path::{Path, PathBuf};

use lapsed_core::Kind;
use lapsed_postgres::PostgresAddress;
use lapsed_redis::RedisAddress;
pub use lapsed_redis::SHARDS_MAX;
use serde::Deserialize;

use super::Wrong;
use super::object::{self, ObjectPlace};
use crate::config::units::{Span, parse_size};

/// One driver of stores.
#[derive(Debug)]
pub struct StoreDriver {
    /// The name by which presets refer to it.
    pub name: &'static str,
    /// The name of its stores in messages.
    pub title: &'static str,
    /// The URL schemes of its addresses, without the colon.
    pub schemes: &'static [&'static str],
    /// The address that `lapsed init` proposes.
    pub example: &'static str,
    /// The forms of its addresses, which are listed when an address is not recognized.
    pub forms: &'static [&'static str],
    /// The keys of `[store.NAME]` that only this driver has; a store of another driver that has one
    /// is refused.
    pub keys: &'static [&'static str],
    /// The name, in that error, of the stores that these keys are for.
    pub keys_for: &'static str,
    /// The kinds of system that it supports.
    pub carries: &'static [Kind],
    /// Explains why a kind is not supported.
    pub refuses: fn(Kind) -> String,
    /// Reads the section of a store. An error never repeats the address, because it may contain a
    /// password.
    plan: fn(&StoreSection) -> Result<StoreLocation, Wrong>,
}

/// All drivers, in the order in which messages list them.
pub static DRIVERS: &[StoreDriver] = &[
    StoreDriver {
        name: "embedded",
        title: "a folder",
        schemes: &["embedded"],
        example: "embedded:./lapsed-data",
        forms: &["embedded:DIR"],
        keys: &[],
        keys_for: "",
        carries: Kind::ALL,
        refuses: |kind| format!("an embedded store does not keep {kind}"),
        plan: plan_embedded,
    },
    StoreDriver {
        name: "redis",
        title: "Redis",
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
        carries: &[Kind::Registry, Kind::Sessions, Kind::Inflight],
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
        plan: plan_redis,
    },
    StoreDriver {
        name: "postgres",
        title: "Postgres",
        schemes: &["postgres", "postgresql"],
        example: "postgres://lapsed@127.0.0.1/app",
        forms: &["postgres://USER:PASSWORD@HOST/DATABASE"],
        keys: &["connections", "table_prefix"],
        keys_for: "Postgres (postgres://)",
        carries: &[Kind::Availability],
        refuses: |kind| {
            format!(
                "Postgres keeps availability only; {kind} needs an embedded store or another server"
            )
        },
        plan: plan_postgres,
    },
    StoreDriver {
        name: "object",
        title: "an object store",
        schemes: object::SCHEMES,
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
        carries: &[Kind::Leases],
        refuses: |kind| {
            format!("an object store keeps leases only; {kind} needs an embedded store or Redis")
        },
        plan: |section| Ok(StoreLocation::Object(ObjectPlace::plan(section)?)),
    },
];

/// The driver with this name.
pub fn driver(name: &str) -> Option<&'static StoreDriver> {
    DRIVERS.iter().find(|driver| driver.name == name)
}

/// The driver whose addresses have this scheme.
pub fn driver_of(scheme: &str) -> Option<&'static StoreDriver> {
    DRIVERS.iter().find(|driver| driver.schemes.contains(&scheme))
}

/// The section `[store.NAME]` as it is written in the file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// The address: `embedded:DIR`, `redis://HOST:PORT/DB`, `s3://BUCKET/PREFIX`, ...
    pub url: String,
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub access_key_id: Option<String>,
    pub secret_access_key: Option<String>,
    pub account: Option<String>,
    pub account_key: Option<String>,
    pub allow_http: Option<bool>,
    pub virtual_host: Option<bool>,
    pub requests_per_hour: Option<u64>,
    /// Postgres: the largest number of concurrent connections.
    pub connections: Option<usize>,
    /// Postgres: the prefix of the names of lapsed's own tables.
    pub table_prefix: Option<String>,
    /// The time limit of making a connection.
    pub connect_timeout: Option<Span>,
    /// The time limit of one answer.
    pub response_timeout: Option<Span>,
}

impl StoreSection {
    /// The keys that the section has and that not every driver supports.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("endpoint", self.endpoint.is_some()),
            ("region", self.region.is_some()),
            ("access_key_id", self.access_key_id.is_some()),
            ("secret_access_key", self.secret_access_key.is_some()),
            ("account", self.account.is_some()),
            ("account_key", self.account_key.is_some()),
            ("allow_http", self.allow_http.is_some()),
            ("virtual_host", self.virtual_host.is_some()),
            ("requests_per_hour", self.requests_per_hour.is_some()),
            ("connections", self.connections.is_some()),
            ("table_prefix", self.table_prefix.is_some()),
        ];
        keys.into_iter().filter(|(_, given)| *given).map(|(key, _)| key)
    }

    /// Reads where the store is. An error never repeats the address, because it may contain a
    /// password.
    pub fn plan(&self) -> Result<StoreLocation, Wrong> {
        let (scheme, _) = self.url.split_once(':').ok_or_else(|| {
            Wrong::of(
                "url",
                "a store's url starts with its kind, for example `embedded:./lapsed-data`",
            )
        })?;
        let driver = driver_of(scheme);
        for key in self.given() {
            let owner = DRIVERS.iter().find(|driver| driver.keys.contains(&key));
            if let Some(owner) = owner.filter(|o| driver.is_none_or(|d| d.name != o.name)) {
                return Err(Wrong::of(key, &format!("is for {} only", owner.keys_for)));
            }
        }
        match driver {
            Some(driver) => (driver.plan)(self),
            None => Err(unknown_scheme(scheme).into()),
        }
    }
}

fn unknown_scheme(scheme: &str) -> String {
    let forms: Vec<String> =
        DRIVERS.iter().flat_map(|driver| driver.forms).map(|form| format!("`{form}`")).collect();
    let (last, others) = forms.split_last().expect("there are drivers");
    let known = others.join(", ");
    format!("`{scheme}` is no kind of store; this version knows {known} and {last}")
}

/// Where a store is, with the settings of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A folder of this machine.
    Embedded {
        dir: PathBuf,
        /// The size of its cache in bytes; the store's own default if absent.
        cache_bytes: Option<usize>,
    },
    /// Redis or Valkey, a single server or a cluster.
    Redis(RedisAddress),
    /// S3, Azure Blob Storage, Google Cloud Storage, or a compatible server.
    Object(ObjectPlace),
    Postgres(PostgresAddress),
}

impl StoreLocation {
    /// An embedded store in the folder `dir`.
    pub fn embedded(dir: PathBuf) -> Result<StoreLocation, String> {
        if dir.as_os_str().is_empty() {
            return Err("`embedded:` needs a folder, for example `embedded:./lapsed-data`".into());
        }
        if dir.exists() && !dir.is_dir() {
            return Err(format!("{} is not a folder", dir.display()));
        }
        Ok(StoreLocation::Embedded { dir, cache_bytes: None })
    }

    /// The driver of this store.
    pub fn driver(&self) -> &'static StoreDriver {
        let name = match self {
            StoreLocation::Embedded { .. } => "embedded",
            StoreLocation::Redis(_) => "redis",
            StoreLocation::Object(_) => "object",
            StoreLocation::Postgres(_) => "postgres",
        };
        driver(name).expect("every location is of a driver in the table")
    }

    /// A description of where the store is, without secrets.
    pub fn describe(&self) -> String {
        match self {
            StoreLocation::Object(place) => place.describe(),
            StoreLocation::Embedded { dir, .. } => format!("embedded:{}", dir.display()),
            StoreLocation::Redis(address) => address.place(),
            StoreLocation::Postgres(address) => address.place(),
        }
    }

    /// Whether both stores would write to the same folder. Servers may be shared.
    pub fn same_place(&self, other: &StoreLocation) -> bool {
        match (self, other) {
            (StoreLocation::Embedded { dir: a, .. }, StoreLocation::Embedded { dir: b, .. }) => {
                resolved(a) == resolved(b)
            }
            _ => false,
        }
    }

    /// Whether both stores are the same bucket and prefix. Object names there do not contain the
    /// name of the system, so two systems would share their objects.
    pub fn shares_objects_with(&self, other: &StoreLocation) -> bool {
        match (self, other) {
            (StoreLocation::Object(one), StoreLocation::Object(other)) => {
                let at = |place: &ObjectPlace| place.url.trim_end_matches('/').to_owned();
                at(one) == at(other) && one.endpoint == other.endpoint
            }
            _ => false,
        }
    }
}

fn plan_embedded(section: &StoreSection) -> Result<StoreLocation, Wrong> {
    let (_, rest) = section.url.split_once(':').unwrap_or_default();
    let (dir, query) = match rest.split_once('?') {
        Some((dir, query)) => (dir, Some(query)),
        None => (rest, None),
    };
    let mut cache = None;
    for pair in query.into_iter().flat_map(|q| q.split('&')) {
        match pair.split_once('=') {
            Some(("cache", size)) => cache = Some(parse_size(size)?),
            _ => {
                let what = format!("unknown option {pair:?}; `?cache=256MiB` is the only one");
                return Err(what.into());
            }
        }
    }
    let mut location = StoreLocation::embedded(PathBuf::from(dir))?;
    if let StoreLocation::Embedded { cache_bytes, .. } = &mut location {
        *cache_bytes = cache;
    }
    Ok(location)
}

fn plan_redis(section: &StoreSection) -> Result<StoreLocation, Wrong> {
    let mut address = RedisAddress::new(&section.url);
    if let Some(span) = section.connect_timeout {
        address.connect_timeout = span.0;
    }
    if let Some(span) = section.response_timeout {
        address.response_timeout = span.0;
    }
    address.check()?;
    Ok(StoreLocation::Redis(address))
}

/// The most connections that one daemon may have to a database.
const CONNECTIONS_MAX: usize = 1_000;

fn plan_postgres(section: &StoreSection) -> Result<StoreLocation, Wrong> {
    let usual = PostgresAddress::new(&section.url);
    let span = |given: Option<Span>, usual| given.map_or(usual, |span| span.0);
    let address = PostgresAddress {
        connect_timeout: span(section.connect_timeout, usual.connect_timeout),
        call_timeout: span(section.response_timeout, usual.call_timeout),
        connections: section.connections.unwrap_or(usual.connections),
        prefix: section.table_prefix.clone().unwrap_or_else(|| usual.prefix.clone()),
        ..usual
    };
    if !(1..=CONNECTIONS_MAX).contains(&address.connections) {
        return Err(Wrong::of("connections", &format!("must be 1 to {CONNECTIONS_MAX}")));
    }
    address.check()?;
    Ok(StoreLocation::Postgres(address))
}

/// The absolute path of the folder, with symbolic links resolved if the folder exists.
fn resolved(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    std::fs::canonicalize(&absolute).unwrap_or_else(|_| absolute.components().collect())
}
