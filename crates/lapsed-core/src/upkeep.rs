//! What the processes that share a store tell each other about its upkeep: that a system is in use,
//! and how far a long comparison of an index has come.
//!
//! Both only save work and requests. A sign of use comes late, and a position may be written by two
//! processes at a time: whatever is done because of them must be safe to do at any time, and twice.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};

use crate::clock::{Clock, call_within, within};
use crate::error::Result;
use crate::name::SystemId;
use crate::store::Store;
use crate::store_caller::Activity;

pub use crate::store::{ReconcileState, UpkeepStore};

/// How long a process waits after a sign before it leaves the next one: at most one small write per
/// minute, system and process.
pub const SIGN_EVERY: Duration = Duration::from_secs(60);

/// Tells the other processes that a system is in use. Run it beside the system.
pub struct ActivitySigns {
    pub store: Arc<dyn Store>,
    pub system: SystemId,
    pub activity: Arc<Activity>,
    pub clock: Arc<dyn Clock>,
    /// Time limit of one sign.
    pub timeout: Duration,
}

impl ActivitySigns {
    /// Leaves a sign whenever the system was used, at most one per [`SIGN_EVERY`], until `stop`
    /// resolves. Returns at once if nobody else could see it.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Some(upkeep) = self.store.upkeep() else { return };
        let mut stop = std::pin::pin!(stop);
        let mut told = 0;
        loop {
            let used = std::pin::pin!(self.activity.used_since(told));
            if let Either::Left(_) = select(&mut stop, used).await {
                return;
            }
            // Changes from here on are covered by the next sign.
            told = self.activity.uses();
            let sign = upkeep.sign_activity(&self.system);
            if !matches!(within(&*self.clock, self.timeout, sign).await, Some(Ok(()))) {
                tracing::debug!(system = %self.system, "no sign of activity was left");
            }
            if let Either::Left(_) = select(&mut stop, self.clock.sleep(SIGN_EVERY)).await {
                return;
            }
        }
    }
}

/// When a system counts as idle: nobody has used it for `grace`, neither by way of this process nor,
/// as far as their signs tell, by way of another one.
#[derive(Clone)]
pub struct IdleRule {
    pub store: Arc<dyn Store>,
    pub system: SystemId,
    pub activity: Arc<Activity>,
    pub clock: Arc<dyn Clock>,
    /// Time limit of reading the signs.
    pub timeout: Duration,
    pub grace: Duration,
}

impl IdleRule {
    /// Whether this process has not used the system.
    pub fn is_idle_here(&self) -> bool {
        self.activity.idle_for(self.clock.mono()) >= self.grace
    }

    /// Whether no process has used the system. Reads the signs only if this process has not.
    pub async fn is_idle(&self) -> Result<bool> {
        if !self.is_idle_here() {
            return Ok(false);
        }
        let Some(upkeep) = self.store.upkeep() else { return Ok(true) };
        let read = upkeep.since_activity(&self.system);
        let since = call_within(&*self.clock, self.timeout, &"the store", "activity", read).await?;
        // A process that is in use all the time leaves a sign once a minute, so the newest one may be
        // that much older than its last use.
        Ok(since.is_none_or(|since| since >= self.grace + SIGN_EVERY))
    }
}
