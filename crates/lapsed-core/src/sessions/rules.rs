//! The rules of sessions. Pure functions, which a store calls inside its atomic step.
//!
//! Whether the owner of a reference is dead is deliberately not decided here:
//! [`registry::rules`](crate::registry::rules) decides it for every system that has owners. The
//! guard is a trait so that tests can replace it by a broken one and show that it is detected.

use crate::receipt::Reason;
use crate::sweep::Refusal;

/// State of one session, as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// How many references there are.
    pub references: u64,
    /// Since when there has been no reference: when the last one ended, or when the session was
    /// activated or resumed without one. In milliseconds of the store's clock.
    pub since_ms: u64,
    /// Whether a reference ended then. A session that nobody has ever connected to is not
    /// disconnected.
    pub disconnected: bool,
}

/// Facts on which the guard decides.
#[derive(Clone, Copy, Debug)]
pub struct SessionCase {
    /// State of the session now.
    pub session: SessionState,
    /// How long a session without references is kept, in milliseconds.
    pub grace_ms: u64,
    /// The store's clock now.
    pub now_ms: u64,
    /// Since when the store has been serving without a gap; 0 if nobody needs to be spared.
    pub back_ms: u64,
}

/// When a session without references is an orphan: one whole grace period after its last reference
/// ended, but not before one whole grace period after the store came back, because nobody could
/// connect until then.
pub fn due_ms(since_ms: u64, grace_ms: u64, back_ms: u64) -> u64 {
    since_ms.max(back_ms) + grace_ms
}

pub trait SessionGuard: Send + Sync {
    /// The reason to reclaim the session, or why it must not be reclaimed.
    fn judge(&self, case: &SessionCase) -> Result<Reason, Refusal>;
}

/// The correct guard, used in production.
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
    fn after_an_absence_sessions_are_spared_for_a_whole_grace() {
        assert_eq!(StrictSessionGuard.judge(&case(529, 100, 500)), Err(Refusal::StoreAway));
        assert_eq!(StrictSessionGuard.judge(&case(530, 100, 500)), Ok(Reason::Orphaned));
    }

    #[test]
    fn a_session_that_was_never_connected_has_its_own_reason() {
        let mut case = case(130, 100, 0);
        case.session.disconnected = false;
        assert_eq!(StrictSessionGuard.judge(&case), Ok(Reason::NeverConnected));
    }

    #[test]
    fn one_reference_keeps_a_session() {
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
