//! The state of the daemon and its systems: version and start time, who leads, whether the store
//! answers and how fast, and whether the operator has set the brake. Everything is set at a scrape,
//! from calls that the scrape makes anyway.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lapsed_core::sweep::brake::BrakeSetting;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::labels::{BySetting, OfSystem};

type Seconds = Gauge<f64, AtomicU64>;

/// The series of the daemon's and the systems' state.
#[derive(Default)]
pub struct StandingSeries {
    by_hand: Family<BySetting, Gauge>,
    leads: Family<OfSystem, Gauge>,
    store_up: Family<OfSystem, Gauge>,
    answer_seconds: Family<OfSystem, Seconds>,
}

impl StandingSeries {
    /// Registers the series. `started_ms` is the start of the process, in milliseconds on its wall
    /// clock.
    pub fn register(&self, to: &mut Registry, started_ms: u64) {
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        to.register("lapsed_build", "The version of lapsed", build);
        let started = ConstGauge::new(started_ms as f64 / 1e3);
        let help = "When the process began, in seconds since 1970";
        to.register("process_start_time_seconds", help, started);
        let help = "Whether the operator holds the brake, or has overridden it for one pass, as the last pass saw";
        to.register("lapsed_brake_by_hand", help, self.by_hand.clone());
        let help = "In leader mode: whether this process leads";
        to.register("lapsed_leads", help, self.leads.clone());
        let help = "Whether the store answered at this scrape";
        to.register("lapsed_store_up", help, self.store_up.clone());
        let help = "How long the store took to answer at this scrape";
        to.register("lapsed_store_answer_seconds", help, self.answer_seconds.clone());
    }

    /// Sets the gauge of the operator's setting of the brake.
    pub fn brake(&self, of: &OfSystem, setting: BrakeSetting) {
        let (held, overridden) =
            (setting == BrakeSetting::Hold, matches!(setting, BrakeSetting::Override { .. }));
        for (name, is_set) in [("hold", held), ("override", overridden)] {
            self.by_hand.get_or_create(&of.by_setting(name)).set(i64::from(is_set));
        }
    }

    /// Sets whether this process leads; does nothing outside leader mode (`None`).
    pub fn lead(&self, of: &OfSystem, leads: Option<bool>) {
        if let Some(leads) = leads {
            self.leads.get_or_create(of).set(i64::from(leads));
        }
    }

    /// Sets whether the store answered, and how long that took.
    pub fn store(&self, of: &OfSystem, answers: bool, took: Duration) {
        self.store_up.get_or_create(of).set(i64::from(answers));
        self.answer_seconds.get_or_create(of).set(took.as_secs_f64());
    }
}
