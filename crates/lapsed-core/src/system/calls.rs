//! How a system calls its store: every operation has a time limit, is activity, and is witnessed.

use std::sync::Arc;
use std::time::Duration;

use crate::activity::Activity;
use crate::clock::{Clock, within};
use crate::error::{Error, Result};
use crate::name::SystemId;
use crate::receipt::Observer;

/// The way from one system to its store.
pub struct StoreCaller {
    pub id: SystemId,
    pub clock: Arc<dyn Clock>,
    pub activity: Arc<Activity>,
    pub witness: Arc<dyn Observer>,
    /// How long any one call may take.
    pub timeout: Duration,
}

impl StoreCaller {
    /// Every operation goes through here: it is activity, it has a time limit, and a zombie that
    /// is told so is counted.
    pub async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.activity.note(self.clock.mono());
        self.quiet(what, call).await
    }

    /// The same for whoever only looks: no activity.
    pub async fn quiet<T>(&self, what: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.timeout;
        let answer = within(&*self.clock, limit, call).await.unwrap_or_else(|| {
            Err(Error::timed_out(&self.id.to_string(), what, limit.as_millis()))
        });
        match &answer {
            Err(Error::Lost(lost)) if lost.ending.is_some() => {
                self.witness.zombie_rejected(&self.id);
            }
            Err(error @ (Error::Unavailable { .. } | Error::Throttled { .. })) => {
                self.witness.store_error(&self.id, error);
            }
            _ => {}
        }
        answer
    }
}
