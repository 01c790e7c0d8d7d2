//! The kind `registry`: how its section of the configuration is read, and how a system of it is
//! built.

pub mod metrics;
mod presets;
pub mod routes;
mod words;

use std::sync::Arc;
use std::time::Duration;

use lapsed::assembly::default_policy;
use lapsed::registry::{RedisRegistry, RegistrySpec};
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::registry::HEARTBEAT_TTL_MS;
use lapsed_redis::RegistryLayout;
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use self::metrics::RegistrySeries;
use super::words::KindWords;
use super::{Preset, SystemKind};
use crate::config::ConfigError;
use crate::config::common::{
    Access, AdoptStart, BrakeSection, MaintenanceSections, ReceiptsSection, ReconcileSection,
    ReconcileUsual, Section, SystemSettings, plan_adopt, plan_id, plan_key, plan_shards,
};
use crate::config::heartbeat::Heartbeat;
use crate::config::origin::Settings;
use crate::config::sweep::{PauseAfter, SweepSection};
use crate::config::units::{SPAN_MAX, Span, show_span};
use crate::http::Shared;
use crate::metrics::KindMetrics;
use crate::node::{BuildContext, BuiltSystem, ClaimedName, SystemPlan};
use crate::stores::plan_template;

/// The environment variable of the janitor that this kind is modelled on. It takes precedence over
/// `sweep.every`.
pub const INTERVAL_ENV: &str = "JANITOR_INTERVAL_MS";

/// Systems that map keys to the owners that hold them.
pub struct RegistryKind;

/// The `[[system]]` section in the file. The names of Redis keys only matter if an application
/// writes them itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RegistrySection {
    #[serde(rename = "kind")]
    _kind: Option<Kind>,
    name: Option<String>,
    store: Option<String>,
    mode: Access,
    adopt: Option<AdoptStart>,
    heartbeat_ttl: Option<Span>,
    heartbeat_interval: Option<Span>,
    registry_key: Option<String>,
    heartbeat_key: Option<String>,
    shards: Option<u16>,
    sweep: SweepSection,
    brake: BrakeSection,
    receipts: ReceiptsSection,
    reconcile: ReconcileSection,
}

#[derive(Debug)]
struct RegistryPlan {
    common: SystemSettings,
    /// The names of the Redis keys, and whether lapsed or the application writes them.
    redis: RedisRegistry,
    heartbeat_interval: Duration,
}

impl SystemKind for RegistryKind {
    fn kind(&self) -> Kind {
        Kind::Registry
    }

    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError> {
        let mut given: RegistrySection = section.read()?;
        let id = plan_id(section, Kind::Registry, given.name.as_deref())?;
        let store = section.store(given.store.as_deref())?;
        given.mode.check(section, &store)?;
        let mut settings = Settings::default();
        let adopt = plan_adopt(section, given.adopt, given.mode, &mut settings)?;
        let mut layout = plan_layout(section, &mut given, &mut settings)?;
        let (beat, pause) = (given.heartbeat_ttl, given.heartbeat_interval);
        let heartbeat = Heartbeat::given(beat, pause, Duration::from_millis(HEARTBEAT_TTL_MS));
        let (ttl, interval) = heartbeat.plan(section, &mut settings)?;
        layout.heartbeat_ttl = ttl;
        let redis = match given.mode {
            Access::Native => RedisRegistry::Native(layout),
            Access::Adopt => RedisRegistry::Adopt(layout),
        };
        let upkeep = MaintenanceSections {
            sweep: given.sweep,
            pause: PauseAfter::AfterBatch,
            brake: given.brake,
            receipts: given.receipts,
            reconcile: given.reconcile,
            reconcile_usual: ReconcileUsual::default(),
            every_of_env: interval_of_env(section)?.map(|every| (every, INTERVAL_ENV)),
        };
        let usual = default_policy(section.used_by(&store));
        let common = upkeep.plan(section, (id, store), ttl, usual, settings)?;
        let common = SystemSettings { adopt, ..common };
        Ok(Box::new(RegistryPlan { common, redis, heartbeat_interval: interval }))
    }

    fn routes(&self) -> OpenApiRouter<Shared> {
        routes::routes()
    }

    fn words(&self) -> &'static KindWords {
        &words::WORDS
    }

    fn presets(&self) -> &'static [Preset] {
        presets::PRESETS
    }

    fn metrics(&self, clock: &Arc<dyn Clock>) -> Option<Box<dyn KindMetrics>> {
        Some(Box::new(RegistrySeries::new(clock.clone())))
    }
}

fn plan_layout(
    section: &Section<'_>,
    given: &mut RegistrySection,
    settings: &mut Settings,
) -> Result<RegistryLayout, ConfigError> {
    let (registry, heartbeat) = (given.registry_key.take(), given.heartbeat_key.take());
    let usual = RegistryLayout::new(Duration::ZERO);
    let registry_key =
        plan_key(section, "registry_key", registry, &usual.registry_key, None, settings)?;
    let place = (&usual.heartbeat_key, "owner");
    let heartbeat_key = plan_template(section, "heartbeat_key", heartbeat, place, settings)?;
    let shards = usize::from(plan_shards(section, given.shards, settings)?);
    Ok(RegistryLayout { registry_key, heartbeat_key, shards, ..usual })
}

/// Reads the interval in milliseconds from the environment variable; `None` if it is not set.
fn interval_of_env(section: &Section<'_>) -> Result<Option<Duration>, ConfigError> {
    let Some(text) = section.env(INTERVAL_ENV) else { return Ok(None) };
    match text.trim().parse() {
        Ok(ms) if ms > 0 && u128::from(ms) <= SPAN_MAX.as_millis() => {
            Ok(Some(Duration::from_millis(ms)))
        }
        _ => Err(ConfigError(format!(
            "the environment variable {INTERVAL_ENV} is {text:?}; it must be a number of \
             milliseconds above 0, for example 60000"
        ))),
    }
}

impl RegistryPlan {
    fn spec(&self) -> RegistrySpec {
        RegistrySpec { ttl: self.common.threshold, redis: self.redis.clone() }
    }
}

impl SystemPlan for RegistryPlan {
    fn common(&self) -> &SystemSettings {
        &self.common
    }

    fn describe(&self) -> Vec<String> {
        let SystemSettings { threshold, policy, .. } = &self.common;
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

    /// Heartbeats that the application writes may serve several registries; those of native mode are written here.
    fn claimed_names(&self) -> Vec<ClaimedName> {
        let (RedisRegistry::Native(layout) | RedisRegistry::Adopt(layout)) = &self.redis;
        let mut names = vec![("registry_key", layout.registry_key.clone())];
        if let RedisRegistry::Native(layout) = &self.redis {
            names.push(("heartbeat_key", layout.heartbeat_key.of("{owner}")));
        }
        ClaimedName::list(&self.common.store, &names)
    }

    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let common = &self.common;
        let registry = context.assembly.registry(context.store, common.id.clone(), self.spec())?;
        Ok(BuiltSystem { system: registry.clone(), operations: registry, store: None })
    }
}

#[cfg(test)]
mod tests;
