//! Runs a pass in every interval, with jitter, until the process stops.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};

use crate::clock::{Clock, jittered};
use crate::sweep::policy::WhenCapped;
use crate::sweep::{PassMode, Stopped, Sweeper};

pub use crate::stop::{StopHandle, StopSignal};

/// Runs passes until `stop` says so. Intervals count from start to start, so that a long pass does
/// not delay the next one. When a pass that reached a limit goes on is a part of the policy.
pub async fn run(sweeper: Arc<Sweeper>, clock: Arc<dyn Clock>, stop: StopSignal) {
    let policy = sweeper.policy().clone();
    let mut next = clock.mono() + jittered(&*clock, policy.every / 2, 1.0).min(policy.every);
    loop {
        let nap = clock.sleep(next.saturating_sub(clock.mono()));
        if let Either::Left(_) = select(Box::pin(stop.stopped()), nap).await {
            return;
        }
        let began = clock.mono();
        // A sweeper that is no longer the leader still settles the batches of its last term whose
        // answers were lost.
        if sweeper.leads() == Some(false) && !sweeper.is_in_doubt() {
            next = began + jittered(&*clock, policy.every, policy.jitter);
            continue;
        }
        let report = sweeper.pass(PassMode::Reclaim, 0, &stop).await;
        let capped = matches!(report.stopped, Stopped::Ops | Stopped::Runtime);
        let wait = match policy.when_capped {
            WhenCapped::ResumeSoon if capped => soon(policy.every),
            _ => policy.every,
        };
        next = began + jittered(&*clock, wait, policy.jitter);
    }
}

/// The pause before a pass that ended early is resumed: a tenth of the interval.
fn soon(every: Duration) -> Duration {
    (every / 10).max(Duration::from_millis(10))
}
