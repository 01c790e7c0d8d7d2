//! Providers: their state, and how they are listed.

use serde::{Deserialize, Serialize};

use lapsed_core::name::Name;

/// State of one provider in the truth at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    pub id: Name,
    /// Grows with every change. 0: never changed through lapsed.
    pub version: u64,
    /// The version of the last toggle between online and offline; a second "online" in a row also
    /// counts.
    pub epoch: u64,
    /// Whether the provider was set online.
    pub online: bool,
    /// Whether the provider may work at all.
    pub active: bool,
    /// How many sessions it has.
    pub sessions: u64,
    /// Age of its last heartbeat by the truth's clock, as far as the truth knows it.
    pub beat_age_ms: Option<u64>,
}

/// Id and name of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderProfile {
    pub id: Name,
    /// Display name; `None`: unchanged.
    pub display_name: Option<String>,
}

/// Result of a change of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderChange {
    /// The provider after the change.
    pub state: ProviderState,
    /// Whether the value was different before. Each such change of `online` has a log row.
    pub changed: bool,
    /// How many of its logins were revoked in the same transaction.
    pub revoked: u64,
}

/// Answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderBeat {
    Noted,
    /// The provider may not work. Nothing was recorded.
    Deactivated,
    /// The provider is offline or not known. Nothing was recorded (C10).
    Offline,
    /// Only the truth can say, and it does not answer. The heartbeat may have been recorded; sending it again is
    /// safe.
    Unavailable,
}

impl ProviderBeat {
    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ProviderBeat::Noted => "noted",
            ProviderBeat::Deactivated => "deactivated",
            ProviderBeat::Offline => "offline",
            ProviderBeat::Unavailable => "unavailable",
        }
    }
}

/// A provider that can take work now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    pub id: Name,
    /// Number of its sessions.
    pub active_session_count: u64,
}

/// One provider in a list. Times are milliseconds of the truth's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedProvider {
    pub id: Name,
    /// What people call it.
    pub display_name: Option<String>,
    /// Whether the provider was set online.
    pub is_online: bool,
    /// Whether the provider may work at all.
    pub is_active: bool,
    /// How many sessions it has.
    pub active_session_count: u64,
    /// When it was last set online.
    pub last_online_ms: Option<u64>,
    /// When it was last set offline.
    pub last_offline_ms: Option<u64>,
    /// Time of its last heartbeat, as far as the truth knows it.
    pub last_heartbeat_ms: Option<u64>,
}

/// One flip between online and offline, by an operation or by a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlineToggle {
    pub online: bool,
    /// When it happened, in milliseconds of the truth's clock.
    pub at_ms: u64,
}

/// Which providers to list.
#[derive(Clone, Debug, Default)]
pub struct ProviderQuery {
    /// Return only providers after this one, by id.
    pub after: Option<Name>,
    /// Largest number of results.
    pub limit: usize,
    /// Return only providers that are online.
    pub online_only: bool,
}
