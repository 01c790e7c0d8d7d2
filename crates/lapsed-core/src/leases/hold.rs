//! A lease that this process holds: renewed in the background, and reported as lost as soon as it
//! may be.
//!
//! The race that it closes: the store may consider the lease expired while the process still
//! believes that it holds it. [`trust`](crate::owner::trust) explains why a process never believes
//! so for longer than the store does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::{Clock, call_within, jittered};
use crate::error::{Error, Result};
use crate::leases::{
    AcquireRequest, Fenced, Grant, LeaseKey, LeaseTicket, LeaseToken, Leases, Loss,
};
use crate::owner::trust::{Sent, TrustedDeadline, wait_trusting};

/// Options for the renewals of a lease.
#[derive(Clone, Debug)]
pub struct HoldOptions {
    /// Interval of renewals, below the TTL; `None`: a third of the TTL.
    pub every: Option<Duration>,
    /// Largest random change of each interval, as a share of it.
    pub jitter: f64,
}

impl Default for HoldOptions {
    fn default() -> Self {
        HoldOptions { every: None, jitter: 0.1 }
    }
}

impl HoldOptions {
    pub(super) fn check(&self, acquire: &AcquireRequest) -> Result<()> {
        let every = self.every(acquire.ttl_ms);
        if !every.is_zero() && every < Duration::from_millis(acquire.ttl_ms) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "the interval of renewals ({every:?}) must be above 0 and below the TTL ({} ms); a third \
             of it is usual",
            acquire.ttl_ms
        )))
    }

    fn every(&self, ttl_ms: u64) -> Duration {
        self.every.unwrap_or(Duration::from_millis(ttl_ms) / 3)
    }
}

/// Result of an attempt to hold a lease.
#[non_exhaustive]
pub enum HoldAttempt {
    /// The lease is held until it is dropped, released or lost.
    Hold(Hold),
    /// Another holder still had the lease when the wait was over.
    Held(Grant),
}

/// How a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostLease {
    /// The store answered that the lease was lost.
    Told(Loss),
    /// No renewal was answered for a whole TTL, so another holder may have the lease.
    Silence,
}

impl LostLease {
    /// A sentence that says what happened and what the holder should do.
    pub fn describe(&self) -> String {
        match self {
            LostLease::Told(loss) => loss.describe(),
            LostLease::Silence => {
                "no renewal was answered for a whole TTL; by now another owner may \
                                   hold it"
                    .to_owned()
            }
        }
    }
}

/// A lease, held until it is released, lost, or dropped. A dropped lease expires after its TTL.
pub struct Hold {
    leases: Arc<Leases>,
    ticket: LeaseTicket,
    clock: Arc<dyn Clock>,
    trust: watch::Receiver<TrustedDeadline>,
    lost: watch::Receiver<Option<LostLease>>,
    renewing: JoinHandle<()>,
}

impl Hold {
    pub(super) fn new(
        leases: Arc<Leases>,
        key: LeaseKey,
        grant: Grant,
        sent: Sent,
        options: HoldOptions,
    ) -> Hold {
        let ttl = Duration::from_millis(grant.ttl_ms);
        let ticket = LeaseTicket { key, token: grant.token };
        let clock = leases.parts.clock.clone();
        let (trust_tx, trust) = watch::channel(sent.trust(ttl));
        let (lost_tx, lost) = watch::channel(None);
        let renewer = Renewer {
            leases: leases.clone(),
            ticket: ticket.clone(),
            every: options.every(grant.ttl_ms),
            jitter: options.jitter,
            ttl,
            trust: trust_tx,
            lost: lost_tx,
        };
        let renewing = tokio::spawn(renewer.run());
        Hold { leases, ticket, clock, trust, lost, renewing }
    }

    /// The key and the token of the lease.
    pub fn ticket(&self) -> &LeaseTicket {
        &self.ticket
    }

    /// The fencing token. Pass it along with whatever this holder writes elsewhere.
    pub fn token(&self) -> LeaseToken {
        self.ticket.token
    }

    /// How much longer this process may believe that it holds the lease. Zero: it may not.
    pub fn trusted_for(&self) -> Duration {
        if self.lost.borrow().is_some() {
            return Duration::ZERO;
        }
        self.trust.borrow().left(&*self.clock)
    }

    /// Whether [`trusted_for`](Self::trusted_for) is above zero.
    pub fn is_held(&self) -> bool {
        !self.trusted_for().is_zero()
    }

    /// Resolves when the lease was lost.
    pub async fn lost(&self) -> LostLease {
        let mut lost = self.lost.clone();
        loop {
            if let Some(lost) = lost.borrow_and_update().clone() {
                return lost;
            }
            if lost.changed().await.is_err() {
                return LostLease::Silence;
            }
        }
    }

    /// Releases the lease at once.
    pub async fn release(self) -> Result<Fenced<()>> {
        self.renewing.abort();
        self.leases.release(&self.ticket).await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

struct Renewer {
    leases: Arc<Leases>,
    ticket: LeaseTicket,
    every: Duration,
    jitter: f64,
    ttl: Duration,
    trust: watch::Sender<TrustedDeadline>,
    lost: watch::Sender<Option<LostLease>>,
}

impl Renewer {
    async fn run(self) {
        let clock = self.leases.parts.clock.clone();
        let mut wait = jittered(&*clock, self.every, self.jitter);
        loop {
            if !wait_trusting(&*clock, &self.trust, wait, self.ttl).await {
                self.lost.send_replace(Some(LostLease::Silence));
                return;
            }
            match self.renew(&*clock).await {
                Ok(Fenced::Done(())) => wait = jittered(&*clock, self.every, self.jitter),
                Ok(Fenced::Lost(loss)) => {
                    self.lost.send_replace(Some(LostLease::Told(loss)));
                    return;
                }
                Err(error) => {
                    tracing::warn!(key = %self.ticket.key, %error, "a lease could not be renewed; it is tried again at the next interval");
                    wait = jittered(&*clock, self.every / 4, self.jitter);
                }
            }
        }
    }

    async fn renew(&self, clock: &dyn Clock) -> Result<Fenced<()>> {
        let sent = Sent::now(clock);
        let trusted = self.trust.borrow().left(clock);
        let renewal = self.leases.renew(&self.ticket, None);
        match call_within(clock, trusted, &"the store", "renew", renewal).await? {
            Fenced::Done(_) => {
                self.trust.send_replace(sent.trust(self.ttl));
                Ok(Fenced::Done(()))
            }
            Fenced::Lost(loss) => Ok(Fenced::Lost(loss)),
        }
    }
}
