//! `[store.NAME]`: the address of a store. What each driver of stores has is in the table of `lapsed::stores`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use lapsed::stores::embedded::EmbeddedFolder;
use lapsed::stores::{DRIVERS, KeyResult, OpenStore, StoreKeys, StoreLocation, WrongKey};
pub use lapsed::stores::{NoKeys, StoreDriver, StoreUse};
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
pub use lapsed_redis::SHARDS_MAX;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, ValueDeserializer};

use super::document::unknown;
use super::units::Span;

/// The keys of `[store.NAME]` that every driver accepts. They come first and last in the list of valid keys.
const FIRST_KEY: &str = "url";
const TIMEOUT_KEYS: &[&str] = &["connect_timeout", "response_timeout"];

/// The driver of the store at `url`, if it is one that a configuration may name.
pub fn driver_at(url: &str) -> KeyResult<&'static StoreDriver> {
    StoreDriver::of_url(url, |driver| driver.is_durable)
}

/// The part of `[store.NAME]` that every driver has; the driver reads its own keys.
#[derive(Deserialize)]
pub struct StoreSection {
    /// The address: `embedded:DIR`, `redis://HOST:PORT/DB`, `s3://BUCKET/PREFIX`, ...
    pub url: String,
}

/// The keys of `[store.NAME]` as the file has them.
pub struct TomlKeys<'a, 'd>(pub &'a DeTable<'d>);

impl TomlKeys<'_, '_> {
    fn read<T: DeserializeOwned>(&self, key: &'static str) -> KeyResult<Option<T>> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let read = T::deserialize(ValueDeserializer::from(value.clone()));
        read.map(Some).map_err(|error| WrongKey::of(key, error.message()))
    }

    /// Refuses keys that no driver has.
    pub fn check_known(&self) -> Result<(), (&str, String)> {
        let of_drivers = DRIVERS.iter().rev().flat_map(|driver| driver.keys);
        let valid: Vec<&str> =
            [FIRST_KEY].iter().chain(of_drivers).chain(TIMEOUT_KEYS).copied().collect();
        let mut keys = self.0.iter().map(|(key, _)| key.get_ref().as_ref());
        match keys.find(|key| !valid.contains(key)) {
            Some(key) => Err((key, unknown("key", key, &valid))),
            None => Ok(()),
        }
    }

    /// Refuses keys that only drivers other than `own` have.
    fn check_own(&self, own: Option<&StoreDriver>) -> KeyResult<()> {
        let others = DRIVERS.iter().filter(|other| own.is_none_or(|own| own.name != other.name));
        let mut foreign = others.flat_map(|other| other.keys.iter().map(move |key| (other, *key)));
        let is_own = |key: &str| own.is_some_and(|own| own.keys.contains(&key));
        match foreign.find(|(_, key)| self.0.contains_key(*key) && !is_own(key)) {
            Some((other, key)) => {
                Err(WrongKey::of(key, &format!("is for {} only", other.keys_for)))
            }
            None => Ok(()),
        }
    }
}

impl StoreKeys for TomlKeys<'_, '_> {
    fn text(&self, key: &'static str) -> KeyResult<Option<String>> {
        self.read(key)
    }

    fn number(&self, key: &'static str) -> KeyResult<Option<u64>> {
        self.read(key)
    }

    fn flag(&self, key: &'static str) -> KeyResult<Option<bool>> {
        self.read(key)
    }

    fn span(&self, key: &'static str) -> KeyResult<Option<Duration>> {
        Ok(self.read::<Span>(key)?.map(|span| span.0))
    }
}

#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The name by which systems refer to the store.
    pub name: String,
    pub place: StoreLocation,
}

impl StoreConfig {
    /// Reads the address of a store. An error never repeats the address, because it may contain a
    /// password.
    pub fn plan(name: &str, url: &str, keys: &TomlKeys<'_, '_>) -> KeyResult<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            let what = format!("the store name {name:?} must be letters, digits, `_` or `-`");
            return Err(what.into());
        }
        // Drivers without time limits accept the keys, too.
        for key in TIMEOUT_KEYS {
            keys.span(key)?;
        }
        let driver = driver_at(url);
        keys.check_own(driver.as_ref().ok().copied())?;
        Ok(StoreConfig { name: name.to_owned(), place: driver?.read(name, url, keys)? })
    }

    /// An embedded store in the folder `dir`.
    pub fn embedded(name: &str, dir: PathBuf) -> Result<Self, String> {
        let place = StoreLocation::new("embedded", Arc::new(EmbeddedFolder::new(dir)?));
        Ok(StoreConfig { name: name.to_owned(), place })
    }

    /// Opens the store. Blocks the thread, and must be called inside a Tokio runtime. A server is
    /// not contacted here: the first call to the store connects.
    pub fn open(&self, clock: Arc<dyn Clock>) -> lapsed_core::Result<OpenStore> {
        self.place.open(clock)
    }

    /// Refuses a kind of system that the store does not support; the error says why.
    pub fn carries(&self, kind: Kind) -> Result<(), String> {
        let driver = self.place.driver();
        match driver.carries(kind) {
            true => Ok(()),
            false => Err((driver.refuses)(kind)),
        }
    }

    /// A description of where the store is, without secrets.
    pub fn describe(&self) -> String {
        self.place.address().describe()
    }
}
