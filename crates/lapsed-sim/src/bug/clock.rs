//! Clocks of planted bugs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use lapsed_core::clock::Clock;

use crate::bug::PlantedBug;

/// A clock that shifts the store's time by the skew of the caller.
pub struct CallerClock {
    clock: Arc<dyn Clock>,
    planted: Arc<PlantedBug>,
}

/// Keeps the shifted clock above zero.
const BASE: Duration = Duration::from_secs(3_600);

impl CallerClock {
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

/// A clock that makes a candidate or a handle trust its term or incarnation for too long.
pub struct BuggyClock {
    clock: Arc<dyn Clock>,
    bug: ClockBug,
}

/// How the clock is wrong.
pub enum ClockBug {
    /// Trust begins with the answer instead of the request. The value is the duration of the last
    /// call, in milliseconds.
    FromTheAnswer(Arc<AtomicU64>),
    /// The time never advances.
    ForEver,
    /// The wall clock is ignored.
    MonotonicAlone,
}

impl BuggyClock {
    /// Wraps `clock` with this bug.
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
