//! Whether the heartbeats of adopted jobs are where the configuration says.
//!
//! The index holds the last heartbeat of each job, so jobs that are not due show life. If at least half of the
//! jobs in flight do at the same time, the configuration is right, and that is recorded: from then on a backlog of
//! orphans is what it looks like. Until then, or until an operator confirms the configuration, nothing is put back.

use lapsed_core::Result;
use lapsed_core::sweep::{AdoptObservation, Census, PassMode};

use super::adopt::AdoptedInflight;
use crate::names::fingerprint;
use crate::script;
use crate::system_context::Args;

impl AdoptedInflight {
    /// Of the names, and of the threshold: with a shorter one, jobs that are alive may look due.
    fn fingerprint(&self) -> String {
        let process = self.layout.process_key.as_ref().map(|key| key.of("{owner}"));
        let layout = &self.layout;
        let threshold = layout.orphan_threshold.as_millis().to_string();
        let process = process.as_deref().unwrap_or("");
        fingerprint(&[&layout.index_key, &layout.jobs_key, process, &threshold])
    }

    /// Counts as for a pass: remembers that the heartbeats were found, unless it is for a dry run.
    pub(super) async fn count_and_observe(&self, act: PassMode) -> Result<Census> {
        let mut census = self.count().await?;
        if let Some(observation) = &mut census.observation
            && act == PassMode::Reclaim
            && observation.confirmed_ms.is_none()
            && observation.total > 0
            && !observation.is_observing()
        {
            observation.confirmed_ms = Some(self.confirm().await?);
        }
        Ok(census)
    }

    /// `silent`: how many of the jobs had no heartbeat for a whole threshold, or one of the future.
    pub(super) async fn observation(&self, total: u64, silent: u64) -> Result<AdoptObservation> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(self.own("meta")).arg(format!("adopted:{}", self.fingerprint()));
        let confirmed: Option<String> = self.context().connection.query("HGET", &cmd).await?;
        let alive = total.saturating_sub(silent);
        let threshold = self.context().threshold.as_secs_f64();
        Ok(AdoptObservation {
            of: "jobs in flight".to_owned(),
            signs: format!("scores of `{}` within {threshold} s", self.layout.index_key),
            sign: String::new(),
            total,
            alive,
            seen_alive: alive,
            confirmed_ms: confirmed.and_then(|text| text.parse().ok()),
        })
    }

    pub(super) async fn confirm(&self) -> Result<u64> {
        let args = Args::default().key(self.own("meta")).arg(self.fingerprint());
        self.context().run_with_keys(&script::CONFIRM_ADOPTION, args).await
    }
}
