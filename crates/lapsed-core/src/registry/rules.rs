//! The rules of death. Pure functions, which a store calls inside its atomic step.
//!
//! The guard is a trait so that the simulation can replace it by a broken one and show that it is
//! detected.

use crate::owner::{Ending, Incarnation};
use crate::receipt::Reason;
use crate::sweep::Refusal;

/// State of one incarnation, as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncarnationState {
    /// When it was started, in milliseconds of the store's clock.
    pub started_ms: u64,
    /// When its heartbeat runs out, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// How long one heartbeat lasts, in milliseconds.
    pub ttl_ms: u64,
    /// How it ended, if it did.
    pub ended: Option<Ending>,
}

/// Facts on which the guard decides.
#[derive(Clone, Copy, Debug)]
pub struct OwnerCase {
    /// The incarnation that the suspect was listed under.
    pub suspected: Incarnation,
    /// The incarnation that holds the entry now.
    pub holder: Incarnation,
    pub state: IncarnationState,
    /// The store's clock now.
    pub now_ms: u64,
    /// Since when the store has been serving without a gap; 0 if nobody needs to be spared.
    pub back_ms: u64,
}

/// When an incarnation is overdue: at its deadline, but not before one whole TTL after the store
/// came back. An incarnation that was started after that was never cut off from the store.
pub fn due_ms(state: &IncarnationState, back_ms: u64) -> u64 {
    if back_ms <= state.started_ms {
        return state.deadline_ms;
    }
    state.deadline_ms.max(back_ms + state.ttl_ms)
}

pub trait OwnerGuard: Send + Sync {
    /// The reason to reclaim the entry, or why it must not be reclaimed.
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal>;

    /// Whether an owner whose incarnation has this state may register entries.
    fn may_register(&self, state: &IncarnationState) -> bool {
        state.ended.is_none()
    }
}

/// The correct guard, used in production.
#[derive(Clone, Copy, Debug, Default)]
pub struct StrictOwnerGuard;

impl OwnerGuard for StrictOwnerGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        if case.holder != case.suspected {
            return Err(Refusal::Moved);
        }
        match case.state.ended {
            Some(Ending::Retired) => return Ok(Reason::OwnerRetired),
            Some(Ending::Dead) => return Ok(Reason::OwnerDead),
            None => {}
        }
        if case.now_ms < case.state.deadline_ms {
            return Err(Refusal::Alive);
        }
        if case.now_ms < due_ms(&case.state, case.back_ms) {
            return Err(Refusal::StoreAway);
        }
        Ok(Reason::OwnerDead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn case(now_ms: u64, deadline_ms: u64, back_ms: u64) -> OwnerCase {
        let state = IncarnationState { started_ms: 0, deadline_ms, ttl_ms: 90, ended: None };
        let (suspected, holder) = (Incarnation(1), Incarnation(1));
        OwnerCase { suspected, holder, state, now_ms, back_ms }
    }

    #[test]
    fn equal_to_now_counts_as_expired() {
        assert_eq!(StrictOwnerGuard.judge(&case(99, 100, 0)), Err(Refusal::Alive));
        assert_eq!(StrictOwnerGuard.judge(&case(100, 100, 0)), Ok(Reason::OwnerDead));
    }

    #[test]
    fn after_an_absence_owners_are_spared_for_a_whole_ttl() {
        assert_eq!(StrictOwnerGuard.judge(&case(589, 100, 500)), Err(Refusal::StoreAway));
        assert_eq!(StrictOwnerGuard.judge(&case(590, 100, 500)), Ok(Reason::OwnerDead));
    }

    #[test]
    fn an_incarnation_started_after_the_absence_gets_no_grace() {
        let mut case = case(501, 501, 500);
        case.state.started_ms = 499;
        assert_eq!(StrictOwnerGuard.judge(&case), Err(Refusal::StoreAway));
        case.state.started_ms = 500;
        assert_eq!(StrictOwnerGuard.judge(&case), Ok(Reason::OwnerDead));
    }

    proptest! {
        #[test]
        fn nobody_is_dead_early(now in 0u64..2_000, deadline in 1u64..2_000, back in 0u64..2_000,
                                suspected in 1u64..4, holder in 1u64..4) {
            let mut case = case(now, deadline, back);
            (case.suspected, case.holder) = (Incarnation(suspected), Incarnation(holder));
            if StrictOwnerGuard.judge(&case).is_ok() {
                prop_assert_eq!(suspected, holder);
                prop_assert!(now >= deadline);
                prop_assert!(back == 0 || now >= back + 90);
            }
        }
    }
}
