//! What every `[[system]]` has: a name, a store, and the `sweep`, `brake`,
//! `receipts` and `reconcile` tables.

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
use super::store::{SHARDS_MAX, StoreConfig};
use super::sweep::{PauseAfter, SweepSection};
use super::units::{Every, Span};
use super::{ConfigError, Env};

/// One `[[system]]` as it stands in the file, on its way to the kind that understands it.
pub struct Section<'a> {
    document: &'a Document,
    node: Option<&'a TomlNode<'a>>,
    path: String,
    lines: BTreeMap<String, usize>,
    stores: &'a BTreeMap<String, StoreConfig>,
    env: &'a Env<'a>,
}

impl<'a> Section<'a> {
    /// The section at `node`.
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

    /// No section at all: everything as by default.
    pub fn absent(
        document: &'a Document,
        stores: &'a BTreeMap<String, StoreConfig>,
        env: &'a Env<'a>,
    ) -> Self {
        let path = "system".to_owned();
        Section { document, node: None, path, lines: BTreeMap::new(), stores, env }
    }

    /// Reads it; the default when it is absent.
    pub fn read<T: DeserializeOwned + Default>(&self) -> Result<T, ConfigError> {
        match self.node {
            Some(node) => self.document.read(&self.path, node),
            None => Ok(T::default()),
        }
    }

    /// The line of the key at `path`.
    pub fn line_of(&self, path: &str) -> Option<usize> {
        self.lines.get(path).copied()
    }

    pub fn env(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// An error about one key of it.
    pub fn wrong(&self, key: &str, what: &str) -> ConfigError {
        let line = self.line_of(key).map_or(String::new(), |line| format!(":{line}"));
        let path = join(&self.path, key);
        ConfigError(format!("{}{line}: `{path}`: {what}", self.document.name()))
    }

    /// Whether that store is a folder of this machine.
    pub fn is_embedded(&self, store: &str) -> bool {
        self.stores[store].is_embedded()
    }

    /// The names of the stores that can carry a system of `kind`.
    pub fn carriers(&self, kind: Kind) -> Vec<&str> {
        let of = self.stores.iter().filter(|(_, store)| store.carries(kind).is_ok());
        of.map(|(name, _)| name.as_str()).collect()
    }

    /// The names of the stores that can be the mirror of a system.
    pub fn mirrors(&self) -> Vec<&str> {
        let of = self.stores.iter().filter(|(_, store)| store.is_redis());
        of.map(|(name, _)| name.as_str()).collect()
    }

    /// The store that `key` names.
    pub fn store_under(&self, key: &str, name: &str) -> Result<String, ConfigError> {
        let names: Vec<&str> = self.stores.keys().map(String::as_str).collect();
        match self.stores.contains_key(name) {
            true => Ok(name.to_owned()),
            false => Err(self.wrong(key, &unknown("store", name, &names))),
        }
    }

    /// Every text below `key`, by its path.
    pub fn strings_below(&self, key: &str) -> Vec<(String, String)> {
        match self.node.and_then(|node| node.get_ref().get(key)) {
            Some(below) => texts_below(below, key),
            None => Vec::new(),
        }
    }

    /// The store that it names; the only one there is when it names none.
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

/// How often an index is compared with its truth unless told: weekly.
const RECONCILE_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Who writes the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Everybody writes through lapsed.
    #[default]
    Native,
    /// The application writes its own keys, and lapsed works on them as they are.
    Adopt,
}

impl Access {
    /// An embedded store has no keys that an application could write by itself.
    pub fn check(self, section: &Section<'_>, store: &str) -> Result<(), ConfigError> {
        if self == Access::Native || !section.is_embedded(store) {
            return Ok(());
        }
        Err(section.wrong(
            "mode",
            "\"adopt\" needs a store that the application writes to by itself; on an embedded \
             store use \"native\" (the default) and write through lapsed",
        ))
    }
}

/// Over how many shards a native layout is spread: one unless told.
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

/// The name of a key that an application writes, with `place` in it where a name goes.
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

/// `brake = { ... }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrakeSection {
    share: Option<f64>,
    min_owners: Option<u64>,
    step: Option<f64>,
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
        };
        policy.check().map_err(|e| blame(section, &e.to_string()))?;
        Ok(policy)
    }
}

/// `receipts = { ... }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptsSection {
    keep: Option<Span>,
    keep_count: Option<u64>,
}

impl ReceiptsSection {
    /// How long receipts are kept.
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
        Ok(Retention { age_ms: keep.as_millis() as u64, count })
    }
}

/// `reconcile = { ... }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcileSection {
    every: Option<Every>,
}

impl ReconcileSection {
    /// How often the index is compared with its truth; none: never by itself.
    pub fn plan(
        self,
        section: &Section<'_>,
        usual: ReconcileUsual,
        settings: &mut Settings,
    ) -> Option<Duration> {
        let every = Every(Some(usual.every));
        let every = settings.pick(section, "reconcile.every", self.every, every).0;
        let Some((every, variable)) = usual.of_env else { return every };
        settings.overrule(section, "reconcile.every", &every, variable);
        Some(every)
    }
}

/// How often an index is compared with its truth unless the file says so.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileUsual {
    pub every: Duration,
    /// Whatever the file says, if a variable of the environment says so, and which.
    pub of_env: Option<(Duration, &'static str)>,
}

impl Default for ReconcileUsual {
    fn default() -> Self {
        ReconcileUsual { every: RECONCILE_EVERY, of_env: None }
    }
}

/// The library names the key first, in the file's own words: point at its line.
pub(super) fn blame(section: &Section<'_>, message: &str) -> ConfigError {
    match message.split_once(' ') {
        Some((key, what)) if key.contains(['.', '_']) => section.wrong(key, what),
        _ => section.wrong("", message),
    }
}

/// What every kind of system is made of.
#[derive(Clone, Debug)]
pub struct SystemSettings {
    pub id: SystemId,
    /// The name of its store.
    pub store: String,
    /// The name of the store of what is derived from it, where that is another one.
    pub mirror: Option<String>,
    /// How long silence must last before it means death.
    pub threshold: Duration,
    /// Where something else than silence must last: how long.
    pub grace: Option<Duration>,
    /// How much a pass may do.
    pub policy: Policy,
    /// When the brake takes hold.
    pub brake: BrakePolicy,
    /// How long receipts are kept.
    pub retention: Retention,
    /// How often its index, if it has one, is compared with its truth; none: never by itself.
    pub reconcile: Option<Duration>,
    /// The values in force, and whence.
    pub settings: Vec<Setting>,
}

/// What every section has besides its name and its store.
pub struct MaintenanceSections {
    pub sweep: SweepSection,
    pub pause: PauseAfter,
    pub brake: BrakeSection,
    pub receipts: ReceiptsSection,
    pub reconcile: ReconcileSection,
    pub reconcile_usual: ReconcileUsual,
    /// How often a pass comes, if a variable of the environment says so, and which.
    pub every_of_env: Option<(Duration, &'static str)>,
}

impl MaintenanceSections {
    /// All that the kinds have in common. `usual`: how much a pass does unless told.
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
        let reconcile = self.reconcile.plan(section, self.reconcile_usual, &mut settings);
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
            settings,
        })
    }
}

impl SystemSettings {
    /// The names of all stores that it needs.
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
