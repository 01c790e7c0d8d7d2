//! Sessions: what occupies a provider, what may become of one, and what is refused.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ProviderState;
use lapsed_core::name::Name;

/// What a session is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum SessionStatus {
    Active,
    /// Waiting to be paid for; its provider stays occupied.
    PendingPayment,
    Ended,
    /// Over: its time ran out.
    Expired,
    /// Over: somebody called it off.
    Cancelled,
    /// Whatever else the application has, before anybody accepted.
    Other(String),
}

impl SessionStatus {
    /// Those that occupy a provider.
    pub const OCCUPYING: &[SessionStatus] = &[SessionStatus::Active, SessionStatus::PendingPayment];

    /// The word in the table.
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

    /// Whether nothing can become of it any more.
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
    /// Whose work it is.
    pub provider: Option<Name>,
    /// What it is in.
    pub status: SessionStatus,
}

impl WorkSession {
    /// Whether it takes a place of its provider.
    pub fn occupies(&self) -> bool {
        self.provider.is_some() && SessionStatus::OCCUPYING.contains(&self.status)
    }
}

/// What is to become of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// A provider takes it; a session that is not known yet begins with that.
    Accept {
        session: Name,
        provider: Name,
    },
    /// It waits to be paid for once more; its provider stays occupied.
    Extend {
        session: Name,
    },
    /// It was paid for.
    Resume {
        session: Name,
    },
    End {
        session: Name,
    },
    /// Its time ran out.
    Expire {
        session: Name,
    },
    /// It was called off.
    Cancel {
        session: Name,
    },
    /// Another provider goes on with it.
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

    /// Who is to have it.
    pub fn provider(&self) -> Option<&Name> {
        match self {
            SessionChange::Accept { provider, .. } => Some(provider),
            SessionChange::Reroute { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// Why a session was left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRefusal {
    NoSuchSession,
    /// Nobody knows who is to have it.
    NoSuchProvider,
    /// Nobody has accepted it yet.
    NotAccepted,
    /// It is over, in this way.
    Over(SessionStatus),
    /// This provider has it.
    Taken(Name),
    /// Who is to have it has as many as it can have.
    Full {
        sessions: u64,
        max: u64,
    },
    /// Who is to have it may not work.
    Deactivated,
}

/// What became of a change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// It is so now.
    Done {
        session: WorkSession,
        /// Whether it was otherwise before.
        changed: bool,
        /// The providers whose sessions are more or fewer by it, to be told to the mirror.
        touched: Vec<ProviderState>,
    },
    Refused(SessionRefusal),
}
