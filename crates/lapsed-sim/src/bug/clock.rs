//! Clocks that should not have been trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_core::clock::Clock;

use crate::bug::PlantedBug;

/// The store judges by the clock of whoever calls.
pub struct CallerClock {
    clock: Arc<dyn Clock>,
    planted: Arc<PlantedBug>,
}

/// Keeps the shifted clock above zero.
const BASE: Duration = Duration::from_secs(3_600);

impl CallerClock {
    /// That clock, shifted by the caller's skew.
    pub fn new(clock: Arc<dyn Clock>, planted: Arc<PlantedBug>) -> Self {
        CallerClock { clock, planted }
    }
}

impl Clock for CallerClock {
    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    fn mono(&self) -> Duration {
        let ms = (BASE + self.clock.mono()).as_millis() as u64;
        Duration::from_millis(ms.saturating_add_signed(self.planted.callers_skew_ms()))
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(span)
    }

    fn random(&self) -> u64 {
        self.clock.random()
    }
}

/// What a candidate for a term looks at, when it looks at the wrong thing.
pub struct BuggyClock {
    clock: Arc<dyn Clock>,
    bug: ClockBug,
}

/// What it does wrong.
pub enum ClockBug {
    /// Counts from the answer: how long the last one took is added to its trust.
    FromTheAnswer(Arc<AtomicU64>),
    /// Never looks at the time at all.
    ForEver,
    /// Never looks at the wall.
    MonotonicAlone,
}

impl BuggyClock {
    /// That clock, seen so.
    pub fn shared(clock: Arc<dyn Clock>, bug: ClockBug) -> Arc<dyn Clock> {
        Arc::new(BuggyClock { clock, bug })
    }
}

impl Clock for BuggyClock {
    fn wall_ms(&self) -> u64 {
        match &self.bug {
            ClockBug::FromTheAnswer(took) => {
                self.clock.wall_ms().saturating_sub(took.load(Ordering::Relaxed))
            }
            ClockBug::ForEver | ClockBug::MonotonicAlone => 0,
        }
    }

    fn mono(&self) -> Duration {
        match &self.bug {
            ClockBug::FromTheAnswer(took) => {
                let took = Duration::from_millis(took.load(Ordering::Relaxed));
                self.clock.mono().saturating_sub(took)
            }
            ClockBug::ForEver => Duration::ZERO,
            ClockBug::MonotonicAlone => self.clock.mono(),
        }
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(span)
    }

    fn random(&self) -> u64 {
        self.clock.random()
    }
}
