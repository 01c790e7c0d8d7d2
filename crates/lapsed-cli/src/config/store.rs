//! `[store.NAME]`: where a store is.

use std::path::{Path, PathBuf};

use lapsed_redis::Address;
use serde::Deserialize;

use super::units::{Span, parse_size};

/// As the file writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// `embedded:DIR`, `redis://HOST:PORT/DB`, ...
    pub url: String,
    /// How long making a connection may take.
    pub connect_timeout: Option<Span>,
    /// How long any one answer may take.
    pub response_timeout: Option<Span>,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder of this machine.
    Embedded {
        /// Which.
        dir: PathBuf,
        /// How much memory its cache may take; the store's own default without it.
        cache_bytes: Option<usize>,
    },
    /// Redis or Valkey, one server or a cluster.
    Redis(Address),
}

/// One store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// As the systems name it.
    pub name: String,
    /// Where.
    pub place: Place,
}

/// Schemes that later versions know.
const SCHEMES_LATER: &[&str] = &["postgres", "postgresql", "s3", "az", "gs"];

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
    pub fn plan(name: &str, section: &StoreSection) -> Result<Self, String> {
        let url = section.url.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("the store name {name:?} must be letters, digits, `_` or `-`"));
        }
        let (scheme, rest) = url
            .split_once(':')
            .ok_or("a store's url starts with its kind, for example `embedded:./lapsed-data`")?;
        match scheme {
            "embedded" => Self::plan_embedded(name, rest),
            redis if SCHEMES_REDIS.contains(&redis) => Self::plan_redis(name, section),
            later if SCHEMES_LATER.contains(&later) => Err(format!(
                "`{later}` stores are not in this version; use `embedded:DIR`, which needs no server, \
                 or `redis://HOST:PORT/0`"
            )),
            other => Err(format!(
                "`{other}` is no kind of store; this version knows `embedded:DIR`, \
                 `redis://HOST:PORT/0`, `rediss://` and `redis+cluster://HOST:PORT,HOST:PORT`"
            )),
        }
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
        if let Place::Embedded { cache_bytes: slot, .. } = &mut config.place {
            *slot = cache_bytes;
        }
        Ok(config)
    }

    fn plan_redis(name: &str, section: &StoreSection) -> Result<Self, String> {
        let mut address = Address::new(&section.url);
        if let Some(span) = section.connect_timeout {
            address.connect_timeout = span.0;
        }
        if let Some(span) = section.response_timeout {
            address.response_timeout = span.0;
        }
        address.check()?;
        Ok(StoreConfig { name: name.to_owned(), place: Place::Redis(address) })
    }

    /// An embedded store in `dir`.
    pub fn embedded(name: &str, dir: PathBuf) -> Result<Self, String> {
        if dir.as_os_str().is_empty() {
            return Err("`embedded:` needs a folder, for example `embedded:./lapsed-data`".into());
        }
        if dir.exists() && !dir.is_dir() {
            return Err(format!("{} is not a folder", dir.display()));
        }
        Ok(StoreConfig { name: name.to_owned(), place: Place::Embedded { dir, cache_bytes: None } })
    }

    /// Whether only lapsed itself can write to it.
    pub fn is_embedded(&self) -> bool {
        matches!(self.place, Place::Embedded { .. })
    }

    /// Where it is, in words.
    pub fn describe(&self) -> String {
        match &self.place {
            Place::Embedded { dir, .. } => format!("embedded:{}", dir.display()),
            Place::Redis(address) => address.place(),
        }
    }

    /// Whether both would write to the same folder. Servers may be shared.
    pub fn same_place(&self, other: &StoreConfig) -> bool {
        match (&self.place, &other.place) {
            (Place::Embedded { dir: a, .. }, Place::Embedded { dir: b, .. }) => {
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
