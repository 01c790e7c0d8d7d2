//! Somebody else who uses the same server: a GET every half millisecond, whether or not the last one
//! was answered (open loop: waiting is counted from when it should have been sent).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use lapsed_testbed::resp::Connection;

const EVERY: Duration = Duration::from_micros(500);

pub struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Probe {
    pub fn start(port: u16) -> Result<Probe> {
        let mut connection =
            Connection::open(port, Duration::from_secs(60)).map_err(|e| anyhow!("{e}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut waits = Vec::new();
            let mut due = Instant::now();
            while !told.load(Ordering::Relaxed) {
                let now = Instant::now();
                if now < due {
                    std::thread::sleep(due - now);
                }
                connection.call(&["GET", "nothing"]).map_err(|e| anyhow!("{e}"))?;
                waits.push(due.elapsed().as_secs_f64() * 1e3);
                due += EVERY;
            }
            Ok(waits)
        });
        Ok(Probe { stop, thread })
    }

    /// What everybody waited, in milliseconds.
    pub fn stop(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the probe panicked"))?
    }
}

/// 99 of 100 waited no longer.
pub fn p99(mut waits: Vec<f64>) -> f64 {
    waits.sort_by(f64::total_cmp);
    let last = waits.len().saturating_sub(1);
    waits.get((last as f64 * 0.99).round() as usize).copied().unwrap_or(f64::NAN)
}
