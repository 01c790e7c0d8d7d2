//! How both stores stand, for whoever watches: nothing of it counts as a read.

use crate::operations::{Availability, Source};
use crate::{BreakerState, Presence};
use lapsed_core::error::Result;

/// How a system of providers stands.
#[derive(Debug)]
pub struct AvailabilitySummary {
    /// What the mirror says of itself.
    pub mirror: Result<Presence>,
    /// How many can take work now, and who says so; `None`: neither store does.
    pub available: Option<(u64, Source)>,
    /// Whether the mirror is asked.
    pub breaker: BreakerState,
    /// Of how many the mirror was not told yet by this process.
    pub behind: usize,
}

impl Availability {
    /// How both stores stand now. Where the mirror does not answer, the truth is asked no more often than
    /// for the beacon.
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
