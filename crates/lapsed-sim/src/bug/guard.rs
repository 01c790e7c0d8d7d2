//! Broken rules of death.

use std::sync::Arc;

use lapsed_core::receipt::Reason;
use lapsed_core::registry::rules::{Case, Guard, Life, Strict};
use lapsed_core::sweep::Refusal;

use crate::bug::Plant;

/// Goes by what the page showed.
pub struct Outside(pub Arc<Plant>);

impl Guard for Outside {
    fn judge(&self, case: &Case) -> Result<Reason, Refusal> {
        match Strict.judge(case) {
            Err(Refusal::Alive) if self.0.was_suspected(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Asks about the suspected life, whoever holds the key by now.
pub struct Unchecked(pub Arc<Plant>);

impl Guard for Unchecked {
    fn judge(&self, case: &Case) -> Result<Reason, Refusal> {
        match Strict.judge(case) {
            Err(Refusal::Moved) if self.0.has_ended(case.suspected) => Ok(Reason::OwnerDead),
            judged => judged,
        }
    }
}

/// Lets the dead register.
pub struct Welcoming;

impl Guard for Welcoming {
    fn judge(&self, case: &Case) -> Result<Reason, Refusal> {
        Strict.judge(case)
    }

    fn may_register(&self, _: &Life) -> bool {
        true
    }
}
