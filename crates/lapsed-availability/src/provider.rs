//! Providers: what is known of one, and how a dashboard lists them.

use serde::{Deserialize, Serialize};

use lapsed_core::name::Name;

/// One provider, as the truth has it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    pub id: Name,
    /// Grows with every change. 0: never changed through lapsed.
    pub version: u64,
    /// The version of the last toggle between online and offline (also of a second "online" in a row).
    pub epoch: u64,
    /// Whether it says that it is there.
    pub online: bool,
    /// Whether it may work at all.
    pub active: bool,
    /// How many sessions it has.
    pub sessions: u64,
    /// How long ago it last beat, on the truth's clock, as far as the truth knows.
    pub beat_age_ms: Option<u64>,
}

/// Who a provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderProfile {
    pub id: Name,
    /// What people call it; `None`: leaves it.
    pub display_name: Option<String>,
}

/// What became of a change of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderChange {
    /// The provider, as it is now.
    pub state: ProviderState,
    /// Whether it was otherwise before: each such change of `online` has a log row.
    pub changed: bool,
    /// How many of its logins were revoked in the same transaction.
    pub revoked: u64,
}

/// The answer to a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderBeat {
    Noted,
    /// It may not work: nothing was noted.
    Deactivated,
    /// It is not online (any more), or nobody knows it: nothing was noted (C10).
    Offline,
}

impl ProviderBeat {
    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ProviderBeat::Noted => "noted",
            ProviderBeat::Deactivated => "deactivated",
            ProviderBeat::Offline => "offline",
        }
    }
}

/// Somebody who can take work now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    pub id: Name,
    /// How many sessions it has already.
    pub active_session_count: u64,
}

/// One provider, as a dashboard lists it. Times are milliseconds of the truth's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedProvider {
    pub id: Name,
    /// What people call it.
    pub display_name: Option<String>,
    /// Whether it says that it is there.
    pub is_online: bool,
    /// Whether it may work at all.
    pub is_active: bool,
    /// How many sessions it has.
    pub active_session_count: u64,
    /// When it was last set online.
    pub last_online_ms: Option<u64>,
    /// When it was last set offline.
    pub last_offline_ms: Option<u64>,
    /// Its last beat, as far as the truth knows.
    pub last_heartbeat_ms: Option<u64>,
}

/// That somebody was set online or offline: one a flip, whoever did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlineToggle {
    pub online: bool,
    /// When, on the truth's clock.
    pub at_ms: u64,
}

/// Which providers to list.
#[derive(Clone, Debug, Default)]
pub struct ProviderQuery {
    /// Those after this one, by id.
    pub after: Option<Name>,
    /// Largest number of results.
    pub limit: usize,
    /// Only those that say they are there.
    pub online_only: bool,
}
