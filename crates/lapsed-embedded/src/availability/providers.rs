//! Operations on providers, and the settings. Each is one job.

use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_availability::{ProviderBeat, ProviderChange, ProviderProfile, ProviderState};
use lapsed_core::Name;

use crate::availability::Core;
use crate::availability::log::LogStatus;
use crate::availability::rows::ProviderRow;
use crate::fault::Tried;
use crate::tx::Tx;

/// A heartbeat from the mirror is dated by its age, which does not include the time of its
/// transfer. The same heartbeat sent again must not look newer because its transfer took longer
/// (C1, C9).
const JITTER_MS: u64 = 1_000;

impl Core {
    pub(super) fn put_provider(
        &self,
        tx: &mut Tx,
        profile: ProviderProfile,
    ) -> Tried<ProviderChange> {
        let ProviderProfile { id, display_name } = profile;
        let known = self.provider(tx, &id)?;
        let is_new = known.is_none();
        let row = known.unwrap_or_else(ProviderRow::new);
        self.change(tx, &id, row, |row, _| {
            let renamed = display_name.is_some() && row.display_name != display_name;
            if renamed {
                row.display_name = display_name;
            }
            is_new || renamed
        })
    }

    pub(super) fn set_online(
        &self,
        tx: &mut Tx,
        id: &Name,
        online: bool,
    ) -> Tried<Option<ProviderChange>> {
        let Some(row) = self.provider(tx, id)? else { return Ok(None) };
        let mut at_ms = 0;
        let changed = self.change(tx, id, row, |row, now_ms| {
            let was = row.is_online;
            at_ms = now_ms;
            match online {
                true => row.go_online(now_ms),
                false if was => row.go_offline(now_ms),
                false => {}
            }
            was != online
        })?;
        if changed.changed {
            let status = if online { LogStatus::Online } else { LogStatus::Offline };
            self.write_log(tx, id, status, at_ms)?;
        }
        Ok(Some(changed))
    }

    pub(super) fn set_active(
        &self,
        tx: &mut Tx,
        id: &Name,
        active: bool,
    ) -> Tried<Option<ProviderChange>> {
        let Some(row) = self.provider(tx, id)? else { return Ok(None) };
        let change = |row: &mut ProviderRow, _| {
            let was = std::mem::replace(&mut row.is_active, active);
            was != active
        };
        self.change(tx, id, row, change).map(Some)
    }

    pub(super) fn refresh(&self, tx: &mut Tx, ids: &[(Name, u64)]) -> Tried<Vec<ProviderState>> {
        let now_ms = self.store_clock.now_ms();
        let mut states = Vec::with_capacity(ids.len());
        for (id, floor) in ids {
            let Some(mut row) = self.provider(tx, id)? else { continue };
            row.bump(*floor, now_ms);
            states.push(row.state(id, now_ms));
            self.put_row(tx, id, row)?;
        }
        Ok(states)
    }

    pub(super) fn beat(&self, tx: &mut Tx, ids: &[Name]) -> Tried<Vec<ProviderBeat>> {
        let now_ms = self.store_clock.now_ms();
        let mut beats = Vec::with_capacity(ids.len());
        for id in ids {
            beats.push(match self.provider(tx, id)? {
                Some(row) if !row.is_active => ProviderBeat::Deactivated,
                Some(mut row) if row.is_online => {
                    row.beat(now_ms);
                    self.put_row(tx, id, row)?;
                    ProviderBeat::Noted
                }
                _ => ProviderBeat::Offline,
            });
        }
        Ok(beats)
    }

    /// Records heartbeats, given with the ages that they had at `now_ms`.
    pub(super) fn note_beats(&self, tx: &mut Tx, beats: &[(Name, u64)], now_ms: u64) -> Tried<u64> {
        let mut moved = 0;
        for (id, age_ms) in beats {
            let Some(mut row) = self.provider(tx, id)?.filter(|row| row.is_online) else {
                continue;
            };
            let at_ms = now_ms.saturating_sub(*age_ms);
            if row.last_heartbeat_ms.is_none_or(|last_ms| at_ms > last_ms + JITTER_MS) {
                row.beat(at_ms);
                self.put_row(tx, id, row)?;
                moved += 1;
            }
        }
        Ok(moved)
    }

    pub(super) fn set_settings(
        &self,
        tx: &mut Tx,
        patch: &SettingsPatch,
    ) -> Tried<AvailabilitySettings> {
        let before: SettingsPatch = match tx.meta_get(&self.tables.settings)? {
            Some(set) => serde_json::from_slice(&set)?,
            None => SettingsPatch::default(),
        };
        let set = SettingsPatch {
            stale_after_seconds: patch.stale_after_seconds.or(before.stale_after_seconds),
            require_ping: patch.require_ping.or(before.require_ping),
            max_customers_per_mitra: patch
                .max_customers_per_mitra
                .or(before.max_customers_per_mitra),
            heartbeat_cadence_seconds: patch
                .heartbeat_cadence_seconds
                .or(before.heartbeat_cadence_seconds),
        };
        let settings = AvailabilitySettings::default().with(&set);
        // Checked before anything is written, so that the batch's other jobs are not affected.
        settings.check()?;
        tx.meta_put(&self.tables.settings, &serde_json::to_vec(&set)?)?;
        self.then(tx, move |index| index.set = set);
        Ok(settings)
    }
}
