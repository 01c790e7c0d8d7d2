//! State of both stores for status and metrics. Nothing here counts as a read.

use crate::counters::Source;
use crate::operations::Availability;
use crate::{BreakerState, Presence};
use lapsed_core::error::Result;

/// State of an availability system.
#[derive(Debug)]
pub struct AvailabilitySummary {
    /// Presence as reported by the mirror.
    pub mirror: Result<Presence>,
    /// How many providers can take work now, and which store says so; `None`: neither answers.
    pub available: Option<(u64, Source)>,
    /// State of the mirror's circuit breaker.
    pub breaker: BreakerState,
    /// Number of providers whose last change this process has not yet written to the mirror.
    pub behind: usize,
}

impl Availability {
    /// Reads the state of both stores. If the mirror does not answer, the truth is read no more
    /// often than for the beacon.
    pub async fn summary(&self) -> AvailabilitySummary {
        let stale_ms = self.settings_known().unwrap_or_default().stale_ms();
        let mirror = self.background("presence", self.parts.mirror.presence(stale_ms)).await;
        let available = match self.count_mirrored().await {
            Some(count) => Some((count, Source::Mirror)),
            None => self.ask_truth().await.ok().map(|(snapshot, source)| (snapshot.count, source)),
        };
        AvailabilitySummary { mirror, available, breaker: self.breaker(), behind: self.behind() }
    }
}
