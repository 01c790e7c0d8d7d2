//! Whether to ask the mirror at all: not while it has failed several times in a row, except for one probe
//! now and then, whose success closes the breaker again.

use std::sync::Mutex;
use std::time::Duration;

/// When the breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// After so many failures in a row.
    pub failures: u32,
    /// For so long; then one call is let through to see.
    pub rest: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        BreakerPolicy { failures: 3, rest: Duration::from_secs(1) }
    }
}

/// What it does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    /// Calls fail at once.
    Open,
    /// One call is on its way to see; the others fail at once.
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

/// A circuit breaker. Time is given, never taken.
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
    /// A probe that is never answered (its caller went away) must not keep it half open for ever.
    Probing {
        until: Duration,
    },
}

impl Breaker {
    pub fn new(policy: BreakerPolicy) -> Self {
        Breaker { policy, state: Mutex::new(State::Closed { failures: 0 }) }
    }

    /// Whether a call may go through at `now`.
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

    /// A call was answered.
    pub fn succeeded(&self) {
        *self.lock() = State::Closed { failures: 0 };
    }

    /// A call was not, by `now`.
    pub fn failed(&self, now: Duration) {
        let mut state = self.lock();
        let open = State::Open { until: now + self.policy.rest };
        *state = match *state {
            State::Closed { failures } if failures + 1 < self.policy.failures => {
                State::Closed { failures: failures + 1 }
            }
            State::Closed { .. } | State::Probing { .. } => open,
            // One that was sent before it opened: its rest is not made longer by it.
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
    fn opens_after_failures_in_a_row_and_closes_by_a_probe() {
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
    fn a_probe_that_is_never_answered_is_followed_by_another() {
        let breaker = Breaker::new(BreakerPolicy { failures: 1, rest: S });
        breaker.failed(S);
        assert!(breaker.lets_through(2 * S));
        assert!(breaker.lets_through(3 * S));
    }
}
