//! Renews a lease while a command runs, and knows until when this process can rely on holding it.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use lapsed_core::SystemId;
use lapsed_core::clock::{Clock, jittered};
use lapsed_core::leases::{Fenced, LeaseTicket};
use lapsed_core::owner::trust::{Sent, TrustedDeadline};

use super::run::ChildEvent;
use crate::kinds::leases::backend::LeaseBackend;

/// The random share of the interval by which renewals vary, so that many processes do not renew at once.
const JITTER: f64 = 0.1;

/// The shortest time limit of a renewal, even for a very short lease.
const LIMIT_MIN: Duration = Duration::from_millis(500);

/// A lease that is being renewed.
pub struct LeaseRenewer<'k> {
    pub backend: &'k dyn LeaseBackend,
    pub clock: &'k dyn Clock,
    pub system: &'k SystemId,
    pub ticket: &'k LeaseTicket,
    pub ttl: Duration,
    pub trust: Mutex<TrustedDeadline>,
}

impl LeaseRenewer<'_> {
    /// How long this process can still rely on holding the lease without another renewal.
    pub fn trusted_for(&self) -> Duration {
        self.trust().left(self.clock)
    }

    fn trust(&self) -> std::sync::MutexGuard<'_, TrustedDeadline> {
        self.trust.lock().expect("no holder of this lock panics")
    }

    /// Renews the lease until `stop` is closed or the lease is lost; the loss is sent to `tell`. Unanswered
    /// renewals are not reported: they show in `trusted_for`.
    pub fn renew(&self, stop: &Receiver<()>, tell: &Sender<ChildEvent>) {
        let every = self.ttl / 3;
        let mut wait = jittered(self.clock, every, JITTER);
        while stop.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let sent = Sent::now(self.clock);
            match self.backend.renew(self.system, self.ticket, None, every.max(LIMIT_MIN)) {
                Ok(Fenced::Done(_)) => {
                    *self.trust() = sent.trust(self.ttl);
                    wait = jittered(self.clock, every, JITTER);
                }
                Ok(Fenced::Lost(loss)) => {
                    let _ = tell.send(ChildEvent::Lost(loss.describe()));
                    return;
                }
                Err(failure) => {
                    tracing::warn!(key = %self.ticket.key, %failure, "renewal failed");
                    wait = jittered(self.clock, every / 4, JITTER);
                }
            }
        }
    }
}
