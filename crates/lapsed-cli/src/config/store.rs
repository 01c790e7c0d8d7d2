//! `[store.NAME]`: where a store is.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::units::parse_size;

/// As the file writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// `embedded:DIR`
    pub url: String,
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
const SCHEMES_LATER: &[&str] = &[
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "postgres",
    "postgresql",
    "s3",
    "az",
    "gs",
];

impl StoreConfig {
    /// Reads the address of a store. Never repeats it in an error: it may hold a password.
    pub fn plan(name: &str, url: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(format!("the store name {name:?} must be letters, digits, `_` or `-`"));
        }
        let (scheme, rest) = url
            .split_once(':')
            .ok_or("a store's url starts with its kind, for example `embedded:./lapsed-data`")?;
        match scheme {
            "embedded" => Self::plan_embedded(name, rest),
            later if SCHEMES_LATER.contains(&later) => Err(format!(
                "`{later}` stores are not in this version; use `embedded:DIR`, which needs no server"
            )),
            other => {
                Err(format!("`{other}` is no kind of store; this version knows `embedded:DIR`"))
            }
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
        let Place::Embedded { cache_bytes: slot, .. } = &mut config.place;
        *slot = cache_bytes;
        Ok(config)
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
        let Place::Embedded { dir, .. } = &self.place;
        format!("embedded:{}", dir.display())
    }

    /// Whether both would write to the same folder.
    pub fn same_place(&self, other: &StoreConfig) -> bool {
        let (Place::Embedded { dir: a, .. }, Place::Embedded { dir: b, .. }) =
            (&self.place, &other.place);
        resolved(a) == resolved(b)
    }
}

/// As absolute as it can be made without the folder being there.
fn resolved(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    std::fs::canonicalize(&absolute).unwrap_or_else(|_| absolute.components().collect())
}
