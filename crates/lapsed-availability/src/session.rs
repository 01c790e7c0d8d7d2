//! Sessions of providers: their states, their changes, and why a change is refused.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ProviderState;
use lapsed_core::name::Name;

/// Status of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
pub enum SessionStatus {
    Active,
    /// It waits for payment; its provider stays occupied.
    PendingPayment,
    Ended,
    /// It is over because its time ran out.
    Expired,
    /// It is over because it was cancelled.
    Cancelled,
    /// Any other status of the application, before a provider accepted it.
    Other(String),
}

impl SessionStatus {
    /// The statuses that occupy a provider.
    pub const OCCUPYING: &[SessionStatus] = &[SessionStatus::Active, SessionStatus::PendingPayment];

    /// The word in the database table.
    pub fn as_str(&self) -> &str {
        match self {
            SessionStatus::Active => "active",
            SessionStatus::PendingPayment => "pending_payment",
            SessionStatus::Ended => "ended",
            SessionStatus::Expired => "expired",
            SessionStatus::Cancelled => "cancelled",
            SessionStatus::Other(word) => word,
        }
    }

    /// Whether the session is over.
    pub fn is_over(&self) -> bool {
        matches!(self, SessionStatus::Ended | SessionStatus::Expired | SessionStatus::Cancelled)
    }
}

impl From<String> for SessionStatus {
    fn from(word: String) -> Self {
        match word.as_str() {
            "active" => SessionStatus::Active,
            "pending_payment" => SessionStatus::PendingPayment,
            "ended" => SessionStatus::Ended,
            "expired" => SessionStatus::Expired,
            "cancelled" => SessionStatus::Cancelled,
            _ => SessionStatus::Other(word),
        }
    }
}

impl From<SessionStatus> for String {
    fn from(status: SessionStatus) -> String {
        status.as_str().to_owned()
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkSession {
    pub id: Name,
    /// The provider that works on it.
    pub provider: Option<Name>,
    /// The status of the session.
    pub status: SessionStatus,
}

impl WorkSession {
    /// Whether it occupies its provider.
    pub fn occupies(&self) -> bool {
        self.provider.is_some() && SessionStatus::OCCUPYING.contains(&self.status)
    }
}

/// A change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionChange {
    /// A provider accepts it. A session that does not exist is created.
    Accept {
        session: Name,
        provider: Name,
    },
    /// It waits for payment once more; its provider stays occupied.
    Extend {
        session: Name,
    },
    /// The session was paid for and continues.
    Resume {
        session: Name,
    },
    End {
        session: Name,
    },
    /// The session's time ran out.
    Expire {
        session: Name,
    },
    /// The session was called off.
    Cancel {
        session: Name,
    },
    /// Another provider continues it.
    Reroute {
        session: Name,
        to: Name,
    },
}

impl SessionChange {
    pub fn session(&self) -> &Name {
        match self {
            SessionChange::Accept { session, .. }
            | SessionChange::Extend { session }
            | SessionChange::Resume { session }
            | SessionChange::End { session }
            | SessionChange::Expire { session }
            | SessionChange::Cancel { session }
            | SessionChange::Reroute { session, .. } => session,
        }
    }

    /// The provider that should get the session.
    pub fn provider(&self) -> Option<&Name> {
        match self {
            SessionChange::Accept { provider, .. } => Some(provider),
            SessionChange::Reroute { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// Why a session was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionRefusal {
    NoSuchSession,
    /// The provider that should get it does not exist.
    NoSuchProvider,
    /// No provider has accepted it yet.
    NotAccepted,
    /// It is already over, with this status.
    Over(SessionStatus),
    /// Another provider has it.
    Taken(Name),
    /// The provider that should get it has no room.
    Full {
        sessions: u64,
        max: u64,
    },
    /// The provider that should get it is deactivated.
    Deactivated,
}

/// Result of a change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// The session has the requested state.
    Done {
        session: WorkSession,
        /// Whether this call changed it.
        changed: bool,
        /// Providers whose number of sessions changed, for updating the mirror.
        touched: Vec<ProviderState>,
    },
    Refused(SessionRefusal),
}
