//! The latency of an unrelated client that sends a request every few milliseconds, whether or not
//! the last one was answered. It is counted from when the request was due.
//!
//! A thread of its own keeps the time: the runtime's timers are late by up to a millisecond.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

const EVERY: Duration = Duration::from_millis(5);

type Asked = Vec<JoinHandle<Result<f64>>>;

pub struct LatencyProbe {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Asked>,
}

impl LatencyProbe {
    pub fn start<F>(ask: impl Fn() -> F + Send + 'static) -> LatencyProbe
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, runtime) = (stop.clone(), Handle::current());
        let thread = std::thread::spawn(move || {
            let mut asked = Asked::new();
            let mut due = Instant::now();
            while !told.load(Ordering::Relaxed) {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let asking = ask();
                asked.push(runtime.spawn(async move {
                    asking.await?;
                    Ok(due.elapsed().as_secs_f64() * 1e3)
                }));
                due += EVERY;
            }
            asked
        });
        LatencyProbe { stop, thread }
    }

    /// Stops the probe; returns the latency of each request, in milliseconds.
    pub async fn stop(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await?;
        let asked = joined.map_err(|_| anyhow::anyhow!("whoever asks panicked"))?;
        try_join_all(asked).await?.into_iter().collect()
    }
}

pub use crate::redis::probe::p99;
