//! Counts the foreground operations of one system and remembers when the last one was. Sweeps that
//! run only while a system is idle (`Schedule::when_idle`) read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counter of foreground operations. One relaxed atomic write per operation.
#[derive(Debug, Default)]
pub struct Activity {
    last_us: AtomicU64,
    uses: AtomicU64,
}

impl Activity {
    /// Records one operation at the monotonic time `mono`.
    pub fn note(&self, mono: Duration) {
        self.last_us.fetch_max(mono.as_micros() as u64, Ordering::Relaxed);
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of operations recorded since the process started.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Time since the last recorded operation.
    pub fn idle_for(&self, mono: Duration) -> Duration {
        mono.saturating_sub(Duration::from_micros(self.last_us.load(Ordering::Relaxed)))
    }
}
