//! How long a process may believe that it still holds what the store granted to it.
//!
//! Never longer than the store grants it. A TTL is counted from the moment at which the last
//! answered request was *sent*; the store counted from later, but perhaps in whole milliseconds, so
//! that it may end up to one earlier. Of the monotonic and the wall clock,
//! the one that leaves less time is used: the monotonic clock stood still on a host that slept, and
//! a wall clock that was set back would leave too much time (X8).

use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;

/// By how much a store that counts whole milliseconds may end a TTL early.
const STORE_ROUNDS: Duration = Duration::from_millis(1);

/// When a request was sent, on both clocks of this host.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    mono: Duration,
    wall_ms: u64,
}

impl Sent {
    pub fn now(clock: &dyn Clock) -> Sent {
        Sent { mono: clock.mono(), wall_ms: clock.wall_ms() }
    }

    /// The deadline that follows from a TTL granted in the answer to this request.
    pub fn trust(self, ttl: Duration) -> TrustedDeadline {
        let wall_until_ms = self.wall_ms + ttl.as_millis() as u64;
        let mono_until = self.mono + ttl.saturating_sub(STORE_ROUNDS);
        TrustedDeadline { mono_until, wall_until_ms }
    }
}

/// When a granted TTL ends, on both clocks of this host.
#[derive(Clone, Copy, Debug)]
pub struct TrustedDeadline {
    mono_until: Duration,
    wall_until_ms: u64,
}

impl TrustedDeadline {
    /// Time left: the smaller one of the two clocks' answers.
    pub fn left(&self, clock: &dyn Clock) -> Duration {
        let mono = self.mono_until.saturating_sub(clock.mono());
        let wall = Duration::from_millis(self.wall_until_ms.saturating_sub(clock.wall_ms()));
        mono.min(wall)
    }
}

/// Waits for `span`, and checks often enough to notice that the wall clock moved while the
/// monotonic one stood still. False if the trusted time ran out.
pub(crate) async fn wait_trusting(
    clock: &dyn Clock,
    trust: &watch::Sender<TrustedDeadline>,
    wait: Duration,
    ttl: Duration,
) -> bool {
    let until = clock.mono() + wait;
    loop {
        let left = trust.borrow().left(clock);
        if left.is_zero() {
            return false;
        }
        let rest = until.saturating_sub(clock.mono());
        if rest.is_zero() {
            return true;
        }
        let look_up = (ttl / 10).max(Duration::from_millis(1));
        clock.sleep(rest.min(left).min(look_up)).await;
    }
}
