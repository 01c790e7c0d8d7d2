//! The time limit of requests, without a timer for each request.
//!
//! Arming a timer for every request would each time wake the thread that waits for the network,
//! which costs more than handling a heartbeat. Instead one periodic tick serves all requests: a
//! request notes the time when it arrives, compares it at each tick, and is cut off at most one
//! tick after its limit.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use tokio::sync::Notify;

/// The longest interval between two ticks.
const TICK_MAX: Duration = Duration::from_millis(100);

/// One time limit that all requests share.
pub struct RequestTimeout {
    limit: Duration,
    tick: Arc<Notify>,
}

impl RequestTimeout {
    /// Starts the ticks on the current Tokio runtime. They end when the value is dropped.
    pub fn start(limit: Duration) -> RequestTimeout {
        let tick = Arc::new(Notify::new());
        let every = (limit / 4).clamp(Duration::from_millis(1), TICK_MAX);
        tokio::spawn(run(Arc::downgrade(&tick), every));
        RequestTimeout { limit, tick }
    }

    /// Runs `work` and returns its answer, or `None` if it takes longer than the limit.
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
