//! The keys that every `[[system]]` has: a name, a store, and the tables `sweep`, `brake`,
//! `receipts` and `reconcile`.

use std::collections::BTreeMap;
use std::time::Duration;

use lapsed_core::receipt::Retention;
use lapsed_core::sweep::brake::BrakePolicy;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::{Kind, SystemId};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::document::{Document, TomlNode, join, lines_below, texts_below, unknown};
use super::origin::{Setting, Settings};
use super::store::{SHARDS_MAX, StoreConfig, StoreUse};
use super::sweep::{PauseAfter, SweepSection};
use super::units::{Every, Span};
use super::{ConfigError, Env};

/// One `[[system]]` of the file, to be read by its kind.
pub struct Section<'a> {
    document: &'a Document,
    node: Option<&'a TomlNode<'a>>,
    path: String,
    lines: BTreeMap<String, usize>,
    stores: &'a BTreeMap<String, StoreConfig>,
    env: &'a Env<'a>,
}

impl<'a> Section<'a> {
    /// The section at `node`, which is number `index` in the file.
    pub fn new(
        document: &'a Document,
        node: &'a TomlNode<'a>,
        index: usize,
        stores: &'a BTreeMap<String, StoreConfig>,
        env: &'a Env<'a>,
    ) -> Self {
        let path = match node.get_ref().get("name").and_then(|n| n.get_ref().as_str()) {
            Some(name) => format!("system[{name}]"),
            None => format!("system[{index}]"),
        };
        let lines = lines_below(document, node);
        Section { document, node: Some(node), path, lines, stores, env }
    }

    /// A section that is not in the file: every key has its default.
    pub fn absent(
        document: &'a Document,
        stores: &'a BTreeMap<String, StoreConfig>,
        env: &'a Env<'a>,
    ) -> Self {
        let path = "system".to_owned();
        Section { document, node: None, path, lines: BTreeMap::new(), stores, env }
    }

    /// Deserializes the section; the default if it is absent.
    pub fn read<T: DeserializeOwned + Default>(&self) -> Result<T, ConfigError> {
        match self.node {
            Some(node) => self.document.read(&self.path, node),
            None => Ok(T::default()),
        }
    }

    /// The line of the key at `path`; `None` if the file does not have that key.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        self.lines.get(path).copied()
    }

    pub fn env(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// An error about one key of the section, with its line.
    pub fn wrong(&self, key: &str, what: &str) -> ConfigError {
        let line = self.line_of(key).map_or(String::new(), |line| format!(":{line}"));
        let path = join(&self.path, key);
        ConfigError(format!("{}{line}: `{path}`: {what}", self.document.name()))
    }

    /// Who uses the store `store`.
    pub fn used_by(&self, store: &str) -> StoreUse {
        self.stores[store].place.driver().used_by
    }

    /// Whether only lapsed can write to the store `store`.
    pub fn is_exclusive(&self, store: &str) -> bool {
        self.used_by(store) == StoreUse::Exclusive
    }

    /// The names of the stores that support systems of `kind`.
    pub fn carriers(&self, kind: Kind) -> Vec<&str> {
        let of = self.stores.iter().filter(|(_, store)| store.carries(kind).is_ok());
        of.map(|(name, _)| name.as_str()).collect()
    }

    /// The names of the stores that can be the mirror of a system.
    pub fn mirrors(&self) -> Vec<&str> {
        let of = self.stores.iter().filter(|(_, store)| store.place.driver().can_mirror);
        of.map(|(name, _)| name.as_str()).collect()
    }

    /// The store that the key `key` names; an error if it is not configured.
    pub fn store_under(&self, key: &str, name: &str) -> Result<String, ConfigError> {
        let names: Vec<&str> = self.stores.keys().map(String::as_str).collect();
        match self.stores.contains_key(name) {
            true => Ok(name.to_owned()),
            false => Err(self.wrong(key, &unknown("store", name, &names))),
        }
    }

    /// All strings below `key`, each with its path.
    pub fn strings_below(&self, key: &str) -> Vec<(String, String)> {
        match self.node.and_then(|node| node.get_ref().get(key)) {
            Some(below) => texts_below(below, key),
            None => Vec::new(),
        }
    }

    /// The store that the section names. Without a name it is the only store there is, or an error
    /// if there are several.
    pub fn store(&self, given: Option<&str>) -> Result<String, ConfigError> {
        let names: Vec<&str> = self.stores.keys().map(String::as_str).collect();
        match (given, names.as_slice()) {
            (Some(name), _) => self.store_under("store", name),
            (None, [only]) => Ok((*only).to_owned()),
            (None, names) => {
                let what = format!("is missing; name one of: {}", names.join(", "));
                Err(self.wrong("store", &what))
            }
        }
    }
}

/// How often an index is compared with its truth by default: weekly.
const RECONCILE_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Whether applications write entries through lapsed or on their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// All entries are written through lapsed.
    #[default]
    Native,
    /// The application writes its own keys, and lapsed works on them as they are.
    Adopt,
}

impl Access {
    /// Refuses `adopt` on an embedded store, because an application cannot write to one except
    /// through lapsed.
    pub fn check(self, section: &Section<'_>, store: &str) -> Result<(), ConfigError> {
        if self == Access::Native || !section.is_exclusive(store) {
            return Ok(());
        }
        Err(section.wrong(
            "mode",
            "\"adopt\" needs a store that the application writes to by itself; on an embedded \
             store use \"native\" (the default) and write through lapsed",
        ))
    }
}

/// How an adopted system begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdoptStart {
    /// Nothing is reclaimed until enough owners were seen alive, or an operator has confirmed the
    /// configuration.
    #[default]
    Observe,
    /// The file confirms the configuration.
    Now,
}

impl super::origin::Show for AdoptStart {
    fn show(&self) -> String {
        match self {
            AdoptStart::Observe => "observe".to_owned(),
            AdoptStart::Now => "now".to_owned(),
        }
    }
}

/// The key `adopt` of a system that may be adopted.
pub fn plan_adopt(
    section: &Section<'_>,
    given: Option<AdoptStart>,
    mode: Access,
    settings: &mut Settings,
) -> Result<AdoptStart, ConfigError> {
    match (given, mode) {
        (Some(_), Access::Native) => Err(section.wrong("adopt", "goes with mode = \"adopt\" only")),
        (None, Access::Native) => Ok(AdoptStart::Observe),
        (given, Access::Adopt) => Ok(settings.pick(section, "adopt", given, AdoptStart::Observe)),
    }
}

/// The number of shards of a native layout; 1 by default.
pub fn plan_shards(
    section: &Section<'_>,
    given: Option<u16>,
    settings: &mut Settings,
) -> Result<u16, ConfigError> {
    match settings.pick(section, "shards", given, 1) {
        shards @ 1..=SHARDS_MAX => Ok(shards),
        _ => Err(section.wrong("shards", &format!("must be 1 to {SHARDS_MAX}"))),
    }
}

/// The name of a key that the application writes. If `place` is given, the name must contain it, as
/// the placeholder of an entry's name.
pub fn plan_key(
    section: &Section<'_>,
    key: &str,
    given: Option<String>,
    default: &str,
    place: Option<&str>,
    settings: &mut Settings,
) -> Result<String, ConfigError> {
    let name = settings.pick(section, key, given, default.to_owned());
    match place {
        _ if name.is_empty() => Err(section.wrong(key, "must not be empty")),
        Some(place) if !name.contains(place) => {
            Err(section.wrong(key, &format!("must contain `{place}`, where its name goes")))
        }
        _ => Ok(name),
    }
}

pub(super) struct Picker<'s, 'a> {
    pub section: &'s Section<'a>,
    pub settings: &'s mut Settings,
}

impl Picker<'_, '_> {
    pub fn value<T: super::origin::Show>(&mut self, key: &str, given: Option<T>, default: T) -> T {
        self.settings.pick(self.section, key, given, default)
    }
}

/// The table `brake = { ... }` of a system.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrakeSection {
    share: Option<f64>,
    min_owners: Option<u64>,
    step: Option<f64>,
    stay: Option<bool>,
}

impl BrakeSection {
    pub fn plan(
        self,
        section: &Section<'_>,
        settings: &mut Settings,
    ) -> Result<BrakePolicy, ConfigError> {
        let default = BrakePolicy::default();
        let mut pick = Picker { section, settings };
        let policy = BrakePolicy {
            share: pick.value("brake.share", self.share, default.share),
            min_owners: pick.value("brake.min_owners", self.min_owners, default.min_owners),
            step: pick.value("brake.step", self.step, default.step),
            stay: pick.value("brake.stay", self.stay, default.stay),
        };
        policy.check().map_err(|e| error_in(section, &e.to_string()))?;
        Ok(policy)
    }
}

/// The table `receipts = { ... }` of a system.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptsSection {
    keep: Option<Span>,
    keep_count: Option<u64>,
    keep_owners: Option<u64>,
}

impl ReceiptsSection {
    /// Checks how long, and how many, receipts and ended owners are kept.
    pub fn plan(
        self,
        section: &Section<'_>,
        settings: &mut Settings,
    ) -> Result<Retention, ConfigError> {
        let default = Retention::default();
        let mut pick = Picker { section, settings };
        let age = Duration::from_millis(default.age_ms);
        let keep = pick.value("receipts.keep", self.keep.map(|s| s.0), age);
        let count = pick.value("receipts.keep_count", self.keep_count, default.count);
        if count == 0 {
            return Err(section.wrong("receipts.keep_count", "must be above 0"));
        }
        let owners = pick.value("receipts.keep_owners", self.keep_owners, default.owners);
        Ok(Retention { age_ms: keep.as_millis() as u64, count, owners, ..default })
    }
}

/// The table `reconcile = { ... }` of a system.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcileSection {
    every: Option<Every>,
    requests_per_hour: Option<u64>,
}

impl ReconcileSection {
    /// How often the index is compared with its truth; `None`: only on demand.
    pub fn plan(
        self,
        section: &Section<'_>,
        usual: ReconcileUsual,
        settings: &mut Settings,
    ) -> Result<ReconcileSettings, ConfigError> {
        let every = Every(usual.every);
        let every = settings.pick(section, "reconcile.every", self.every, every).0;
        let requests_per_hour = match (usual.requests_per_hour, self.requests_per_hour) {
            (_, Some(0)) => {
                return Err(section.wrong("reconcile.requests_per_hour", "must be above 0"));
            }
            (Some(usual), given) => {
                settings.pick(section, "reconcile.requests_per_hour", given, usual)
            }
            (None, None) => 0,
            (None, Some(_)) => {
                let what = "requests to this store cost nothing; leave it out";
                return Err(section.wrong("reconcile.requests_per_hour", what));
            }
        };
        let Some((every, variable)) = usual.of_env else {
            return Ok(ReconcileSettings { every, requests_per_hour });
        };
        settings.overrule(section, "reconcile.every", &every, variable);
        Ok(ReconcileSettings { every: Some(every), requests_per_hour })
    }
}

/// When an index is compared with its truth, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileSettings {
    /// `None`: only on demand.
    pub every: Option<Duration>,
    /// How many requests a scheduled run sends per hour; 0 where requests cost nothing.
    pub requests_per_hour: u64,
}

/// The requests per hour of a scheduled comparison where they are paid, if the file does not say.
const RECONCILE_REQUESTS_PER_HOUR: u64 = 10_000;

/// How often an index is compared with its truth if the file does not say.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileUsual {
    /// `None`: only on demand.
    pub every: Option<Duration>,
    /// The interval from an environment variable, which overrides the file, and the variable's
    /// name.
    pub of_env: Option<(Duration, &'static str)>,
    /// The requests per hour of a scheduled run; `None` where they cost nothing.
    pub requests_per_hour: Option<u64>,
}

impl Default for ReconcileUsual {
    fn default() -> Self {
        ReconcileUsual { every: Some(RECONCILE_EVERY), of_env: None, requests_per_hour: None }
    }
}

impl ReconcileUsual {
    /// Only on demand where every request is paid, because a comparison reads every object.
    pub fn on(used_by: StoreUse) -> Self {
        match used_by {
            StoreUse::PaidByRequest => ReconcileUsual {
                every: None,
                of_env: None,
                requests_per_hour: Some(RECONCILE_REQUESTS_PER_HOUR),
            },
            _ => ReconcileUsual::default(),
        }
    }
}

/// Turns an error of the library into one with a line number: the library's messages begin with the
/// key's name in the file.
pub(super) fn error_in(section: &Section<'_>, message: &str) -> ConfigError {
    match message.split_once(' ') {
        Some((key, what)) if key.contains(['.', '_']) => section.wrong(key, what),
        _ => section.wrong("", message),
    }
}

/// The checked settings that every kind of system has.
#[derive(Clone, Debug)]
pub struct SystemSettings {
    pub id: SystemId,
    /// The name of the system's store.
    pub store: String,
    /// The name of the store of its mirror, if the system has one.
    pub mirror: Option<String>,
    /// How long an owner must be silent before it counts as dead.
    pub threshold: Duration,
    /// For kinds that reclaim on something other than silence: how long that must last.
    pub grace: Option<Duration>,
    /// How often passes run, and how much one pass may do.
    pub policy: Policy,
    /// When the brake stops reclaims.
    pub brake: BrakePolicy,
    /// How long receipts are kept.
    pub retention: Retention,
    /// When its index, if it has one, is compared with its truth.
    pub reconcile: ReconcileSettings,
    /// How it begins if it is adopted.
    pub adopt: AdoptStart,
    /// The effective values and their origins.
    pub settings: Vec<Setting>,
}

/// The tables that every section has besides its name and its store.
pub struct MaintenanceSections {
    pub sweep: SweepSection,
    pub pause: PauseAfter,
    pub brake: BrakeSection,
    pub receipts: ReceiptsSection,
    pub reconcile: ReconcileSection,
    pub reconcile_usual: ReconcileUsual,
    /// The interval of passes from an environment variable, which overrides the file, and the
    /// variable's name.
    pub every_of_env: Option<(Duration, &'static str)>,
}

impl MaintenanceSections {
    /// Checks the settings that all kinds have in common. `usual` is the kind's default policy.
    pub fn plan(
        self,
        section: &Section<'_>,
        (id, store): (SystemId, String),
        threshold: Duration,
        usual: Policy,
        mut settings: Settings,
    ) -> Result<SystemSettings, ConfigError> {
        let mut policy = self.sweep.plan(section, usual, self.pause, &mut settings)?;
        let brake = self.brake.plan(section, &mut settings)?;
        let retention = self.receipts.plan(section, &mut settings)?;
        let reconcile = self.reconcile.plan(section, self.reconcile_usual, &mut settings)?;
        if let Some((every, variable)) = self.every_of_env {
            policy.every = every;
            settings.overrule(section, "sweep.every", &every, variable);
        }
        let (grace, settings) = (None, settings.finish());
        Ok(SystemSettings {
            id,
            store,
            mirror: None,
            threshold,
            grace,
            policy,
            brake,
            retention,
            reconcile,
            adopt: AdoptStart::default(),
            settings,
        })
    }
}

impl SystemSettings {
    /// The names of all stores that the system needs.
    pub fn stores(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.store).chain(&self.mirror)
    }
}

pub fn plan_id(
    section: &Section<'_>,
    kind: Kind,
    name: Option<&str>,
) -> Result<SystemId, ConfigError> {
    SystemId::new(kind, name.unwrap_or("default"))
        .map_err(|e| section.wrong("name", &e.to_string()))
}
