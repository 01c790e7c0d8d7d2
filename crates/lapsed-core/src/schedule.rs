//! When: a pass every interval, give or take, until told to stop.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::watch;

use crate::clock::{Clock, jittered};
use crate::sweep::{PassMode, Stopped, Sweeper};

/// How to tell everything that runs in the background to stop: finish the batch, then leave.
#[derive(Clone)]
pub struct StopSignal {
    told: watch::Receiver<bool>,
}

/// The other end of [`StopSignal`].
pub struct StopHandle {
    tell: watch::Sender<bool>,
}

impl StopSignal {
    /// A pair: one to tell, one (to be cloned) to be told.
    pub fn channel() -> (StopHandle, StopSignal) {
        let (tell, told) = watch::channel(false);
        (StopHandle { tell }, StopSignal { told })
    }

    /// Whether it is time.
    pub fn is_told(&self) -> bool {
        *self.told.borrow() || self.told.has_changed().is_err()
    }

    /// Resolves when it is time (also when the [`StopHandle`] was dropped).
    pub async fn told(&self) {
        let mut told = self.told.clone();
        while !*told.borrow_and_update() {
            if told.changed().await.is_err() {
                return;
            }
        }
    }
}

impl StopHandle {
    pub fn stop(&self) {
        self.tell.send_replace(true);
    }
}

/// Runs passes until told to stop. Intervals count from start to start, so that a long pass does
/// not delay the next; a pass that stopped early is resumed sooner than the next interval.
pub async fn run(sweeper: Arc<Sweeper>, clock: Arc<dyn Clock>, stop: StopSignal) {
    let policy = sweeper.policy().clone();
    let mut next = clock.mono() + jittered(&*clock, policy.every / 2, 1.0).min(policy.every);
    loop {
        let nap = clock.sleep(next.saturating_sub(clock.mono()));
        if let Either::Left(_) = select(Box::pin(stop.told()), nap).await {
            return;
        }
        let began = clock.mono();
        // One that leads no longer still settles what its last term left in doubt.
        if sweeper.leads() == Some(false) && !sweeper.is_in_doubt() {
            next = began + jittered(&*clock, policy.every, policy.jitter);
            continue;
        }
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        let wait = match report.stopped {
            Stopped::Ops | Stopped::Runtime => soon(policy.every),
            _ => policy.every,
        };
        next = began + jittered(&*clock, wait, policy.jitter);
    }
}

/// When there is more to do, a tenth of the interval is soon enough.
fn soon(every: Duration) -> Duration {
    (every / 10).max(Duration::from_millis(10))
}
