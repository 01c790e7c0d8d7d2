//! How long a process may believe that it still holds what the store gave it.
//!
//! Never longer than the store may: a TTL is counted from when the last answered request was *sent*
//! (the store counted from later), and whichever of the monotonic and the wall clock leaves less is
//! believed. A host that slept has a monotonic clock that stood still; a wall clock that was set back
//! would promise too much. Either alone is wrong (X8).

use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;

/// When something was sent, on both of this host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    mono: Duration,
    wall_ms: u64,
}

impl Sent {
    pub fn now(clock: &dyn Clock) -> Sent {
        Sent { mono: clock.mono(), wall_ms: clock.wall_ms() }
    }

    /// The trust that its answer is worth.
    pub fn trust(self, ttl: Duration) -> TrustedDeadline {
        let wall_until_ms = self.wall_ms + ttl.as_millis() as u64;
        TrustedDeadline { mono_until: self.mono + ttl, wall_until_ms }
    }
}

/// When trust in the last answer ends, on both of this host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct TrustedDeadline {
    mono_until: Duration,
    wall_until_ms: u64,
}

impl TrustedDeadline {
    /// What is left of it: the less of the two.
    pub fn left(&self, clock: &dyn Clock) -> Duration {
        let mono = self.mono_until.saturating_sub(clock.mono());
        let wall = Duration::from_millis(self.wall_until_ms.saturating_sub(clock.wall_ms()));
        mono.min(wall)
    }
}

/// Waits, looking up often enough to notice that the wall clock moved while the monotonic one did
/// not. False when trust ran out.
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
