//! How much a pass may do and how large a batch may be. Pure functions of their arguments.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Which processes sweep if several could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SweepMode {
    /// All of them; the guard makes that harmless.
    #[default]
    Idempotent,
    /// Only the one that holds the term.
    Leader,
}

impl SweepMode {
    /// The word used in the configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            SweepMode::Idempotent => "idempotent",
            SweepMode::Leader => "leader",
        }
    }
}

/// When a pass that reached `max_ops` or `max_runtime` goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenCapped {
    /// After a tenth of the interval.
    #[default]
    ResumeSoon,
    /// At the next interval, so that the limits hold for every interval.
    WaitForInterval,
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
    /// Pause per entry, for stores that need several requests per entry and throttle clients that
    /// send too many. A store that works on the entries of a batch one by one makes it between
    /// them; otherwise it is made after the batch, for all of its entries together.
    pub entry_delay: Duration,
    /// Largest share of the store's time that a pass may use: after a batch that occupied the store
    /// for long, the pause is long. 1: no pause.
    pub share: f64,
    /// Largest number of entries that one pass acts on. `None`: no limit.
    pub max_ops: Option<u64>,
    /// Longest duration of a pass. `None`: no limit.
    pub max_runtime: Option<Duration>,
    /// When the rest is done of a pass that reached one of these two limits.
    pub when_capped: WhenCapped,
    /// Sweep only if the system was not used for this long, and stop when it is used. `None`: sweep
    /// at any time.
    pub idle_grace: Option<Duration>,
    pub mode: SweepMode,
    /// How long the term of a leader lasts unless it is renewed, which happens three times as often.
    pub term_ttl: Duration,
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
            when_capped: WhenCapped::default(),
            idle_grace: None,
            mode: SweepMode::Idempotent,
            term_ttl: Duration::from_secs(15),
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

    /// When the next batch may be sent after one of `entries` entries that was sent at `sent`, answered at `answered` and occupied the
    /// store for `held`. What the network and this process needed counts as a pause: the store was free meanwhile. The pause
    /// for entries has no upper limit: it spreads requests, whereas the one for `held` gives the store's time back.
    pub fn next_batch_at(
        &self,
        sent: Duration,
        answered: Duration,
        held: Duration,
        entries: usize,
    ) -> Duration {
        let owed = Duration::from_secs_f64(held.as_secs_f64() * (1.0 / self.share - 1.0));
        let spread = self.entry_delay.saturating_mul(entries.try_into().unwrap_or(u32::MAX));
        let shared = sent + held + owed.min(REST_MAX);
        shared.max(answered + self.op_delay).max(sent + spread)
    }

    /// How many entries a batch may have so that the pauses between them use at most half of the
    /// time limit of the call.
    pub fn entries_within_timeout(&self) -> usize {
        let rests = (self.timeout / 2).as_micros().checked_div(self.entry_delay.as_micros());
        rests.map_or(usize::MAX, |rests| rests.max(1).try_into().unwrap_or(usize::MAX))
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
        let next = |policy: &Policy, answered, held, entries| {
            policy.next_batch_at(ms(10), ms(answered), ms(held), entries)
        };
        let policy = Policy { share: 0.5, ..Policy::default() };
        assert_eq!((next(&policy, 12, 2, 1), next(&policy, 11, 1, 1)), (ms(14), ms(12)));
        assert_eq!(next(&policy, 20, 2, 1), ms(20), "the way of the answer is a pause, too");
        assert_eq!(next(&policy, 9_010, 9_000, 1), ms(9_010) + REST_MAX);
        let policy = Policy { op_delay: ms(5), ..policy };
        assert_eq!((next(&policy, 12, 2, 1), next(&policy, 18, 8, 1)), (ms(17), ms(26)));
        assert_eq!(next(&Policy::default(), 18, 8, 1), ms(18));
        let policy = Policy { entry_delay: ms(100), ..Policy::default() };
        assert_eq!((next(&policy, 12, 2, 7), next(&policy, 12, 2, 0)), (ms(710), ms(12)));
        assert_eq!(policy.entries_within_timeout(), 25);
        assert_eq!(Policy::default().entries_within_timeout(), usize::MAX);
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
