//! Who sweeps, when only one should: a leased term in the store.
//!
//! The races: (1) the leader is slow, its term lapses, another takes over, and the first wakes up
//! and acts on what it saw before (X5). (2) The loop that works is the loop that renews, sleeps for
//! back-off, and two lead (B12). So renewing is a task of its own; the term is trusted only until
//! `ttl` after the last successful renewal was *sent*, never counted from its answer; and the term's
//! number goes along with every batch and is re-checked inside the store's atomic step.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock::{Clock, jittered, within};
use crate::name::SystemId;
use crate::store::Store;

/// One leadership: `number` grows with every change of holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    pub number: u64,
    pub holder: String,
    /// Until when, on the store's clock.
    pub until_ms: u64,
}

/// How a candidate campaigns.
#[derive(Clone, Copy, Debug)]
pub struct TermOptions {
    /// How long a term lasts unless renewed.
    pub ttl: Duration,
    /// How long one renewal may take.
    pub timeout: Duration,
}

impl Default for TermOptions {
    fn default() -> Self {
        TermOptions { ttl: Duration::from_secs(15), timeout: Duration::from_secs(3) }
    }
}

/// What a candidate knows of its own leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldTerm {
    number: u64,
    mono_until: Duration,
    wall_until_ms: u64,
}

/// A candidate's view: does it lead, and may it still believe so?
#[derive(Clone)]
pub struct Leadership {
    clock: Arc<dyn Clock>,
    held: watch::Receiver<Option<HeldTerm>>,
}

impl Leadership {
    /// The number of the term, while it can be trusted: on both of this host's clocks, because a
    /// host that slept has a monotonic one that stood still (X8).
    pub fn term(&self) -> Option<u64> {
        let held = (*self.held.borrow())?;
        let trusted =
            self.clock.mono() < held.mono_until && self.clock.wall_ms() < held.wall_until_ms;
        trusted.then_some(held.number)
    }
}

/// The renewing half: runs apart from the work, for as long as the candidate stands.
pub struct Campaign {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    system: SystemId,
    candidate: String,
    options: TermOptions,
    held: watch::Sender<Option<HeldTerm>>,
}

impl Campaign {
    /// A candidate for the term of `system`, and its view of it. Nothing happens before `run`.
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
        (Campaign { store, clock, system, candidate, options, held: sender }, leadership)
    }

    /// Campaigns and renews until `stop` resolves, then resigns.
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

    /// One attempt. Trust runs from before it was sent.
    pub async fn renew(&self) {
        let ttl_ms = self.options.ttl.as_millis() as u64;
        let mono_until = self.clock.mono() + self.options.ttl;
        let wall_until_ms = self.clock.wall_ms() + ttl_ms;
        let sent = self.store.campaign(&self.system, &self.candidate, ttl_ms);
        match within(&*self.clock, self.options.timeout, sent).await {
            Some(Ok(Some(term))) => {
                let number = term.number;
                self.held.send_replace(Some(HeldTerm { number, mono_until, wall_until_ms }));
            }
            Some(Ok(None)) => {
                self.held.send_replace(None);
            }
            Some(Err(error)) => {
                tracing::warn!(system = %self.system, %error, "term not renewed");
            }
            None => tracing::warn!(system = %self.system, "no answer to the renewal of the term"),
        }
    }

    /// Gives the term back, so that the next one need not wait for it to lapse.
    pub async fn resign(&self) {
        let Some(held) = self.held.send_replace(None) else { return };
        let sent = self.store.resign(&self.system, held.number);
        let answer = within(&*self.clock, self.options.timeout, sent).await;
        if !matches!(answer, Some(Ok(()))) {
            tracing::warn!(system = %self.system, "could not resign; the term lapses by itself");
        }
    }
}
