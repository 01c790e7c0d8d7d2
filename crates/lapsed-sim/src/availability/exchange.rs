//! The exchange of requests and answers with a store: they take time, get lost, or arrive after the
//! sender was killed. A frozen store keeps them waiting.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{BoxFuture, pending};
use lapsed_core::{Error, Result};

use crate::executor::{Process, World};

/// The probability of each fault of an exchange.
#[derive(Clone, Copy, Debug, Default)]
pub struct MirrorFaults {
    /// The share of requests that never arrive.
    pub lost: f64,
    /// The share that is carried out and never answered.
    pub unanswered: f64,
    /// The share that is refused at once.
    pub refused: f64,
    /// The longest time that a request or an answer takes, in milliseconds.
    pub slow_ms: u64,
}

/// The server side of all connections to one store.
pub struct Exchange {
    world: Arc<World>,
    /// The process in which the store runs.
    pub server: Process,
    faults: Mutex<MirrorFaults>,
}

impl Exchange {
    /// An exchange for a store in a new process, without faults.
    pub fn new(world: &Arc<World>) -> Arc<Exchange> {
        let server = world.new_process();
        Arc::new(Exchange { world: world.clone(), server, faults: Mutex::default() })
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: MirrorFaults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    pub async fn call<T: Send + 'static>(&self, work: BoxFuture<'static, Result<T>>) -> Result<T> {
        let faults = *self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let random = &self.world.random;
        if random.odds(faults.refused) {
            let what = "it refuses the connection".to_owned();
            return Err(Error::Unavailable { store: "sim".to_owned(), what });
        }
        let way = || Duration::from_micros(random.between(100, 1_000 * faults.slow_ms.max(1)));
        let (there, back) = (way(), way());
        let (lost, unanswered) = (random.odds(faults.lost), random.odds(faults.unanswered));
        let (sender, answer) = oneshot::channel();
        let world = self.world.clone();
        self.world.spawn(self.server, async move {
            world.sleep(there).await;
            if lost {
                return;
            }
            let done = work.await;
            world.sleep(back).await;
            if !unanswered {
                let _ = sender.send(done);
            }
        });
        match answer.await {
            Ok(answer) => answer,
            Err(oneshot::Canceled) => pending().await,
        }
    }
}
