//! How much a pass may do and how large a batch may be. Pure functions of their arguments.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Which processes sweep if several could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SweepMode {
    /// All of them; the guard makes that harmless.
    #[default]
    Idempotent,
    /// Only the one that holds the term.
    Leader,
}

/// Limits of a pass. Every field can be configured per system.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Time from the start of one pass to the start of the next.
    pub every: Duration,
    /// Largest random change of `every`, as a share of it, so that replicas do not run at the same
    /// time.
    pub jitter: f64,
    /// Largest number of entries in one store call. The actual size shrinks so that a call stays
    /// within `hold`.
    pub batch: usize,
    /// How long one call may occupy the store.
    pub hold: Duration,
    /// Pause between two batches.
    pub op_delay: Duration,
    /// Additional pause per entry of a batch, for stores that need several requests per entry and
    /// throttle clients that send too many.
    pub entry_delay: Duration,
    /// Largest share of the store's time that a pass may use: after a batch that occupied the store
    /// for long, the pause is long. 1: no pause.
    pub share: f64,
    /// Largest number of entries that one pass acts on. `None`: no limit.
    pub max_ops: Option<u64>,
    /// Longest duration of a pass. `None`: no limit.
    pub max_runtime: Option<Duration>,
    /// Sweep only if the system was not used for this long, and stop when it is used. `None`: sweep
    /// at any time.
    pub idle_grace: Option<Duration>,
    pub mode: SweepMode,
    /// Time limit of every store call.
    pub timeout: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            every: Duration::from_secs(60),
            jitter: 0.1,
            batch: 500,
            hold: Duration::from_millis(2),
            op_delay: Duration::ZERO,
            entry_delay: Duration::ZERO,
            share: 1.0,
            max_ops: None,
            max_runtime: None,
            idle_grace: None,
            mode: SweepMode::Idempotent,
            timeout: Duration::from_secs(5),
        }
    }
}

impl Policy {
    /// Refuses values that cannot work; the error names the field as the configuration does.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Invalid(format!("sweep.{what}")));
        if self.every.is_zero() {
            return wrong("every must be longer than 0");
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return wrong("jitter must be between 0 and 1");
        }
        if self.batch == 0 || self.batch > 10_000 {
            return wrong("batch must be between 1 and 10000");
        }
        if self.hold.is_zero() {
            return wrong("hold must be longer than 0");
        }
        if !(self.share > 0.0 && self.share <= 1.0) {
            return wrong("share must be above 0 and at most 1");
        }
        if self.timeout.is_zero() {
            return wrong("timeout must be longer than 0");
        }
        if self.max_ops == Some(0) {
            return wrong("max_ops must be above 0; leave it out for no limit");
        }
        if self.max_runtime.is_some_and(|d| d.is_zero()) {
            return wrong("max_runtime must be longer than 0; leave it out for no limit");
        }
        if self.idle_grace.is_some_and(|d| d.is_zero()) {
            return wrong("idle_grace must be longer than 0; leave it out to sweep at any time");
        }
        Ok(())
    }

    /// How long to pause after a batch of `entries` entries that occupied the store for `held`.
    pub fn rest_after(&self, held: Duration, entries: usize) -> Duration {
        let owed = held.as_secs_f64() * (1.0 / self.share - 1.0);
        // The entries' pause has no upper limit: it spreads requests, whereas the pause for `held`
        // gives the store's time back.
        let entries = self.entry_delay.saturating_mul(entries.try_into().unwrap_or(u32::MAX));
        self.op_delay.max(entries).max(Duration::from_secs_f64(owed).min(REST_MAX))
    }
}

/// Longest pause that follows from the duration of a batch.
const REST_MAX: Duration = Duration::from_millis(100);

/// Size of the next batch, adapted to how long earlier batches occupied the store.
#[derive(Clone, Debug)]
pub struct BatchSize {
    max: usize,
    hold: Duration,
    now: usize,
}

impl BatchSize {
    /// Starts small, so that even the first call on a slow store is short.
    pub fn new(policy: &Policy) -> Self {
        BatchSize { max: policy.batch, hold: policy.hold, now: policy.batch.min(32) }
    }

    /// How many entries the next call may contain.
    pub fn get(&self) -> usize {
        self.now
    }

    /// Adapts to a call that contained `size` entries and occupied the store for `held`. The aim is
    /// half of what a call may take, because the next one may be slower. Above three quarters the
    /// size shrinks in proportion, but at most by half, because one long call may be the machine's
    /// fault. Below three eighths it grows by a quarter, and below one eighth it doubles.
    pub fn learn(&mut self, size: usize, held: Duration) {
        if size == 0 {
            return;
        }
        if held > self.hold * 3 / 4 {
            let fits = size as f64 * self.hold.as_secs_f64() / 2.0 / held.as_secs_f64();
            self.now = (fits as usize).clamp(self.now.div_ceil(2), self.now);
        } else if held < self.hold * 3 / 8 && size >= self.now {
            let more = if held < self.hold / 8 { self.now } else { self.now.div_ceil(4) };
            self.now = (self.now + more).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_adapts_to_how_long_it_occupies_the_store() {
        let mut size = BatchSize::new(&Policy::default());
        for _ in 0..50 {
            let n = size.get();
            size.learn(n, Duration::from_micros(n as u64));
        }
        assert_eq!(size.get(), 500);
        for _ in 0..50 {
            let n = size.get();
            size.learn(n, Duration::from_micros(100 * n as u64));
        }
        assert!((7..=15).contains(&size.get()), "{}", size.get());
        let before = size.get();
        size.learn(before, Duration::from_secs(9));
        assert_eq!(size.get(), before.div_ceil(2), "once may be the machine's fault");
        for _ in 0..8 {
            size.learn(size.get(), Duration::from_secs(9));
        }
        assert_eq!(size.get(), 1);
        for _ in 0..60 {
            let n = size.get();
            size.learn(n, Duration::from_micros(n as u64));
        }
        assert_eq!(size.get(), 500);
    }

    #[test]
    fn a_longer_batch_is_followed_by_a_longer_pause() {
        let ms = Duration::from_millis;
        let policy = Policy { share: 0.5, ..Policy::default() };
        assert_eq!((policy.rest_after(ms(2), 1), policy.rest_after(ms(1), 1)), (ms(2), ms(1)));
        assert_eq!(policy.rest_after(Duration::from_secs(9), 1), REST_MAX);
        let policy = Policy { op_delay: ms(5), ..policy };
        assert_eq!((policy.rest_after(ms(2), 1), policy.rest_after(ms(8), 1)), (ms(5), ms(8)));
        assert_eq!(Policy::default().rest_after(ms(8), 1), Duration::ZERO);
        let policy = Policy { entry_delay: ms(100), ..Policy::default() };
        assert_eq!((policy.rest_after(ms(1), 7), policy.rest_after(ms(1), 0)), (ms(700), ms(0)));
    }

    #[test]
    fn invalid_policies_are_refused_with_the_field() {
        let bad = Policy { every: Duration::ZERO, ..Policy::default() };
        assert!(bad.check().unwrap_err().to_string().contains("sweep.every"));
        let bad = Policy { batch: 0, ..Policy::default() };
        assert!(bad.check().unwrap_err().to_string().contains("sweep.batch"));
        assert!(Policy::default().check().is_ok());
    }
}
