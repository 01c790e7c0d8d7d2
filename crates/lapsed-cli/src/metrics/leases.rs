//! Leases and decisions: what was over and cleared, by whom. The series appear with the first system
//! of leases.

use std::sync::OnceLock;

use lapsed::receipt::Reason;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::labels::{ByWhom, OfSystem};

/// Who cleared it.
#[derive(Clone, Copy)]
pub enum By {
    /// An operation that met it on its way.
    Operation,
    /// A pass.
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

/// The series of what was cleared.
#[derive(Default)]
pub struct Cleared {
    shown: OnceLock<()>,
    leases: Family<ByWhom, Counter>,
    decisions: Family<ByWhom, Counter>,
}

impl Cleared {
    /// The encoder appends `_total` to the name of a counter by itself.
    pub fn introduce(&self, of: &OfSystem, to: &mut Registry) {
        self.shown.get_or_init(|| {
            let help = "Leases that ran out and were cleared, by whom";
            to.register("lapsed_leases_cleared", help, self.leases.clone());
            let help = "Decisions that were no longer to be kept and were deleted, by whom";
            to.register("lapsed_decisions_deleted", help, self.decisions.clone());
        });
        for by in By::ALL {
            drop(self.leases.get_or_create(&of.by_whom(by.as_str())));
            drop(self.decisions.get_or_create(&of.by_whom(by.as_str())));
        }
    }

    pub fn count(&self, of: &OfSystem, reason: Reason, by: By) {
        let family = match reason {
            Reason::DecisionExpired => &self.decisions,
            _ => &self.leases,
        };
        family.get_or_create(&of.by_whom(by.as_str())).inc();
    }
}
