//! The kind `leases`: how its section of the configuration is read, and how a system of it is
//! built.

pub mod metrics;
mod presets;
pub mod routes;
mod words;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed::leases::{LeasesSpec, default_policy};
use lapsed_core::Kind;
use lapsed_core::clock::Clock;
use lapsed_core::leases::{DECISION_TTL_MS, FORGET_AFTER_MS, TTL_MS, TTL_MS_MAX, TTL_MS_MIN};
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::policy::SweepMode;
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use self::metrics::LeaseSeries;
use super::words::KindWords;
use super::{Preset, ShownTicket, SystemKind, TicketRequest};
use crate::config::ConfigError;
use crate::config::common::{
    BrakeSection, MaintenanceSections, ReceiptsSection, ReconcileSection, ReconcileSettings,
    ReconcileUsual, Section, SystemSettings, plan_id,
};
use crate::config::origin::Settings;
use crate::config::store::StoreUse;
use crate::config::sweep::{PauseAfter, SectionSweepKeys, SweepSection};
use crate::config::units::{Every, Span, show_span};
use crate::http::Shared;
use crate::http::problem::Problem;
use crate::metrics::KindMetrics;
use crate::node::{BuildContext, BuiltSystem, SystemPlan};

/// The time span of one bucket of the index: the default, the smallest and the largest.
const BUCKET: Duration = Duration::from_secs(3_600);
const BUCKET_MIN: Duration = Duration::from_secs(60);
const BUCKET_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The shortest and the longest time for which a key is kept that nobody uses.
const FORGET_AFTER: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3_650 * 24 * 3_600);

/// Systems of leases on keys, and of decisions on transactions.
pub struct LeasesKind;

/// The `[[system]]` section in the file. Four keys of the `sweep` table may also be written
/// directly in this section, under the names that the original application uses.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LeasesSection {
    #[serde(rename = "kind")]
    _kind: Option<Kind>,
    name: Option<String>,
    store: Option<String>,
    ttl: Option<Span>,
    decision_ttl: Option<Span>,
    forget_after: Option<Every>,
    bucket: Option<Span>,
    idle_grace: Option<Span>,
    op_delay: Option<Span>,
    max_ops_per_run: Option<u64>,
    max_runtime_per_run: Option<Span>,
    sweep: SweepSection,
    brake: BrakeSection,
    receipts: ReceiptsSection,
    reconcile: ReconcileSection,
}

impl LeasesSection {
    fn section_sweep_keys(&mut self) -> SectionSweepKeys {
        SectionSweepKeys {
            idle_grace: self.idle_grace.take(),
            op_delay: self.op_delay.take(),
            max_ops_per_run: self.max_ops_per_run.take(),
            max_runtime_per_run: self.max_runtime_per_run.take(),
        }
    }
}

/// Durations of a system of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasesTimes {
    /// How long a lease lasts, unless the request says otherwise.
    pub ttl: Duration,
    /// How long a decision is kept, unless the request says otherwise.
    pub decision_ttl: Duration,
    /// The time span of one bucket of the index; `None` on a store whose index has no buckets.
    pub bucket: Option<Duration>,
    /// How long a key is kept that nobody uses; `None`: for ever.
    pub forget_after: Option<Duration>,
}

#[derive(Debug)]
struct LeasesPlan {
    common: SystemSettings,
    times: LeasesTimes,
}

impl SystemKind for LeasesKind {
    fn kind(&self) -> Kind {
        Kind::Leases
    }

    fn plan(&self, section: &Section<'_>) -> Result<Box<dyn SystemPlan>, ConfigError> {
        let mut given: LeasesSection = section.read()?;
        let id = plan_id(section, Kind::Leases, given.name.as_deref())?;
        let store = section.store(given.store.as_deref())?;
        let mut settings = Settings::default();
        let times = plan_times(section, &given, section.used_by(&store), &mut settings)?;
        let beside = given.section_sweep_keys();
        let upkeep = MaintenanceSections {
            sweep: given.sweep.with(beside, section)?,
            pause: PauseAfter::AfterEntry,
            brake: given.brake,
            receipts: given.receipts,
            reconcile: given.reconcile,
            reconcile_usual: ReconcileUsual::on(section.used_by(&store)),
            every_of_env: None,
        };
        let usual = default_policy(section.used_by(&store));
        let common = upkeep.plan(section, (id, store), times.ttl, usual, settings)?;
        Ok(Box::new(LeasesPlan { common, times }))
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

    fn former_presets(&self) -> &'static [(&'static str, &'static str)] {
        presets::FORMER
    }

    fn metrics(&self, _clock: &Arc<dyn Clock>) -> Option<Box<dyn KindMetrics>> {
        Some(Box::new(LeaseSeries::default()))
    }

    fn effect(&self, receipt: &Receipt) -> Option<String> {
        words::effect(receipt)
    }

    fn restored(&self, key: &str, owner: &str, incarnation: u64) -> String {
        words::restored(key, owner, incarnation)
    }
}

fn plan_times(
    section: &Section<'_>,
    given: &LeasesSection,
    used_by: StoreUse,
    settings: &mut Settings,
) -> Result<LeasesTimes, ConfigError> {
    let ms = Duration::from_millis;
    let lasting = (ms(TTL_MS_MIN), ms(TTL_MS_MAX));
    let mut pick = |key: &str, given: Option<Span>, usual, (min, max)| {
        let span = settings.pick(section, key, given.map(|span| span.0), usual);
        if (min..=max).contains(&span) {
            return Ok(span);
        }
        let (min, max) = (show_span(min), show_span(max));
        Err(section.wrong(key, &format!("{} must be {min} to {max}", show_span(span))))
    };
    let ttl = pick("ttl", given.ttl, ms(TTL_MS), lasting)?;
    let decision_ttl = pick("decision_ttl", given.decision_ttl, ms(DECISION_TTL_MS), lasting)?;
    let bucket = match (used_by, given.bucket) {
        (StoreUse::PaidByRequest, bucket) => {
            Some(pick("bucket", bucket, BUCKET, (BUCKET_MIN, BUCKET_MAX))?)
        }
        (_, None) => None,
        (_, Some(_)) => {
            let what = "this store has no buckets: its index is exact; leave it out";
            return Err(section.wrong("bucket", what));
        }
    };
    let usual = Every(Some(ms(FORGET_AFTER_MS)));
    let forget_after = settings.pick(section, "forget_after", given.forget_after, usual).0;
    if forget_after.is_some_and(|after| !FORGET_AFTER.contains(&after)) {
        let (min, max) = (show_span(*FORGET_AFTER.start()), show_span(*FORGET_AFTER.end()));
        return Err(section.wrong("forget_after", &format!("must be {min} to {max}, or `off`")));
    }
    Ok(LeasesTimes { ttl, decision_ttl, bucket, forget_after })
}

impl LeasesPlan {
    fn spec(&self) -> LeasesSpec {
        let LeasesTimes { ttl, decision_ttl, bucket, forget_after } = self.times;
        LeasesSpec { bucket, forget_after, ..LeasesSpec::new(ttl, decision_ttl) }
    }

    fn describe_idle(&self) -> String {
        let every = show_span(self.common.policy.every);
        match self.common.policy.idle_grace {
            Some(idle) => format!(
                "an operation on a key clears an expired lease first; a pass every {every} clears the \
                 others, once nobody has used the leases for {}",
                show_span(idle)
            ),
            None => format!(
                "an operation on a key clears an expired lease first; a pass every {every} clears the \
                 others"
            ),
        }
    }

    fn describe_forgetting(&self) -> String {
        match self.times.forget_after {
            Some(after) => format!(
                "forgets unused keys: {} after the deadline of the last lease, unless the \
                 key has a state; its tokens do not start again",
                show_span(after)
            ),
            None => "forgets unused keys: never".to_owned(),
        }
    }

    fn describe_reconcile(&self) -> String {
        let ReconcileSettings { every, requests_per_hour } = self.common.reconcile;
        let Some(every) = every else {
            return "compares index and records: off (`lapsed reconcile` does it once)".to_owned();
        };
        let who = match self.common.policy.mode {
            SweepMode::Leader => ", by the leader",
            _ => "",
        };
        let idle = self.common.policy.idle_grace.map_or("", |_| ", while the leases are not used");
        format!(
            "compares index and records: every {}{who}{idle}, with at most {requests_per_hour} \
             requests per hour of its own",
            show_span(every)
        )
    }

    fn describe_bounds(&self) -> Option<String> {
        let policy = &self.common.policy;
        let ops = policy.max_ops.map(|ops| format!("{ops} entries"));
        let runtime = policy.max_runtime.map(show_span);
        let most: Vec<String> = [ops, runtime].into_iter().flatten().collect();
        let pause = match policy.entry_delay.is_zero() {
            true => String::new(),
            false => format!(", and rests {} for each", show_span(policy.entry_delay)),
        };
        match most.is_empty() && pause.is_empty() {
            true => None,
            false => Some(format!("a pass does at most {}{pause}", most.join(" or "))),
        }
    }
}

impl SystemPlan for LeasesPlan {
    fn common(&self) -> &SystemSettings {
        &self.common
    }

    fn describe(&self) -> Vec<String> {
        let LeasesTimes { ttl, decision_ttl, bucket, .. } = self.times;
        let mut plan = vec![
            format!(
                "a lease lasts {} from each renewal unless a request sets another TTL, by the store's clock; a decision is \
                 kept for {}",
                show_span(ttl),
                show_span(decision_ttl)
            ),
            self.describe_idle(),
        ];
        plan.extend(self.describe_bounds());
        plan.extend(bucket.map(|bucket| {
            format!(
                "the index has a bucket for every {} of UTC, and only those that are over are swept",
                show_span(bucket)
            )
        }));
        plan.extend(bucket.map(|_| {
            "records are in lapsed's own format: lockd, and any other program, can neither read nor \
             write them, so use a prefix that is lapsed's alone"
                .to_owned()
        }));
        plan.push(self.describe_forgetting());
        plan.extend(bucket.map(|_| self.describe_reconcile()));
        plan
    }

    fn describe_brake(&self) -> String {
        let away = match self.times.bucket {
            None => "after the store was away every lease has a whole TTL again",
            // No process can know for how long an object store was unreachable for the holders.
            Some(_) => {
                "a lease is over at its deadline, whether or not its holder reached the store"
            }
        };
        format!("the brake holds when the operator says so; {away}")
    }

    fn build(&self, context: BuildContext<'_>) -> lapsed_core::Result<BuiltSystem> {
        let leases = context.assembly.leases(context.store, self.common.id.clone(), self.spec())?;
        Ok(BuiltSystem { system: leases.clone(), operations: leases, store: None })
    }
}

#[cfg(test)]
mod tests;
