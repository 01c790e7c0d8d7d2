//! Adopted systems: what was seen of their owners, and the confirmation that their configuration is right.

use lapsed_core::Result;

use super::audit::AuditAction;
use super::live::LiveSystem;
use super::shapes::{AdoptStatus, named};
use crate::config::common::AdoptStart;

impl LiveSystem {
    /// What was seen of the owners of an adopted system; `None` if the system does not observe.
    pub async fn adoption(&self) -> Result<Option<AdoptStatus>> {
        let census = self.census().await?;
        Ok(census.observation.map(|observation| AdoptStatus {
            system: self.id().name.to_string(),
            kind: self.id().kind.to_string(),
            observing: observation.is_observing(),
            words: observation.describe(),
            observation,
        }))
    }

    /// Records in the store that the adopted configuration is right. `Unsupported` if the system does
    /// not observe.
    pub async fn confirm_adoption(&self) -> Result<AdoptStatus> {
        let sweep = self.sweeper().sweep();
        self.call("adopt", sweep.confirm_adoption()).await?;
        let status = self.adoption().await?;
        Ok(status.expect("a system that can be confirmed observes"))
    }

    /// Confirms the configuration if its file says so and nobody has done it before. Written to the
    /// audit.
    pub async fn adopt_as_configured(&self) -> Result<()> {
        if self.adopts() != AdoptStart::Now {
            return Ok(());
        }
        let status = self.adoption().await?;
        if status.is_none_or(|status| status.observation.confirmed_ms.is_some()) {
            return Ok(());
        }
        let action = AuditAction {
            who: "configuration".to_owned(),
            from: None,
            what: "adopt".to_owned(),
            target: self.id().to_string(),
            request: None,
        };
        self.audited(action, self.confirm_adoption(), AdoptStatus::audit_outcome).await.map(|_| ())
    }

    /// Logs what was found under the configured key names, and the next step if the system observes.
    pub async fn log_adoption(&self) -> Result<()> {
        let Some(status) = self.adoption().await? else { return Ok(()) };
        let (system, found) = (self.id(), &status.words);
        match status.observing {
            false => tracing::info!(%system, "adopted: {found}"),
            true => {
                let next = "look at `lapsed sweep SYSTEM --dry-run`; if the key names are right, \
                            confirm once with `lapsed adopt SYSTEM`";
                let next = named(next, system);
                tracing::warn!(%system, "adopted, and only observing: {found}; {next}");
            }
        }
        Ok(())
    }
}
