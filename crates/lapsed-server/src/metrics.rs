//! Metrics: the series that every system has, and those of single kinds under the names that the
//! original applications use. Counters count what the store has confirmed; gauges are read from the
//! store at every scrape.

mod drift;
mod events;
pub mod labels;
mod requests;
mod standing;
mod webhooks;

use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::clock::Clock;
use lapsed_core::receipt::{Observer, Reason, Receipt};
use lapsed_core::reconcile::{ReconcileEnd, ReconcileReport, Reconciled};
use lapsed_core::sweep::brake::{BrakeSetting, BrakeVerdict, HeldBy};
use lapsed_core::sweep::{Census, PassMode, PassReport, Stopped};
use lapsed_core::{Error, Kind, Name, SystemId};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use drift::ReconcileSeries;
pub use events::EventSeries;
use labels::{ByCause, ByError, ByReason, ByState, ByStopped, OfSystem};
pub use requests::Requests;
use standing::StandingSeries;
pub use webhooks::WebhookSeries;
use webhooks::WebhooksSeries;

/// The content type of what [`Metrics::encode`] writes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Histograms = Family<OfSystem, Histogram, fn() -> Histogram>;

/// All metric series of this process.
pub struct Metrics {
    registry: Mutex<Registry>,
    reclaimed: Family<ByReason, Counter>,
    suspects: Family<OfSystem, Gauge>,
    oldest_seconds: Family<OfSystem, Gauge<f64, AtomicU64>>,
    population: Family<OfSystem, Gauge>,
    owners: Family<ByState, Gauge>,
    lag_seconds: Histograms,
    pass_seconds: Histograms,
    passes: Family<ByStopped, Counter>,
    brake: Family<OfSystem, Gauge<f64, AtomicU64>>,
    brake_held: Family<ByCause, Gauge>,
    zombies: Family<OfSystem, Counter>,
    store_errors: Family<ByError, Counter>,
    standing: StandingSeries,
    drift: ReconcileSeries,
    requests: Requests,
    events: EventSeries,
    webhooks: WebhooksSeries,
    own: Vec<(Kind, Box<dyn KindMetrics>)>,
}

/// The series that only one kind of system has. They count what happened to systems of that kind only.
pub trait KindMetrics: Any + Send + Sync {
    /// Registers series that exist even if there is no system of this kind.
    fn register(&self, _to: &mut Registry) {}

    /// Makes the series of one system appear with the value zero, and registers series that only
    /// exist once there is a system of this kind. The encoder appends `_total` to the names of
    /// counters.
    fn introduce(&self, _of: &OfSystem, _to: &mut Registry) {}

    /// Makes the series of one owner appear with the value zero, if there is one per owner.
    fn owner_started(&self, _owner: &Name) {}

    /// Counts an entry that a pass reclaimed.
    fn reclaimed(&self, _of: &OfSystem, _receipt: &Receipt) {}

    /// Counts an expired entry that an operation found and cleared.
    fn cleared(&self, _of: &OfSystem, _reason: Reason) {}

    /// Counts a pass that ended; dry runs are not counted.
    fn passed(&self, _report: &PassReport) {}

    /// Counts one page of an index that was compared with the truth.
    fn healed(&self, _page: &Reconciled) {}
}

const STOPPED: &[Stopped] = &[
    Stopped::Done,
    Stopped::Ops,
    Stopped::Runtime,
    Stopped::Activity,
    Stopped::Brake,
    Stopped::Error,
];

/// Buckets from 10 ms to 8 h, the range of times that an overdue entry may wait for its reclaim.
fn lag_histogram() -> Histogram {
    Histogram::new([
        0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 28800.0,
    ])
}

fn pass_histogram() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0])
}

impl Metrics {
    /// All series at zero; `own` holds the series of the kinds of system.
    pub fn new(clock: Arc<dyn Clock>, own: Vec<(Kind, Box<dyn KindMetrics>)>) -> Metrics {
        let metrics = Metrics {
            registry: Mutex::default(),
            reclaimed: Family::default(),
            suspects: Family::default(),
            oldest_seconds: Family::default(),
            population: Family::default(),
            owners: Family::default(),
            lag_seconds: Family::new_with_constructor(lag_histogram),
            pass_seconds: Family::new_with_constructor(pass_histogram),
            passes: Family::default(),
            brake: Family::default(),
            brake_held: Family::default(),
            zombies: Family::default(),
            store_errors: Family::default(),
            standing: StandingSeries::default(),
            drift: ReconcileSeries::default(),
            requests: Requests::default(),
            events: EventSeries::default(),
            webhooks: WebhooksSeries::default(),
            own,
        };
        metrics.register();
        metrics.standing.register(&mut metrics.lock(), clock.wall_ms());
        metrics
    }

    /// Registers the series that every system has. The encoder appends `_total` to the names of
    /// counters.
    fn register(&self) {
        let mut registry = self.lock();
        let to = &mut *registry;
        to.register("lapsed_reclaimed", "Entries reclaimed, by reason", self.reclaimed.clone());
        to.register(
            "lapsed_suspects",
            "Entries of owners that are overdue or have ended",
            self.suspects.clone(),
        );
        let help = "How long the longest overdue suspect is past its deadline";
        to.register("lapsed_oldest_suspect_seconds", help, self.oldest_seconds.clone());
        to.register("lapsed_population", "Entries there are", self.population.clone());
        to.register("lapsed_owners", "Owners, by state", self.owners.clone());
        let help = "From an owner's deadline to the reclaim of what it held";
        to.register("lapsed_reclaim_lag_seconds", help, self.lag_seconds.clone());
        to.register(
            "lapsed_pass_duration_seconds",
            "How long passes took",
            self.pass_seconds.clone(),
        );
        to.register("lapsed_pass", "Passes, by why they stopped", self.passes.clone());
        to.register("lapsed_brake", "0 open, 0.5 opening in steps, 1 held", self.brake.clone());
        let help = "Whether the brake is held, by cause";
        to.register("lapsed_brake_held", help, self.brake_held.clone());
        let help = "Calls rejected because their owner had been declared dead";
        to.register("lapsed_zombie_rejected", help, self.zombies.clone());
        to.register(
            "lapsed_store_errors",
            "Failed store calls, by kind of error",
            self.store_errors.clone(),
        );
        self.drift.register(to);
        self.events.register(to);
        self.own.iter().for_each(|(_, own)| own.register(to));
    }

    /// Makes the series of a system appear with the value zero, so that a rate can be computed from
    /// the first event on.
    pub fn introduce(&self, system: &SystemId) {
        let of = OfSystem::of(system);
        for reason in Reason::ALL {
            drop(self.reclaimed.get_or_create(&of.by_reason(*reason)));
        }
        for stopped in STOPPED {
            drop(self.passes.get_or_create(&of.by_stopped(*stopped)));
        }
        for error in ["unavailable", "throttled", "corrupt", "invalid", "unsupported"] {
            drop(self.store_errors.get_or_create(&of.by_error(error)));
        }
        drop(self.lag_seconds.get_or_create(&of));
        drop(self.pass_seconds.get_or_create(&of));
        drop(self.zombies.get_or_create(&of));
        if let Some(own) = self.own(system.kind) {
            own.introduce(&of, &mut self.lock());
        }
    }

    /// Makes the series of an owner that has started appear with the value zero.
    pub fn owner_started(&self, kind: Kind, owner: &Name) {
        if let Some(own) = self.own(kind) {
            own.owner_started(owner);
        }
    }

    fn own(&self, kind: Kind) -> Option<&dyn KindMetrics> {
        self.own.iter().find(|(of, _)| *of == kind).map(|(_, own)| &**own)
    }

    /// The series of one kind, found by their type.
    pub fn of<T: KindMetrics>(&self) -> Option<&T> {
        self.own.iter().find_map(|(_, own)| (&**own as &dyn Any).downcast_ref())
    }

    /// Makes the series of reconciliation appear at zero, for a system that has an index.
    pub fn introduce_index(&self, system: &SystemId) {
        self.drift.introduce(&OfSystem::of(system));
    }

    /// Sets the gauges of one system to the current values.
    pub fn gauge(&self, system: &SystemId, census: &Census, verdict: &BrakeVerdict) {
        let of = OfSystem::of(system);
        self.suspects.get_or_create(&of).set(census.suspects as i64);
        let oldest = Duration::from_millis(census.oldest_late_ms);
        self.oldest_seconds.get_or_create(&of).set(oldest.as_secs_f64());
        self.population.get_or_create(&of).set(census.population as i64);
        let brake = match verdict.state() {
            "open" => 0.0,
            "opening" => 0.5,
            _ => 1.0,
        };
        self.brake.get_or_create(&of).set(brake);
        for cause in HeldBy::ALL {
            let is_held = verdict.held_by() == Some(cause);
            self.brake_held.get_or_create(&of.by_cause(cause)).set(i64::from(is_held));
        }
        for (state, count) in [
            ("live", census.owners_live),
            ("overdue", census.owners_overdue),
            ("died_recently", census.owners_died_recently),
        ] {
            self.owners.get_or_create(&of.by_state(state)).set(count as i64);
        }
    }

    /// Records whether the store of a system answered during a scrape, and how long it took.
    pub fn store_answered(&self, system: &SystemId, answers: bool, took: Duration) {
        self.standing.store(&OfSystem::of(system), answers, took);
    }

    /// Records the operator's setting of the brake, and whether this process leads; `None` outside
    /// leader mode.
    pub fn stand(&self, system: &SystemId, brake: BrakeSetting, leads: Option<bool>) {
        let of = OfSystem::of(system);
        self.standing.brake(&of, brake);
        self.standing.lead(&of, leads);
    }

    /// Makes the series of an object store appear at zero.
    pub fn introduce_store(&self, store: &str) {
        self.requests.introduce(store, &mut self.lock());
    }

    /// The series of requests to object stores, where each request costs money.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// The series of the event feed.
    pub fn events(&self) -> &EventSeries {
        &self.events
    }

    /// Makes the series of a webhook appear at zero, and returns them.
    pub fn introduce_webhook(&self, webhook: &Name) -> WebhookSeries {
        self.webhooks.introduce(webhook, &mut self.lock());
        self.webhooks.of(webhook)
    }

    /// Encodes all series in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.lock()).expect("writing to a string cannot fail");
        text
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.registry.lock().expect("no holder of the metrics' lock panics")
    }
}

impl Observer for Metrics {
    fn reclaimed(&self, receipt: &Receipt) {
        let of = OfSystem::of(&receipt.id.system);
        self.reclaimed.get_or_create(&of.by_reason(receipt.reason)).inc();
        if receipt.reason != Reason::OwnerRetired {
            let late = Duration::from_millis(receipt.evidence.late_ms);
            self.lag_seconds.get_or_create(&of).observe(late.as_secs_f64());
        }
        if let Some(own) = self.own(receipt.id.system.kind) {
            own.reclaimed(&of, receipt);
        }
    }

    fn cleared(&self, system: &SystemId, reason: Reason, late_ms: u64) {
        let of = OfSystem::of(system);
        self.reclaimed.get_or_create(&of.by_reason(reason)).inc();
        let late = Duration::from_millis(late_ms);
        self.lag_seconds.get_or_create(&of).observe(late.as_secs_f64());
        if let Some(own) = self.own(system.kind) {
            own.cleared(&of, reason);
        }
    }

    fn passed(&self, report: &PassReport) {
        if report.dry_run || !report.has_begun() {
            return;
        }
        let of = OfSystem { system: report.system.clone(), kind: report.kind.as_str() };
        self.passes.get_or_create(&of.by_stopped(report.stopped)).inc();
        self.pass_seconds.get_or_create(&of).observe(report.took_ms as f64 / 1e3);
        if let Some(own) = self.own(report.kind) {
            own.passed(report);
        }
    }

    fn zombie_rejected(&self, system: &SystemId) {
        self.zombies.get_or_create(&OfSystem::of(system)).inc();
    }

    fn store_error(&self, system: &SystemId, error: &Error) {
        self.store_errors.get_or_create(&OfSystem::of(system).by_error(error.kind())).inc();
    }

    fn healed(&self, system: &SystemId, page: &Reconciled, act: PassMode) {
        self.drift.page(&OfSystem::of(system), page, act);
        if let Some(own) = self.own(system.kind) {
            own.healed(page);
        }
    }

    fn reconciled(&self, report: &ReconcileReport, ended: ReconcileEnd<'_>) {
        let of = OfSystem { system: report.system.clone(), kind: report.kind.as_str() };
        self.drift.ended(&of, report, ended);
    }
}
