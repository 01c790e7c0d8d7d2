//! When a provider is available, which of two states is newer, and how a session may change. Pure
//! functions, the same for every store.

use serde::{Deserialize, Serialize};

use crate::{ProviderState, SessionChange, SessionRefusal, SessionStatus, WorkSession};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::Name;

/// The settings in the configuration table. The field names are the table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AvailabilitySettings {
    /// After how many seconds without a heartbeat a provider is silent.
    pub stale_after_seconds: u64,
    /// Whether heartbeats are required. If not, nobody is set offline and everybody counts as
    /// fresh.
    pub require_ping: bool,
    /// How many sessions a provider can have at a time.
    pub max_customers_per_mitra: u64,
    /// Heartbeat interval of a provider, in seconds.
    pub heartbeat_cadence_seconds: u64,
}

impl Default for AvailabilitySettings {
    fn default() -> Self {
        AvailabilitySettings {
            stale_after_seconds: 90,
            require_ping: true,
            max_customers_per_mitra: 3,
            heartbeat_cadence_seconds: 30,
        }
    }
}

/// Largest `stale_after_seconds`: one day.
const STALE_SECONDS_MAX: u64 = 24 * 3_600;

impl AvailabilitySettings {
    /// After how many milliseconds without a heartbeat a provider is silent.
    pub fn stale_ms(&self) -> u64 {
        self.stale_after_seconds.saturating_mul(1_000)
    }

    /// Refuses settings that would set live providers offline.
    pub fn check(&self) -> Result<()> {
        let AvailabilitySettings { stale_after_seconds, heartbeat_cadence_seconds, .. } = *self;
        if heartbeat_cadence_seconds == 0 {
            return Err(Error::Invalid("heartbeat_cadence_seconds must be at least 1".to_owned()));
        }
        if stale_after_seconds < heartbeat_cadence_seconds {
            return Err(Error::Invalid(format!(
                "stale_after_seconds ({stale_after_seconds}) is below heartbeat_cadence_seconds \
                 ({heartbeat_cadence_seconds}): providers that beat in time would be set offline"
            )));
        }
        if stale_after_seconds > STALE_SECONDS_MAX {
            return Err(Error::Invalid(format!(
                "stale_after_seconds ({stale_after_seconds}) is more than a day; to do without beats \
                 set require_ping to false"
            )));
        }
        Ok(())
    }

    /// The settings with the changes of `patch`.
    pub fn with(mut self, patch: &SettingsPatch) -> AvailabilitySettings {
        let SettingsPatch {
            stale_after_seconds,
            require_ping,
            max_customers_per_mitra,
            heartbeat_cadence_seconds,
        } = *patch;
        self.stale_after_seconds = stale_after_seconds.unwrap_or(self.stale_after_seconds);
        self.require_ping = require_ping.unwrap_or(self.require_ping);
        self.max_customers_per_mitra =
            max_customers_per_mitra.unwrap_or(self.max_customers_per_mitra);
        self.heartbeat_cadence_seconds =
            heartbeat_cadence_seconds.unwrap_or(self.heartbeat_cadence_seconds);
        self
    }

    /// Whether a heartbeat of this age is fresh; `None`: there was none.
    pub fn is_fresh(&self, beat_age_ms: Option<u64>) -> bool {
        !self.require_ping || beat_age_ms.is_some_and(|age_ms| age_ms < self.stale_ms())
    }

    /// Whether a provider with this many sessions can take one more.
    pub fn has_room(&self, sessions: u64) -> bool {
        sessions < self.max_customers_per_mitra
    }

    /// Whether a provider is online, not deactivated and fresh (C7).
    pub fn is_reachable(&self, provider: &ProviderState) -> bool {
        provider.online && provider.active && self.is_fresh(provider.beat_age_ms)
    }

    /// Whether a provider can take work now.
    pub fn is_available(&self, provider: &ProviderState) -> bool {
        self.is_reachable(provider) && self.has_room(provider.sessions)
    }
}

/// Changes of settings; `None` leaves a setting as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsPatch {
    pub stale_after_seconds: Option<u64>,
    pub require_ping: Option<bool>,
    pub max_customers_per_mitra: Option<u64>,
    pub heartbeat_cadence_seconds: Option<u64>,
}

impl SettingsPatch {
    /// Names of the settings that it changes.
    pub fn names(&self) -> Vec<&'static str> {
        let given = [
            ("stale_after_seconds", self.stale_after_seconds.is_some()),
            ("require_ping", self.require_ping.is_some()),
            ("max_customers_per_mitra", self.max_customers_per_mitra.is_some()),
            ("heartbeat_cadence_seconds", self.heartbeat_cadence_seconds.is_some()),
        ];
        given.into_iter().filter_map(|(name, given)| given.then_some(name)).collect()
    }
}

/// The next version of a provider: larger than the last one and than what a mirror has seen
/// (`floor`), and at least the clock in microseconds, so that a truth that lost its last commits
/// does not use the same versions again (X7).
pub fn next_version(last: u64, floor: u64, now_us: u64) -> u64 {
    last.saturating_add(1).max(floor.saturating_add(1)).max(now_us)
}

/// The result of a change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStep {
    /// The session after the change.
    pub session: WorkSession,
    /// The provider that gets one session more; refuse the change if it has no room or is
    /// deactivated.
    pub onto: Option<Name>,
}

/// Applies `change` to a session (`None`: it does not exist). `Ok(None)`: nothing changes.
pub fn step(
    now: Option<&WorkSession>,
    change: &SessionChange,
) -> std::result::Result<Option<SessionStep>, SessionRefusal> {
    use SessionStatus::{Active, Cancelled, Ended, Expired, PendingPayment};
    let running = || match now {
        None => Err(SessionRefusal::NoSuchSession),
        Some(session) if session.status.is_over() => {
            Err(SessionRefusal::Over(session.status.clone()))
        }
        Some(session) if !session.occupies() => Err(SessionRefusal::NotAccepted),
        Some(session) => Ok(session),
    };
    let set = |session: &WorkSession, status: SessionStatus| {
        let changed = session.status != status;
        Ok(changed.then(|| SessionStep {
            session: WorkSession { status, ..session.clone() },
            onto: None,
        }))
    };
    let close = |status: SessionStatus| match now {
        None => Err(SessionRefusal::NoSuchSession),
        // A session that has ended stays as it ended first.
        Some(session) if session.status.is_over() => Ok(None),
        Some(session) => set(session, status),
    };
    match change {
        SessionChange::Accept { session, provider } => accept(now, session, provider),
        SessionChange::Extend { .. } => set(running()?, PendingPayment),
        SessionChange::Resume { .. } => set(running()?, Active),
        SessionChange::End { .. } => close(Ended),
        SessionChange::Expire { .. } => close(Expired),
        SessionChange::Cancel { .. } => close(Cancelled),
        SessionChange::Reroute { to, .. } => {
            let session = running()?;
            if session.provider.as_ref() == Some(to) {
                return Ok(None);
            }
            let session = WorkSession { provider: Some(to.clone()), ..session.clone() };
            Ok(Some(SessionStep { session, onto: Some(to.clone()) }))
        }
    }
}

fn accept(
    now: Option<&WorkSession>,
    id: &Name,
    provider: &Name,
) -> std::result::Result<Option<SessionStep>, SessionRefusal> {
    let accepted = WorkSession {
        id: id.clone(),
        provider: Some(provider.clone()),
        status: SessionStatus::Active,
    };
    match now {
        Some(session) if session.status.is_over() => {
            Err(SessionRefusal::Over(session.status.clone()))
        }
        Some(session) if session.occupies() => match &session.provider {
            Some(holder) if holder != provider => Err(SessionRefusal::Taken(holder.clone())),
            _ if session.status == SessionStatus::Active => Ok(None),
            _ => Ok(Some(SessionStep { session: accepted, onto: None })),
        },
        _ => Ok(Some(SessionStep { session: accepted, onto: Some(provider.clone()) })),
    }
}

/// One provider as a mirror has it. The memory mirror stores it, and the scripts of other mirrors
/// do the same with their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorRow {
    /// The newest version that was applied; `None`: only the application wrote here.
    pub version: Option<u64>,
    /// The version of the last toggle that was applied.
    pub epoch: u64,
    /// Whether it is in the set of online providers.
    pub online: bool,
    /// Whether it is in the set of deactivated providers.
    pub deactivated: bool,
    pub sessions: u64,
    /// Time of its last heartbeat on the mirror's clock.
    pub beat_ms: Option<u64>,
    /// The decision to set it offline in this epoch, if the truth has not carried it out yet.
    pub pending_offline: Option<PendingOffline>,
}

/// The mirror's decision to set a silent provider offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingOffline {
    pub epoch: u64,
    /// Time of its last heartbeat on the mirror's clock; 0: none was ever seen.
    pub beat_ms: u64,
    /// When that was decided, in milliseconds of the mirror's clock.
    pub decided_ms: u64,
}

impl MirrorRow {
    /// Applies a state unless a newer one is known; returns whether anything was applied. `beat_ms`
    /// is the state's last heartbeat on the mirror's clock.
    ///
    /// Heartbeats only move forward, and never beyond `now_ms`. A provider that is pending offline
    /// stays so until the truth sets it offline or a newer toggle arrives.
    pub fn apply(&mut self, state: &ProviderState, beat_ms: Option<u64>, now_ms: u64) -> bool {
        if self.version.is_some_and(|known| known >= state.version) {
            return false;
        }
        self.version = Some(state.version);
        self.deactivated = !state.active;
        self.sessions = state.sessions;
        self.epoch = state.epoch;
        // Another epoch: a newer one, or one from before the truth lost its last commits.
        if self.pending_offline.is_some_and(|pending| pending.epoch != state.epoch || !state.online)
        {
            self.pending_offline = None;
        }
        self.online = state.online && self.pending_offline.is_none();
        self.beat_ms = match self.online {
            true => self.beat_ms.max(beat_ms.map(|beat_ms| beat_ms.min(now_ms))),
            false => None,
        };
        true
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
