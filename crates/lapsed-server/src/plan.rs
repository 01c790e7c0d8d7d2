//! Reads a whole configuration: a TOML file, or the defaults when there is none. Each `[[system]]`
//! is read by its kind, and refused on a store that does not support that kind.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lapsed_core::{Kind, SystemId};
use toml::de::{DeTable, DeValue};

use crate::config::common::Section;
use crate::config::document::{self, Document, TomlNode, unknown};
use crate::config::server::{ServerConfig, ServerSection};
use crate::config::store::{StoreConfig, StoreSection};
use crate::config::{ConfigError, DATA_DEFAULT, Env, Overrides, telemetry, webhook};
use crate::node::{Config, SystemPlan};
use crate::systems;

/// The name of the store that exists when the configuration names none.
const STORE_DEFAULT: &str = "data";

impl Config {
    /// Reads the configuration from `file`; without a file, uses the defaults.
    pub fn load(
        file: Option<&Path>,
        overrides: &Overrides,
        env: &Env<'_>,
    ) -> Result<Config, ConfigError> {
        let Some(path) = file else {
            return Self::read(&Document::new("defaults", String::new()), None, overrides, env);
        };
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
        Self::read(&Document::new(&name, text), Some(name.clone()), overrides, env)
    }

    /// Reads a configuration that did not come from a file, such as the text of a preset.
    pub fn parse(text: &str, overrides: &Overrides, env: &Env<'_>) -> Result<Config, ConfigError> {
        Self::read(&Document::new("text", text.to_owned()), None, overrides, env)
    }

    fn read(
        document: &Document,
        file: Option<String>,
        overrides: &Overrides,
        env: &Env<'_>,
    ) -> Result<Config, ConfigError> {
        let mut top = document.parse(env)?;
        let server = read_server(document, &mut top, overrides)?;
        let mut stores = read_stores(document, &mut top)?;
        let nodes = take_list(document, &mut top, "system")?;
        let hooks = take_list(document, &mut top, "webhook")?;
        let telemetry = take(&mut top, "telemetry");
        let telemetry = telemetry::read(document, telemetry.as_ref(), env)?;
        no_more(document, &top)?;
        if stores.is_empty() {
            stores.insert(STORE_DEFAULT.to_owned(), default_store(overrides)?);
        }
        let systems = read_systems(document, nodes, &stores, env)?;
        let ids: Vec<SystemId> = systems.iter().map(|plan| plan.common().id.clone()).collect();
        let webhooks = webhook::read(document, &hooks, &ids)?;
        Ok(Config { file, server, stores, systems, webhooks, telemetry })
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

fn read_stores(
    document: &Document,
    top: &mut DeTable<'_>,
) -> Result<BTreeMap<String, StoreConfig>, ConfigError> {
    let mut stores: BTreeMap<String, StoreConfig> = BTreeMap::new();
    let Some(node) = take(top, "store") else { return Ok(stores) };
    let span = node.span();
    let DeValue::Table(table) = node.into_inner() else {
        return Err(document.wrong(Some(span), "store", "write it as [store.NAME]"));
    };
    for (name, node) in table {
        let path = format!("store.{}", name.get_ref());
        let section: StoreSection = document.read(&path, &node)?;
        let wrong = |key: &str, what: &str| {
            let value = node.get_ref().get(key).map_or(node.span(), |value| value.span());
            document.wrong(Some(value), &format!("{path}.{key}"), what)
        };
        let config = StoreConfig::plan(name.get_ref(), &section);
        let config = config.map_err(|e| wrong(e.key, &e.what))?;
        if let Some(twin) = stores.values().find(|s| s.same_place(&config)) {
            let what =
                format!("the store `{}` is in the same folder; give each its own", twin.name);
            return Err(wrong("url", &what));
        }
        stores.insert(name.get_ref().to_string(), config);
    }
    Ok(stores)
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
    stores: &BTreeMap<String, StoreConfig>,
    env: &Env<'_>,
) -> Result<Vec<Box<dyn SystemPlan>>, ConfigError> {
    if nodes.is_empty() {
        return read_all(document, stores, env);
    }
    let mut planned: Vec<Box<dyn SystemPlan>> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let kind = read_kind(document, index, node)?;
        let section = Section::new(document, node, index, stores, env);
        let plan = systems::of(kind).plan(&section)?;
        let carried = stores[&plan.common().store].carries(kind);
        carried.map_err(|what| section.wrong("store", &what))?;
        if planned.iter().any(|p| p.common().id == plan.common().id) {
            let what =
                format!("there are two systems `{}`; give each its own name", plan.common().id);
            return Err(section.wrong("name", &what));
        }
        let place = &stores[&plan.common().store].place;
        let shares =
            |other: &dyn SystemPlan| stores[&other.common().store].place.shares_objects_with(place);
        if let Some(other) = planned.iter().find(|other| shares(&***other)) {
            let what = format!(
                "`{}` has its leases in the same place; give each a prefix of its own",
                other.common().id
            );
            return Err(section.wrong("store", &what));
        }
        planned.push(plan);
    }
    Ok(planned)
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
