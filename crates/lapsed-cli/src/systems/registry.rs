//! `kind = "registry"`: its section of the configuration, and how it is built.

use std::sync::Arc;
use std::time::Duration;

use lapsed::Kind;
use lapsed::registry::{HEARTBEAT_TTL_MS, Registry, RegistryParts};
use lapsed::sweep::policy::Policy;
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use super::{Built, Ground, Planned, Room};
use crate::config::ConfigError;
use crate::config::common::{
    Access, BrakeSection, Common, ReceiptsSection, ReconcileSection, Section, SweepSection, plan_id,
};
use crate::config::origin::{Origin, Setting, Settings};
use crate::config::units::{SPAN_MAX, Span, show_span};
use crate::http::{self, Shared};

/// The variable of the original janitor; wins over `sweep.every`.
pub const INTERVAL_ENV: &str = "JANITOR_INTERVAL_MS";

/// The registry's room.
pub struct RegistryRoom;

/// As the file writes it. The key names only matter where an application writes them itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RegistrySection {
    #[serde(rename = "kind")]
    _kind: Option<Kind>,
    name: Option<String>,
    store: Option<String>,
    mode: Access,
    heartbeat_ttl: Option<Span>,
    heartbeat_interval: Option<Span>,
    registry_key: Option<String>,
    heartbeat_key: Option<String>,
    sweep: SweepSection,
    brake: BrakeSection,
    receipts: ReceiptsSection,
    reconcile: ReconcileSection,
}

#[derive(Debug)]
struct RegistryPlan {
    common: Common,
    heartbeat_interval: Duration,
}

impl Room for RegistryRoom {
    fn kind(&self) -> Kind {
        Kind::Registry
    }

    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn Planned>, ConfigError> {
        let given: RegistrySection = section.read()?;
        let id = plan_id(section, Kind::Registry, given.name.as_deref())?;
        let store = section.store(given.store.as_deref())?;
        check_mode(section, &given)?;
        let mut settings = Settings::default();
        let (ttl, interval) = plan_heartbeat(section, &given, &mut settings)?;
        let policy = given.sweep.plan(section, Policy::default(), &mut settings)?;
        let brake = given.brake.plan(section, &mut settings)?;
        let retention = given.receipts.plan(section, &mut settings)?;
        let reconcile = given.reconcile.plan(section, &mut settings);
        let mut settings = settings.finish();
        let policy = overrule_interval(section, policy, &mut settings)?;
        let threshold = ttl;
        let common = Common { id, store, threshold, policy, brake, retention, reconcile, settings };
        Ok(Box::new(RegistryPlan { common, heartbeat_interval: interval }))
    }

    fn routes(&self) -> OpenApiRouter<Shared> {
        http::registry::routes()
    }

    fn slow_operations(&self) -> &'static [&'static str] {
        http::registry::SLOW
    }
}

/// An embedded store has no keys that an application could write by itself.
fn check_mode(section: &Section<'_>, given: &RegistrySection) -> Result<(), ConfigError> {
    if given.mode == Access::Adopt {
        return Err(section.wrong(
            "mode",
            "\"adopt\" needs a store that the application writes to by itself; on an embedded \
             store use \"native\" (the default) and write through lapsed",
        ));
    }
    if given.registry_key.as_deref().is_some_and(str::is_empty) {
        return Err(section.wrong("registry_key", "must not be empty"));
    }
    match &given.heartbeat_key {
        Some(key) if !key.contains("{owner}") => {
            Err(section.wrong("heartbeat_key", "must contain `{owner}`, where its name goes"))
        }
        _ => Ok(()),
    }
}

fn plan_heartbeat(
    section: &Section<'_>,
    given: &RegistrySection,
    settings: &mut Settings,
) -> Result<(Duration, Duration), ConfigError> {
    let default = Duration::from_millis(HEARTBEAT_TTL_MS);
    let ttl = given.heartbeat_ttl.map(|s| s.0);
    let ttl = settings.pick(section, "heartbeat_ttl", ttl, default);
    if ttl < Duration::from_millis(3) {
        return Err(section.wrong("heartbeat_ttl", "must be at least 3ms"));
    }
    let interval = given.heartbeat_interval.map(|s| s.0);
    let interval = settings.pick(section, "heartbeat_interval", interval, ttl / 3);
    if interval >= ttl {
        let what = format!(
            "{} must be below heartbeat_ttl ({}); a third of it is usual",
            show_span(interval),
            show_span(ttl)
        );
        return Err(section.wrong("heartbeat_interval", &what));
    }
    Ok((ttl, interval))
}

fn overrule_interval(
    section: &Section<'_>,
    mut policy: Policy,
    settings: &mut [Setting],
) -> Result<Policy, ConfigError> {
    let Some(text) = section.env(INTERVAL_ENV) else { return Ok(policy) };
    let ms: u64 = match text.trim().parse() {
        Ok(ms) if ms > 0 && u128::from(ms) <= SPAN_MAX.as_millis() => ms,
        _ => {
            return Err(ConfigError(format!(
                "the environment variable {INTERVAL_ENV} is {text:?}; it must be a number of \
                 milliseconds above 0, for example 60000"
            )));
        }
    };
    policy.every = Duration::from_millis(ms);
    if let Some(setting) = settings.iter_mut().find(|s| s.key == "sweep.every") {
        setting.value = show_span(policy.every);
        setting.origin = Origin::Env(INTERVAL_ENV, section.line_of("sweep.every"));
    }
    Ok(policy)
}

impl Planned for RegistryPlan {
    fn common(&self) -> &Common {
        &self.common
    }

    fn describe(&self) -> Vec<String> {
        let Common { threshold, policy, .. } = &self.common;
        vec![
            format!(
                "owners beat every {} and are dead after {} of silence, by the store's clock",
                show_span(self.heartbeat_interval),
                show_span(*threshold)
            ),
            format!(
                "a pass every {}: what a dead owner held is gone at the latest {} after its last \
                 beat, give or take {} of jitter",
                show_span(policy.every),
                show_span(*threshold + policy.every),
                show_span(policy.every.mul_f64(policy.jitter))
            ),
        ]
    }

    fn build(&self, ground: Ground<'_>) -> lapsed::Result<Built> {
        let common = &self.common;
        let registry = Arc::new(Registry::new(RegistryParts {
            id: common.id.clone(),
            registry: ground.store.registry(common.id.clone(), common.threshold)?,
            index: None,
            store: ground.store.store(),
            ttl: common.threshold,
            brake: ground.brake,
            clock: ground.clock,
            activity: ground.activity,
            witness: ground.witness,
            timeout: common.policy.timeout,
            batch: common.policy.batch,
            sweeper: ground.process.to_owned(),
        }));
        Ok(Built { system: registry.clone(), operations: registry })
    }
}
