//! Attempts of one request that this process carries out follow each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedMutexGuard;

const LOCK: &str = "no holder of this lock panics";

/// The requests with a key that are carried out now.
#[derive(Default)]
pub struct RequestTurns {
    held: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl RequestTurns {
    /// Waits until no other attempt of the request `name` is carried out. The next one waits until what is
    /// returned is dropped.
    pub async fn wait(&self, name: String) -> OwnedMutexGuard<()> {
        let turn = {
            let mut held = self.held.lock().expect(LOCK);
            // Turns that nobody holds are removed before the map has to grow.
            if held.len() == held.capacity() {
                held.retain(|_, turn| turn.strong_count() > 0);
            }
            let turn = held.get(&name).and_then(Weak::upgrade).unwrap_or_default();
            held.insert(name, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}
