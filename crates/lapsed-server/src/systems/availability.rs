//! The kind `availability`: how its section of the configuration is read, and how a system of it is
//! built.
//!
//! Every fact about providers is in the truth (tables or a folder). Reads are answered from the
//! mirror, a copy of it that is faster.

mod change_follower;
pub mod layout;
pub mod metrics;
mod notes;
mod presets;
pub mod routes;
mod section;
mod words;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed::availability::{AvailabilitySpec, ChangeSources, default_policy};
use lapsed_availability::Availability;
use lapsed_availability::rules::AvailabilitySettings as Rules;
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::schedule::StopSignal;
use lapsed_core::sweep::policy::SweepMode;
use utoipa_axum::router::OpenApiRouter;

use self::change_follower::ChangeFollower;
use self::layout::{MirrorLayout, Tables};
use self::metrics::AvailabilitySeries;
pub use self::section::TruthLayout;
use self::section::{
    AvailabilitySection, Times, of_env, plan_mirror, plan_store, plan_times, plan_truth,
};
use super::words::KindWords;
use super::{Preset, SystemKind};
use crate::config::ConfigError;
use crate::config::common::{
    MaintenanceSections, ReconcileUsual, Section, SystemSettings, plan_id,
};
use crate::config::origin::Settings;
use crate::config::store::StoreConfig;
use crate::config::sweep::PauseAfter;
use crate::config::units::show_span;
use crate::http::Shared;
use crate::metrics::{KindMetrics, Metrics};
use crate::node::plan::describe_end;
use crate::node::shapes::{AvailabilityStatus, SystemStatus};
use crate::node::{
    BuildContext, BuiltSystem, ClaimedName, LiveHooks, LiveSystem, OpenSystems, OpenedFor,
    SystemPlan,
};
use crate::stores::OpenStore;

/// Environment variables of the application that this kind is modelled on. They take precedence
/// over `sweep.every` and `reconcile.every`.
pub const SWEEP_ENV: &str = "MITRA_AUTO_OFFLINE_SWEEP_SECONDS";
pub const RECONCILE_ENV: &str = "VALKEY_ONLINE_MIRROR_SWEEP_SECONDS";

/// The default interval of comparing the mirror with the truth.
const RECONCILE_EVERY: Duration = Duration::from_secs(300);

/// The longest time that the daemon waits at its start for the mirror to be filled. After that it
/// serves reads from the truth until the mirror is filled.
const SEED_WAIT: Duration = Duration::from_secs(10);

/// Systems of providers that take work: who is online, and who has capacity now.
pub struct AvailabilityKind;

/// One system, and the sources of notifications about changes in its stores.
pub struct AvailabilityOperations {
    /// The operations on providers and their sessions.
    pub system: Arc<Availability>,
    sources: Option<ChangeSources>,
}

#[derive(Debug)]
struct AvailabilityPlan {
    common: SystemSettings,
    times: Times,
    truth: TruthLayout,
}

impl SystemKind for AvailabilityKind {
    fn kind(&self) -> Kind {
        Kind::Availability
    }

    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError> {
        let mut given: AvailabilitySection = section.read()?;
        let id = plan_id(section, Kind::Availability, given.name.as_deref())?;
        let store = plan_store(section, &given)?;
        let mirror = plan_mirror(section, &store, given.mirror.as_deref())?;
        let mut settings = Settings::default();
        let truth = plan_truth(section, &mirror, &mut given, &mut settings)?;
        let times = plan_times(section, &given, &mut settings)?;
        let upkeep = MaintenanceSections {
            sweep: given.sweep,
            pause: PauseAfter::AfterBatch,
            brake: given.brake,
            receipts: given.receipts,
            reconcile: given.reconcile,
            reconcile_usual: ReconcileUsual {
                every: Some(RECONCILE_EVERY),
                of_env: of_env(section, RECONCILE_ENV)?,
                ..ReconcileUsual::default()
            },
            every_of_env: of_env(section, SWEEP_ENV)?,
        };
        let silence = Duration::from_millis(Rules::default().stale_ms());
        let usual = default_policy(section.used_by(&store));
        let common = upkeep.plan(section, (id, store), silence, usual, settings)?;
        let common = SystemSettings { mirror, ..common };
        Ok(Box::new(AvailabilityPlan { common, times, truth }))
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
        Some(Box::new(AvailabilitySeries::default()))
    }

    fn scrape<'a>(&'a self, metrics: &'a Metrics, systems: &'a OpenSystems) -> BoxFuture<'a, ()> {
        Box::pin(metrics::scrape(metrics, systems))
    }

    fn facts(&self, status: &SystemStatus) -> Vec<(&'static str, String)> {
        words::facts(status)
    }

    fn store_notes<'a>(
        &'a self,
        plans: &'a [Box<dyn SystemPlan>],
        store: &'a StoreConfig,
        opened: &'a OpenStore,
    ) -> BoxFuture<'a, lapsed_core::Result<Vec<String>>> {
        Box::pin(notes::of(plans, store, opened))
    }
}

impl AvailabilityPlan {
    fn spec(&self) -> AvailabilitySpec {
        let mut spec = AvailabilitySpec {
            mirror_timeout: self.times.mirror_timeout,
            breaker: self.times.breaker,
            snapshot_ttl: self.times.snapshot_ttl,
            ..AvailabilitySpec::new(self.common.threshold)
        };
        if let TruthLayout::Postgres { tables, keys } = &self.truth {
            (spec.tables, spec.keys) = ((**tables).clone(), (**keys).clone());
        }
        spec
    }

    fn describe_stores(&self) -> String {
        match &self.truth {
            TruthLayout::Embedded => {
                "every fact is in the folder; reads are answered from the mirror in this process's memory"
                    .to_owned()
            }
            TruthLayout::Postgres { keys, .. } => format!(
                "every fact is in Postgres; reads are answered from `{}` and the keys beside it, or from \
                 Postgres when that takes longer than {}",
                keys.online_key,
                show_span(self.times.mirror_timeout)
            ),
        }
    }

    fn describe_pass(&self) -> String {
        let policy = &self.common.policy;
        let who = match policy.mode {
            SweepMode::Leader => "the leader",
            _ => "every daemon",
        };
        format!(
            "{who} checks every {} for providers that have been silent for `stale_after_seconds` of the \
             configuration table, and sets them offline; give or take {} of jitter",
            show_span(policy.every),
            show_span(policy.every.mul_f64(policy.jitter))
        )
    }

    fn describe_upkeep(&self) -> String {
        let beats = show_span(self.times.beats_every);
        match self.common.reconcile.every {
            Some(every) => format!(
                "beats are written down every {beats}; mirror and truth are compared every {}",
                show_span(every)
            ),
            None => format!(
                "beats are written down every {beats}; mirror and truth are compared only by command"
            ),
        }
    }
}

impl SystemPlan for AvailabilityPlan {
    fn common(&self) -> &SystemSettings {
        &self.common
    }

    fn describe(&self) -> Vec<String> {
        vec![
            self.describe_stores(),
            self.describe_pass(),
            self.describe_upkeep(),
            format!(
                "the beacon's snapshot lasts {}; a mirror that failed {} times in a row is left alone \
                 for {}",
                show_span(self.times.snapshot_ttl),
                self.times.breaker.failures,
                show_span(self.times.breaker.rest)
            ),
        ]
    }

    fn describe_brake(&self) -> String {
        let SystemSettings { brake, .. } = self.common();
        format!(
            "the brake holds when more than {:.0} % of at least {} providers would be set offline at \
             once (of fewer, from three on: all but one), and for `stale_after_seconds` after the \
             mirror was away; {}",
            brake.share * 100.0,
            brake.min_owners,
            describe_end(brake)
        )
    }

    fn hooks(&self) -> &'static dyn LiveHooks {
        &AvailabilityHooks
    }

    fn claimed_names(&self) -> Vec<ClaimedName> {
        let TruthLayout::Postgres { tables, keys } = &self.truth else { return Vec::new() };
        let status = [("tables.status.table", tables.status.table.clone())];
        let mut names = ClaimedName::list(&self.common.store, &status);
        if let Some(mirror) = &self.common.mirror {
            names.extend(ClaimedName::list(mirror, &keys.names()));
        }
        names
    }

    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let (store, mirror, id) = (context.store, context.mirror, self.common.id.clone());
        let assembled = context.assembly.availability(store, mirror, id, self.spec())?;
        let (availability, sources) = (assembled.system, assembled.changes);
        let store = Some(availability.services());
        let operations = Arc::new(AvailabilityOperations { system: availability.clone(), sources });
        Ok(BuiltSystem { system: availability, operations, store })
    }

    /// Fills the mirror before the system is used. For a single command this is only done if the
    /// mirror is in this process's memory, because no other process can fill it; a mirror on a
    /// server is left as it is, so that the command shows its real state.
    fn prepare(&self, live: &LiveSystem, for_what: OpenedFor) -> Option<BoxFuture<'static, ()>> {
        if for_what == OpenedFor::Command && self.truth != TruthLayout::Embedded {
            return None;
        }
        let availability = live.operations::<AvailabilityOperations>()?.system.clone();
        let id = self.common.id.clone();
        Some(Box::pin(async move {
            let seeded = tokio::time::timeout(SEED_WAIT, availability.ensure_seeded()).await;
            let why = match seeded {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("it takes longer than {}", show_span(SEED_WAIT)),
            };
            tracing::warn!(system = %id, why, "the mirror is not seeded yet; serving from the truth");
        }))
    }

    /// Keeps the mirror filled and up to date, and writes heartbeats to the truth regularly. They
    /// are written once more at the end, so that as few as possible are lost with a mirror that is
    /// in this process's memory.
    fn background_task(
        &self,
        live: &LiveSystem,
        stop: StopSignal,
    ) -> Option<BoxFuture<'static, ()>> {
        let AvailabilityOperations { system: availability, sources } =
            live.operations::<AvailabilityOperations>()?;
        let (availability, sources) = (availability.clone(), sources.clone());
        let sweeper = live.sweeper().clone();
        let follower = ChangeFollower {
            availability: availability.clone(),
            sweeper: sweeper.clone(),
            reconciler: live.reconciler().ok().cloned(),
        };
        let every = self.times.beats_every;
        let id = self.common.id.clone();
        Some(Box::pin(async move {
            let leads = || sweeper.leads() != Some(false);
            let beats = availability.mirror_beats_every(every, &stop, leads);
            let following = async {
                if let Some(sources) = sources {
                    follower.listen(sources, stop.clone()).await;
                }
            };
            futures::future::join3(availability.watch(&stop), beats, following).await;
            if let Err(error) = availability.mirror_beats().await {
                tracing::warn!(system = %id, %error, "the last heartbeats were not written to the truth");
            }
        }))
    }
}

/// The application's tables that a system of availability in Postgres uses; `None` for other plans.
pub fn tables(plan: &dyn SystemPlan) -> Option<&Tables> {
    match &planned(plan)?.truth {
        TruthLayout::Embedded => None,
        TruthLayout::Postgres { tables, .. } => Some(tables),
    }
}

/// The keys of a mirror on Redis; `None` for a mirror in memory and for other plans.
fn mirror_keys(plan: &dyn SystemPlan) -> Option<&MirrorLayout> {
    match &planned(plan)?.truth {
        TruthLayout::Postgres { keys, .. } => Some(keys),
        TruthLayout::Embedded => None,
    }
}

/// Whether the mirror notifies the daemon as soon as a provider falls silent.
fn is_instant(plan: &dyn SystemPlan) -> bool {
    let truth = planned(plan).map(|plan| &plan.truth);
    matches!(truth, Some(TruthLayout::Postgres { keys, .. }) if keys.instant)
}

fn planned(plan: &dyn SystemPlan) -> Option<&AvailabilityPlan> {
    (plan as &dyn Any).downcast_ref()
}

struct AvailabilityHooks;

impl LiveHooks for AvailabilityHooks {
    fn fill_status<'a>(
        &'a self,
        live: &'a LiveSystem,
        status: &'a mut SystemStatus,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(AvailabilityOperations { system, .. }) = live.operations() else { return };
            let mirror = live.mirror_name().map(str::to_owned);
            let settings = system.settings_now().await.ok();
            if let Some(settings) = &settings {
                status.threshold_ms = settings.stale_ms();
            }
            let summary = system.summary().await;
            status.availability = Some(AvailabilityStatus::of(summary, mirror, settings));
        })
    }

    /// Fills the mirror if it is empty. Without a daemon no other process does, and a pass sets no provider
    /// offline on the basis of an empty mirror.
    fn before_pass<'a>(&'a self, live: &'a LiveSystem) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(AvailabilityOperations { system, .. }) = live.operations() {
                let _ = system.ensure_seeded().await;
            }
        })
    }
}

#[cfg(test)]
mod tests;
