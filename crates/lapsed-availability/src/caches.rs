//! What a daemon keeps of earlier answers of the two stores.

use std::time::Duration;

use crate::Snapshot;
use lapsed_core::sweep::Suspect;

/// The last answer of the truth, used while the mirror does not answer. Only one read of the truth
/// is under way at a time.
#[derive(Default)]
pub(crate) struct LastCount(pub tokio::sync::Mutex<Option<(Snapshot, Duration)>>);

impl LastCount {
    pub async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Suspects of the last survey, ordered by deadline.
#[derive(Default)]
pub(crate) struct Survey {
    pub suspects: Vec<(Suspect, IsPending)>,
    /// The time of the last heartbeats written at once of which the log tells.
    pub told_mass_ms: u64,
}

/// Whether the provider was already pending offline.
pub(crate) type IsPending = bool;
