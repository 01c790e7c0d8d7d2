//! Rows of providers and sessions on disk, and how a provider takes its next version.

use lapsed_availability::rules::next_version;
use lapsed_availability::{Available, ListedProvider, ProviderChange, ProviderState, WorkSession};
use lapsed_core::Name;
use serde::{Deserialize, Serialize};

use crate::availability::Core;
use crate::fault::Tried;
use crate::tx::Tx;

/// One provider on disk. Times are milliseconds of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProviderRow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    pub is_active: bool,
    pub is_online: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_online_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_offline_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_ms: Option<u64>,
    /// Number of sessions that occupy it.
    pub sessions: u64,
    pub version: u64,
    pub epoch: u64,
}

impl ProviderRow {
    /// A new provider: active and offline.
    pub fn new() -> Self {
        ProviderRow {
            display_name: None,
            is_active: true,
            is_online: false,
            last_online_ms: None,
            last_offline_ms: None,
            last_heartbeat_ms: None,
            sessions: 0,
            version: 0,
            epoch: 0,
        }
    }

    /// Takes the next version.
    pub fn bump(&mut self, floor: u64, now_ms: u64) {
        self.version = next_version(self.version, floor, now_ms.saturating_mul(1_000));
    }

    /// Starts a new epoch after a version was taken: decisions of the previous epoch are void.
    pub fn begin_epoch(&mut self) {
        self.epoch = self.version;
    }

    /// Sets it online, which counts as a heartbeat.
    pub fn go_online(&mut self, now_ms: u64) {
        (self.is_online, self.last_online_ms) = (true, Some(now_ms));
        self.beat(now_ms);
        self.begin_epoch();
    }

    pub fn go_offline(&mut self, now_ms: u64) {
        (self.is_online, self.last_offline_ms) = (false, Some(now_ms));
        self.begin_epoch();
    }

    pub fn beat(&mut self, at_ms: u64) {
        self.last_heartbeat_ms = self.last_heartbeat_ms.max(Some(at_ms));
    }

    pub fn beat_age_ms(&self, now_ms: u64) -> Option<u64> {
        self.last_heartbeat_ms.map(|at_ms| now_ms.saturating_sub(at_ms))
    }

    pub fn state(&self, id: &Name, now_ms: u64) -> ProviderState {
        ProviderState {
            id: id.clone(),
            version: self.version,
            epoch: self.epoch,
            online: self.is_online,
            active: self.is_active,
            sessions: self.sessions,
            beat_age_ms: self.beat_age_ms(now_ms),
        }
    }

    pub fn listed(&self, id: &Name) -> ListedProvider {
        ListedProvider {
            id: id.clone(),
            display_name: self.display_name.clone(),
            is_online: self.is_online,
            is_active: self.is_active,
            active_session_count: self.sessions,
            last_online_ms: self.last_online_ms,
            last_offline_ms: self.last_offline_ms,
            last_heartbeat_ms: self.last_heartbeat_ms,
        }
    }

    pub fn available(&self, id: &Name) -> Available {
        Available { id: id.clone(), active_session_count: self.sessions }
    }
}

impl Core {
    pub(super) fn provider(&self, tx: &mut Tx, id: &Name) -> Tried<Option<ProviderRow>> {
        let row = tx.get(&self.tables.providers, id.as_str().as_bytes())?;
        Ok(row.map(|row| serde_json::from_slice(&row)).transpose()?)
    }

    pub(super) fn put_row(&self, tx: &mut Tx, id: &Name, row: ProviderRow) -> Tried<()> {
        tx.put(&self.tables.providers, id.as_str().as_bytes(), &serde_json::to_vec(&row)?)?;
        let id = id.clone();
        self.then(tx, move |index| index.put(id, row));
        Ok(())
    }

    /// Changes one provider: takes the next version, calls `change`, and writes the row. `change`
    /// returns whether the value was different before.
    pub(super) fn change(
        &self,
        tx: &mut Tx,
        id: &Name,
        mut row: ProviderRow,
        change: impl FnOnce(&mut ProviderRow, u64) -> bool,
    ) -> Tried<ProviderChange> {
        let now_ms = self.store_clock.now_ms();
        row.bump(0, now_ms);
        let changed = change(&mut row, now_ms);
        let state = row.state(id, now_ms);
        self.put_row(tx, id, row)?;
        Ok(ProviderChange { state, changed, revoked: 0 })
    }

    pub(super) fn session_row(&self, tx: &mut Tx, id: &Name) -> Tried<Option<WorkSession>> {
        let row = tx.get(&self.tables.chats, id.as_str().as_bytes())?;
        Ok(row.map(|row| serde_json::from_slice(&row)).transpose()?)
    }

    pub(super) fn put_session(&self, tx: &mut Tx, session: &WorkSession) -> Tried<()> {
        let key = session.id.as_str().as_bytes();
        tx.put(&self.tables.chats, key, &serde_json::to_vec(session)?)
    }
}
