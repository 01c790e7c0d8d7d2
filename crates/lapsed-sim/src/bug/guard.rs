//! Wrong death rules of planted bugs.

use std::sync::Arc;

use lapsed_core::receipt::Reason;
use lapsed_core::registry::rules::{IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard};
use lapsed_core::sweep::Refusal;

use crate::bug::PlantedBug;

/// Trusts that an incarnation on a page of suspects is dead.
pub struct PageTrustingGuard(pub Arc<PlantedBug>);

impl OwnerGuard for PageTrustingGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        match StrictOwnerGuard.judge(case) {
            Err(Refusal::Alive) if self.0.was_suspected(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Checks the suspected incarnation, even if another one holds the key now.
pub struct IncarnationBlindGuard(pub Arc<PlantedBug>);

impl OwnerGuard for IncarnationBlindGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        match StrictOwnerGuard.judge(case) {
            Err(Refusal::Moved) if self.0.has_ended(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Lets ended incarnations register entries.
pub struct EndedMayActGuard;

impl OwnerGuard for EndedMayActGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case)
    }

    fn may_register(&self, _: &IncarnationState) -> bool {
        true
    }
}
