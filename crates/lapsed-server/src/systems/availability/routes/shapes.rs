//! The bodies and answers of the routes of availability.

use lapsed_availability::{
    Available, ListedProvider, OwnStatus, ProviderBeat, ProviderChange, WorkSession,
};
use lapsed_core::Name;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The data of a provider. Absent fields stay as they are.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderBody {
    /// The name of the provider that people see.
    #[schema(example = "Sari")]
    pub display_name: Option<String>,
}

/// The state of a provider after a change.
#[derive(Serialize, ToSchema)]
pub struct ProviderChanged {
    pub provider: String,
    pub is_online: bool,
    pub is_active: bool,
    pub active_session_count: u64,
    /// Whether the call changed anything.
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

/// A provider as it is in the truth. Times are milliseconds on the truth's clock.
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
    /// The last heartbeat that was written to the truth.
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

/// One page of the providers, ordered by id.
#[derive(Serialize, ToSchema)]
#[schema(as = Providers)]
pub struct ProviderList {
    pub providers: Vec<ProviderResponse>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// Which providers to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ProvidersQuery {
    /// Start after this provider: `next` of the previous page.
    pub after: Option<String>,
    /// The length of the page, at most 1,000.
    pub limit: Option<usize>,
    /// If true, only the providers that are online.
    pub online: Option<bool>,
}

/// The status of one provider.
#[derive(Serialize, ToSchema)]
pub struct ProviderStatus {
    pub provider: String,
    pub display_name: Option<String>,
    /// Whether readers see the provider as online. This may be newer than the times.
    pub is_online: bool,
    pub is_active: bool,
    pub active_session_count: u64,
    pub last_online_ms: Option<u64>,
    pub last_offline_ms: Option<u64>,
    /// The last heartbeat that was written to the truth.
    pub last_heartbeat_ms: Option<u64>,
    /// The age of the last known heartbeat, in milliseconds.
    pub heartbeat_age_ms: Option<u64>,
    /// Whether the provider is online, not deactivated, and not silent.
    pub reachable: bool,
    /// Whether the provider is reachable and has capacity for another session.
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

/// A heartbeat that was recorded.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatAnswer {
    pub provider: String,
    /// The result, which is always `noted`.
    pub outcome: &'static str,
}

/// The providers whose heartbeats to record.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatsBody {
    /// The ids of the providers, at most 1,000.
    pub providers: Vec<String>,
}

/// One result per heartbeat, in the order of the request.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatsAnswer {
    pub results: Vec<HeartbeatResult>,
    /// How many heartbeats were recorded.
    pub noted: usize,
}

/// The result of one heartbeat.
#[derive(Serialize, ToSchema)]
pub struct HeartbeatResult {
    pub provider: String,
    /// `noted`, or why it was not recorded: `deactivated`, `offline`, `invalid` (it cannot be an id), or
    /// `unavailable` (only the truth can say, and it does not answer: send it again).
    pub outcome: &'static str,
}

impl HeartbeatsAnswer {
    /// `ids` are those of `providers` that can be names, in the same order, each with its beat.
    pub fn of(providers: Vec<String>, ids: &[Name], beats: &[ProviderBeat]) -> Self {
        let mut answered = ids.iter().zip(beats).peekable();
        let mut outcome = |provider: &str| match answered.next_if(|(id, _)| id.as_str() == provider)
        {
            Some((_, beat)) => beat.as_str(),
            None => "invalid",
        };
        let result = |provider: String| HeartbeatResult { outcome: outcome(&provider), provider };
        HeartbeatsAnswer {
            results: providers.into_iter().map(result).collect(),
            noted: beats.iter().filter(|beat| **beat == ProviderBeat::Noted).count(),
        }
    }
}

/// Whether a provider can be reached.
#[derive(Serialize, ToSchema)]
pub struct Reachable {
    pub provider: String,
    /// Whether the provider is online, not deactivated, and not silent.
    pub reachable: bool,
}

/// A provider that can take work now.
#[derive(Serialize, ToSchema)]
pub struct AvailableProvider {
    pub id: String,
    /// How many sessions the provider has already.
    pub active_session_count: u64,
}

impl AvailableProvider {
    pub fn of(available: Available) -> Self {
        let Available { id, active_session_count } = available;
        AvailableProvider { id: id.into(), active_session_count }
    }
}

/// One page of the providers that can take work now.
#[derive(Serialize, ToSchema)]
#[schema(as = AvailablePage)]
pub struct AvailablePageResponse {
    pub available: Vec<AvailableProvider>,
    /// The cursor of the next page: pass it as `after`. Absent on the last page.
    pub next: Option<String>,
}

/// The page of the available providers.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AvailableQuery {
    /// The cursor of the page: `next` of the previous page.
    pub after: Option<String>,
    /// The approximate length of the page, at most 1,000.
    pub limit: Option<usize>,
}

/// The number of providers.
#[derive(Serialize, ToSchema)]
pub struct CountAnswer {
    pub count: u64,
}

/// Whether any provider can take work, and how many can. The numbers are at most as old as a
/// snapshot may be.
#[derive(Serialize, ToSchema)]
pub struct Beacon {
    pub available: bool,
    pub count: u64,
}

/// The provider that accepts a session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptBody {
    pub provider: String,
}

/// The provider that a session is moved to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerouteBody {
    pub to: String,
}

/// A session of a provider.
#[derive(Serialize, ToSchema)]
pub struct ProviderSession {
    pub session: String,
    pub provider: Option<String>,
    /// `active`, `pending_payment`, `ended`, `expired`, `cancelled`, or the application's own
    /// status before that.
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

/// The state of a session after a change.
#[derive(Serialize, ToSchema)]
pub struct SessionChanged {
    pub session: String,
    pub provider: Option<String>,
    /// The status of the session now: `active`, `pending_payment`, `ended`, `expired` or
    /// `cancelled`.
    pub status: String,
    /// Whether the call changed anything.
    pub changed: bool,
}

impl SessionChanged {
    pub fn of(session: WorkSession, changed: bool) -> Self {
        let ProviderSession { session, provider, status } = ProviderSession::of(session);
        SessionChanged { session, provider, status, changed }
    }
}

/// The settings that are in force.
#[derive(Serialize, ToSchema)]
#[schema(as = Config)]
pub struct AvailabilityConfig {
    /// How long a provider may be silent before it is set offline, in seconds.
    pub stale_after_seconds: u64,
    /// Whether silent providers are set offline at all.
    pub require_ping: bool,
    /// The most sessions that a provider can have at a time.
    pub max_customers_per_mitra: u64,
    /// The interval of a provider's heartbeats, in seconds.
    pub heartbeat_cadence_seconds: u64,
}

/// The settings to change. Absent settings stay as they are.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct ConfigBody {
    /// How long a provider may be silent, in seconds: not less than the heartbeat cadence, and at
    /// most a day.
    pub stale_after_seconds: Option<u64>,
    pub require_ping: Option<bool>,
    pub max_customers_per_mitra: Option<u64>,
    pub heartbeat_cadence_seconds: Option<u64>,
}
