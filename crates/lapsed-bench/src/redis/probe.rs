//! An unrelated client of the same server: a GET every half millisecond, whether or not the last
//! one was answered (open loop: latency is counted from when it should have been sent).
//!
//! While one script holds the server for more than five seconds, it refuses everybody else: that is no
//! answer, so the same GET is sent again until there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use lapsed_testbed::resp::RespConnection;

const EVERY: Duration = Duration::from_micros(500);
/// How long after a refusal the same is asked again.
const AGAIN: Duration = Duration::from_millis(20);

pub struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Probe {
    pub fn start(port: u16) -> Result<Probe> {
        Probe::every(port, EVERY)
    }

    /// Starts a probe with this pause between two GETs; a longer pause uses less of the machine.
    pub fn every(port: u16, pause: Duration) -> Result<Probe> {
        let mut connection =
            RespConnection::open(port, Duration::from_secs(60)).map_err(|e| anyhow!("{e}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut waits = Vec::new();
            let mut due = Instant::now();
            let mut end = None;
            // GETs that were due before the end are answered, too: the server may just have been
            // blocked.
            while end.is_none_or(|end| due < end) {
                let now = Instant::now();
                if now < due {
                    std::thread::sleep(due - now);
                }
                get(&mut connection)?;
                waits.push(due.elapsed().as_secs_f64() * 1e3);
                due += pause;
                if end.is_none() && told.load(Ordering::Relaxed) {
                    end = Some(Instant::now());
                }
            }
            Ok(waits)
        });
        Ok(Probe { stop, thread })
    }

    /// Stops the probe; returns the latency of each request, in milliseconds.
    pub fn stop(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the probe panicked"))?
    }
}

/// One GET that is answered.
fn get(connection: &mut RespConnection) -> Result<()> {
    loop {
        match connection.call(&["GET", "nothing"]) {
            Ok(_) => return Ok(()),
            Err(error) if error.to_string().starts_with("BUSY") => std::thread::sleep(AGAIN),
            Err(error) => return Err(anyhow!("{error}")),
        }
    }
}

/// 99 of 100 waited no longer.
pub fn p99(mut waits: Vec<f64>) -> f64 {
    waits.sort_by(f64::total_cmp);
    let last = waits.len().saturating_sub(1);
    waits.get((last as f64 * 0.99).round() as usize).copied().unwrap_or(f64::NAN)
}
