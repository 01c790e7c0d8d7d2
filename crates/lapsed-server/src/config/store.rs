//! `[store.NAME]`: where a store is.

pub mod object;

use std::path::{Path, PathBuf};

use lapsed_core::Kind;
use lapsed_postgres::PostgresAddress;
use serde::Deserialize;

use self::object::ObjectPlace;
use super::units::{Span, parse_size};

/// As the file writes it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// `embedded:DIR`, `redis://HOST:PORT/DB`, `s3://BUCKET/PREFIX`, ...
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
    /// Postgres: how many connections there may be at a time.
    pub connections: Option<usize>,
    /// Postgres: what the names of lapsed's own tables begin with.
    pub table_prefix: Option<String>,
    /// How long making a connection may take.
    pub connect_timeout: Option<Span>,
    /// How long any one answer may take.
    pub response_timeout: Option<Span>,
}

impl StoreSection {
    /// The first key that only an object store has.
    fn of_objects(&self) -> Option<&'static str> {
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
        ];
        keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }
}

impl StoreSection {
    /// The first key that only Postgres has.
    fn of_postgres(&self) -> Option<&'static str> {
        let keys = [
            ("connections", self.connections.is_some()),
            ("table_prefix", self.table_prefix.is_some()),
        ];
        keys.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
    }
}

/// What is wrong with one key of a store.
pub struct Wrong {
    pub key: &'static str,
    pub what: String,
}

impl Wrong {
    pub fn of(key: &'static str, what: &str) -> Wrong {
        Wrong { key, what: what.to_owned() }
    }
}

impl From<String> for Wrong {
    fn from(what: String) -> Wrong {
        Wrong { key: "url", what }
    }
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A folder of this machine.
    Embedded {
        dir: PathBuf,
        /// How much memory its cache may take; the store's own default without it.
        cache_bytes: Option<usize>,
    },
    /// Redis or Valkey, one server or a cluster.
    Redis(lapsed_redis::RedisAddress),
    /// S3, Azure Blob, Google Cloud Storage, and what speaks like them.
    Object(ObjectPlace),
    Postgres(PostgresAddress),
}

impl StoreLocation {
    /// Whether both are the same objects: there the name of a system is no part of a key's.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// As the systems name it.
    pub name: String,
    pub place: StoreLocation,
}

const SCHEMES_POSTGRES: &[&str] = &["postgres", "postgresql"];

/// The most connections that one daemon may have to a database.
const CONNECTIONS_MAX: usize = 1_000;

/// Schemes of Redis and Valkey.
const SCHEMES_REDIS: &[&str] = &[
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+cluster",
    "valkeys+cluster",
];

impl StoreConfig {
    /// Reads the address of a store. Never repeats it in an error: it may hold a password.
    pub fn plan(name: &str, section: &StoreSection) -> Result<Self, Wrong> {
        let url = section.url.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            let what = format!("the store name {name:?} must be letters, digits, `_` or `-`");
            return Err(what.into());
        }
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            Wrong::of(
                "url",
                "a store's url starts with its kind, for example `embedded:./lapsed-data`",
            )
        })?;
        let is_object = object::SCHEMES.contains(&scheme);
        if let Some(key) = section.of_objects().filter(|_| !is_object) {
            return Err(Wrong::of(key, "is for object stores (s3://, az://, gs://) only"));
        }
        let is_postgres = SCHEMES_POSTGRES.contains(&scheme);
        if let Some(key) = section.of_postgres().filter(|_| !is_postgres) {
            return Err(Wrong::of(key, "is for Postgres (postgres://) only"));
        }
        let planned = match scheme {
            "embedded" => Self::plan_embedded(name, rest),
            _ if is_object => {
                let place = StoreLocation::Object(ObjectPlace::plan(section)?);
                return Ok(StoreConfig { name: name.to_owned(), place });
            }
            redis if SCHEMES_REDIS.contains(&redis) => Self::plan_redis(name, section),
            _ if is_postgres => return Self::plan_postgres(name, section),
            other => Err(format!(
                "`{other}` is no kind of store; this version knows `embedded:DIR`, \
                 `redis://HOST:PORT/0`, `rediss://`, `redis+cluster://HOST:PORT,HOST:PORT`, \
                 `postgres://USER:PASSWORD@HOST/DATABASE`, `s3://BUCKET/PREFIX`, \
                 `az://CONTAINER/PREFIX` and `gs://BUCKET/PREFIX`"
            )),
        };
        Ok(planned?)
    }

    fn plan_embedded(name: &str, rest: &str) -> Result<Self, String> {
        let (dir, query) = match rest.split_once('?') {
            Some((dir, query)) => (dir, Some(query)),
            None => (rest, None),
        };
        let mut cache_bytes = None;
        for pair in query.into_iter().flat_map(|q| q.split('&')) {
            match pair.split_once('=') {
                Some(("cache", size)) => cache_bytes = Some(parse_size(size)?),
                _ => {
                    return Err(format!(
                        "unknown option {pair:?}; `?cache=256MiB` is the only one"
                    ));
                }
            }
        }
        let mut config = Self::embedded(name, PathBuf::from(dir))?;
        if let StoreLocation::Embedded { cache_bytes: slot, .. } = &mut config.place {
            *slot = cache_bytes;
        }
        Ok(config)
    }

    fn plan_redis(name: &str, section: &StoreSection) -> Result<Self, String> {
        let mut address = lapsed_redis::RedisAddress::new(&section.url);
        if let Some(span) = section.connect_timeout {
            address.connect_timeout = span.0;
        }
        if let Some(span) = section.response_timeout {
            address.response_timeout = span.0;
        }
        address.check()?;
        Ok(StoreConfig { name: name.to_owned(), place: StoreLocation::Redis(address) })
    }

    fn plan_postgres(name: &str, section: &StoreSection) -> Result<Self, Wrong> {
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
        Ok(StoreConfig { name: name.to_owned(), place: StoreLocation::Postgres(address) })
    }

    /// An embedded store in `dir`.
    pub fn embedded(name: &str, dir: PathBuf) -> Result<Self, String> {
        if dir.as_os_str().is_empty() {
            return Err("`embedded:` needs a folder, for example `embedded:./lapsed-data`".into());
        }
        if dir.exists() && !dir.is_dir() {
            return Err(format!("{} is not a folder", dir.display()));
        }
        Ok(StoreConfig {
            name: name.to_owned(),
            place: StoreLocation::Embedded { dir, cache_bytes: None },
        })
    }

    /// Whether only lapsed itself can write to it.
    pub fn is_embedded(&self) -> bool {
        matches!(self.place, StoreLocation::Embedded { .. })
    }

    /// Whether it is Redis or Valkey.
    pub fn is_redis(&self) -> bool {
        matches!(self.place, StoreLocation::Redis(_))
    }

    /// Refuses a kind of system that it cannot carry.
    pub fn carries(&self, kind: Kind) -> Result<(), String> {
        match (&self.place, kind) {
            (StoreLocation::Embedded { .. }, _) | (StoreLocation::Object(_), Kind::Leases) => Ok(()),
            (StoreLocation::Postgres(_), Kind::Availability) => Ok(()),
            (StoreLocation::Redis(_), Kind::Registry | Kind::Sessions | Kind::Inflight) => Ok(()),
            (StoreLocation::Redis(_), Kind::Availability) => Err(
                "availability is true in an embedded store or in Postgres; Redis is its `mirror`"
                    .to_owned(),
            ),
            (StoreLocation::Redis(_), Kind::Leases) => Err(
                "leases are kept on an embedded store or an object store (s3://, az://, gs://), not \
                 on Redis"
                    .to_owned(),
            ),
            (StoreLocation::Postgres(_), kind) => Err(format!(
                "Postgres keeps availability only; {kind} needs an embedded store or another server"
            )),
            (StoreLocation::Object(_), kind) => Err(format!(
                "an object store keeps leases only; {kind} needs an embedded store or Redis"
            )),
        }
    }

    /// Where it is, in words.
    pub fn describe(&self) -> String {
        match &self.place {
            StoreLocation::Object(place) => place.describe(),
            StoreLocation::Embedded { dir, .. } => format!("embedded:{}", dir.display()),
            StoreLocation::Redis(address) => address.place(),
            StoreLocation::Postgres(address) => address.place(),
        }
    }

    /// Whether both would write to the same folder. Servers may be shared.
    pub fn same_place(&self, other: &StoreConfig) -> bool {
        match (&self.place, &other.place) {
            (StoreLocation::Embedded { dir: a, .. }, StoreLocation::Embedded { dir: b, .. }) => {
                resolved(a) == resolved(b)
            }
            _ => false,
        }
    }
}

/// As absolute as it can be made without the folder being there.
fn resolved(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    std::fs::canonicalize(&absolute).unwrap_or_else(|_| absolute.components().collect())
}
