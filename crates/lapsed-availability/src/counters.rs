//! Counters of this system, in addition to those that every system has.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ProviderBeat;

/// Which store an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    Mirror,
    /// The truth, because the mirror did not answer or was not asked.
    Truth,
    /// A recent answer of the truth, cached in this process.
    Cache,
}

impl Source {
    pub const ALL: &[Source] = &[Source::Mirror, Source::Truth, Source::Cache];

    /// The word used in metrics and headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Mirror => "mirror",
            Source::Truth => "truth",
            Source::Cache => "cache",
        }
    }
}

/// The reads whose answer says which store it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadKind {
    Available,
    Count,
    Beacon,
    /// Whether one provider can be reached.
    Reachable,
    /// How many providers are online.
    Online,
    /// Status of one provider.
    Status,
    /// A heartbeat, which also reads whether it may be recorded.
    Heartbeat,
}

impl ReadKind {
    /// Every kind of read.
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
    beats: [AtomicU64; 4],
    /// Snapshots of the beacon that this process computed.
    pub snapshots: AtomicU64,
    /// Heartbeats that were copied from the mirror to the truth.
    pub beats_noted: AtomicU64,
    /// How often this process seeded the mirror.
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

    /// How many heartbeats had this answer.
    pub fn beats(&self, beat: ProviderBeat) -> u64 {
        self.beats[beat as usize].load(Relaxed)
    }
}
