//! The kind `inflight`: how its section of the configuration is read, and how a system of it is
//! built.

pub mod layout;
pub mod metrics;
mod on_death;
mod outbox;
mod presets;
mod rescued;
pub mod routes;
pub mod webhook;
mod words;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed::assembly::default_policy;
use lapsed::inflight::{InflightSpec, RedisInflight};
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::inflight::rules::{Backoff, OnDeath, RecoveryPolicy};
use lapsed_core::inflight::{HEARTBEAT_INTERVAL_MS, Inflight, ORPHAN_THRESHOLD_MS};
use lapsed_core::receipt::Receipt;
use lapsed_core::schedule::StopSignal;
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use self::layout::{DeadLetterWord, LayoutPreset, LayoutSection, ProfileInfo, RescueLayout};
use self::metrics::JobSeries;
use self::on_death::OnDeathSetting;
use self::rescued::QueuesSetting;
use self::webhook::{DeliverySection, DeliveryWebhook, OUTBOX};
use super::words::KindWords;
use super::{Preset, ShownTicket, SystemKind, TicketRequest};
use crate::config::ConfigError;
use crate::config::common::{
    Access, AdoptStart, BrakeSection, MaintenanceSections, ReceiptsSection, ReconcileSection,
    ReconcileUsual, Section, SystemSettings, plan_adopt, plan_id,
};
use crate::config::heartbeat::Heartbeat;
use crate::config::origin::Settings;
use crate::config::sweep::{PauseAfter, SweepSection};
use crate::config::units::{Limit, Span, show_span};
use crate::http::Shared;
use crate::http::problem::Problem;
use crate::metrics::{KindMetrics, Metrics};
use crate::node::plan::{describe_brake_of_entries, describe_brake_of_owners};
use crate::node::shapes::SystemStatus;
use crate::node::{
    BuildContext, BuiltSystem, ClaimedName, LiveHooks, LiveSystem, OpenSystems, SystemPlan,
};

/// Systems of jobs in flight, which are put back on their queues when their worker dies.
pub struct InflightKind;

/// The `[[system]]` section in the file. The names of Redis keys only matter on a store that other
/// applications write to.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct InflightSection {
    #[serde(rename = "kind")]
    _kind: Option<Kind>,
    name: Option<String>,
    store: Option<String>,
    mode: Access,
    adopt: Option<AdoptStart>,
    #[serde(alias = "orphan_threshold")]
    heartbeat_ttl: Option<Span>,
    heartbeat_interval: Option<Span>,
    on_death: Option<OnDeathSetting>,
    crashes_max: Option<u32>,
    crash_window: Option<Span>,
    max_age: Option<Limit>,
    queues: Option<QueuesSetting>,
    queue_key: Option<String>,
    prefix: Option<String>,
    preset: Option<LayoutPreset>,
    heartbeat_key: Option<String>,
    index_key: Option<String>,
    jobs_key: Option<String>,
    gc_lock_key: Option<String>,
    dead_letter: Option<DeadLetterWord>,
    seen: Option<u8>,
    max_stalled_count: Option<u32>,
    priority_steps: Option<Vec<u8>>,
    quarantine: Option<Vec<String>>,
    webhook: Option<String>,
    delivery: DeliverySection,
    sweep: SweepSection,
    brake: BrakeSection,
    receipts: ReceiptsSection,
    reconcile: ReconcileSection,
}

impl InflightSection {
    fn layout(&mut self) -> LayoutSection {
        LayoutSection {
            access: self.mode,
            queues: self.queues.take(),
            queue_key: self.queue_key.take(),
            prefix: self.prefix.take(),
            preset: self.preset,
            heartbeat_key: self.heartbeat_key.take(),
            index_key: self.index_key.take(),
            jobs_key: self.jobs_key.take(),
            gc_lock_key: self.gc_lock_key.take(),
            dead_letter: self.dead_letter,
            seen: self.seen,
            max_stalled_count: self.max_stalled_count,
            priority_steps: self.priority_steps.take(),
            quarantine: self.quarantine.take(),
        }
    }
}

/// The heartbeat of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightTimes {
    /// How long a worker may be silent before it counts as dead.
    pub ttl: Duration,
    /// The interval of a worker's heartbeats.
    pub interval: Duration,
}

#[derive(Debug)]
struct InflightPlan {
    common: SystemSettings,
    access: Access,
    redis: RedisInflight,
    /// What is known of the foreign job system, if it is one.
    profile: Option<ProfileInfo>,
    times: InflightTimes,
    recovery: RecoveryPolicy,
    webhook: Option<DeliveryWebhook>,
}

impl SystemKind for InflightKind {
    fn kind(&self) -> Kind {
        Kind::Inflight
    }

    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError> {
        let mut given: InflightSection = section.read()?;
        let id = plan_id(section, Kind::Inflight, given.name.as_deref())?;
        let store = section.store(given.store.as_deref())?;
        given.mode.check(section, &store)?;
        let mut settings = Settings::default();
        let adopt = plan_adopt(section, given.adopt, given.mode, &mut settings)?;
        let (access, profile) = (given.mode, given.preset.and_then(LayoutPreset::foreign));
        let mut redis =
            given.layout().plan(section, section.is_exclusive(&store), &mut settings)?;
        let times = match &profile {
            Some(profile) => rescue_times(section, &given, profile, &mut settings),
            None => plan_times(section, &given, &mut settings)?,
        };
        if given.on_death == Some(OnDeathSetting::AsRq) {
            match &mut redis {
                RedisInflight::Rescue(layout) if layout.profile == "rq" => layout.as_system = true,
                _ => {
                    return Err(
                        section.wrong("on_death", "\"as-rq\" goes with preset = \"rq\" only")
                    );
                }
            }
        }
        if let Some(backoff) = given.on_death.as_ref().and_then(OnDeathSetting::backoff) {
            layout::delay(section, &mut redis, profile.as_ref(), backoff)?;
        }
        let mut recovery = plan_recovery(section, &given, &mut settings);
        let webhook = given.webhook.take();
        let webhook = given.delivery.plan(section, webhook, &redis, &mut settings)?;
        recovery.outbox = webhook.as_ref().map(|_| OUTBOX.clone());
        if recovery.move_to.is_some() && recovery.outbox.is_some() {
            return Err(section.wrong(
                "on_death",
                "names a queue, but `webhook` takes every job that would go there",
            ));
        }
        let upkeep = MaintenanceSections {
            sweep: given.sweep,
            pause: PauseAfter::AfterBatch,
            brake: given.brake,
            receipts: given.receipts,
            reconcile: given.reconcile,
            reconcile_usual: ReconcileUsual::default(),
            every_of_env: None,
        };
        let mut usual = default_policy(section.used_by(&store));
        if profile.is_some() {
            usual.every = RESCUE_EVERY;
        }
        let common = upkeep.plan(section, (id, store), times.ttl, usual, settings)?;
        let common = SystemSettings { adopt, ..common };
        let redis = layout::filled(redis, times, &recovery);
        Ok(Box::new(InflightPlan { common, access, redis, profile, times, recovery, webhook }))
    }

    fn routes(&self) -> OpenApiRouter<Shared> {
        routes::routes()
    }

    fn shown_tickets<'a>(
        &'a self,
        app: &'a Shared,
        request: &'a TicketRequest,
    ) -> BoxFuture<'a, Result<Vec<ShownTicket>, Problem>> {
        Box::pin(routes::tickets::shown(app, request))
    }

    fn words(&self) -> &'static KindWords {
        &words::WORDS
    }

    fn presets(&self) -> &'static [Preset] {
        presets::PRESETS
    }

    fn metrics(&self, _clock: &Arc<dyn Clock>) -> Option<Box<dyn KindMetrics>> {
        Some(Box::new(JobSeries::default()))
    }

    fn scrape<'a>(&'a self, metrics: &'a Metrics, systems: &'a OpenSystems) -> BoxFuture<'a, ()> {
        Box::pin(metrics::scrape(metrics, systems))
    }

    fn effect(&self, receipt: &Receipt) -> Option<String> {
        words::effect(receipt)
    }

    fn facts(&self, status: &SystemStatus) -> Vec<(&'static str, String)> {
        words::facts(status)
    }
}

/// Reads `heartbeat_ttl`, which the original application calls `orphan_threshold`, and the interval
/// of heartbeats.
fn plan_times(
    section: &Section<'_>,
    given: &InflightSection,
    settings: &mut Settings,
) -> Result<InflightTimes, ConfigError> {
    let original = "orphan_threshold";
    let heartbeat = Heartbeat {
        key: if section.line_of(original).is_some() { original } else { "heartbeat_ttl" },
        ttl: given.heartbeat_ttl,
        interval: given.heartbeat_interval,
        usual_ttl: Duration::from_millis(ORPHAN_THRESHOLD_MS),
        usual_interval: Duration::from_millis(HEARTBEAT_INTERVAL_MS),
    };
    let (ttl, interval) = heartbeat.plan(section, settings)?;
    Ok(InflightTimes { ttl, interval })
}

/// How often the workers of a foreign job system are looked at, unless the configuration says otherwise.
const RESCUE_EVERY: Duration = Duration::from_secs(3);

/// `heartbeat_ttl` is how long a worker may show no sign of life. The brake waits for as long as a living worker may need to
/// show itself again after the store was away.
fn rescue_times(
    section: &Section<'_>,
    given: &InflightSection,
    profile: &ProfileInfo,
    settings: &mut Settings,
) -> InflightTimes {
    let ms = Duration::from_millis;
    let limit = given.heartbeat_ttl.map(|span| span.0);
    let limit = settings.pick(section, "heartbeat_ttl", limit, ms(profile.limit_ms));
    InflightTimes { ttl: ms(profile.grace_ms).max(limit), interval: limit }
}

fn plan_recovery(
    section: &Section<'_>,
    given: &InflightSection,
    settings: &mut Settings,
) -> RecoveryPolicy {
    let usual = RecoveryPolicy::default();
    let ms = Duration::from_millis;
    let window = given.crash_window.map(|span| span.0);
    let window = settings.pick(section, "crash_window", window, ms(usual.crash_window_ms));
    let age = settings.pick(section, "max_age", given.max_age, Limit(ms(usual.age_max_ms)));
    let on_death = OnDeathSetting::Word(usual.on_death);
    let on_death = settings.pick(section, "on_death", given.on_death.clone(), on_death);
    let mut recovery = RecoveryPolicy {
        crashes_max: settings.pick(section, "crashes_max", given.crashes_max, usual.crashes_max),
        crash_window_ms: window.as_millis() as u64,
        age_max_ms: age.0.as_millis() as u64,
        ..usual
    };
    on_death.apply(&mut recovery);
    recovery
}

impl InflightPlan {
    fn spec(&self) -> InflightSpec {
        InflightSpec {
            ttl: self.times.ttl,
            beat_every: self.times.interval,
            recovery: self.recovery.clone(),
            redis: self.redis.clone(),
        }
    }

    fn rescue(&self) -> Option<&RescueLayout> {
        match &self.redis {
            RedisInflight::Rescue(layout) => Some(layout),
            _ => None,
        }
    }

    fn describe_heartbeat(&self) -> String {
        let InflightTimes { ttl, interval } = self.times;
        if let Some(profile) = &self.profile {
            let (title, limit) = (profile.title, show_span(interval));
            return match interval.is_zero() {
                true => format!("a job of {title} is an orphan as soon as its lock is gone"),
                false => format!(
                    "a worker of {title} is dead when it has shown no sign of life for {limit}"
                ),
            };
        }
        let (ttl, interval) = (show_span(ttl), show_span(interval));
        match self.access {
            Access::Native => format!(
                "workers beat every {interval} and are dead after {ttl} of silence, by the store's \
                 clock"
            ),
            Access::Adopt => format!(
                "the application beats for its jobs every {interval}; one without a beat for {ttl}, \
                 by the store's clock, is an orphan"
            ),
        }
    }

    fn describe_pass(&self) -> String {
        let policy = &self.common.policy;
        let becomes = match (&self.recovery.move_to, self.recovery.on_death) {
            _ if self.rescue().is_some_and(|layout| layout.as_system) => {
                "is retried if it has retries left, and fails otherwise, as RQ itself does,"
            }
            (Some(queue), _) => {
                &format!("is moved to the queue `{queue}`{}", self.describe_delay())
            }
            (None, _) if self.backoff().is_some() => {
                &format!("is back at the end of its queue{}", self.describe_delay())
            }
            (None, on_death) => on_death.outcome(),
        };
        if self.profile.is_some() {
            let (every, limit) = (policy.every, self.times.interval);
            return format!(
                "a pass every {}: what a dead worker held {becomes} at the latest {} after the worker's last sign of \
                 life has ended, give or take {} of jitter",
                show_span(every),
                show_span(limit + 2 * every),
                show_span(2 * every.mul_f64(policy.jitter))
            );
        }
        format!(
            "a pass every {}: what a dead worker held {becomes} at the latest {} after its last \
             beat, give or take {} of jitter",
            show_span(policy.every),
            show_span(self.times.ttl + policy.every),
            show_span(policy.every.mul_f64(policy.jitter))
        )
    }

    fn backoff(&self) -> Option<Backoff> {
        self.rescue().and_then(|layout| layout.backoff)
    }

    /// When a job of a dead worker may run again, if it must wait.
    fn describe_delay(&self) -> String {
        let span = |ms| show_span(Duration::from_millis(ms));
        match self.backoff() {
            None => String::new(),
            Some(Backoff { first_ms, max_ms }) => format!(
                ", after a delay of {} (twice as long with each further crash, at most {}),",
                span(first_ms),
                span(max_ms)
            ),
        }
    }

    fn describe_limits(&self) -> Vec<String> {
        let span = |ms| show_span(Duration::from_millis(ms));
        let RecoveryPolicy { crashes_max, crash_window_ms, age_max_ms, .. } = &self.recovery;
        let crashes = match crashes_max {
            0 => "a job is put back however many workers die with it".to_owned(),
            max => format!(
                "a job is a dead letter when {max} {} died with it within {}",
                if *max == 1 { "worker" } else { "workers" },
                span(*crash_window_ms)
            ),
        };
        let age = match age_max_ms {
            0 => "a job is put back however long its worker has been dead".to_owned(),
            age => {
                format!("a job whose worker has been dead for more than {} is one, too", span(*age))
            }
        };
        vec![crashes, age]
    }
}

impl SystemPlan for InflightPlan {
    fn common(&self) -> &SystemSettings {
        &self.common
    }

    fn describe_brake(&self) -> String {
        match self.access {
            Access::Native => describe_brake_of_owners(&self.common),
            Access::Adopt if self.profile.is_some_and(|profile| profile.shows_workers) => {
                describe_brake_of_owners(&self.common)
            }
            Access::Adopt => describe_brake_of_entries(&self.common, "jobs in flight"),
        }
    }

    fn describe(&self) -> Vec<String> {
        let mut plan = vec![self.describe_heartbeat(), self.describe_pass()];
        if matches!(self.recovery.on_death, OnDeath::Front | OnDeath::Back) {
            plan.extend(self.describe_limits());
        }
        plan.extend(layout::describe(&self.redis, self.profile.as_ref()));
        plan.extend(self.webhook.as_ref().map(DeliveryWebhook::describe));
        plan
    }

    /// Queues may be shared, and in native mode the other keys contain the name of the system.
    fn claimed_names(&self) -> Vec<ClaimedName> {
        let RedisInflight::Adopt(adopted) = &self.redis else { return Vec::new() };
        let names = [
            ("index_key", adopted.index_key.clone()),
            ("jobs_key", adopted.jobs_key.clone()),
            ("gc_lock_key", adopted.gc_lock_key.clone()),
        ];
        ClaimedName::list(&self.common.store, &names)
    }

    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let id = self.common.id.clone();
        let inflight = context.assembly.inflight(context.store, id, self.spec())?;
        Ok(BuiltSystem { system: inflight.clone(), operations: inflight, store: None })
    }

    fn hooks(&self) -> &'static dyn LiveHooks {
        &InflightHooks
    }

    fn background_task(
        &self,
        live: &LiveSystem,
        stop: StopSignal,
    ) -> Option<BoxFuture<'static, ()>> {
        let webhook = self.webhook.clone()?;
        let inflight = live.share_operations::<Inflight>()?;
        Some(Box::pin(outbox::run(self.common.id.clone(), inflight, webhook, stop)))
    }
}

struct InflightHooks;

impl LiveHooks for InflightHooks {
    fn fill_counts<'a>(
        &'a self,
        live: &'a LiveSystem,
        status: &'a mut SystemStatus,
    ) -> BoxFuture<'a, lapsed_core::Result<()>> {
        Box::pin(async move {
            if let Some(inflight) = live.operations::<Inflight>() {
                status.jobs = Some(inflight.counts().await?);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
