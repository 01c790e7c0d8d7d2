//! The kind `sessions`: how its section of the configuration is read, and how a system of it is
//! built.

pub mod metrics;
mod presets;
pub mod routes;
mod words;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed::sessions::{RedisSessionsKeys, SessionsSpec, default_policy};
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::sessions::{GRACE_MS, HEARTBEAT_TTL_MS};
use lapsed_redis::{SessionsLayout, Template};
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use self::metrics::SessionSeries;
use super::words::KindWords;
use super::{Preset, SystemKind};
use crate::config::ConfigError;
use crate::config::common::{
    Access, AdoptStart, BrakeSection, MaintenanceSections, ReceiptsSection, ReconcileSection,
    ReconcileUsual, Section, SystemSettings, plan_adopt, plan_id, plan_key, plan_shards,
};
use crate::config::heartbeat::Heartbeat;
use crate::config::origin::{Origin, Settings};
use crate::config::sweep::{PauseAfter, SweepSection};
use crate::config::units::{Span, parse_go_span, show_span};
use crate::http::Shared;
use crate::metrics::{KindMetrics, Metrics};
use crate::node::plan::{describe_brake_of_entries, describe_brake_of_owners};
use crate::node::{BuildContext, BuiltSystem, ClaimedName, OpenSystems, SystemPlan};
use crate::stores::plan_template;

/// Environment variables of the application that this kind is modelled on. They take precedence
/// over `sweep.every` and `grace`.
pub const INTERVAL_ENV: &str = "CLEANUP_INTERVAL";
pub const GRACE_ENV: &str = "ORPHAN_MAX_AGE";

/// The shortest default of `sweep.every` that follows from a short grace.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Systems of sessions, which are kept for a grace period after the last reference to them is gone.
pub struct SessionsKind;

/// The `[[system]]` section in the file. The names of Redis keys only matter if an application
/// writes them itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SessionsSection {
    #[serde(rename = "kind")]
    _kind: Option<Kind>,
    name: Option<String>,
    store: Option<String>,
    mode: Access,
    #[serde(alias = "orphan_max_age")]
    grace: Option<Span>,
    heartbeat_ttl: Option<Span>,
    heartbeat_interval: Option<Span>,
    session_key: Option<String>,
    ref_count_key: Option<String>,
    broadcaster_key: Option<String>,
    disconnected_key: Option<String>,
    shards: Option<u16>,
    adopt: Option<AdoptStart>,
    sweep: SweepSection,
    brake: BrakeSection,
    receipts: ReceiptsSection,
    reconcile: ReconcileSection,
}

/// Durations of a system of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionsTimes {
    /// How long a session without references is kept.
    pub grace: Duration,
    /// How long an owner lives after a heartbeat, unless the heartbeat says otherwise.
    pub ttl: Duration,
}

#[derive(Debug)]
struct SessionsPlan {
    common: SystemSettings,
    access: Access,
    layout: SessionsLayout,
    times: SessionsTimes,
    heartbeat_interval: Duration,
}

impl SystemKind for SessionsKind {
    fn kind(&self) -> Kind {
        Kind::Sessions
    }

    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError> {
        let mut given: SessionsSection = section.read()?;
        let id = plan_id(section, Kind::Sessions, given.name.as_deref())?;
        let store = section.store(given.store.as_deref())?;
        given.mode.check(section, &store)?;
        let mut settings = Settings::default();
        let adopt = plan_adopt(section, given.adopt, given.mode, &mut settings)?;
        let mut layout = plan_layout(section, &mut given, &mut settings)?;
        let grace = plan_grace(section, given.grace, &mut settings)?;
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
            every_of_env: span_of_env(section, INTERVAL_ENV)?.map(|every| (every, INTERVAL_ENV)),
        };
        let times = SessionsTimes { grace, ttl };
        (layout.grace, layout.heartbeat_ttl) = (grace, ttl);
        let access = given.mode;
        let mut usual = default_policy(section.used_by(&store));
        if access == Access::Adopt {
            // The brake recognises a mass death only if passes run at least twice per grace.
            usual.every = usual.every.min(grace / 2).max(EVERY_MIN);
        }
        let silence = threshold(access, times);
        let common = upkeep.plan(section, (id, store), silence, usual, settings)?;
        let common = SystemSettings { grace: Some(grace), adopt, ..common };
        Ok(Box::new(SessionsPlan { common, access, layout, times, heartbeat_interval: interval }))
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

    fn metrics(&self, _clock: &Arc<dyn Clock>) -> Option<Box<dyn KindMetrics>> {
        Some(Box::new(SessionSeries::default()))
    }

    fn scrape<'a>(&'a self, metrics: &'a Metrics, systems: &'a OpenSystems) -> BoxFuture<'a, ()> {
        Box::pin(metrics::scrape(metrics, systems))
    }
}

/// How long nothing is reclaimed after the store was unreachable: every owner must have had the
/// time to send a heartbeat, and every client to reconnect.
fn threshold(access: Access, times: SessionsTimes) -> Duration {
    match access {
        Access::Native => times.ttl.max(times.grace),
        Access::Adopt => times.grace,
    }
}

/// Reads `grace`, also called `orphan_max_age`. The environment variable takes precedence.
fn plan_grace(
    section: &Section<'_>,
    given: Option<Span>,
    settings: &mut Settings,
) -> Result<Duration, ConfigError> {
    let line = section.line_of("grace").or_else(|| section.line_of("orphan_max_age"));
    let asked = given.map_or(Duration::from_millis(GRACE_MS), |span| span.0);
    let (grace, origin) = match (span_of_env(section, GRACE_ENV)?, given, line) {
        (Some(grace), _, line) => (grace, Origin::Env(GRACE_ENV, line)),
        (None, Some(_), Some(line)) => (asked, Origin::File(line)),
        _ => (asked, Origin::Default),
    };
    settings.note("grace", &grace, origin);
    Ok(grace)
}

fn plan_layout(
    section: &Section<'_>,
    given: &mut SessionsSection,
    settings: &mut Settings,
) -> Result<SessionsLayout, ConfigError> {
    let shards = usize::from(plan_shards(section, given.shards, settings)?);
    let usual = SessionsLayout::new(Duration::ZERO, Duration::ZERO);
    let (session, broadcaster) = ("session", "broadcaster");
    let mut key = |key: &str, given, usual: &Template, place| {
        plan_template(section, key, given, (usual, place), settings)
    };
    let session_key = key("session_key", given.session_key.take(), &usual.session_key, session)?;
    let ref_count_key =
        key("ref_count_key", given.ref_count_key.take(), &usual.ref_count_key, session)?;
    let given_broadcaster = given.broadcaster_key.take();
    let broadcaster_key =
        key("broadcaster_key", given_broadcaster, &usual.broadcaster_key, broadcaster)?;
    let disconnected = given.disconnected_key.take();
    let disconnected_key = plan_key(
        section,
        "disconnected_key",
        disconnected,
        &usual.disconnected_key,
        None,
        settings,
    )?;
    Ok(SessionsLayout {
        session_key,
        ref_count_key,
        broadcaster_key,
        disconnected_key,
        shards,
        ..usual
    })
}

/// Reads a duration from an environment variable, in Go's notation; `None` if it is not set.
fn span_of_env(section: &Section<'_>, name: &'static str) -> Result<Option<Duration>, ConfigError> {
    let Some(text) = section.env(name) else { return Ok(None) };
    let wrong = |what| ConfigError(format!("the environment variable {name}: {what}"));
    parse_go_span(&text).map(Some).map_err(wrong)
}

impl SessionsPlan {
    fn spec(&self) -> SessionsSpec {
        let layout = self.layout.clone();
        let redis = match self.access {
            Access::Native => RedisSessionsKeys::Native(layout),
            Access::Adopt => RedisSessionsKeys::Adopt(layout),
        };
        let SessionsTimes { ttl, grace } = self.times;
        SessionsSpec { ttl, grace, redis }
    }
}

impl SystemPlan for SessionsPlan {
    fn common(&self) -> &SystemSettings {
        &self.common
    }

    fn describe_brake(&self) -> String {
        match self.access {
            Access::Native => describe_brake_of_owners(&self.common),
            // Disconnected sessions run out by themselves: if passes are rare, most are always due.
            Access::Adopt if self.common.policy.every > self.common.threshold / 2 => format!(
                "the brake holds for {} after the store was away, and when the operator says so; it \
                 cannot recognise a mass death, because passes are rarer than twice per grace \
                 (sweep.every)",
                show_span(self.common.threshold)
            ),
            Access::Adopt => describe_brake_of_entries(&self.common, "disconnected sessions"),
        }
    }

    fn describe(&self) -> Vec<String> {
        let (policy, grace) = (&self.common.policy, self.times.grace);
        let mut plan = vec![
            format!(
                "a session without a connected client is kept for {}, by the store's clock",
                show_span(grace)
            ),
            format!(
                "a pass every {}: it is deleted at the latest {} after its last reference went, \
                 give or take {} of jitter",
                show_span(policy.every),
                show_span(grace + policy.every),
                show_span(policy.every.mul_f64(policy.jitter))
            ),
        ];
        if self.access == Access::Adopt {
            plan.push(
                "adopted sessions show no heartbeats: lapsed only observes until half of the \
                 disconnected sessions that it looks at have a hash under `session_key`"
                    .to_owned(),
            );
        }
        if self.access == Access::Native {
            plan.push(format!(
                "owners beat every {} and are dead after {} of silence; their references go with \
                 them",
                show_span(self.heartbeat_interval),
                show_span(self.times.ttl)
            ));
        }
        plan
    }

    fn claimed_names(&self) -> Vec<ClaimedName> {
        let layout = &self.layout;
        let names = [
            ("disconnected_key", layout.disconnected_key.clone()),
            ("session_key", layout.session_key.of("{session}")),
            ("ref_count_key", layout.ref_count_key.of("{session}")),
            ("broadcaster_key", layout.broadcaster_key.of("{broadcaster}")),
        ];
        ClaimedName::list(&self.common.store, &names)
    }

    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let id = self.common.id.clone();
        let sessions = context.assembly.sessions(context.store, id, self.spec())?;
        Ok(BuiltSystem { system: sessions.clone(), operations: sessions, store: None })
    }
}

#[cfg(test)]
mod tests;
