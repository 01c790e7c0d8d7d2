//! `[store.NAME]`: the address of a store. What only one driver of stores has is in `drivers`.

mod drivers;
pub mod object;

use std::path::PathBuf;

use lapsed_core::Kind;

pub use drivers::{
    DRIVERS, SHARDS_MAX, StoreDriver, StoreLocation, StoreSection, driver, driver_of,
};

/// An error about one key of a store.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The name by which systems refer to the store.
    pub name: String,
    pub place: StoreLocation,
}

impl StoreConfig {
    /// Reads the address of a store. An error never repeats the address, because it may contain a
    /// password.
    pub fn plan(name: &str, section: &StoreSection) -> Result<Self, Wrong> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            let what = format!("the store name {name:?} must be letters, digits, `_` or `-`");
            return Err(what.into());
        }
        Ok(StoreConfig { name: name.to_owned(), place: section.plan()? })
    }

    /// An embedded store in the folder `dir`.
    pub fn embedded(name: &str, dir: PathBuf) -> Result<Self, String> {
        Ok(StoreConfig { name: name.to_owned(), place: StoreLocation::embedded(dir)? })
    }

    /// Whether the store is embedded, so that only lapsed can write to it.
    pub fn is_embedded(&self) -> bool {
        matches!(self.place, StoreLocation::Embedded { .. })
    }

    /// Whether it is Redis or Valkey.
    pub fn is_redis(&self) -> bool {
        matches!(self.place, StoreLocation::Redis(_))
    }

    /// Refuses a kind of system that the store does not support; the error says why.
    pub fn carries(&self, kind: Kind) -> Result<(), String> {
        let driver = self.place.driver();
        match driver.carries.contains(&kind) {
            true => Ok(()),
            false => Err((driver.refuses)(kind)),
        }
    }

    /// A description of where the store is, without secrets.
    pub fn describe(&self) -> String {
        self.place.describe()
    }

    /// Whether both stores would write to the same folder. Servers may be shared.
    pub fn same_place(&self, other: &StoreConfig) -> bool {
        self.place.same_place(&other.place)
    }
}
