//! The settings: kept for a minute, read again when a change is announced, and used for longer if the truth
//! does not answer.

use std::time::Duration;

use super::Availability;
use crate::LOCK;
use crate::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_core::error::{Error, Result};

/// How long settings are cached, unless a change is announced.
const SETTINGS_FOR: Duration = Duration::from_secs(60);

/// How long cached settings are used again if the truth does not answer.
const SETTINGS_AGAIN: Duration = Duration::from_secs(5);

/// The settings as they were last read from the truth.
#[derive(Default)]
pub(super) struct CachedSettings {
    settings: Option<AvailabilitySettings>,
    /// Until when they are used, on the monotonic clock.
    until: Duration,
    /// Number of announced changes. Settings read before the last one are not used.
    changes: u64,
}

impl Availability {
    /// The settings, at most a minute old; if the truth does not answer, the last known ones.
    pub async fn settings(&self) -> Result<AvailabilitySettings> {
        let now = self.parts.clock.mono();
        let (known, until) = {
            let known = self.lock_settings();
            (known.settings, known.until)
        };
        match known.filter(|_| now < until) {
            Some(settings) => Ok(settings),
            None => match (self.settings_now().await, known) {
                (Err(Error::Unavailable { .. } | Error::Throttled { .. }), Some(settings)) => {
                    // For a while, no other caller waits for a truth that does not answer.
                    self.lock_settings().until = self.parts.clock.mono() + SETTINGS_AGAIN;
                    Ok(settings)
                }
                (answer, _) => answer,
            },
        }
    }

    /// The settings as they were last read, if they were.
    pub fn settings_known(&self) -> Option<AvailabilitySettings> {
        self.lock_settings().settings
    }

    /// Reads the settings. If they are invalid, the last valid ones are used.
    pub async fn settings_now(&self) -> Result<AvailabilitySettings> {
        let (asked, changes) = (self.parts.clock.mono(), self.lock_settings().changes);
        let read = self.calls.quiet("settings", self.parts.truth.settings()).await;
        let checked = match read {
            Ok(read) => read.check().map(|()| read),
            Err(error @ Error::Corrupt { .. }) => Err(error),
            Err(error) => return Err(error),
        };
        let mut known = self.lock_settings();
        let settings = match checked {
            Ok(read) => read,
            Err(error) => {
                let settings = known.settings.unwrap_or_default();
                tracing::error!(system = %self.parts.id, %error,
                    "the configuration table cannot be followed; going on with the last settings that could, \
                     or with the defaults");
                settings
            }
        };
        known.settings = Some(settings);
        if known.changes == changes {
            known.until = asked + SETTINGS_FOR;
        }
        self.parts.brake.set_threshold(Duration::from_millis(settings.stale_ms()));
        Ok(settings)
    }

    /// Changes settings and notifies all daemons.
    pub async fn set_settings(&self, patch: &SettingsPatch) -> Result<AvailabilitySettings> {
        let work = self.parts.truth.set_settings(patch);
        let settings = self.calls.call("settings", work).await?;
        self.settings_changed().await;
        for setting in patch.names() {
            let told = self.background("announce", self.parts.mirror.announce(setting)).await;
            if let Err(error) = told {
                tracing::warn!(system = %self.parts.id, %error, setting,
                    "the other daemons were not notified of a setting; they read it within a minute");
            }
        }
        Ok(settings)
    }

    /// Handles the announcement that a setting or the operator's brake setting has changed: it is
    /// read again when it is next needed, and the snapshot is dropped.
    pub async fn settings_changed(&self) {
        self.services.heard();
        {
            // The old settings are kept for the case that the truth does not answer.
            let mut known = self.lock_settings();
            (known.until, known.changes) = (Duration::ZERO, known.changes + 1);
        }
        self.last_count.forget().await;
        let _ = self.background("drop_snapshot", self.parts.mirror.drop_snapshot()).await;
    }

    fn lock_settings(&self) -> std::sync::MutexGuard<'_, CachedSettings> {
        self.settings.lock().expect(LOCK)
    }
}
