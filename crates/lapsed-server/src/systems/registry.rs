//! `kind = "registry"`: its section of the configuration, and how it is built.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::Kind;
use lapsed_core::registry::{HEARTBEAT_TTL_MS, Registry, RegistryParts};
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use super::{BuildContext, BuiltSystem, SystemKind, SystemPlan};
use crate::config::ConfigError;
use crate::config::common::{
    Access, BrakeSection, MaintenanceSections, ReceiptsSection, ReconcileSection, ReconcileUsual,
    Section, SystemSettings, plan_id, plan_key, plan_shards,
};
use crate::config::heartbeat::Heartbeat;
use crate::config::origin::Settings;
use crate::config::sweep::{PauseAfter, SweepSection};
use crate::config::token::Scope;
use crate::config::units::{SPAN_MAX, Span, show_span};
use crate::http::{self, Shared};

/// The variable of the original janitor; wins over `sweep.every`.
pub const INTERVAL_ENV: &str = "JANITOR_INTERVAL_MS";

/// The registry's room.
pub struct RegistryKind;

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
    shards: Option<u16>,
    sweep: SweepSection,
    brake: BrakeSection,
    receipts: ReceiptsSection,
    reconcile: ReconcileSection,
}

/// Where the entries are on a store that others write to, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryKeys {
    /// Who writes them.
    pub access: Access,
    /// The hash of all entries.
    pub registry_key: String,
    /// An owner's sign of life; `{owner}` is its name.
    pub heartbeat_key: String,
    /// Over how many shards a native layout is spread.
    pub shards: u16,
}

const REGISTRY_KEY: &str = "connections:registry";
const HEARTBEAT_KEY: &str = "instance:heartbeat:{owner}";

#[derive(Debug)]
struct RegistryPlan {
    common: SystemSettings,
    layout: RegistryKeys,
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
        let layout = plan_layout(section, &mut given, &mut settings)?;
        let (beat, pause) = (given.heartbeat_ttl, given.heartbeat_interval);
        let heartbeat = Heartbeat::given(beat, pause, Duration::from_millis(HEARTBEAT_TTL_MS));
        let (ttl, interval) = heartbeat.plan(section, &mut settings)?;
        let upkeep = MaintenanceSections {
            sweep: given.sweep,
            pause: PauseAfter::AfterBatch,
            brake: given.brake,
            receipts: given.receipts,
            reconcile: given.reconcile,
            reconcile_usual: ReconcileUsual::default(),
            every_of_env: interval_of_env(section)?.map(|every| (every, INTERVAL_ENV)),
        };
        let usual = section.usual_policy(&store);
        let common = upkeep.plan(section, (id, store), ttl, usual, settings)?;
        Ok(Box::new(RegistryPlan { common, layout, heartbeat_interval: interval }))
    }

    fn routes(&self) -> OpenApiRouter<Shared> {
        http::registry::routes()
    }

    fn scopes(&self) -> &'static [(&'static str, Scope)] {
        http::registry::SCOPES
    }

    fn slow_operations(&self) -> &'static [&'static str] {
        http::registry::SLOW
    }
}

fn plan_layout(
    section: &Section<'_>,
    given: &mut RegistrySection,
    settings: &mut Settings,
) -> Result<RegistryKeys, ConfigError> {
    let (registry, heartbeat) = (given.registry_key.take(), given.heartbeat_key.take());
    Ok(RegistryKeys {
        access: given.mode,
        registry_key: plan_key(section, "registry_key", registry, REGISTRY_KEY, None, settings)?,
        heartbeat_key: plan_key(
            section,
            "heartbeat_key",
            heartbeat,
            HEARTBEAT_KEY,
            Some("{owner}"),
            settings,
        )?,
        shards: plan_shards(section, given.shards, settings)?,
    })
}

/// What the original's variable says, in milliseconds.
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

    fn build(&self, ground: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let common = &self.common;
        let opened = ground.store.registry(&common.id, common.threshold, &self.layout)?;
        let registry = Arc::new(Registry::new(
            RegistryParts::new(opened.registry, ground.store.store(), common.threshold)
                .index(opened.index)
                .brake(ground.brake)
                .clock(ground.clock)
                .activity(ground.activity)
                .observer(ground.witness)
                .timeout(common.policy.timeout)
                .batch(common.policy.batch)
                .sweeper(ground.process.to_owned()),
        ));
        Ok(BuiltSystem { system: registry.clone(), operations: registry, store: None })
    }
}
