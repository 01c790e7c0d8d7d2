//! How long a request may take, without a timer of its own for each.
//!
//! Arming a timer wakes the thread that waits for the network, at every request anew, which costs
//! more than a beat does. So one tick serves all of them: a request looks at the clock when it
//! comes, and is at most one tick late to be cut off.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use tokio::sync::Notify;

/// The longest time between two ticks.
const TICK_MAX: Duration = Duration::from_millis(100);

/// A time limit shared by all requests.
pub struct RequestTimeout {
    limit: Duration,
    tick: Arc<Notify>,
}

impl RequestTimeout {
    /// Begins to tick, on the current runtime, for as long as it is there.
    pub fn start(limit: Duration) -> RequestTimeout {
        let tick = Arc::new(Notify::new());
        let every = (limit / 4).clamp(Duration::from_millis(1), TICK_MAX);
        tokio::spawn(run(Arc::downgrade(&tick), every));
        RequestTimeout { limit, tick }
    }

    /// What `work` answers; none when it takes too long.
    pub async fn with<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let began = Instant::now();
        match select(pin!(work), pin!(self.expire(began))).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    async fn expire(&self, began: Instant) {
        while began.elapsed() < self.limit {
            self.tick.notified().await;
        }
    }
}

async fn run(tick: Weak<Notify>, every: Duration) {
    while let Some(tick) = tick.upgrade() {
        tick.notify_waiters();
        drop(tick);
        tokio::time::sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_slow_are_cut_off_and_the_quick_are_not() {
        let timeout = RequestTimeout::start(Duration::from_millis(20));
        assert_eq!(timeout.with(async { 7 }).await, Some(7));
        let yielding = async {
            tokio::task::yield_now().await;
            8
        };
        assert_eq!(timeout.with(yielding).await, Some(8));
        assert_eq!(timeout.with(std::future::pending::<()>()).await, None);
    }
}
