//! How a system calls its store: with a time limit, recorded as activity, and reported to the
//! observer.

use std::sync::Arc;
use std::time::Duration;

use crate::activity::Activity;
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
        self.activity.note(self.clock.mono());
        self.quiet(what, call).await
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
