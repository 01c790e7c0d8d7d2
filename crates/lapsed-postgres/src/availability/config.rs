//! The settings, in the application's configuration table: one row each, as JSON or as text.

use lapsed_availability::rules::{AvailabilitySettings, SettingsPatch};
use lapsed_core::{Error, Result};
use serde_json::Value as Json;
use tokio_postgres::Row;

use crate::availability::PostgresTruth;
use crate::availability::table_names::TableNames;
use crate::call_error::CallResult;
use crate::pool::{Call, TransactionEnd};

impl TableNames {
    fn settings(&self) -> String {
        format!(
            "SELECT k.{0}::text, k.{1}::text FROM {2} k WHERE k.{0} = ANY($1::text[])",
            self.k_key, self.k_value, self.config
        )
    }
}

impl PostgresTruth {
    fn keys(&self) -> [&str; 4] {
        let config = &self.layout.config;
        [
            &config.stale_after_seconds,
            &config.require_ping,
            &config.max_customers_per_mitra,
            &config.heartbeat_cadence_seconds,
        ]
    }

    pub(super) async fn read_settings(&self) -> Result<AvailabilitySettings> {
        let names = self.names().await?;
        let keys: Vec<&str> = self.keys().into();
        let rows = self.pool().query("settings", &names.settings(), &[&keys]).await?;
        self.understood(&rows)
    }

    fn understood(&self, rows: &[Row]) -> Result<AvailabilitySettings> {
        let mut patch = SettingsPatch::default();
        let [stale, ping, max, cadence] = self.keys();
        for row in rows {
            let (key, text): (&str, Option<&str>) = (row.get(0), row.get(1));
            let Some(text) = text else { continue };
            let wrong = || Error::Corrupt {
                store: self.pool().place().to_owned(),
                what: format!("the setting {key} is {text:?}, which makes no sense"),
            };
            // A value that is not JSON is plain text.
            let value = plain(serde_json::from_str(text).unwrap_or(Json::String(text.to_owned())));
            let number = || value.as_u64().ok_or_else(wrong);
            match key {
                key if key == stale => patch.stale_after_seconds = Some(number()?),
                key if key == max => patch.max_customers_per_mitra = Some(number()?),
                key if key == cadence => patch.heartbeat_cadence_seconds = Some(number()?),
                key if key == ping => {
                    patch.require_ping = Some(value.as_bool().ok_or_else(wrong)?);
                }
                _ => {}
            }
        }
        Ok(AvailabilitySettings::default().with(&patch))
    }

    pub(super) async fn try_set_settings(
        &self,
        patch: &SettingsPatch,
    ) -> CallResult<AvailabilitySettings> {
        self.names().await?;
        // One at a time: the whole must make sense. The application's own writes are its own business.
        let lock = "SELECT pg_advisory_xact_lock(hashtext('lapsed settings'), hashtext($1::text))";
        let (call, _) = self.pool().begin("set settings", lock, &[&self.system]).await?;
        let set = match self.note_request(&call).await {
            Ok(()) => self.set_settings_in(&call, patch).await,
            Err(failure) => Err(failure),
        };
        call.finish(set).await
    }

    async fn set_settings_in(
        &self,
        call: &Call,
        patch: &SettingsPatch,
    ) -> CallResult<TransactionEnd<AvailabilitySettings>> {
        let names = self.names().await?;
        let keys: Vec<&str> = self.keys().into();
        let rows = call.query(&names.settings(), &[&keys]).await?;
        let settings = self.understood(&rows)?.with(patch);
        settings.check()?;
        let values = [
            patch.stale_after_seconds.map(Json::from),
            patch.require_ping.map(Json::from),
            patch.max_customers_per_mitra.map(Json::from),
            patch.heartbeat_cadence_seconds.map(Json::from),
        ];
        for (key, value) in keys.into_iter().zip(values) {
            if let Some(value) = value {
                self.write_setting(call, key, &value.to_string()).await?;
            }
        }
        Ok(TransactionEnd::Commit(settings))
    }

    /// Writes one setting. The table need not have a unique key.
    async fn write_setting(&self, call: &Call, key: &str, value: &str) -> CallResult<()> {
        let TableNames { config, k_key, k_value, k_touch, k_type, .. } = self.names().await?;
        let change = format!(
            "UPDATE {config} SET {k_value} = $2::text::{k_type}{k_touch} WHERE {k_key} = $1 RETURNING 1"
        );
        if !call.query(&change, &[&key, &value]).await?.is_empty() {
            return Ok(());
        }
        let make = format!(
            "INSERT INTO {config} ({k_key}, {k_value}) VALUES ($1, $2::text::{k_type}) \
             ON CONFLICT DO NOTHING RETURNING 1"
        );
        if call.query(&make, &[&key, &value]).await?.is_empty() {
            call.query(&change, &[&key, &value]).await?;
        }
        Ok(())
    }
}

fn plain(value: Json) -> Json {
    match &value {
        Json::String(text) => serde_json::from_str(text).unwrap_or(value),
        _ => value,
    }
}
