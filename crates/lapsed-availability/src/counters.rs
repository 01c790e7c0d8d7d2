//! What is counted besides what every system counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ProviderBeat;
use crate::operations::Source;

/// The reads that say where their answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    Available,
    Count,
    Beacon,
    /// Whether one can be reached.
    Reachable,
    /// How many are online.
    Online,
    /// One provider's own status.
    Status,
    /// A beat: it reads, too, whether it may be noted.
    Heartbeat,
}

impl ReadKind {
    /// Every one there is.
    pub const ALL: &[ReadKind] = &[
        ReadKind::Available,
        ReadKind::Count,
        ReadKind::Beacon,
        ReadKind::Reachable,
        ReadKind::Online,
        ReadKind::Status,
        ReadKind::Heartbeat,
    ];

    /// The word used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ReadKind::Available => "available",
            ReadKind::Count => "count",
            ReadKind::Beacon => "beacon",
            ReadKind::Reachable => "reachable",
            ReadKind::Online => "online",
            ReadKind::Status => "status",
            ReadKind::Heartbeat => "heartbeat",
        }
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    reads: [[AtomicU64; 3]; 7],
    beats: [AtomicU64; 3],
    /// Snapshots of the beacon that were computed here.
    pub snapshots: AtomicU64,
    /// Beats that were written down in the truth by the heartbeat mirror.
    pub beats_noted: AtomicU64,
    /// How often the mirror was seeded from here.
    pub seeds: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self, read: ReadKind, source: Source) {
        self.reads[read as usize][source as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn beat(&self, beat: ProviderBeat) {
        self.beats[beat as usize].fetch_add(1, Relaxed);
    }

    /// How often `read` was answered from `source`.
    pub fn reads(&self, read: ReadKind, source: Source) -> u64 {
        self.reads[read as usize][source as usize].load(Relaxed)
    }

    /// How many beats were answered so.
    pub fn beats(&self, beat: ProviderBeat) -> u64 {
        self.beats[beat as usize].load(Relaxed)
    }
}
