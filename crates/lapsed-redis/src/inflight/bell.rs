//! Rings when there is something on a queue: one look for a whole process, and only while somebody
//! waits.
//!
//! Nobody is told when a list grows, short of a connection that blocks for each queue. So one task a
//! queue looks how long it is, every so often, rings as often as there is something, and ends when
//! nobody listens any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use tokio::sync::Notify;

use crate::link::RedisConnection;

/// How often a queue is looked at.
const EVERY: Duration = Duration::from_millis(50);

/// Those that are being listened to.
#[derive(Default)]
pub(super) struct QueueWaiters {
    ringing: Mutex<HashMap<Name, Arc<Notify>>>,
}

const LOCK: &str = "no holder of this lock panics";

impl QueueWaiters {
    /// The bell of one queue; looks at `key` from now on, for as long as somebody listens.
    pub fn bell(
        self: &Arc<Self>,
        queue: &Name,
        key: impl FnOnce() -> String,
        link: &RedisConnection,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<Notify>> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let mut ringing = self.ringing.lock().expect(LOCK);
        if let Some(bell) = ringing.get(queue) {
            return Some(bell.clone());
        }
        let bell = Arc::new(Notify::new());
        ringing.insert(queue.clone(), bell.clone());
        let look = Look {
            bells: self.clone(),
            bell: bell.clone(),
            queue: queue.clone(),
            key: key(),
            link: link.clone(),
            clock: clock.clone(),
        };
        runtime.spawn(look.keep_looking());
        Some(bell)
    }
}

/// One queue being looked at.
struct Look {
    bells: Arc<QueueWaiters>,
    bell: Arc<Notify>,
    queue: Name,
    key: String,
    link: RedisConnection,
    clock: Arc<dyn Clock>,
}

impl Look {
    async fn keep_looking(self) {
        loop {
            self.clock.sleep(EVERY).await;
            let Some(listeners) = self.listeners() else { return };
            let mut cmd = redis::cmd("LLEN");
            cmd.arg(&self.key);
            // Without an answer nobody is called: they look by themselves after a while.
            let length: u64 = self.link.query("LLEN", &cmd).await.unwrap_or(0);
            for _ in 0..length.min(listeners) {
                self.bell.notify_one();
            }
        }
    }

    /// How many listen; `None`, and it is forgotten, when nobody does. Listeners hold the bell, and
    /// so do the list and this task.
    fn listeners(&self) -> Option<u64> {
        let mut ringing = self.bells.ringing.lock().expect(LOCK);
        let listeners = Arc::strong_count(&self.bell).saturating_sub(2);
        if listeners == 0 {
            ringing.remove(&self.queue);
            return None;
        }
        Some(listeners as u64)
    }
}
