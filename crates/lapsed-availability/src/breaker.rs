//! Circuit breaker for the mirror: it opens after several failures in a row, and then lets one
//! probe through from time to time, whose success closes it again.

use std::sync::Mutex;
use std::time::Duration;

/// When the breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Number of failures in a row that open it.
    pub failures: u32,
    /// How long it stays open before one call is let through as a probe.
    pub rest: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        BreakerPolicy { failures: 3, rest: Duration::from_secs(1) }
    }
}

/// State of the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    /// Calls fail at once.
    Open,
    /// One probe is under way; all other calls fail at once.
    HalfOpen,
}

impl BreakerState {
    /// The word used in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

/// A circuit breaker. The current time is always passed in.
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Duration,
    },
    /// A probe that is never answered, because its caller went away, must not keep the breaker half
    /// open for ever.
    Probing {
        until: Duration,
    },
}

impl Breaker {
    pub fn new(policy: BreakerPolicy) -> Self {
        Breaker { policy, state: Mutex::new(State::Closed { failures: 0 }) }
    }

    /// Whether a call may be sent at `now`.
    pub fn lets_through(&self, now: Duration) -> bool {
        let mut state = self.lock();
        match *state {
            State::Closed { .. } => true,
            State::Open { until } | State::Probing { until } if now < until => false,
            State::Open { .. } | State::Probing { .. } => {
                *state = State::Probing { until: now + self.policy.rest };
                true
            }
        }
    }

    /// Records that a call was answered.
    pub fn succeeded(&self) {
        *self.lock() = State::Closed { failures: 0 };
    }

    /// Records that a call failed at `now`.
    pub fn failed(&self, now: Duration) {
        let mut state = self.lock();
        let open = State::Open { until: now + self.policy.rest };
        *state = match *state {
            State::Closed { failures } if failures + 1 < self.policy.failures => {
                State::Closed { failures: failures + 1 }
            }
            State::Closed { .. } | State::Probing { .. } => open,
            // A call that was sent before the breaker opened does not prolong it.
            State::Open { until } => State::Open { until },
        };
    }

    pub fn state(&self, now: Duration) -> BreakerState {
        match *self.lock() {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open,
            State::Open { .. } | State::Probing { .. } => BreakerState::HalfOpen,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_breaker_opens_after_failures_and_closes_after_a_probe() {
        let breaker = Breaker::new(BreakerPolicy { failures: 2, rest: S });
        breaker.failed(S);
        breaker.succeeded();
        breaker.failed(S);
        assert!(breaker.lets_through(S), "not two in a row");
        breaker.failed(S);
        assert!(!breaker.lets_through(S + S / 2));
        assert_eq!(breaker.state(S), BreakerState::Open);
        assert!(breaker.lets_through(2 * S), "the probe");
        assert!(!breaker.lets_through(2 * S), "one at a time");
        breaker.failed(2 * S);
        assert!(!breaker.lets_through(2 * S + S / 2), "open again");
        assert!(breaker.lets_through(3 * S));
        breaker.succeeded();
        assert!(breaker.lets_through(3 * S) && breaker.lets_through(3 * S));
        assert_eq!(breaker.state(3 * S), BreakerState::Closed);
    }

    #[test]
    fn an_unanswered_probe_is_followed_by_another() {
        let breaker = Breaker::new(BreakerPolicy { failures: 1, rest: S });
        breaker.failed(S);
        assert!(breaker.lets_through(2 * S));
        assert!(breaker.lets_through(3 * S));
    }
}
