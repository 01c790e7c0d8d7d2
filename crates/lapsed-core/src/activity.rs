//! Who used a system last, and how often: what idle-only sweeps look at.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts foreground use. Cheap enough to be touched by every operation.
#[derive(Debug, Default)]
pub struct Activity {
    last_us: AtomicU64,
    uses: AtomicU64,
}

impl Activity {
    /// Somebody used it at `mono`.
    pub fn note(&self, mono: Duration) {
        self.last_us.fetch_max(mono.as_micros() as u64, Ordering::Relaxed);
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it was used so far.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// For how long nobody has used it.
    pub fn idle_for(&self, mono: Duration) -> Duration {
        mono.saturating_sub(Duration::from_micros(self.last_us.load(Ordering::Relaxed)))
    }
}
