//! The series of leases and decisions: how many expired and were cleared, by whom, and how many
//! requests wait for a lease. They are registered with the first system of leases.

use std::sync::OnceLock;

use lapsed_core::SystemId;
use lapsed_core::receipt::{Reason, Receipt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::labels::{ByCleaner, OfSystem};
use crate::metrics::{KindMetrics, Metrics};

#[derive(Clone, Copy)]
enum By {
    /// An operation on the same key found it expired.
    Operation,
    Sweep,
}

impl By {
    const ALL: [By; 2] = [By::Operation, By::Sweep];

    fn as_str(self) -> &'static str {
        match self {
            By::Operation => "operation",
            By::Sweep => "sweep",
        }
    }
}

/// Counts one waiting request until it is dropped.
pub struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The series of all systems of leases.
#[derive(Default)]
pub struct LeaseSeries {
    shown: OnceLock<()>,
    leases: Family<ByCleaner, Counter>,
    decisions: Family<ByCleaner, Counter>,
    waiting: Family<OfSystem, Gauge>,
}

impl KindMetrics for LeaseSeries {
    fn introduce(&self, of: &OfSystem, to: &mut Registry) {
        self.shown.get_or_init(|| {
            let help = "Leases that ran out and were cleared, by whom";
            to.register("lapsed_leases_cleared", help, self.leases.clone());
            let help = "Decisions that expired and were deleted, by whom";
            to.register("lapsed_decisions_deleted", help, self.decisions.clone());
            let help = "Requests that wait for a lease that somebody else holds";
            to.register("lapsed_leases_waiting", help, self.waiting.clone());
        });
        drop(self.waiting.get_or_create(of));
        for by in By::ALL {
            drop(self.leases.get_or_create(&of.by_cleaner(by.as_str())));
            drop(self.decisions.get_or_create(&of.by_cleaner(by.as_str())));
        }
    }

    fn reclaimed(&self, of: &OfSystem, receipt: &Receipt) {
        self.count(of, receipt.reason, By::Sweep);
    }

    fn cleared(&self, of: &OfSystem, reason: Reason) {
        self.count(of, reason, By::Operation);
    }
}

impl LeaseSeries {
    fn wait(&self, of: &OfSystem) -> Waiting {
        let gauge = self.waiting.get_or_create_owned(of);
        gauge.inc();
        Waiting(gauge)
    }

    fn count(&self, of: &OfSystem, reason: Reason, by: By) {
        let family = match reason {
            Reason::DecisionExpired => &self.decisions,
            _ => &self.leases,
        };
        family.get_or_create(&of.by_cleaner(by.as_str())).inc();
    }
}

/// Counts one request that waits for a lease of `system`, until the returned value is dropped.
pub fn wait_for_lease(metrics: &Metrics, system: &SystemId) -> Option<Waiting> {
    Some(metrics.of::<LeaseSeries>()?.wait(&OfSystem::of(system)))
}
