//! The rules of sessions, written once. Pure: a store calls them inside its atomic step.
//!
//! Whether the life behind a reference is over is not asked here: that is a question about owners,
//! and [`registry::rules`](crate::registry::rules) answers it for every system that has them. They
//! are a trait so that a broken rule can be put in their place, to show that it is found.

use crate::receipt::Reason;
use crate::sweep::Refusal;

/// One session, as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// How many references there are.
    pub references: u64,
    /// Since when there has been none: when the last one went, or when it was activated or resumed
    /// without one. On the store's clock.
    pub since_ms: u64,
    /// Whether a reference went then. One that nobody has connected to since is not disconnected.
    pub disconnected: bool,
}

/// What the guard is asked.
#[derive(Clone, Copy, Debug)]
pub struct SessionCase {
    /// The session at this instant.
    pub session: SessionState,
    /// How long one without references is kept.
    pub grace_ms: u64,
    /// The store's clock at this instant.
    pub now_ms: u64,
    /// Since when the store has been serving without a gap; 0 when nobody needs to be spared.
    pub back_ms: u64,
}

/// When a session without references is an orphan: a whole grace after the last one went, and never
/// before a whole grace since the store was back, for until then nobody could connect.
pub fn due_ms(since_ms: u64, grace_ms: u64, back_ms: u64) -> u64 {
    since_ms.max(back_ms) + grace_ms
}

pub trait SessionGuard: Send + Sync {
    /// An orphan, and why; or not, and why not.
    fn judge(&self, case: &SessionCase) -> Result<Reason, Refusal>;
}

/// The guard as it must be.
#[derive(Clone, Copy, Debug, Default)]
pub struct StrictSessionGuard;

impl SessionGuard for StrictSessionGuard {
    fn judge(&self, case: &SessionCase) -> Result<Reason, Refusal> {
        let session = &case.session;
        if session.references > 0 {
            return Err(Refusal::Active);
        }
        if case.now_ms < session.since_ms + case.grace_ms {
            return Err(Refusal::Alive);
        }
        if case.now_ms < due_ms(session.since_ms, case.grace_ms, case.back_ms) {
            return Err(Refusal::StoreAway);
        }
        match session.disconnected {
            true => Ok(Reason::Orphaned),
            false => Ok(Reason::NeverConnected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn case(now_ms: u64, since_ms: u64, back_ms: u64) -> SessionCase {
        let session = SessionState { references: 0, since_ms, disconnected: true };
        SessionCase { session, grace_ms: 30, now_ms, back_ms }
    }

    #[test]
    fn equal_to_now_counts_as_expired() {
        assert_eq!(StrictSessionGuard.judge(&case(129, 100, 0)), Err(Refusal::Alive));
        assert_eq!(StrictSessionGuard.judge(&case(130, 100, 0)), Ok(Reason::Orphaned));
    }

    #[test]
    fn a_store_that_was_away_spares_for_a_whole_grace() {
        assert_eq!(StrictSessionGuard.judge(&case(529, 100, 500)), Err(Refusal::StoreAway));
        assert_eq!(StrictSessionGuard.judge(&case(530, 100, 500)), Ok(Reason::Orphaned));
    }

    #[test]
    fn whoever_was_never_connected_to_is_told_apart() {
        let mut case = case(130, 100, 0);
        case.session.disconnected = false;
        assert_eq!(StrictSessionGuard.judge(&case), Ok(Reason::NeverConnected));
    }

    #[test]
    fn one_reference_is_enough() {
        let mut case = case(1_000, 100, 0);
        case.session.references = 1;
        assert_eq!(StrictSessionGuard.judge(&case), Err(Refusal::Active));
    }

    proptest! {
        #[test]
        fn nothing_is_an_orphan_early(now in 0u64..2_000, since in 0u64..2_000, back in 0u64..2_000,
                                      references in 0u64..2) {
            let mut case = case(now, since, back);
            case.session.references = references;
            if StrictSessionGuard.judge(&case).is_ok() {
                prop_assert_eq!(references, 0);
                prop_assert!(now >= since + 30);
                prop_assert!(back == 0 || now >= back + 30);
            }
        }
    }
}
