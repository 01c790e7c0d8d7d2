//! Wakes workers that wait for jobs on a queue.
//!
//! Redis does not announce that a list has grown, short of one blocking connection per queue. So one task per
//! queue and process polls the length of the list, wakes as many waiting workers as there are jobs, and ends
//! when no worker waits any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::clock::Clock;
use tokio::sync::Notify;

use crate::connection::RedisConnection;

/// How often the length of a queue is read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The queues that at least one worker of this process waits for.
#[derive(Default)]
pub(super) struct QueueWaiters {
    notifies: Mutex<HashMap<Name, Arc<Notify>>>,
}

const LOCK: &str = "no holder of this lock panics";

impl QueueWaiters {
    /// The notification of one queue. The first caller starts the task that polls `key`.
    pub fn notification(
        self: &Arc<Self>,
        queue: &Name,
        key: impl FnOnce() -> String,
        connection: &RedisConnection,
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<Notify>> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let mut notifies = self.notifies.lock().expect(LOCK);
        if let Some(notify) = notifies.get(queue) {
            return Some(notify.clone());
        }
        let notify = Arc::new(Notify::new());
        notifies.insert(queue.clone(), notify.clone());
        let poller = QueuePoller {
            waiters: self.clone(),
            notify: notify.clone(),
            queue: queue.clone(),
            key: key(),
            connection: connection.clone(),
            clock: clock.clone(),
        };
        runtime.spawn(poller.poll());
        Some(notify)
    }
}

/// The polling task of one queue.
struct QueuePoller {
    waiters: Arc<QueueWaiters>,
    notify: Arc<Notify>,
    queue: Name,
    key: String,
    connection: RedisConnection,
    clock: Arc<dyn Clock>,
}

impl QueuePoller {
    async fn poll(self) {
        loop {
            self.clock.sleep(POLL_INTERVAL).await;
            let Some(waiting) = self.waiting() else { return };
            let mut cmd = redis::cmd("LLEN");
            cmd.arg(&self.key);
            // Without an answer no worker is woken; each looks by itself after its own time limit.
            let length: u64 = self.connection.query("LLEN", &cmd).await.unwrap_or(0);
            for _ in 0..length.min(waiting) {
                self.notify.notify_one();
            }
        }
    }

    /// How many workers wait; `None` if none does, and the queue is then removed from the list. Each worker
    /// has a clone of the notification, and so have the list and this task.
    fn waiting(&self) -> Option<u64> {
        let mut notifies = self.waiters.notifies.lock().expect(LOCK);
        let waiting = Arc::strong_count(&self.notify).saturating_sub(2);
        if waiting == 0 {
            notifies.remove(&self.queue);
            return None;
        }
        Some(waiting as u64)
    }
}
