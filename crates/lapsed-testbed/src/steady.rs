//! Tests on the real clock, which are repeated if they fail while the machine stood still.
//!
//! An owner that sends a heartbeat every 100 ms and is stopped for two seconds by a busy machine is rightly
//! declared dead, and after such a stop the store's grace period rightly starts again. A test that assumes that
//! the machine keeps running then fails and proves nothing. So a monitor runs during the test: a failure during
//! which the machine stood still does not count, and the test is repeated from its beginning, with new servers
//! and data. Any other failure is a failure.
//!
//! The monitor is independent of the test: two threads sleep, one of them also writes to disk, and both add up
//! how late they wake, and by how much the wall clock was changed.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The most runs of one test. If the machine stands still each time, the last failure counts.
const RUNS_MAX: u32 = 10;
/// The time between two readings of the clock.
const NAP: Duration = Duration::from_millis(10);
/// The same for the disk, which is written less often, because tests use it, too.
const DISK_NAP: Duration = Duration::from_millis(100);
/// Waking up late by less than this is normal and not counted.
const LATE_MIN: Duration = Duration::from_millis(30);
/// A write that takes less than this longer is normal on a shared disk and not counted.
const DISK_LATE_MIN: Duration = Duration::from_millis(150);
/// How much time may be lost in one run; the shortest TTLs in tests are three times as long.
const LOST_MAX: Duration = Duration::from_millis(100);

/// Runs a test, and repeats it if it fails while the machine stood still.
pub fn steadily(mut test: impl FnMut()) {
    for run in 1.. {
        let monitor = StandstillMonitor::begin();
        match catch_unwind(AssertUnwindSafe(&mut test)) {
            Ok(()) => return,
            Err(failure) => monitor.judge(run, failure),
        }
    }
}

/// Runs an async test, and repeats it if it fails while the machine stood still.
pub async fn steadily_async(mut test: impl AsyncFnMut()) {
    for run in 1.. {
        let monitor = StandstillMonitor::begin();
        let outcome = {
            let mut running = std::pin::pin!(test());
            let poll = |context: &mut std::task::Context<'_>| {
                let step = AssertUnwindSafe(|| running.as_mut().poll(context));
                catch_unwind(step).map_or_else(|failure| Poll::Ready(Err(failure)), |p| p.map(Ok))
            };
            std::future::poll_fn(poll).await
        };
        match outcome {
            Ok(()) => return,
            Err(failure) => monitor.judge(run, failure),
        }
    }
}

/// Makes a test of each function: without arguments, blocking.
#[macro_export]
macro_rules! steady_tests {
    ($($test:ident,)*) => {
        mod steady {
            $(#[test]
            fn $test() {
                $crate::steadily(super::$test);
            })*
        }
    };
}

/// The same for async functions, on tokio with two threads.
#[macro_export]
macro_rules! steady_async_tests {
    ($($test:ident,)*) => {
        mod steady {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $crate::steadily_async(super::$test).await;
            })*
        }
    };
}

/// What one thread has counted until now.
struct Counts {
    lost_us: AtomicU64,
    looks: AtomicU64,
}

impl Counts {
    const fn new() -> Self {
        Self { lost_us: AtomicU64::new(0), looks: AtomicU64::new(0) }
    }

    fn lost(&self) -> Duration {
        Duration::from_micros(self.lost_us.load(Ordering::Acquire))
    }

    /// Sleeps and works in a loop, and adds up how late it is, unless that is less than `min`. A change of the
    /// wall clock counts, too, because a store rightly treats it as an absence of its own.
    fn run(&self, nap: Duration, min: Duration, mut work: impl FnMut()) {
        loop {
            let (began, wall) = (Instant::now(), SystemTime::now());
            thread::sleep(nap);
            work();
            let (passed, walled) = (began.elapsed(), wall.elapsed());
            let set =
                walled.map_or_else(|e| passed + e.duration(), |walled| walled.abs_diff(passed));
            let late = passed.saturating_sub(nap).max(set);
            if late >= min {
                self.lost_us.fetch_add(late.as_micros() as u64, Ordering::AcqRel);
            }
            self.looks.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A standstill that has just ended may not be counted yet.
    fn settle(&self) {
        let looked = self.looks.load(Ordering::Acquire);
        while self.looks.load(Ordering::Acquire) < looked + 2 {
            thread::sleep(NAP);
        }
    }
}

static CLOCK: Counts = Counts::new();
static DISK: Counts = Counts::new();

/// The time that had been lost when the test began.
struct StandstillMonitor {
    clock: Duration,
    disk: Duration,
}

impl StandstillMonitor {
    fn begin() -> StandstillMonitor {
        static BEGUN: OnceLock<()> = OnceLock::new();
        BEGUN.get_or_init(|| {
            thread::spawn(|| CLOCK.run(NAP, LATE_MIN, || {}));
            thread::spawn(|| {
                let mut file = tempfile::tempfile().ok();
                DISK.run(DISK_NAP, DISK_LATE_MIN, || write_through(file.as_mut()));
            });
        });
        StandstillMonitor { clock: CLOCK.lost(), disk: DISK.lost() }
    }

    /// Returns if the test should be repeated; otherwise resumes its panic.
    fn judge(self, run: u32, failure: Box<dyn std::any::Any + Send>) {
        CLOCK.settle();
        DISK.settle();
        let lost = (CLOCK.lost() - self.clock).max(DISK.lost() - self.disk);
        eprintln!("failed in run {run}; the machine stood still for {lost:?} meanwhile");
        if !should_repeat(run, lost) {
            resume_unwind(failure);
        }
    }
}

fn should_repeat(run: u32, lost: Duration) -> bool {
    lost > LOST_MAX && run < RUNS_MAX
}

/// Writes one byte to disk and syncs it. Without a file, the disk is not monitored.
fn write_through(file: Option<&mut File>) {
    if let Some(file) = file {
        let _ = file.write_all(b".").and_then(|()| file.sync_data());
    }
}

#[cfg(test)]
mod tests {
    use super::{LOST_MAX, NAP, RUNS_MAX, should_repeat};

    #[test]
    fn only_a_standstill_repeats_a_test_and_only_a_limited_number_of_times() {
        assert!(!should_repeat(1, LOST_MAX));
        assert!(should_repeat(1, LOST_MAX + NAP));
        assert!(!should_repeat(RUNS_MAX, LOST_MAX + NAP));
    }
}
