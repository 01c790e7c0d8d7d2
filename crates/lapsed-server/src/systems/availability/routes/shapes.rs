//! What the routes of availability are given and answer.

use lapsed_availability::{
    Available, ListedProvider, OwnStatus, ProviderBeat, ProviderChange, WorkSession,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Who a provider is; what is absent stays as it is.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderBody {
    /// What people call it.
    #[schema(example = "Sari")]
    pub display_name: Option<String>,
}

/// A provider after a change.
#[derive(Serialize, ToSchema)]
pub struct ProviderChanged {
    pub provider: String,
    pub is_online: bool,
    pub is_active: bool,
    pub active_session_count: u64,
    /// Whether it was otherwise before.
    pub changed: bool,
    /// How many of its logins were revoked in the same transaction.
    pub revoked: u64,
}

impl ProviderChanged {
    pub fn of(changed: ProviderChange) -> Self {
        let ProviderChange { state, changed, revoked } = changed;
        ProviderChanged {
            provider: state.id.into(),
            is_online: state.online,
            is_active: state.active,
            active_session_count: state.sessions,
            changed,
            revoked,
        }
    }
}

/// A provider, as the truth has it. Times are milliseconds of the truth's clock.
#[derive(Serialize, ToSchema)]
#[schema(as = Provider)]
pub struct ProviderResponse {
    pub provider: String,
    pub display_name: Option<String>,
    pub is_online: bool,
    pub is_active: bool,
    pub active_session_count: u64,
    pub last_online_ms: Option<u64>,
    pub last_offline_ms: Option<u64>,
    /// Its last beat, as far as it was written down.
    pub last_heartbeat_ms: Option<u64>,
}

impl ProviderResponse {
    pub fn of(listed: ListedProvider) -> Self {
        ProviderResponse {
            provider: listed.id.into(),
            display_name: listed.display_name,
            is_online: listed.is_online,
            is_active: listed.is_active,
            active_session_count: listed.active_session_count,
            last_online_ms: listed.last_online_ms,
            last_offline_ms: listed.last_offline_ms,
            last_heartbeat_ms: listed.last_heartbeat_ms,
        }
    }
}

/// Some of the providers, by id.
#[derive(Serialize, ToSchema)]
#[schema(as = Providers)]
pub struct ProviderList {
    pub providers: Vec<ProviderResponse>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// Which providers to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ProvidersQuery {
    /// Those after this one.
    pub after: Option<String>,
    /// At most so many; 1,000 at the most.
    pub limit: Option<usize>,
    /// Only those that say they are there.
    pub online: Option<bool>,
}

/// One provider's own status.
#[derive(Serialize, ToSchema)]
pub struct ProviderStatus {
    pub provider: String,
    pub display_name: Option<String>,
    /// As readers see it: newer than the times beside it.
    pub is_online: bool,
    pub is_active: bool,
    pub active_session_count: u64,
    pub last_online_ms: Option<u64>,
    pub last_offline_ms: Option<u64>,
    /// Its last beat, as far as it was written down.
    pub last_heartbeat_ms: Option<u64>,
    /// How long ago it last beat, as far as anybody knows.
    pub heartbeat_age_ms: Option<u64>,
    /// Online, not deactivated, and not silent.
    pub reachable: bool,
    /// Reachable, and with room for another session.
    pub available: bool,
}

impl ProviderStatus {
    pub fn of(status: OwnStatus) -> Self {
        let ListedProvider { id, display_name, is_active, active_session_count, .. } =
            status.listed;
        ProviderStatus {
            provider: id.into(),
            display_name,
            is_online: status.is_online,
            is_active,
            active_session_count,
            last_online_ms: status.listed.last_online_ms,
            last_offline_ms: status.listed.last_offline_ms,
            last_heartbeat_ms: status.listed.last_heartbeat_ms,
            heartbeat_age_ms: status.beat_age_ms,
            reachable: status.is_reachable,
            available: status.is_available,
        }
    }
}

/// A beat that was noted.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatAnswer {
    pub provider: String,
    /// `noted`
    pub outcome: &'static str,
}

/// Whose beats.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatsBody {
    /// 1,000 at the most.
    pub providers: Vec<String>,
}

/// One answer a beat, in order.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatsAnswer {
    pub results: Vec<HeartbeatResult>,
    /// How many were noted.
    pub noted: usize,
}

/// What became of one beat.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatResult {
    pub provider: String,
    /// `noted`, `deactivated` or `offline`.
    pub outcome: &'static str,
}

impl HeartbeatsAnswer {
    pub fn of(providers: Vec<String>, beats: &[ProviderBeat]) -> Self {
        let pairs = providers.into_iter().zip(beats);
        HeartbeatsAnswer {
            results: pairs
                .map(|(provider, beat)| HeartbeatResult { provider, outcome: beat.as_str() })
                .collect(),
            noted: beats.iter().filter(|beat| **beat == ProviderBeat::Noted).count(),
        }
    }
}

/// Whether a provider can be reached.
#[derive(Serialize, ToSchema)]
pub struct Reachable {
    pub provider: String,
    /// Online, not deactivated, and not silent.
    pub reachable: bool,
}

/// Somebody who can take work now.
#[derive(Serialize, ToSchema)]
pub struct AvailableProvider {
    pub id: String,
    /// How many sessions it has already.
    pub active_session_count: u64,
}

impl AvailableProvider {
    pub fn of(available: Available) -> Self {
        let Available { id, active_session_count } = available;
        AvailableProvider { id: id.into(), active_session_count }
    }
}

/// Some of those who can take work now.
#[derive(Serialize, ToSchema)]
#[schema(as = AvailablePage)]
pub struct AvailablePageResponse {
    pub available: Vec<AvailableProvider>,
    /// Where the next page begins: give it as `after`.
    pub next: Option<String>,
}

/// Which of those available.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AvailableQuery {
    /// What `next` of the page before said.
    pub after: Option<String>,
    /// About so many; 1,000 at the most.
    pub limit: Option<usize>,
}

/// How many.
#[derive(Serialize, ToSchema)]
pub struct CountAnswer {
    pub count: u64,
}

/// Whether anybody can take work, and how many; up to a snapshot's lifetime old.
#[derive(Serialize, ToSchema)]
pub struct Beacon {
    pub available: bool,
    pub count: u64,
}

/// Who accepts a session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptBody {
    pub provider: String,
}

/// Who goes on with a session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerouteBody {
    pub to: String,
}

/// One session.
#[derive(Serialize, ToSchema)]
pub struct ProviderSession {
    pub session: String,
    pub provider: Option<String>,
    /// `active`, `pending_payment`, `ended`, `expired`, `cancelled`, or what the application has before.
    pub status: String,
}

impl ProviderSession {
    pub fn of(session: WorkSession) -> Self {
        ProviderSession {
            session: session.id.into(),
            provider: session.provider.map(Into::into),
            status: session.status.into(),
        }
    }
}

/// A session after a change.
#[derive(Serialize, ToSchema)]
pub struct SessionChanged {
    pub session: String,
    pub provider: Option<String>,
    /// As of one session.
    pub status: String,
    /// Whether it was otherwise before.
    pub changed: bool,
}

impl SessionChanged {
    pub fn of(session: WorkSession, changed: bool) -> Self {
        let ProviderSession { session, provider, status } = ProviderSession::of(session);
        SessionChanged { session, provider, status, changed }
    }
}

/// The settings in force.
#[derive(Serialize, ToSchema)]
#[schema(as = Config)]
pub struct AvailabilityConfig {
    /// How long a provider may be silent.
    pub stale_after_seconds: u64,
    /// Whether silence means anything.
    pub require_ping: bool,
    /// How many sessions a provider can have at a time.
    pub max_customers_per_mitra: u64,
    /// How often a provider beats.
    pub heartbeat_cadence_seconds: u64,
}

/// What of them is to be different.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct ConfigBody {
    /// Not below the cadence, and a day at the most.
    pub stale_after_seconds: Option<u64>,
    pub require_ping: Option<bool>,
    pub max_customers_per_mitra: Option<u64>,
    pub heartbeat_cadence_seconds: Option<u64>,
}
