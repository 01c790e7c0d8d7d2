//! Broken rules of death.

use std::sync::Arc;

use lapsed_core::receipt::Reason;
use lapsed_core::registry::rules::{IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard};
use lapsed_core::sweep::Refusal;

use crate::bug::Plant;

/// Goes by what the page showed.
pub struct Outside(pub Arc<Plant>);

impl OwnerGuard for Outside {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        match StrictOwnerGuard.judge(case) {
            Err(Refusal::Alive) if self.0.was_suspected(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Asks about the suspected life, whoever holds the key by now.
pub struct Unchecked(pub Arc<Plant>);

impl OwnerGuard for Unchecked {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        match StrictOwnerGuard.judge(case) {
            Err(Refusal::Moved) if self.0.has_ended(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Lets the dead register.
pub struct Welcoming;

impl OwnerGuard for Welcoming {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case)
    }

    fn may_register(&self, _: &IncarnationState) -> bool {
        true
    }
}
