//! What is known of a store before it is opened: its driver, and its address with the settings of the driver.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::{Error, Kind, Result};

use super::DRIVERS;
use super::opened::{CarriedKind, OpenStore, OpenedStore};

/// One driver of stores.
#[derive(Debug)]
pub struct StoreDriver {
    /// The name by which presets refer to it.
    pub name: &'static str,
    /// The name of its stores in messages.
    pub title: &'static str,
    /// The feature of this crate that includes it.
    pub feature: &'static str,
    /// The URL schemes of its addresses, without the colon.
    pub schemes: &'static [&'static str],
    /// The address that `lapsed init` proposes.
    pub example: &'static str,
    /// The forms of its addresses, which are listed when an address is not recognized.
    pub forms: &'static [&'static str],
    /// The keys of `[store.NAME]` that this driver reads besides `url` and the time limits. A store of a driver that does not
    /// list a key is refused if it has that key.
    pub keys: &'static [&'static str],
    /// The name, in that error, of the stores that these keys are for.
    pub keys_for: &'static str,
    /// Who uses its stores. The defaults of systems depend on it.
    pub used_by: StoreUse,
    /// Whether its stores can be the mirror of availability.
    pub can_mirror: bool,
    /// Whether the data outlive the process. A configuration file names only such stores.
    pub is_durable: bool,
    /// Explains why a kind is not supported.
    pub refuses: fn(Kind) -> String,
    /// The code of the store; `None` if this build does not have it.
    pub code: Option<StoreCode>,
}

/// Reads an address, given the name of the store, its URL and its other keys. Nothing is opened or contacted. An error
/// never repeats the URL, because it may contain a password.
pub type ReadAddress = fn(&str, &str, &dyn StoreKeys) -> KeyResult<Arc<dyn StoreAddress>>;

/// The code of a driver.
#[derive(Debug)]
pub struct StoreCode {
    pub read: ReadAddress,
    /// The kinds of system that it supports.
    pub carries: &'static [CarriedKind],
}

/// Who uses a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreUse {
    /// Only this process writes to the store, so that a pass may keep it busy all the time.
    Exclusive,
    /// Other programs use the same server, so that a pass pauses between batches.
    Shared,
    /// Each request costs money and may be throttled, so that batches are small and may take long, and index and
    /// truth are not compared on a schedule. Leases there are indexed in objects by time (`buckets`).
    PaidByRequest,
}

impl StoreDriver {
    /// The driver with this name.
    pub fn named(name: &str) -> Option<&'static StoreDriver> {
        DRIVERS.iter().find(|driver| driver.name == name)
    }

    /// The driver of the store at `url`, among those that are `offered`.
    pub fn of_url(url: &str, offered: fn(&StoreDriver) -> bool) -> KeyResult<&'static StoreDriver> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme).ok_or_else(|| {
            "a store's url starts with its kind, for example `embedded:./lapsed-data`".to_owned()
        })?;
        let mut offered = DRIVERS.iter().filter(|driver| offered(driver));
        let known = offered.clone();
        let found = offered.find(|driver| driver.schemes.contains(&scheme));
        Ok(found.ok_or_else(|| unknown_scheme(scheme, known))?)
    }

    /// Reads the address of the store `name`.
    pub fn read(
        &'static self,
        name: &str,
        url: &str,
        keys: &dyn StoreKeys,
    ) -> KeyResult<StoreLocation> {
        let Some(code) = &self.code else {
            return Err(WrongKey::from(format!(
                "this build cannot open {}: it was built without the feature `{}` of the crate \
                 `lapsed`",
                self.forms.join(", "),
                self.feature
            )));
        };
        Ok(StoreLocation { driver: self, address: (code.read)(name, url, keys)? })
    }

    /// Whether it supports systems of `kind`.
    pub fn carries(&self, kind: Kind) -> bool {
        self.carried(kind).is_some()
    }

    pub(super) fn carried(&self, kind: Kind) -> Option<&CarriedKind> {
        self.code.iter().flat_map(|code| code.carries).find(|carried| carried.kind == kind)
    }
}

fn unknown_scheme<'a>(scheme: &str, known: impl Iterator<Item = &'a StoreDriver>) -> String {
    let forms: Vec<String> =
        known.flat_map(|driver| driver.forms).map(|form| format!("`{form}`")).collect();
    let (last, others) = forms.split_last().expect("there are drivers");
    let known = others.join(", ");
    format!("`{scheme}` is no kind of store; this version knows {known} and {last}")
}

/// The settings of a store besides its URL, as a configuration file or a program gives them. A key that is not given
/// is `None`; a value of the wrong type is an error.
pub trait StoreKeys {
    fn text(&self, _key: &'static str) -> KeyResult<Option<String>> {
        Ok(None)
    }

    fn number(&self, _key: &'static str) -> KeyResult<Option<u64>> {
        Ok(None)
    }

    fn flag(&self, _key: &'static str) -> KeyResult<Option<bool>> {
        Ok(None)
    }

    fn span(&self, _key: &'static str) -> KeyResult<Option<Duration>> {
        Ok(None)
    }
}

/// No settings besides the URL.
pub struct NoKeys;

impl StoreKeys for NoKeys {}

/// The result of reading keys of a store.
pub type KeyResult<T> = std::result::Result<T, WrongKey>;

/// An error about one key of a store.
#[derive(Debug)]
pub struct WrongKey {
    pub key: &'static str,
    pub what: String,
}

impl WrongKey {
    pub fn of(key: &'static str, what: &str) -> WrongKey {
        WrongKey { key, what: what.to_owned() }
    }
}

impl From<String> for WrongKey {
    fn from(what: String) -> WrongKey {
        WrongKey { key: "url", what }
    }
}

impl From<WrongKey> for Error {
    fn from(wrong: WrongKey) -> Error {
        Error::Invalid(match wrong.key {
            "url" => wrong.what,
            key => format!("`{key}` {}", wrong.what),
        })
    }
}

/// The address of a store, with the settings of its driver.
pub trait StoreAddress: Any + Debug + Send + Sync {
    /// A description of where the store is, without secrets.
    fn describe(&self) -> String;

    /// Opens the store. Blocks the thread, and must be called inside a Tokio runtime. A server is not contacted
    /// here: the first call to the store connects.
    fn open(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn OpenedStore>>;

    /// Where the data are, the same for every address that leads there: without user, password and settings.
    fn data_place(&self) -> String {
        self.describe()
    }

    /// The name of the place, if only one store may be there.
    fn exclusive_place(&self) -> Option<String> {
        None
    }

    /// The name of the place, if only one system may be there: names in it do not contain the name of the system.
    fn place_of_one_system(&self) -> Option<String> {
        None
    }
}

/// Where a store is, and its driver.
#[derive(Clone, Debug)]
pub struct StoreLocation {
    driver: &'static StoreDriver,
    address: Arc<dyn StoreAddress>,
}

impl StoreLocation {
    /// An address of the driver with this name, which must be in the table.
    pub fn new(driver: &str, address: Arc<dyn StoreAddress>) -> StoreLocation {
        let driver = StoreDriver::named(driver).expect("the driver is in the table");
        StoreLocation { driver, address }
    }

    pub fn driver(&self) -> &'static StoreDriver {
        self.driver
    }

    pub fn address(&self) -> &dyn StoreAddress {
        &*self.address
    }

    /// The address, if it is one of the type `T`.
    pub fn get<T: StoreAddress>(&self) -> Option<&T> {
        (&*self.address as &dyn Any).downcast_ref()
    }

    /// Opens the store; see [`StoreAddress::open`].
    pub fn open(&self, clock: Arc<dyn Clock>) -> Result<OpenStore> {
        Ok(OpenStore::new(self.driver, self.address.open(clock)?))
    }

    /// Whether both stores would write to a place where only one store may be. Servers may be shared.
    pub fn excludes(&self, other: &StoreLocation) -> bool {
        let place = self.address.exclusive_place();
        place.is_some() && place == other.address.exclusive_place()
    }

    /// Whether both addresses lead to the same keys or tables, as far as the addresses show it.
    pub fn is_same_place(&self, other: &StoreLocation) -> bool {
        self.driver.name == other.driver.name
            && self.address.data_place() == other.address.data_place()
    }

    /// Whether systems on both stores would share their entries.
    pub fn mixes_with(&self, other: &StoreLocation) -> bool {
        let place = self.address.place_of_one_system();
        place.is_some() && place == other.address.place_of_one_system()
    }
}
