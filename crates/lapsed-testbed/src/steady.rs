//! Tests on the real clock ("stories"), which are repeated when the machine stood still meanwhile.
//!
//! Whoever beats every 100 ms and is stopped for two seconds by a busy machine is rightly declared
//! dead; and after such a stop the store's grace rightly begins anew. A story that counts on the
//! machine to go on (it lives for long enough, it is swept at the first try) then fails, and proves
//! nothing. So a watch runs beside it: a failure with a standstill in it is no verdict, and the story
//! is told again from its beginning, with everything new. A failure without one is a failure.
//!
//! The watch knows nothing of the story: it is two threads that nap, one of them also writing to
//! disk, and count by how much they wake up late, or find the wall clock set.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How often a story runs at most. If the machine stands still each time, the last failure counts.
const TELLINGS: u32 = 10;
/// Between two looks at the clock.
const NAP: Duration = Duration::from_millis(10);
/// The same for the disk, which is asked less often: it has others to serve.
const DISK_NAP: Duration = Duration::from_millis(100);
/// Waking up late by less than this is normal and not counted.
const LATE_MIN: Duration = Duration::from_millis(30);
/// And by less than this a disk that others use, too, takes its time.
const DISK_LATE_MIN: Duration = Duration::from_millis(150);
/// How much time may be lost in one run; the shortest TTLs in tests are three times as long.
const LOST_MAX: Duration = Duration::from_millis(100);

/// Runs a story, and repeats it if it fails while the machine stood still.
pub fn steadily(mut story: impl FnMut()) {
    for telling in 1.. {
        let watch = Watch::begin();
        match catch_unwind(AssertUnwindSafe(&mut story)) {
            Ok(()) => return,
            Err(failure) => watch.judge(telling, failure),
        }
    }
}

/// Runs an async story, and repeats it if it fails while the machine stood still.
pub async fn steadily_async(mut story: impl AsyncFnMut()) {
    for telling in 1.. {
        let watch = Watch::begin();
        let outcome = {
            let mut told = std::pin::pin!(story());
            let poll = |context: &mut std::task::Context<'_>| {
                let step = AssertUnwindSafe(|| told.as_mut().poll(context));
                catch_unwind(step).map_or_else(|failure| Poll::Ready(Err(failure)), |p| p.map(Ok))
            };
            std::future::poll_fn(poll).await
        };
        match outcome {
            Ok(()) => return,
            Err(failure) => watch.judge(telling, failure),
        }
    }
}

/// Makes a test of each story: a function without arguments, blocking.
#[macro_export]
macro_rules! steady_tests {
    ($($story:ident,)*) => {
        mod steady {
            $(#[test]
            fn $story() {
                $crate::steadily(super::$story);
            })*
        }
    };
}

/// The same for stories that await, on tokio with two threads.
#[macro_export]
macro_rules! steady_async_tests {
    ($($story:ident,)*) => {
        mod steady {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                $crate::steadily_async(super::$story).await;
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

    /// Naps and works, for ever, and counts by how much it is late, unless that is less than `min`. By how
    /// much the wall clock was set meanwhile counts, too: a store takes that for an absence of its own, and is
    /// right.
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

/// What had been lost when it began.
struct Watch {
    clock: Duration,
    disk: Duration,
}

impl Watch {
    fn begin() -> Watch {
        static BEGUN: OnceLock<()> = OnceLock::new();
        BEGUN.get_or_init(|| {
            thread::spawn(|| CLOCK.run(NAP, LATE_MIN, || {}));
            thread::spawn(|| {
                let mut file = tempfile::tempfile().ok();
                DISK.run(DISK_NAP, DISK_LATE_MIN, || write_through(file.as_mut()));
            });
        });
        Watch { clock: CLOCK.lost(), disk: DISK.lost() }
    }

    /// Returns if the story should be repeated; otherwise resumes its panic.
    fn judge(self, telling: u32, failure: Box<dyn std::any::Any + Send>) {
        CLOCK.settle();
        DISK.settle();
        let lost = (CLOCK.lost() - self.clock).max(DISK.lost() - self.disk);
        eprintln!("failed in telling {telling}; the machine stood still for {lost:?} meanwhile");
        if !is_to_be_told_again(telling, lost) {
            resume_unwind(failure);
        }
    }
}

fn is_to_be_told_again(telling: u32, lost: Duration) -> bool {
    lost > LOST_MAX && telling < TELLINGS
}

/// One byte to disk, and there for good. Without a file there is no disk to watch.
fn write_through(file: Option<&mut File>) {
    if let Some(file) = file {
        let _ = file.write_all(b".").and_then(|()| file.sync_data());
    }
}

#[cfg(test)]
mod tests {
    use super::{LOST_MAX, NAP, TELLINGS, is_to_be_told_again};

    #[test]
    fn only_a_standstill_repeats_a_story_and_only_a_limited_number_of_times() {
        assert!(!is_to_be_told_again(1, LOST_MAX));
        assert!(is_to_be_told_again(1, LOST_MAX + NAP));
        assert!(!is_to_be_told_again(TELLINGS, LOST_MAX + NAP));
    }
}
