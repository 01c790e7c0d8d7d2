//! Leader election: a leased term in the store, for systems that only one process should sweep.
//!
//! The races: (1) the leader is slow, its term expires, another process takes over, and the first
//! one wakes up and acts on what it read before (X5). (2) The loop that does the work also renews
//! the term; it sleeps in a back-off, and two processes lead (B12). Therefore renewing is a
//! separate task. The term is trusted only until `ttl` after the last successful renewal was
//! *sent*, never counted from its answer. And every batch contains the term's number, which the
//! store checks inside its atomic step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{Clock, jittered, within};
use crate::name::SystemId;
use crate::store::Store;

pub use crate::store::Term;

/// Options of a candidate.
#[derive(Clone, Copy, Debug)]
pub struct TermOptions {
    /// How long a term lasts unless renewed.
    pub ttl: Duration,
    /// Time limit of one renewal.
    pub timeout: Duration,
}

impl Default for TermOptions {
    fn default() -> Self {
        TermOptions { ttl: Duration::from_secs(15), timeout: Duration::from_secs(3) }
    }
}

/// What a candidate knows of its own term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldTerm {
    number: u64,
    mono_until: Duration,
    wall_until_ms: u64,
}

/// A candidate's view of its term: whether it is the leader and may still believe so.
#[derive(Clone)]
pub struct Leadership {
    clock: Arc<dyn Clock>,
    held: watch::Receiver<Option<HeldTerm>>,
}

impl Leadership {
    /// The number of the term while it can be trusted by both clocks of this host; the monotonic
    /// clock stands still on a host that sleeps (X8).
    pub fn term(&self) -> Option<u64> {
        let held = (*self.held.borrow())?;
        let trusted =
            self.clock.mono() < held.mono_until && self.clock.wall_ms() < held.wall_until_ms;
        trusted.then_some(held.number)
    }
}

/// Renews the term, in a task of its own, for as long as the process is a candidate.
pub struct Campaign {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    system: SystemId,
    candidate: String,
    options: TermOptions,
    held: watch::Sender<Option<HeldTerm>>,
    /// Whether the last renewal failed. Only the first failure in a row is logged as a warning.
    failing: AtomicBool,
}

impl Campaign {
    /// A candidate for the term of `system`, and its view of it. Nothing is sent before `run`.
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        system: SystemId,
        candidate: &str,
        options: TermOptions,
    ) -> (Campaign, Leadership) {
        let (sender, held) = watch::channel(None);
        let leadership = Leadership { clock: clock.clone(), held };
        let candidate = candidate.to_owned();
        (
            Campaign {
                store,
                clock,
                system,
                candidate,
                options,
                held: sender,
                failing: AtomicBool::new(false),
            },
            leadership,
        )
    }

    /// Takes and renews the term until `stop` resolves, then resigns.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        loop {
            self.renew().await;
            let nap = jittered(&*self.clock, self.options.ttl / 3, 0.2);
            let nap = self.clock.sleep(nap);
            if let futures::future::Either::Left(_) = futures::future::select(&mut stop, nap).await
            {
                break;
            }
        }
        self.resign().await;
    }

    /// Sends one renewal. The trusted time counts from before it was sent.
    pub async fn renew(&self) {
        let ttl_ms = self.options.ttl.as_millis() as u64;
        let mono_until = self.clock.mono() + self.options.ttl;
        let wall_until_ms = self.clock.wall_ms() + ttl_ms;
        let sent = self.store.campaign(&self.system, &self.candidate, ttl_ms);
        let answer = within(&*self.clock, self.options.timeout, sent).await;
        let failed = !matches!(answer, Some(Ok(_)));
        let is_new = !self.failing.swap(failed, Ordering::Relaxed);
        match answer {
            Some(Ok(Some(term))) => {
                let number = term.number;
                self.held.send_replace(Some(HeldTerm { number, mono_until, wall_until_ms }));
            }
            Some(Ok(None)) => {
                self.held.send_replace(None);
            }
            Some(Err(error)) if !is_new => {
                tracing::debug!(system = %self.system, %error, "the leader's term could not be renewed");
            }
            None if !is_new => {
                tracing::debug!(system = %self.system, "the store did not answer the renewal of the leader's term")
            }
            Some(Err(error)) => {
                tracing::warn!(system = %self.system, %error, "the leader's term could not be renewed");
            }
            None => {
                tracing::warn!(system = %self.system, "the store did not answer the renewal of the leader's term")
            }
        }
    }

    /// Ends the term, so that the next leader does not have to wait until it expires.
    pub async fn resign(&self) {
        let Some(held) = self.held.send_replace(None) else { return };
        let sent = self.store.resign(&self.system, held.number);
        let answer = within(&*self.clock, self.options.timeout, sent).await;
        if !matches!(answer, Some(Ok(()))) {
            tracing::warn!(system = %self.system, "the leader's term could not be ended; it expires after its TTL");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const TTL_MS: u64 = 15_000;

    /// A term that was won at this moment of the clock.
    fn won(clock: &ManualClock) -> Leadership {
        let held = HeldTerm {
            number: 7,
            mono_until: clock.mono() + Duration::from_millis(TTL_MS),
            wall_until_ms: clock.wall_ms() + TTL_MS,
        };
        let (_, held) = watch::channel(Some(held));
        Leadership { clock: Arc::new(clock.clone()), held }
    }

    #[test]
    fn at_its_very_end_a_term_is_no_longer_trusted() {
        let clock = ManualClock::at(1_000);
        let leadership = won(&clock);
        clock.advance(Duration::from_millis(TTL_MS - 1));
        assert_eq!(leadership.term(), Some(7));
        clock.advance(Duration::from_millis(1));
        assert_eq!(leadership.term(), None);
    }

    /// While a host sleeps its monotonic clock stands still, and a wall clock can be set back.
    #[test]
    fn trap_x8_each_clock_by_itself_ends_the_trust_in_a_term() {
        let slept = ManualClock::at(1_000);
        let leadership = won(&slept);
        slept.jump_wall(TTL_MS as i64 - 1);
        assert_eq!(leadership.term(), Some(7));
        slept.jump_wall(1);
        assert_eq!(leadership.term(), None, "by the wall clock it is over");

        let set_back = ManualClock::at(1_000);
        let leadership = won(&set_back);
        set_back.jump_wall(-900);
        set_back.advance(Duration::from_millis(TTL_MS));
        assert_eq!(leadership.term(), None, "by the monotonic clock it is over");
    }
}
