//! Waiting for a lease that another holder has, without a storm of requests.
//!
//! All tasks of one process that wait for the same key form a queue, and only the first one polls
//! the store. So the number of requests does not grow with the number of waiters, and the first to
//! come is served first. There is no queue between processes: their retries are jittered, and none
//! is preferred.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::clock::{Clock, jittered, within};
use crate::leases::LeaseKey;

/// First pause between two polls; later pauses grow up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Largest random change of a pause, as a share of it.
const JITTER: f64 = 0.5;

type WaitQueue = Arc<tokio::sync::Mutex<()>>;

/// One queue per key that has waiting callers.
#[derive(Default)]
pub(super) struct WaitQueues {
    lines: Mutex<HashMap<LeaseKey, WaitQueue>>,
}

/// The right to poll for a key, until dropped.
pub(super) struct WaitTurn<'l> {
    lines: &'l WaitQueues,
    key: LeaseKey,
    held: Option<OwnedMutexGuard<()>>,
}

impl WaitQueues {
    /// Waits for the turn to poll, at most for `span`; `None` if the time ran out.
    pub async fn stand(
        &self,
        clock: &dyn Clock,
        key: &LeaseKey,
        span: Duration,
    ) -> Option<WaitTurn<'_>> {
        let line = self.lock().entry(key.clone()).or_default().clone();
        let held = within(clock, span, line.lock_owned()).await;
        // Created even if the time ran out, because dropping it removes an empty queue.
        let turn = WaitTurn { lines: self, key: key.clone(), held };
        turn.held.is_some().then_some(turn)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseKey, WaitQueue>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitTurn<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        drop(self.held.take());
        if lines.get(&self.key).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.key);
        }
    }
}

/// Growing pauses between two polls.
pub(super) struct RetryPauses(Duration);

impl RetryPauses {
    pub fn new() -> RetryPauses {
        RetryPauses(PAUSE_MIN)
    }

    /// The next pause: at most until the holder's lease ends (`over_in`), and at most `left`.
    pub fn next(&mut self, clock: &dyn Clock, over_in: Duration, left: Duration) -> Duration {
        let pause = jittered(clock, self.0, JITTER);
        self.0 = (self.0 * 2).min(PAUSE_MAX);
        // Jitter, so that processes that wait for the same deadline do not all poll at the same
        // millisecond.
        let soon = over_in + jittered(clock, PAUSE_MIN / 4, 1.0);
        pause.min(soon).min(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, SystemClock};

    #[tokio::test]
    async fn a_wait_queue_is_first_come_first_served_and_is_removed() {
        let (lines, clock) = (Arc::new(WaitQueues::default()), SystemClock::shared());
        let key = LeaseKey::new("n", "k").unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = lines.stand(&*clock, &key, Duration::from_secs(60)).await.unwrap();
        let mut others = Vec::new();
        for n in 0..5 {
            let (lines, clock, key, order) =
                (lines.clone(), clock.clone(), key.clone(), order.clone());
            others.push(tokio::spawn(async move {
                let _turn = lines.stand(&*clock, &key, Duration::from_secs(60)).await.unwrap();
                order.lock().unwrap().push(n);
            }));
            tokio::task::yield_now().await;
        }
        assert!(lines.stand(&*clock, &key, Duration::from_millis(5)).await.is_none());
        drop(first);
        for other in others {
            other.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert!(lines.lock().is_empty());
    }

    #[test]
    fn pauses_grow_and_end_with_the_holders_lease() {
        let (clock, hour) = (ManualClock::at(0), Duration::from_secs(3_600));
        let mut pauses = RetryPauses::new();
        let many: Vec<_> = (0..8).map(|_| pauses.next(&clock, hour, hour)).collect();
        assert!(many[0] >= PAUSE_MIN / 2 && many[7] >= PAUSE_MAX / 2, "{many:?}");
        assert!(many.iter().all(|pause| *pause <= PAUSE_MAX * 3 / 2), "{many:?}");
        assert!(pauses.next(&clock, Duration::ZERO, hour) <= PAUSE_MIN / 2);
        assert_eq!(pauses.next(&clock, hour, Duration::from_millis(3)), Duration::from_millis(3));
    }
}
