//! The rules of leases, written once. Pure: a store loads a key's [`LeaseRecord`], calls one of these, and
//! writes the record back by the one conditional write (or transaction) that makes it true.
//!
//! Equal to now counts as expired, everywhere the same (D8): it is asked in one place,
//! [`ClockReading::is_over`]. A token only grows and is never given back (D5): a record is never deleted.

use serde::{Deserialize, Serialize};

use crate::leases::{Decision, Grant, LeaseKey, LeaseState, LeaseToken, Loss, LossReason};
use crate::name::Name;

/// The store's clock at the instant of a decision, as far as it is known.
///
/// Where the clock is exact all is simple. Where it is known within bounds only (an object store tells
/// its time in whole seconds), nothing is over before it is over for sure, and time is granted from the
/// latest that it may be: a holder that counts a TTL from before it asked then stops before anybody
/// else may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The earliest that it may be: for judging that something is over.
    pub judging_ms: u64,
    /// The latest that it may be: for granting time.
    pub granting_ms: u64,
    /// Since when the store has been serving without a gap: whoever held a lease before has a whole
    /// TTL from then. 0: nobody needs to be spared.
    pub back_ms: u64,
}

impl ClockReading {
    /// On an exact clock.
    pub fn exact(now_ms: u64, back_ms: u64) -> ClockReading {
        ClockReading { judging_ms: now_ms, granting_ms: now_ms, back_ms }
    }

    /// Whether a time has come.
    pub fn is_over(&self, deadline_ms: u64) -> bool {
        deadline_ms <= self.judging_ms
    }
}

/// A lease, as its key's record has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub owner: Name,
    /// How long it lasts from each renewal.
    pub ttl_ms: u64,
    /// When it was acquired, on the store's clock.
    pub acquired_ms: u64,
    /// When its time runs out, on the store's clock.
    pub deadline_ms: u64,
    /// Which request acquired it, if that said: the same request again gets the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Name>,
}

impl Lease {
    /// When it is over: at its deadline, but never before it had a whole TTL since the store was back.
    pub fn due_ms(&self, back_ms: u64) -> u64 {
        if back_ms <= self.acquired_ms {
            return self.deadline_ms;
        }
        self.deadline_ms.max(back_ms + self.ttl_ms)
    }

    /// Whether it is over.
    pub fn is_expired(&self, at: &ClockReading) -> bool {
        at.is_over(self.due_ms(at.back_ms))
    }
}

/// A state that waits for the decision of its transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedState {
    pub txn: Name,
    /// What becomes the state if it commits.
    pub state: LeaseState,
}

/// All there is of one key. It outlives every lease on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The newest token that was ever granted; 0: none was.
    pub token: LeaseToken,
    /// Who holds it by that token.
    pub lease: Option<Lease>,
    /// The small state that goes with the key.
    pub state: Option<LeaseState>,
    /// What its holder has staged.
    pub staged: Option<StagedState>,
}

/// One lease that ran out and was cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedLease {
    /// The token that ended with it.
    pub token: LeaseToken,
    /// The lease, as it was.
    pub lease: Lease,
    /// What became of staged work: its transaction and the decision that was followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<(Name, Decision)>,
}

/// What an attempt to acquire found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// It is the caller's now.
    Granted,
    /// It has been the caller's: the same request was carried out before. Nothing changed.
    Repeated,
    /// Somebody holds it. Nothing changed.
    Held,
}

impl LeaseRecord {
    /// The lease that is on it and over.
    pub fn expired(&self, at: &ClockReading) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.is_expired(at))
    }

    /// The transaction whose decision must be known before the lease can end: ask for it, and where
    /// there is none decide `rollback`, before [`clear`](Self::clear) or [`release`](Self::release).
    pub fn undecided(&self) -> Option<&Name> {
        self.staged.as_ref().map(|staged| &staged.txn)
    }

    /// Clears the lease if it is over. `decision` is that of [`undecided`](Self::undecided); without it
    /// a lease that has staged work is left as it is.
    pub fn clear(&mut self, at: &ClockReading, decision: Option<Decision>) -> Option<ClearedLease> {
        self.expired(at)?;
        if self.staged.is_some() && decision.is_none() {
            return None;
        }
        let lease = self.lease.take()?;
        let staged = self.settle(decision);
        Some(ClearedLease { token: self.token, lease, staged })
    }

    /// StagedState work becomes the state, or nothing, as its transaction was decided.
    fn settle(&mut self, decision: Option<Decision>) -> Option<(Name, Decision)> {
        let staged = self.staged.take()?;
        let decision = decision?;
        if decision == Decision::Commit {
            self.state = Some(staged.state);
        }
        Some((staged.txn, decision))
    }

    /// Grants the next token, unless somebody holds it. Whatever is over was cleared before.
    pub fn acquire(
        &mut self,
        owner: &Name,
        ttl_ms: u64,
        request: Option<&Name>,
        at: &ClockReading,
    ) -> AcquireOutcome {
        if let Some(lease) = &self.lease {
            let same = request.is_some() && lease.request.as_ref() == request;
            return if same && lease.owner == *owner {
                AcquireOutcome::Repeated
            } else {
                AcquireOutcome::Held
            };
        }
        self.token = LeaseToken(self.token.0 + 1);
        self.lease = Some(Lease {
            owner: owner.clone(),
            ttl_ms,
            acquired_ms: at.granting_ms,
            deadline_ms: at.granting_ms + ttl_ms,
            request: request.cloned(),
        });
        AcquireOutcome::Granted
    }

    /// Moves the deadline, never back. Whatever is over was cleared before.
    pub fn renew(
        &mut self,
        token: LeaseToken,
        ttl_ms: Option<u64>,
        at: &ClockReading,
    ) -> Result<(), Loss> {
        self.check(token)?;
        let Some(lease) = &mut self.lease else { return Err(self.loss(token)) };
        lease.ttl_ms = ttl_ms.unwrap_or(lease.ttl_ms);
        lease.deadline_ms = lease.deadline_ms.max(at.granting_ms + lease.ttl_ms);
        Ok(())
    }

    /// Ends the lease by its holder's will. `decision` as in [`clear`](Self::clear).
    pub fn release(&mut self, token: LeaseToken, decision: Option<Decision>) -> Result<(), Loss> {
        self.check(token)?;
        self.lease = None;
        self.settle(decision);
        Ok(())
    }

    /// Sets the state, or removes it.
    pub fn set_state(&mut self, token: LeaseToken, state: Option<LeaseState>) -> Result<(), Loss> {
        self.check(token)?;
        self.state = state;
        Ok(())
    }

    /// Stages a state for a transaction, in place of what was staged before.
    pub fn stage(&mut self, token: LeaseToken, staged: Option<StagedState>) -> Result<(), Loss> {
        self.check(token)?;
        self.staged = staged;
        Ok(())
    }

    /// Whether `token` is that of the present holder. Whatever is over was cleared before.
    pub fn check(&self, token: LeaseToken) -> Result<(), Loss> {
        if self.lease.is_some() && token == self.token { Ok(()) } else { Err(self.loss(token)) }
    }

    /// Why `token` holds nothing.
    fn loss(&self, token: LeaseToken) -> Loss {
        let why = match () {
            () if token == LeaseToken(0) || token > self.token => LossReason::Unknown,
            () if token < self.token => LossReason::Superseded,
            () => LossReason::Ended,
        };
        let holder = self.lease.as_ref().map(|lease| lease.owner.clone());
        Loss { why, token: self.token, holder }
    }

    /// The answer to whoever holds it now.
    pub fn grant(&self, key: &LeaseKey, at: &ClockReading) -> Option<Grant> {
        let lease = self.lease.as_ref()?;
        Some(Grant {
            namespace: key.namespace.clone(),
            key: key.key.clone(),
            owner: lease.owner.clone(),
            token: self.token,
            ttl_ms: lease.ttl_ms,
            deadline_ms: lease.due_ms(at.back_ms),
            now_ms: at.granting_ms,
        })
    }
}

/// What becomes of the decision on a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionMarker {
    pub decision: Decision,
    /// When it was made, on the store's clock.
    pub decided_ms: u64,
    /// How long it is kept.
    pub ttl_ms: u64,
    /// Until when, on the store's clock.
    pub deadline_ms: u64,
}

impl DecisionMarker {
    pub fn new(decision: Decision, ttl_ms: u64, at: &ClockReading) -> DecisionMarker {
        let now_ms = at.granting_ms;
        DecisionMarker { decision, decided_ms: now_ms, ttl_ms, deadline_ms: now_ms + ttl_ms }
    }

    /// Whether its time is over. An absence of the store does not matter: nobody renews a decision.
    pub fn is_expired(&self, at: &ClockReading) -> bool {
        at.is_over(self.deadline_ms)
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
