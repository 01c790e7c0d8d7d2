//! Time and randomness. This is the only file that reads either from the machine; everything else
//! is given a [`Clock`], so that tests and the simulation control both.
//!
//! Two clocks are used. The *wall* clock may jump in either direction. The *monotonic* clock never
//! goes back, but stands still while the host sleeps. A deadline is judged by the store's clock
//! alone. A process that must know whether it still holds something uses the one of its own two
//! clocks that leaves it less time (see [`Owner`](crate::owner::Owner)).

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::{BoxFuture, Either, select};
use rustix::time::{ClockId, clock_getres, clock_gettime};
use tokio::sync::Notify;

use crate::error::{Error, Result};

/// Source of time and randomness.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970-01-01 UTC. May jump either way.
    fn wall_ms(&self) -> u64;
    /// Time since a fixed point that the implementation chooses. Never goes back.
    fn mono(&self) -> Duration;
    /// The monotonic clock in milliseconds, rounded up. Cheaper than [`mono`](Self::mono), never
    /// less than it, and at most a few milliseconds more. Use it to compute a deadline that is
    /// granted, never to judge that a deadline has passed.
    fn mono_ceil_ms(&self) -> u64 {
        self.mono().as_nanos().div_ceil(1_000_000) as u64
    }
    /// Resolves when the monotonic clock has moved on by `span`.
    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()>;
    /// A uniformly distributed random number.
    fn random(&self) -> u64;
}

/// The clocks and the random numbers of this machine.
#[derive(Debug, Clone)]
pub struct SystemClock {
    origin: Instant,
    coarse: Coarse,
}

/// The kernel's coarse clock (`CLOCK_MONOTONIC_COARSE`): reading it does not access the hardware,
/// and the reading is at most one tick old.
#[derive(Debug, Clone)]
struct Coarse {
    origin_ms: i64,
    /// Correction that is added to a reading: one tick, plus the rounding error.
    behind_ms: i64,
}

impl Coarse {
    fn new() -> Self {
        let tick = clock_getres(ClockId::MonotonicCoarse);
        let tick_ms = tick.tv_sec * 1_000 + (tick.tv_nsec + 999_999) / 1_000_000;
        Coarse { origin_ms: coarse_ms(), behind_ms: tick_ms + 1 }
    }

    fn ceil_ms(&self) -> u64 {
        (coarse_ms() - self.origin_ms + self.behind_ms) as u64
    }
}

fn coarse_ms() -> i64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// Sleeps shorter than this block a thread, because the runtime's timer is too coarse for them.
const PRECISE_BELOW: Duration = Duration::from_millis(2);

impl SystemClock {
    /// A clock that counts its monotonic time from now.
    pub fn new() -> Self {
        // The coarse origin is read first, so that a coarse reading is never behind a precise one.
        let coarse = Coarse::new();
        SystemClock { origin: Instant::now(), coarse }
    }

    /// A new clock in an `Arc`.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_millis() as u64
    }

    fn mono(&self) -> Duration {
        self.origin.elapsed()
    }

    fn mono_ceil_ms(&self) -> u64 {
        self.coarse.ceil_ms()
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        // The runtime's timers count whole milliseconds and round up: a sleep of 1 ms would take 2
        // ms.
        if span < PRECISE_BELOW {
            return Box::pin(async move {
                let _ = tokio::task::spawn_blocking(move || std::thread::sleep(span)).await;
            });
        }
        Box::pin(tokio::time::sleep(span))
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

/// A clock for tests and examples that moves only by [`advance`](Self::advance) and
/// [`jump_wall`](Self::jump_wall).
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    inner: Arc<ManualInner>,
}

#[derive(Debug, Default)]
struct ManualInner {
    state: Mutex<ManualState>,
    moved: Notify,
}

#[derive(Debug, Default)]
struct ManualState {
    wall_ms: u64,
    mono: Duration,
    chance: u64,
}

impl ManualClock {
    /// Creates a clock whose wall time is `wall_ms` and whose monotonic time is 0.
    pub fn at(wall_ms: u64) -> Self {
        let clock = ManualClock::default();
        clock.lock().wall_ms = wall_ms;
        clock
    }

    /// Moves both clocks forward by `span` and wakes the sleeps that end within it.
    pub fn advance(&self, span: Duration) {
        let mut state = self.lock();
        state.wall_ms += span.as_millis() as u64;
        state.mono += span;
        drop(state);
        self.inner.moved.notify_waiters();
    }

    /// Moves the wall clock only, as on a host that slept or whose clock was corrected.
    pub fn jump_wall(&self, by_ms: i64) {
        let mut state = self.lock();
        state.wall_ms = state.wall_ms.saturating_add_signed(by_ms);
        drop(state);
        self.inner.moved.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        self.inner.state.lock().expect("no holder of the clock's lock panics")
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> u64 {
        self.lock().wall_ms
    }

    fn mono(&self) -> Duration {
        self.lock().mono
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        let until = self.mono() + span;
        Box::pin(async move {
            loop {
                let moved = clock.inner.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                if clock.mono() >= until {
                    return;
                }
                moved.await;
            }
        })
    }

    fn random(&self) -> u64 {
        // splitmix64: repeatable, and random enough for jitter.
        let mut state = self.lock();
        state.chance = state.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Waits for `work`, but at most `span`; `None` if the time ran out first. The work is then
/// dropped, but a request that it has already sent may still be carried out.
pub async fn within<T>(
    clock: &dyn Clock,
    span: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    // Most calls of a store in memory are answered at once; only the others need a timer.
    if let Poll::Ready(answer) = futures::poll!(work.as_mut()) {
        return Some(answer);
    }
    match select(work, clock.sleep(span)).await {
        Either::Left((answer, _)) => Some(answer),
        Either::Right(_) => None,
    }
}

/// Gives one call of `store` its time limit. A call that has no answer by then fails with
/// [`Error::timed_out`]; it may have been carried out all the same.
pub async fn call_within<T>(
    clock: &dyn Clock,
    limit: Duration,
    store: &(dyn fmt::Display + Sync),
    call: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = || Err(Error::timed_out(&store.to_string(), call, limit.as_millis()));
    within(clock, limit, work).await.unwrap_or_else(late)
}

/// A growing pause between attempts: `first`, multiplied by `factor` as often as `times`, at most `most`.
pub fn backoff(first: Duration, factor: u32, times: u32, most: Duration) -> Duration {
    first.saturating_mul(factor.saturating_pow(times)).min(most)
}

/// `base` changed by a random share of at most `share` in either direction (0.1 means ±10 %).
pub fn jittered(clock: &dyn Clock, base: Duration, share: f64) -> Duration {
    let unit = clock.random() as f64 / u64::MAX as f64;
    base.mul_f64((1.0 + share.clamp(0.0, 1.0) * (2.0 * unit - 1.0)).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_pause_has_an_end() {
        let ms = Duration::from_millis;
        let grown = |times| backoff(ms(100), 3, times, ms(5_000));
        assert_eq!(
            [0, 1, 2, 3, 4, u32::MAX].map(grown),
            [100, 300, 900, 2_700, 5_000, 5_000].map(ms)
        );
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_when_moved() {
        let clock = ManualClock::at(1_000);
        let nap = tokio::spawn(clock.sleep(Duration::from_secs(5)));
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(4));
        tokio::task::yield_now().await;
        assert!(!nap.is_finished());
        clock.advance(Duration::from_secs(1));
        nap.await.unwrap();
        assert_eq!(clock.wall_ms(), 6_000);
    }

    #[tokio::test(start_paused = true)]
    async fn within_returns_none_after_the_limit() {
        let clock = SystemClock::new();
        let never = futures::future::pending::<()>();
        assert!(within(&clock, Duration::from_millis(5), never).await.is_none());
        assert_eq!(within(&clock, Duration::from_millis(5), async { 7 }).await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_is_unavailable_and_names_store_and_call() {
        let (clock, limit) = (SystemClock::new(), Duration::from_millis(5));
        let never = futures::future::pending::<Result<()>>();
        let error = call_within(&clock, limit, &"main", "beat", never).await.unwrap_err();
        assert_eq!(error.kind(), "unavailable");
        assert!(error.to_string().contains("main is unavailable: no answer to `beat` within 5 ms"));
        let answer = call_within(&clock, limit, &"main", "beat", async { Ok(7) }).await;
        assert_eq!(answer.unwrap(), 7);
    }

    #[test]
    fn the_coarse_reading_is_never_behind() {
        let clock = SystemClock::new();
        let mut most = 0;
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            let before = clock.mono().as_nanos().div_ceil(1_000_000) as u64;
            let cheap = clock.mono_ceil_ms();
            let after = clock.mono().as_millis() as u64;
            assert!(cheap >= before, "{cheap} < {before}");
            most = most.max(cheap.saturating_sub(after));
        }
        assert!(most <= 25, "{most} ms ahead");
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let clock = ManualClock::at(0);
        for _ in 0..1_000 {
            let span = jittered(&clock, Duration::from_secs(10), 0.2);
            assert!(span >= Duration::from_secs(8) && span <= Duration::from_secs(12));
        }
    }
}
