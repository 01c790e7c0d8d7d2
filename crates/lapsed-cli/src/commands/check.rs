//! `lapsed check`: validates a configuration, and tries its stores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::clock::SystemClock;
use lapsed_core::receipt::NoObserver;
use lapsed_core::store::StoreInfo;
use lapsed_object::Offset;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::cli::Check;
use lapsed_server::config::origin::{Origin, Setting};
use lapsed_server::config::store::{StoreConfig, StoreLocation};
use lapsed_server::config::token::TokenConfig;
use lapsed_server::config::units::show_span;
use lapsed_server::config::webhook::WebhookConfig;
use lapsed_server::config::{Overrides, process_env};
use lapsed_server::failure::Failure;
use lapsed_server::node::Config;
use lapsed_server::node::SystemPlan;
use lapsed_server::node::{Journal, LiveContext, LiveSystem, used_stores};
use lapsed_server::print::{self, Table, line};
use lapsed_server::stores::{self, OpenObject, OpenStore};
use lapsed_server::systems;

/// Validates the configuration, connects to each store, and prints what the daemon would do.
pub fn run(args: Check) -> Result<(), Failure> {
    let overrides = Overrides {
        listen: process_env("LAPSED_LISTEN"),
        data: process_env("LAPSED_DATA").map(Into::into),
        token: process_env("LAPSED_TOKEN"),
    };
    let config = Config::load(args.config.as_deref(), &overrides, &process_env)?;
    if let Some(files) = &config.server.tls {
        files.read().map_err(|what| Failure::usage(format!("`server.tls`: {what}")))?;
    }
    let mut stores = Vec::new();
    for store in used_stores(&config) {
        stores.push((store, connect(&config, store)?));
    }
    match args.output.json {
        true => print::json(&as_json(&config, &stores)),
        false => line(&describe(&config, &stores)),
    }
}

/// Connects to a store and reads what its systems would work on. Changes nothing.
fn connect(config: &Config, store: &StoreConfig) -> Result<State, Failure> {
    match &store.place {
        StoreLocation::Embedded { dir, .. } => open_folder(store, dir),
        StoreLocation::Object(_) => try_objects(config, store),
        _ => ask_server(config, store),
    }
}

/// The result of connecting to a store.
struct State {
    words: String,
    /// The operations that were tried; empty unless it is an object store.
    tried: Vec<Tried>,
    /// Warnings that do not prevent operation.
    notes: Vec<String>,
}

/// The result of one operation that was tried.
#[derive(Serialize)]
struct Tried {
    what: &'static str,
    ok: bool,
    needed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

impl From<String> for State {
    fn from(words: String) -> State {
        State { words, tried: Vec::new(), notes: Vec::new() }
    }
}

impl State {
    fn describe(&self) -> String {
        let mut text = self.words.clone();
        for Tried { what, needed, failed, .. } in &self.tried {
            let line = match (failed, needed) {
                (None, _) => format!("holds: {what}"),
                (Some(why), true) => format!("FAILS: {what} ({why})"),
                (Some(why), false) => format!("without: {what} ({why}; nothing depends on it)"),
            };
            text.push_str(&format!("\n    {line}"));
        }
        for note in &self.notes {
            text.push_str(&format!("\n    {note}"));
        }
        text
    }
}

/// Opens and closes an embedded store. A missing folder is not created.
fn open_folder(store: &StoreConfig, dir: &Path) -> Result<State, Failure> {
    if !dir.exists() {
        return Ok("does not exist yet; `lapsed serve` makes it".to_owned().into());
    }
    match stores::open(store, SystemClock::shared()) {
        Ok(opened) => {
            opened.close()?;
            Ok("opened and closed: it works".to_owned().into())
        }
        Err(lapsed_core::Error::InUse { holder, .. }) => {
            Ok(format!("it is in use by {holder}; one folder serves one process").into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the version of the server, and counts the entries of each system on it: this reveals a wrong layout, a
/// key of the wrong type or a missing permission.
fn ask_server(config: &Config, store: &StoreConfig) -> Result<State, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = stores::open(store, SystemClock::shared())?;
        let info = look(config, store, &opened).await?;
        let ahead_ms = info.now_ms as i64 - SystemClock::shared().wall_ms() as i64;
        let up = Duration::from_millis(info.now_ms.saturating_sub(info.back_ms));
        let words = format!(
            "{} answers, up for {}, its clock is {} ms {} this one",
            info.engine,
            print::span(up.as_millis() as u64),
            ahead_ms.abs(),
            if ahead_ms < 0 { "behind" } else { "ahead of" },
        );
        let mut notes = Vec::new();
        for kind in systems::KINDS {
            notes.extend(kind.store_notes(&config.systems, store, &opened).await?);
        }
        Ok(State { notes, ..words.into() })
    })
}

/// Tries the operations that lapsed needs on an object store, under a prefix that is emptied afterwards, and reads
/// the systems there.
fn try_objects(config: &Config, store: &StoreConfig) -> Result<State, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = stores::open(store, SystemClock::shared())?;
        let Some(object) = opened.object() else {
            return Err(Failure::failed("it is no object store"));
        };
        let report = object.probe().await?;
        let tried = report.lines.iter().map(|line| Tried {
            what: line.what,
            ok: line.failed.is_none(),
            needed: line.needed,
            failed: line.failed.clone(),
        });
        let mut state = State { words: String::new(), tried: tried.collect(), notes: Vec::new() };
        if let Err(error) = report.verdict(&store.name) {
            eprintln!("store {}: {}{}", store.name, store.describe(), state.describe());
            return Err(error.into());
        }
        let info = look(config, store, &opened).await?;
        state.words = format!("{} answers{}", info.engine, clock_words(object));
        Ok(state)
    })
}

/// The bounds within which the store's clock is known; leases are expired only beyond them.
fn clock_words(object: &OpenObject) -> String {
    let Some(Offset { lo_ms, hi_ms }) = object.store().offset() else { return String::new() };
    let (middle, give) = ((lo_ms + hi_ms) / 2, (hi_ms - lo_ms) / 2);
    let whither = if middle < 0 { "behind" } else { "ahead of" };
    format!(", its clock is {} ms {whither} this one, give or take {give} ms", middle.abs())
}

/// Reads the version of the server, and counts the entries of every system on it.
async fn look(
    config: &Config,
    store: &StoreConfig,
    opened: &OpenStore,
) -> Result<StoreInfo, Failure> {
    let clock = SystemClock::shared();
    let mut built = Vec::new();
    for plan in config.systems.iter().filter(|plan| plan.common().store == store.name) {
        let mirror = match &plan.common().mirror {
            Some(name) => Some(stores::open(&config.stores[name], clock.clone())?),
            None => None,
        };
        let ground = LiveContext {
            store: opened,
            mirror: mirror.as_ref(),
            clock: clock.clone(),
            journal: Arc::new(Journal::new(Arc::new(NoObserver), clock.clone())),
            process: "check",
            by_hand: true,
        };
        built.push(LiveSystem::build(&**plan, ground)?);
    }
    let info = opened.store().info().await?;
    for live in built {
        if let Some(error) = live.status().await.error {
            return Err(Failure::failed(format!("{}: {error}", live.id())));
        }
    }
    Ok(info)
}

fn describe(config: &Config, stores: &[(&StoreConfig, State)]) -> String {
    let source = config.file.as_deref().unwrap_or("the default configuration");
    let mut text = format!("{source} is right.\n\nserver: {}", config.server.url());
    text.push_str(match config.server.tokens.len() {
        0 => ", for this machine only",
        1 => ", behind a token",
        _ => ", behind tokens",
    });
    for token in &config.server.tokens {
        text.push_str(&format!("\n  {}", token.describe()));
    }
    for warning in server_warnings(config) {
        text.push_str(&format!("\n  warning: {warning}"));
    }
    text.push_str(&said(&config.server.settings));
    if let Some(telemetry) = &config.telemetry {
        text.push_str(&format!("\n  {}", telemetry.describe()));
    }
    for (store, state) in stores {
        let state = state.describe();
        text.push_str(&format!("\n\nstore {}: {}\n  {state}", store.name, store.describe()));
    }
    for plan in &config.systems {
        text.push_str(&format!("\n\n{}", describe_system(&**plan)));
    }
    for webhook in &config.webhooks {
        text.push_str(&format!("\n\n{}", webhook.describe()));
    }
    text
}

fn server_warnings(config: &Config) -> Vec<String> {
    let now_ms = SystemClock::shared().wall_ms();
    let tokens = config.server.tokens.iter().filter_map(|token| token.warning(now_ms));
    tokens.chain(config.server.warning()).collect()
}

fn describe_system(plan: &dyn SystemPlan) -> String {
    let common = plan.common();
    let mut text = format!("{} on store {}", common.id, common.store);
    if let Some(mirror) = &common.mirror {
        text.push_str(&format!(", mirrored in store {mirror}"));
    }
    for sentence in plan.describe() {
        text.push_str(&format!("\n  {sentence}"));
    }
    text.push_str(&format!("\n  {}", plan.describe_brake()));
    let keep = std::time::Duration::from_millis(common.retention.age_ms);
    text.push_str(&format!(
        "\n  receipts are kept for {}, at most {}",
        show_span(keep),
        print::count(common.retention.count)
    ));
    text.push_str(&said(&common.settings));
    text
}

/// The settings that are not defaults, each with its origin, for example a file or an environment variable.
fn said(settings: &[Setting]) -> String {
    let mut table = Table::bare();
    for setting in settings.iter().filter(|s| s.origin != Origin::Default) {
        let value = format!("{} = {}", setting.key, setting.value);
        table.row(vec![format!("    {value}"), format!("({})", setting.origin)]);
    }
    let text = table.text();
    if text.is_empty() { text } else { format!("\n  settings that are not defaults:\n{text}") }
}

fn as_json(config: &Config, stores: &[(&StoreConfig, State)]) -> Value {
    let stores: Vec<Value> = stores
        .iter()
        .map(|(s, state)| {
            let State { words, tried, notes } = state;
            let mut value = json!({ "name": s.name, "url": s.describe(), "state": words });
            if !tried.is_empty() {
                value["probe"] = json!(tried);
            }
            if !notes.is_empty() {
                value["notes"] = json!(notes);
            }
            value
        })
        .collect();
    let systems: Vec<Value> = config.systems.iter().map(|plan| system_json(&**plan)).collect();
    let webhooks: Vec<Value> = config.webhooks.iter().map(WebhookConfig::as_json).collect();
    json!({
        "ok": true,
        "file": config.file,
        "server": {
            "url": config.server.url(),
            "tokens": config.server.tokens.iter().map(token_json).collect::<Vec<_>>(),
            "warnings": server_warnings(config),
            "settings": config.server.settings,
        },
        "stores": stores,
        "systems": systems,
        "webhooks": webhooks,
    })
}

fn token_json(token: &TokenConfig) -> Value {
    json!({ "name": token.name, "scopes": token.scopes.list(), "expires_ms": token.expires_ms })
}

fn system_json(plan: &dyn SystemPlan) -> Value {
    let common = plan.common();
    let silence = common.grace.unwrap_or(common.threshold);
    json!({
        "system": common.id.name,
        "kind": common.id.kind,
        "store": common.store,
        "mirror": common.mirror,
        "threshold_ms": common.threshold.as_millis() as u64,
        "grace_ms": common.grace.map(|grace| grace.as_millis() as u64),
        "every_ms": common.policy.every.as_millis() as u64,
        "gone_after_ms": (silence + common.policy.every).as_millis() as u64,
        "plan": plan.describe(),
        "settings": common.settings,
    })
}
