//! Deliberate bugs of a store of sessions: the simulation must find each of them. None is in production
//! code; they are broken rules given to the real store, or something done in front of it.

use std::sync::Arc;

use lapsed_core::receipt::Reason;
use lapsed_core::registry::rules::{IncarnationState, OwnerCase, OwnerGuard, StrictOwnerGuard};
use lapsed_core::sweep::Refusal;

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionBug {
    /// References of a suspected server are released even if it has sent a beat since.
    ReleasedWithoutGuard,
    /// A session is deleted because it was listed as an orphan, although a client came back since (B2).
    DeletedAsListed,
    /// References belong to nobody, so that those of a crashed server stay (B5).
    ReferencesOutliveTheirServer,
    /// A connect or disconnect that is repeated because its answer was lost counts twice.
    RepeatCountsTwice,
    /// The store acknowledges before its commit is durable: the disk lies about syncs.
    SessionLostWithPower,
    /// A server that was declared dead connects clients as if it lived.
    DeadServerMayConnect,
    /// With a session its broadcaster's pointer is removed, although it points to a newer one (B7).
    PointerRemovedBlindly,
}

impl SessionBug {
    pub const ALL: &[SessionBug] = &[
        SessionBug::ReleasedWithoutGuard,
        SessionBug::DeletedAsListed,
        SessionBug::ReferencesOutliveTheirServer,
        SessionBug::RepeatCountsTwice,
        SessionBug::SessionLostWithPower,
        SessionBug::DeadServerMayConnect,
        SessionBug::PointerRemovedBlindly,
    ];

    /// The promise that the bug breaks; the simulation must report this one.
    pub fn breaks(self) -> Promise {
        match self {
            SessionBug::ReleasedWithoutGuard | SessionBug::DeletedAsListed => Promise::P1,
            SessionBug::ReferencesOutliveTheirServer => Promise::P2,
            SessionBug::RepeatCountsTwice => Promise::P3,
            SessionBug::SessionLostWithPower => Promise::P4,
            SessionBug::DeadServerMayConnect => Promise::P5,
            SessionBug::PointerRemovedBlindly => Promise::P8,
        }
    }
}

/// The rules of death that the store is given.
pub fn guard(bug: Option<SessionBug>) -> Arc<dyn OwnerGuard> {
    match bug {
        Some(SessionBug::DeadServerMayConnect) => Arc::new(EndedMayConnectGuard),
        Some(SessionBug::ReleasedWithoutGuard) => Arc::new(SilentIsDeadGuard),
        _ => Arc::new(StrictOwnerGuard),
    }
}

/// Lets ended incarnations connect clients.
struct EndedMayConnectGuard;

impl OwnerGuard for EndedMayConnectGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case)
    }

    fn may_register(&self, _: &IncarnationState) -> bool {
        true
    }
}

/// Calls every suspect dead.
struct SilentIsDeadGuard;

impl OwnerGuard for SilentIsDeadGuard {
    fn judge(&self, case: &OwnerCase) -> Result<Reason, Refusal> {
        StrictOwnerGuard.judge(case).or(Ok(Reason::OwnerDead))
    }
}
