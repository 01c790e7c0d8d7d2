//! What counts as available, which of two states is newer, and what a session may become. Pure: decided
//! from values alone, the same for every store.

use serde::{Deserialize, Serialize};

use crate::{ProviderState, SessionChange, SessionRefusal, SessionStatus, WorkSession};
use lapsed_core::error::{Error, Result};
use lapsed_core::name::Name;

/// What the configuration table says, live. The names are the table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilitySettings {
    /// How long a provider may be silent.
    pub stale_after_seconds: u64,
    /// Whether silence means anything: without it nobody is set offline, and everybody counts as fresh.
    pub require_ping: bool,
    /// How many sessions a provider can have at a time.
    pub max_customers_per_mitra: u64,
    /// How often a provider beats.
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

/// The longest that a provider may be silent: a day.
const STALE_SECONDS_MAX: u64 = 24 * 3_600;

impl AvailabilitySettings {
    /// How long a provider may be silent.
    pub fn stale_ms(&self) -> u64 {
        self.stale_after_seconds.saturating_mul(1_000)
    }

    /// Refuses what would set the living offline.
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

    /// The same with what somebody wants to be different.
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

    /// Whether a provider is fresh whose last beat was so long ago; `None`: it never beat.
    pub fn is_fresh(&self, beat_age_ms: Option<u64>) -> bool {
        !self.require_ping || beat_age_ms.is_some_and(|age_ms| age_ms < self.stale_ms())
    }

    /// Whether a provider could take one more session.
    pub fn has_room(&self, sessions: u64) -> bool {
        sessions < self.max_customers_per_mitra
    }

    /// Whether a provider can be reached: online, not deactivated, fresh (C7).
    pub fn is_reachable(&self, provider: &ProviderState) -> bool {
        provider.online && provider.active && self.is_fresh(provider.beat_age_ms)
    }

    /// Whether a provider can take work now.
    pub fn is_available(&self, provider: &ProviderState) -> bool {
        self.is_reachable(provider) && self.has_room(provider.sessions)
    }
}

/// What of the settings somebody wants to be different.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsPatch {
    pub stale_after_seconds: Option<u64>,
    pub require_ping: Option<bool>,
    pub max_customers_per_mitra: Option<u64>,
    pub heartbeat_cadence_seconds: Option<u64>,
}

impl SettingsPatch {
    /// Which settings it is about.
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

/// The next version of a provider: larger than the last, than whatever a mirror has seen (`floor`), and
/// not smaller than the clock in microseconds, so that a truth that lost its last commits does not hand
/// the same versions out again (X7).
pub fn next_version(last: u64, floor: u64, now_us: u64) -> u64 {
    last.saturating_add(1).max(floor.saturating_add(1)).max(now_us)
}

/// What a change makes of a session; `None`: nothing, it is that already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStep {
    /// The session as it becomes.
    pub session: WorkSession,
    /// Who gets one session more by it: to be refused if there is no room, or if deactivated.
    pub onto: Option<Name>,
}

/// What `change` makes of a session as it stands; `None`: there is no such session.
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
        // However it ended first, that is how it ended.
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

/// One provider, as a mirror has it. What a mirror in memory keeps, and what the scripts of the others do
/// with their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorRow {
    /// The newest state that was told; `None`: the application alone wrote here.
    pub version: Option<u64>,
    /// The version of the last toggle that was told.
    pub epoch: u64,
    /// Whether it is in the set of those online.
    pub online: bool,
    /// Whether it is in the set of those deactivated.
    pub deactivated: bool,
    pub sessions: u64,
    /// Its last beat, on the mirror's clock.
    pub beat_ms: Option<u64>,
    /// Declared silent in this epoch, and not yet set offline in the truth.
    pub pending_offline: Option<PendingOffline>,
}

/// That somebody was declared silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingOffline {
    pub epoch: u64,
    /// Its last beat, on the mirror's clock; 0: none was ever seen.
    pub beat_ms: u64,
    /// When that was decided, on the mirror's clock.
    pub decided_ms: u64,
}

impl MirrorRow {
    /// Takes a state over, unless a newer one is known. `beat_ms` is its last beat on the mirror's clock.
    /// Whether anything was taken over.
    ///
    /// Beats only go forward, and never beyond `now_ms`. Whoever was declared silent stays away until the
    /// truth says so, or until a newer toggle of its own.
    pub fn apply(&mut self, state: &ProviderState, beat_ms: Option<u64>, now_ms: u64) -> bool {
        if self.version.is_some_and(|known| known >= state.version) {
            return false;
        }
        self.version = Some(state.version);
        self.deactivated = !state.active;
        self.sessions = state.sessions;
        self.epoch = state.epoch;
        // Another epoch: a newer one, or one from before a truth lost its last commits.
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
