//! How a system calls its store: with a time limit, recorded as activity, and reported to the
//! observer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, call_within};
use crate::error::{Error, Result};
use crate::name::SystemId;
use crate::receipt::Observer;

/// The way from one system to its store.
#[derive(Clone)]
pub struct StoreCaller {
    pub id: SystemId,
    pub clock: Arc<dyn Clock>,
    pub activity: Arc<Activity>,
    pub observer: Arc<dyn Observer>,
    /// Time limit of every call.
    pub timeout: Duration,
}

impl StoreCaller {
    /// Calls the store and records the call as activity. Reports calls that failed, and owners that
    /// called although they were declared dead, to the observer.
    pub async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.note_activity();
        self.quiet(what, call).await
    }

    /// Records one operation of a user that is done without [`call`](Self::call).
    pub fn note_activity(&self) {
        self.activity.note(self.clock.mono());
    }

    /// The same without recording activity, for calls that do not come from users.
    pub async fn quiet<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = call_within(&*self.clock, self.timeout, &self.id, what, call).await;
        match &answer {
            Err(Error::Lost(lost)) if lost.ending.is_some() => {
                self.observer.zombie_rejected(&self.id);
            }
            Err(error @ (Error::Unavailable { .. } | Error::Throttled { .. })) => {
                self.observer.store_error(&self.id, error);
            }
            _ => {}
        }
        answer
    }
}

/// Counts the foreground operations of one system and remembers when the last one was. Sweeps that
/// run only while a system is idle (`Schedule::when_idle`) read it.
#[derive(Debug, Default)]
pub struct Activity {
    last_us: AtomicU64,
    uses: AtomicU64,
    used: Notify,
}

impl Activity {
    /// Records one operation at the monotonic time `mono`.
    pub fn note(&self, mono: Duration) {
        self.last_us.fetch_max(mono.as_micros() as u64, Ordering::Relaxed);
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.used.notify_one();
    }

    /// Resolves when there were more operations than `uses`. One task at a time may wait.
    pub async fn used_since(&self, uses: u64) {
        while self.uses() == uses {
            self.used.notified().await;
        }
    }

    /// Number of operations recorded since the process started.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Time since the last recorded operation.
    pub fn idle_for(&self, mono: Duration) -> Duration {
        mono.saturating_sub(Duration::from_micros(self.last_us.load(Ordering::Relaxed)))
    }
}
