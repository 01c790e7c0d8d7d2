//! Reads a whole configuration: a TOML file, or the defaults when there is none. Each `[[system]]`
//! is read by its kind, and refused on a store that does not support that kind.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lapsed_core::{Kind, SystemId};
use toml::de::{DeTable, DeValue};

use crate::config::common::Section;
use crate::config::document::{self, Document, TomlNode, unknown};
use crate::config::server::{ServerConfig, ServerSection};
use crate::config::store::{StoreConfig, StoreSection, StoreUse, TomlKeys};
use crate::config::{
    ConfigError, ConfigErrors, DATA_DEFAULT, Env, ErrorList, Overrides, telemetry, webhook,
};
use crate::node::{ClaimedName, Config, SystemPlan};
use crate::systems;

/// The name of the store that exists when the configuration names none.
const STORE_DEFAULT: &str = "data";

impl Config {
    /// Reads the configuration from `file`; without a file, uses the defaults. An error has the first fault of
    /// every section.
    pub fn load(
        file: Option<&Path>,
        overrides: &Overrides,
        env: &Env<'_>,
    ) -> Result<Config, ConfigErrors> {
        let Some(path) = file else {
            return Self::read(&Document::new("defaults", String::new()), None, overrides, env);
        };
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
        Self::read(&Document::new(&name, text), Some(name.clone()), overrides, env)
    }

    /// Reads a configuration that did not come from a file, such as the text of a preset.
    pub fn parse(text: &str, overrides: &Overrides, env: &Env<'_>) -> Result<Config, ConfigErrors> {
        Self::read(&Document::new("text", text.to_owned()), None, overrides, env)
    }

    /// The name of the store at the address `place`, as errors have it.
    pub fn store_at(&self, place: &str) -> Option<String> {
        self.stores.values().find(|store| store.describe() == place).map(|store| store.name.clone())
    }

    fn read(
        document: &Document,
        file: Option<String>,
        overrides: &Overrides,
        env: &Env<'_>,
    ) -> Result<Config, ConfigErrors> {
        let mut top = document.parse(env)?;
        let mut errors = ErrorList::default();
        let server = errors.keep(read_server(document, &mut top, overrides));
        let mut stores = read_stores(document, &mut top, &mut errors);
        let nodes = errors.keep(take_list(document, &mut top, "system")).unwrap_or_default();
        let hooks = errors.keep(take_list(document, &mut top, "webhook")).unwrap_or_default();
        let telemetry = take(&mut top, "telemetry");
        let telemetry = errors.keep(telemetry::read(document, telemetry.as_ref(), env));
        errors.keep(no_more(document, &top));
        if stores.is_empty() {
            stores.read.extend(
                errors
                    .keep(default_store(overrides))
                    .map(|store| (STORE_DEFAULT.to_owned(), store)),
            );
        }
        let before = errors.len();
        let systems = read_systems(document, nodes, &stores, env, &mut errors);
        let ids: Vec<SystemId> = systems.iter().map(|plan| plan.common().id.clone()).collect();
        // While a system is missing here, a name that belongs to it is not an error.
        let all_read = errors.len() == before && stores.unread.is_empty();
        let mut webhooks = Vec::new();
        if all_read {
            if let Some(server) = &server {
                errors.keep(check_limits(document, server, &ids));
            }
            webhooks = webhook::read(document, &hooks, &ids, &mut errors);
        }
        errors.check()?;
        let (server, telemetry) = server.zip(telemetry).expect("nothing is missing without errors");
        Ok(Config { file, server, stores: stores.read, systems, webhooks, telemetry })
    }
}

/// Refuses tokens that are limited to systems or operations which do not exist.
fn check_limits(
    document: &Document,
    server: &ServerConfig,
    ids: &[SystemId],
) -> Result<(), ConfigError> {
    let operations = systems::operation_names();
    let operations: Vec<&str> = operations.iter().map(String::as_str).collect();
    let limits = server.check_limits(ids, &operations);
    limits.map_err(|e| ConfigError(format!("{}: {e}", document.name())))
}

/// The stores of a configuration.
#[derive(Default)]
struct Stores {
    read: BTreeMap<String, StoreConfig>,
    /// The names of those with an error. Systems on them are not read, since little can be said about them.
    unread: BTreeSet<String>,
}

impl Stores {
    fn is_empty(&self) -> bool {
        self.read.is_empty() && self.unread.is_empty()
    }

    /// Whether the system at `node` is, or may be, on a store that could not be read.
    fn hides(&self, node: &TomlNode<'_>) -> bool {
        let name = |key: &str| node.get_ref().get(key).and_then(|name| name.get_ref().as_str());
        let named = ["store", "mirror"].into_iter().filter_map(name);
        let is_unread = named.into_iter().any(|name| self.unread.contains(name));
        is_unread || (!self.unread.is_empty() && name("store").is_none())
    }
}

/// The error for a configuration file that cannot be read: the reason, and what the user can do.
fn unreadable(name: &str, error: &std::io::Error) -> ConfigError {
    let next = match error.kind() {
        ErrorKind::NotFound => {
            format!("`lapsed init -o {name}` writes one; without -c the defaults are used")
        }
        ErrorKind::PermissionDenied => "let this user read it".to_owned(),
        _ => "give a file of TOML with -c".to_owned(),
    };
    ConfigError(format!("{name}: cannot be read: {error}; {next}"))
}

fn take<'d>(table: &mut DeTable<'d>, key: &str) -> Option<TomlNode<'d>> {
    table.remove(key)
}

fn read_server(
    document: &Document,
    top: &mut DeTable<'_>,
    overrides: &Overrides,
) -> Result<ServerConfig, ConfigError> {
    let Some(node) = take(top, "server") else {
        return ServerConfig::plan(ServerSection::default(), &BTreeMap::new(), overrides);
    };
    let section = document.read("server", &node)?;
    ServerConfig::plan(section, &document::lines_below(document, &node), overrides)
        .map_err(|e| ConfigError(format!("{}: {e}", document.name())))
}

fn read_stores(document: &Document, top: &mut DeTable<'_>, errors: &mut ErrorList) -> Stores {
    let mut stores = Stores::default();
    let Some(node) = take(top, "store") else { return stores };
    let span = node.span();
    let DeValue::Table(table) = node.into_inner() else {
        let what = "is one section per store, for example [store.main]";
        errors.keep::<()>(Err(document.wrong(Some(span), "store", what)));
        return stores;
    };
    for (name, node) in table {
        let name = name.get_ref();
        match errors.keep(read_store(document, name, &node, &stores.read)) {
            Some(config) => drop(stores.read.insert(name.to_string(), config)),
            None => drop(stores.unread.insert(name.to_string())),
        }
    }
    stores
}

fn read_store(
    document: &Document,
    name: &str,
    node: &TomlNode<'_>,
    others: &BTreeMap<String, StoreConfig>,
) -> Result<StoreConfig, ConfigError> {
    let path = format!("store.{name}");
    let DeValue::Table(table) = node.get_ref() else {
        let what = format!("write it as a section, [{path}]");
        return Err(document.wrong(Some(node.span()), &path, &what));
    };
    let wrong = |key: &str, what: &str| {
        let value = node.get_ref().get(key).map_or(node.span(), |value| value.span());
        document.wrong(Some(value), &format!("{path}.{key}"), what)
    };
    let keys = TomlKeys(table);
    keys.check_known().map_err(|(key, what)| {
        let span = table.get_key_value(key).map(|(key, _)| key.span());
        document.wrong(span, &format!("{path}.{key}"), &what)
    })?;
    let section: StoreSection = document.read(&path, node)?;
    let config = StoreConfig::plan(name, &section.url, &keys);
    let config = config.map_err(|e| wrong(e.key, &e.what))?;
    match others.values().find(|other| other.place.excludes(&config.place)) {
        Some(twin) => {
            let what =
                format!("the store `{}` is in the same folder; give each its own", twin.name);
            Err(wrong("url", &what))
        }
        None => Ok(config),
    }
}

fn take_list<'d>(
    document: &Document,
    top: &mut DeTable<'d>,
    key: &str,
) -> Result<Vec<TomlNode<'d>>, ConfigError> {
    let Some(node) = take(top, key) else { return Ok(Vec::new()) };
    let span = node.span();
    match node.into_inner() {
        DeValue::Array(nodes) => Ok(nodes.into_iter().collect()),
        _ => Err(document.wrong(Some(span), key, &format!("write it as [[{key}]]"))),
    }
}

/// Refuses top-level keys that nothing has read: they are misspelt or do not exist.
fn no_more(document: &Document, top: &DeTable<'_>) -> Result<(), ConfigError> {
    let Some((key, _)) = top.iter().next() else { return Ok(()) };
    let what =
        unknown("key", key.get_ref(), &["server", "store", "system", "webhook", "telemetry"]);
    Err(document.wrong(Some(key.span()), key.get_ref(), &what))
}

fn default_store(overrides: &Overrides) -> Result<StoreConfig, ConfigError> {
    let folder = match &overrides.data {
        Some(folder) => folder.clone(),
        None => PathBuf::from(DATA_DEFAULT),
    };
    StoreConfig::embedded(STORE_DEFAULT, folder)
        .map_err(|e| ConfigError(format!("the data folder: {e}")))
}

fn read_systems(
    document: &Document,
    nodes: Vec<TomlNode<'_>>,
    stores: &Stores,
    env: &Env<'_>,
    errors: &mut ErrorList,
) -> Vec<Box<dyn SystemPlan>> {
    if nodes.is_empty() {
        let all = stores.unread.is_empty().then(|| read_all(document, &stores.read, env));
        return all.and_then(|all| errors.keep(all)).unwrap_or_default();
    }
    let mut planned: Vec<Box<dyn SystemPlan>> = Vec::new();
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| !stores.hides(node)) {
        let plan = read_system(document, (index, node), &stores.read, env, &planned);
        planned.extend(errors.keep(plan));
    }
    planned
}

fn read_system(
    document: &Document,
    (index, node): (usize, &TomlNode<'_>),
    stores: &BTreeMap<String, StoreConfig>,
    env: &Env<'_>,
    planned: &[Box<dyn SystemPlan>],
) -> Result<Box<dyn SystemPlan>, ConfigError> {
    let kind = read_kind(document, index, node)?;
    let section = Section::new(document, node, index, stores, env);
    let plan = systems::of(kind).plan(&section)?;
    let carried = stores[&plan.common().store].carries(kind);
    carried.map_err(|what| section.wrong("store", &what))?;
    if planned.iter().any(|p| p.common().id == plan.common().id) {
        let what = format!("there are two systems `{}`; give each its own name", plan.common().id);
        return Err(section.wrong("name", &what));
    }
    let place = &stores[&plan.common().store].place;
    let shares = |other: &dyn SystemPlan| stores[&other.common().store].place.mixes_with(place);
    if let Some(other) = planned.iter().find(|other| shares(&***other)) {
        let what = format!(
            "`{}` has its leases in the same place; give each a prefix of its own",
            other.common().id
        );
        return Err(section.wrong("store", &what));
    }
    for other in planned.iter().filter(|other| other.common().id.kind == kind) {
        if let Some((key, what)) = claimed_by_both(&**other, &*plan, stores) {
            return Err(section.wrong(key, &what));
        }
    }
    Ok(plan)
}

/// What is wrong if both systems use the same names of the same store: each would take the entries of the other for
/// its own. The configuration key is that of the first such name.
fn claimed_by_both(
    one: &dyn SystemPlan,
    other: &dyn SystemPlan,
    stores: &BTreeMap<String, StoreConfig>,
) -> Option<(&'static str, String)> {
    let is_same = |a: &ClaimedName, b: &ClaimedName| {
        let (store, twin) = (&stores[&a.store].place, &stores[&b.store].place);
        // In an embedded store every name begins with that of its system.
        a.name == b.name
            && store.driver().used_by != StoreUse::Exclusive
            && store.is_same_place(twin)
    };
    let claimed = one.claimed_names();
    let shared: Vec<ClaimedName> = other
        .claimed_names()
        .into_iter()
        .filter(|name| claimed.iter().any(|other| is_same(other, name)))
        .collect();
    let first = shared.first()?;
    let names: Vec<String> =
        shared.iter().map(|claim| format!("`{}` ({})", claim.name, claim.key)).collect();
    let what = format!(
        "`{}` and `{}` both use {} of [store.{}]: each would take the entries of the other for its own; give \
         each names of its own",
        one.common().id,
        other.common().id,
        names.join(", "),
        first.store
    );
    Some((first.key, what))
}

/// The systems of a configuration without any `[[system]]`: one of every kind that the store
/// supports, with the defaults.
fn read_all(
    document: &Document,
    stores: &BTreeMap<String, StoreConfig>,
    env: &Env<'_>,
) -> Result<Vec<Box<dyn SystemPlan>>, ConfigError> {
    let mut planned = Vec::new();
    let carried = |kind| match stores.values().collect::<Vec<_>>().as_slice() {
        [only] => only.carries(kind).is_ok(),
        _ => true,
    };
    for system in systems::KINDS.iter().filter(|system| carried(system.kind())) {
        let plan = system.plan(&Section::absent(document, stores, env))?;
        if stores[&plan.common().store].carries(system.kind()).is_ok() {
            planned.push(plan);
        }
    }
    Ok(planned)
}

/// Reads `kind`, which decides how the rest of the section is read.
fn read_kind(document: &Document, index: usize, node: &TomlNode<'_>) -> Result<Kind, ConfigError> {
    let path = format!("system[{index}]");
    let kinds: Vec<&str> = Kind::ALL.iter().map(|k| k.as_str()).collect();
    let Some(value) = node.get_ref().get("kind") else {
        let what = format!("`kind` is missing; one of: {}", kinds.join(", "));
        return Err(document.wrong(Some(node.span()), &path, &what));
    };
    let given = value.get_ref().as_str().unwrap_or_default();
    match Kind::ALL.iter().find(|k| k.as_str() == given) {
        Some(kind) => Ok(*kind),
        None => {
            let what = unknown("kind", given, &kinds);
            Err(document.wrong(Some(value.span()), &format!("{path}.kind"), &what))
        }
    }
}
