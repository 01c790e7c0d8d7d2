//! Tells the time in which this process stood still from the time in which it waited.
//!
//! A process that was stopped (SIGSTOP, a paused machine, no processor time) finds after waking up that an answer took
//! long. That says nothing about the server. While a process waits for an answer, it therefore wakes up in short
//! intervals; what an interval took longer than it should, the process did not live through.

use std::time::Duration;

use futures::future::{Either, select};
use lapsed_core::clock::Clock;

/// Runs `work`, and measures for how long this process stood still meanwhile. Delays of up to `tick` are not counted.
pub(crate) async fn measured<T>(
    clock: &dyn Clock,
    tick: Duration,
    work: impl Future<Output = T>,
) -> (T, Duration) {
    let mut work = std::pin::pin!(work);
    let mut stood_still = Duration::ZERO;
    loop {
        let began = clock.mono();
        let woken = select(work, clock.sleep(tick)).await;
        stood_still += (clock.mono() - began).saturating_sub(2 * tick);
        match woken {
            Either::Left((answer, _)) => return (answer, stood_still),
            Either::Right((_, waiting)) => work = waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapsed_core::clock::SystemClock;

    const TICK: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn waiting_is_not_standing_still() {
        let clock = SystemClock::shared();
        let steady = async || {
            let wait = tokio::time::sleep(10 * TICK);
            let (_, stood_still) = measured(&*clock, TICK, wait).await;
            assert!(stood_still < 5 * TICK, "{stood_still:?}");
        };
        lapsed_testbed::steadily_async(steady).await;
    }

    #[tokio::test]
    async fn a_thread_that_was_blocked_stood_still() {
        let clock = SystemClock::shared();
        let work = async {
            tokio::time::sleep(TICK / 4).await;
            std::thread::sleep(10 * TICK);
        };
        let (_, stood_still) = measured(&*clock, TICK, work).await;
        assert!(stood_still >= 8 * TICK, "{stood_still:?}");
    }
}
