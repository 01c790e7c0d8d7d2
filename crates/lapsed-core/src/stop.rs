//! The request to stop, sent once and received by all background work.

use tokio::sync::watch;

/// Receiver of the request to stop. Background work finishes its current batch and then ends.
#[derive(Clone)]
pub struct StopSignal {
    stopped: watch::Receiver<bool>,
}

/// Sender of the request to stop; see [`StopSignal`].
pub struct StopHandle {
    sender: watch::Sender<bool>,
}

impl StopSignal {
    /// A connected pair of sender and receiver. The receiver can be cloned.
    pub fn channel() -> (StopHandle, StopSignal) {
        let (sender, stopped) = watch::channel(false);
        (StopHandle { sender }, StopSignal { stopped })
    }

    /// Whether the request to stop has been sent.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow() || self.stopped.has_changed().is_err()
    }

    /// Resolves when the request to stop was sent, or when the [`StopHandle`] was dropped.
    pub async fn stopped(&self) {
        let mut stopped = self.stopped.clone();
        while !*stopped.borrow_and_update() {
            if stopped.changed().await.is_err() {
                return;
            }
        }
    }
}

impl StopHandle {
    pub fn stop(&self) {
        self.sender.send_replace(true);
    }
}
