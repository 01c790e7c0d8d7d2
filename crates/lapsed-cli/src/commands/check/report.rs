//! What `lapsed check` prints about a configuration without faults.

use lapsed_core::clock::SystemClock;
use serde_json::{Value, json};

use super::State;
use lapsed_server::config::bearer_limits::BearerLimits;
use lapsed_server::config::jwt::JwtConfig;
use lapsed_server::config::origin::{Origin, Setting};
use lapsed_server::config::store::StoreConfig;
use lapsed_server::config::token::TokenConfig;
use lapsed_server::config::units::show_span;
use lapsed_server::config::webhook::WebhookConfig;
use lapsed_server::node::{Config, SystemPlan};
use lapsed_server::print::{self, Table};

pub(super) fn describe(config: &Config, stores: &[(&StoreConfig, State)]) -> String {
    let source = config.file.as_deref().unwrap_or("the default configuration");
    let mut text = format!("{source} is valid.\n\nserver: {}", config.server.url());
    text.push_str(match config.server.tokens.len() {
        0 if config.server.is_open() => ", for this machine only",
        1 => ", behind a token",
        _ => ", behind tokens",
    });
    for token in &config.server.tokens {
        text.push_str(&format!("\n  {}", token.describe()));
    }
    if let Some(jwt) = &config.server.jwt {
        text.push_str(&format!("\n  {}", jwt.describe()));
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
    let jwt = config.server.jwt.iter().flat_map(JwtConfig::warnings);
    tokens.chain(jwt).chain(config.server.warning()).collect()
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

pub(super) fn as_json(config: &Config, stores: &[(&StoreConfig, State)]) -> Value {
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
            "jwt": config.server.jwt.as_ref().map(JwtConfig::describe),
            "warnings": server_warnings(config),
            "settings": config.server.settings,
        },
        "stores": stores,
        "systems": systems,
        "webhooks": webhooks,
    })
}

fn token_json(token: &TokenConfig) -> Value {
    let limits = token.limits.as_deref();
    json!({
        "name": token.name,
        "scopes": token.scopes.list(),
        "expires_ms": token.expires_ms,
        "systems": limits.and_then(BearerLimits::systems),
        "operations": limits.and_then(BearerLimits::operations),
        "owners": limits.and_then(BearerLimits::owners),
    })
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
