//! Broken rules of death.

use std::sync::Arc;

use lapsed_core::receipt::Reason;
use lapsed_core::registry::rules::{IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard};
use lapsed_core::sweep::Refusal;

use crate::bug::PlantedBug;

/// Goes by what the page showed.
pub struct PageTrustingGuard(pub Arc<PlantedBug>);

impl OwnerGuard for PageTrustingGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        match StrictOwnerGuard.judge(case) {
            Err(Refusal::Alive) if self.0.was_suspected(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Asks about the suspected incarnation, whoever holds the key by now.
pub struct IncarnationBlindGuard(pub Arc<PlantedBug>);

impl OwnerGuard for IncarnationBlindGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        match StrictOwnerGuard.judge(case) {
            Err(Refusal::Moved) if self.0.has_ended(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Lets the dead register.
pub struct EndedMayActGuard;

impl OwnerGuard for EndedMayActGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case)
    }

    fn may_register(&self, _: &IncarnationState) -> bool {
        true
    }
}
