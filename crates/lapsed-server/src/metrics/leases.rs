//! Leases and decisions: what was over and cleared, by whom, and how many wait for a lease. The series
//! appear with the first system of leases.

use std::sync::OnceLock;

use lapsed_core::receipt::Reason;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::{ByWhom, OfSystem};

#[derive(Clone, Copy)]
pub enum By {
    /// An operation that met it on its way.
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

/// Somebody who waits, until dropped.
pub struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The series of leases.
#[derive(Default)]
pub struct LeaseSeries {
    shown: OnceLock<()>,
    leases: Family<ByWhom, Counter>,
    decisions: Family<ByWhom, Counter>,
    waiting: Family<OfSystem, Gauge>,
}

impl LeaseSeries {
    /// The encoder appends `_total` to the name of a counter by itself.
    pub fn introduce(&self, of: &OfSystem, to: &mut Registry) {
        self.shown.get_or_init(|| {
            let help = "Leases that ran out and were cleared, by whom";
            to.register("lapsed_leases_cleared", help, self.leases.clone());
            let help = "Decisions that were no longer to be kept and were deleted, by whom";
            to.register("lapsed_decisions_deleted", help, self.decisions.clone());
            let help = "Requests that wait for a lease that somebody else holds";
            to.register("lapsed_leases_waiting", help, self.waiting.clone());
        });
        drop(self.waiting.get_or_create(of));
        for by in By::ALL {
            drop(self.leases.get_or_create(&of.by_whom(by.as_str())));
            drop(self.decisions.get_or_create(&of.by_whom(by.as_str())));
        }
    }

    pub fn wait(&self, of: &OfSystem) -> Waiting {
        let gauge = self.waiting.get_or_create_owned(of);
        gauge.inc();
        Waiting(gauge)
    }

    pub fn count(&self, of: &OfSystem, reason: Reason, by: By) {
        let family = match reason {
            Reason::DecisionExpired => &self.decisions,
            _ => &self.leases,
        };
        family.get_or_create(&of.by_whom(by.as_str())).inc();
    }
}
