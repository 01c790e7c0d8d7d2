//! `lapsed check`

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapsed::clock::SystemClock;
use lapsed::receipt::Silent;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::backend::is_in_use;
use crate::cli::Check;
use crate::config::origin::{Origin, Setting};
use crate::config::store::{Place, StoreConfig};
use crate::config::units::show_span;
use crate::config::{Config, Overrides, process_env};
use crate::failure::Failure;
use crate::node::{Journal, Live, used_stores};
use crate::print::{self, Table, line};
use crate::stores::OpenStore;
use crate::systems::Planned;

/// Validates, connects, and prints the plan.
pub fn run(args: Check) -> Result<(), Failure> {
    let overrides = Overrides {
        listen: process_env("LAPSED_LISTEN"),
        data: process_env("LAPSED_DATA").map(Into::into),
        token: process_env("LAPSED_TOKEN"),
    };
    let config = Config::load(args.config.as_deref(), &overrides, &process_env)?;
    let mut stores = Vec::new();
    for store in used_stores(&config) {
        stores.push((store, connect(&config, store)?));
    }
    match args.output.json {
        true => print::json(&as_json(&config, &stores)),
        false => line(&describe(&config, &stores)),
    }
}

/// Connects, and looks at what the systems on it will work on. Changes nothing.
fn connect(config: &Config, store: &StoreConfig) -> Result<String, Failure> {
    match &store.place {
        Place::Embedded { dir, .. } => open_folder(store, dir),
        Place::Redis(_) | Place::Object(_) => ask_server(config, store),
    }
}

/// Opens and closes it. A folder that is not there is not made by looking at it.
fn open_folder(store: &StoreConfig, dir: &Path) -> Result<String, Failure> {
    if !dir.exists() {
        return Ok("does not exist yet; `lapsed serve` makes it".to_owned());
    }
    match OpenStore::open(store, SystemClock::shared()) {
        Ok(opened) => {
            opened.close()?;
            Ok("opened and closed: it works".to_owned())
        }
        Err(error) if is_in_use(&error) => Ok(match error {
            lapsed::Error::Unavailable { what, .. } => what,
            other => other.to_string(),
        }),
        Err(error) => Err(error.into()),
    }
}

/// Says which server answers, and counts what each system on it would work on: a layout that cannot
/// work, a key of the wrong type and a missing permission come to light here.
fn ask_server(config: &Config, store: &StoreConfig) -> Result<String, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = OpenStore::open(store, SystemClock::shared())?;
        let clock = SystemClock::shared();
        let mut built = Vec::new();
        for plan in config.systems.iter().filter(|plan| plan.common().store == store.name) {
            let journal = Arc::new(Journal::new(Arc::new(Silent)));
            built.push(Live::open(&**plan, &opened, clock.clone(), journal, "check")?);
        }
        let info = opened.store().info().await?;
        for live in built {
            if let Some(error) = live.status().await.error {
                return Err(Failure::failed(format!("{}: {error}", live.id())));
            }
        }
        let ahead_ms = info.now_ms as i64 - SystemClock::shared().wall_ms() as i64;
        let up = Duration::from_millis(info.now_ms.saturating_sub(info.back_ms));
        Ok(format!(
            "{} answers, up for {}, its clock is {} ms {} this one",
            info.engine,
            print::span(up.as_millis() as u64),
            ahead_ms.abs(),
            if ahead_ms < 0 { "behind" } else { "ahead of" },
        ))
    })
}

fn describe(config: &Config, stores: &[(&StoreConfig, String)]) -> String {
    let source = config.file.as_deref().unwrap_or("the default configuration");
    let mut text = format!("{source} is right.\n\nserver: {}", config.server.url());
    text.push_str(match &config.server.token {
        Some(_) => ", behind a token",
        None => ", for this machine only",
    });
    text.push_str(&said(&config.server.settings));
    for (store, state) in stores {
        text.push_str(&format!("\n\nstore {}: {}\n  {state}", store.name, store.describe()));
    }
    for plan in &config.systems {
        text.push_str(&format!("\n\n{}", describe_system(&**plan)));
    }
    text
}

fn describe_system(plan: &dyn Planned) -> String {
    let common = plan.common();
    let mut text = format!("{} on store {}", common.id, common.store);
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
    text + &said(&common.settings)
}

/// What is not as by default, and who said so.
fn said(settings: &[Setting]) -> String {
    let mut table = Table::bare();
    for setting in settings.iter().filter(|s| s.origin != Origin::Default) {
        let value = format!("{} = {}", setting.key, setting.value);
        table.row(vec![format!("    {value}"), format!("({})", setting.origin)]);
    }
    let text = table.text();
    if text.is_empty() { text } else { format!("\n  not as by default:\n{text}") }
}

fn as_json(config: &Config, stores: &[(&StoreConfig, String)]) -> Value {
    let stores: Vec<Value> = stores
        .iter()
        .map(|(s, state)| json!({ "name": s.name, "url": s.describe(), "state": state }))
        .collect();
    let systems: Vec<Value> = config.systems.iter().map(|plan| system_json(&**plan)).collect();
    json!({
        "ok": true,
        "file": config.file,
        "server": { "url": config.server.url(), "settings": config.server.settings },
        "stores": stores,
        "systems": systems,
    })
}

fn system_json(plan: &dyn Planned) -> Value {
    let common = plan.common();
    let silence = common.grace.unwrap_or(common.threshold);
    json!({
        "system": common.id.name,
        "kind": common.id.kind,
        "store": common.store,
        "threshold_ms": common.threshold.as_millis() as u64,
        "grace_ms": common.grace.map(|grace| grace.as_millis() as u64),
        "every_ms": common.policy.every.as_millis() as u64,
        "gone_after_ms": (silence + common.policy.every).as_millis() as u64,
        "plan": plan.describe(),
        "settings": common.settings,
    })
}
