//! The rules of leases. Pure functions: a store loads a key's [`LeaseRecord`], calls one of them,
//! and writes the record back in one conditional write or transaction.
//!
//! A deadline equal to now has passed, everywhere (D8); only [`ClockReading::is_over`] compares. A
//! token only grows and is never given twice (D5): a record outlives its leases, and before the
//! record of a key that nobody uses is deleted, the store raises a number (the *token floor*) to at
//! least its token. The first token of a record is taken above that floor.

use serde::{Deserialize, Serialize};

use crate::leases::{Decision, Grant, LeaseKey, LeaseState, LeaseToken, Loss, LossReason};
use crate::name::Name;

/// The store's clock at the time of a decision, as far as it is known.
///
/// An object store tells its time in whole seconds, so its clock is known within bounds only.
/// Nothing counts as expired before it has certainly expired, and time is granted from the latest
/// possible instant. A holder that counts its TTL from before its request therefore stops before
/// anybody else can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The earliest possible time, for judging that something has expired.
    pub judging_ms: u64,
    /// The latest possible time, for granting a TTL.
    pub granting_ms: u64,
    /// Since when the store has been serving without a gap. A lease granted before has a whole TTL
    /// from then. 0: nobody needs to be spared.
    pub back_ms: u64,
}

impl ClockReading {
    /// A reading of an exact clock.
    pub fn exact(now_ms: u64, back_ms: u64) -> ClockReading {
        ClockReading { judging_ms: now_ms, granting_ms: now_ms, back_ms }
    }

    /// Whether a deadline has passed.
    pub fn is_over(&self, deadline_ms: u64) -> bool {
        deadline_ms <= self.judging_ms
    }
}

/// A lease in its key's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lease {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub owner: Name,
    /// How long it lasts from each renewal, in milliseconds.
    pub ttl_ms: u64,
    /// When it was acquired, in milliseconds of the store's clock.
    pub acquired_ms: u64,
    /// When it ends, in milliseconds of the store's clock.
    pub deadline_ms: u64,
    /// Id of the request that acquired it, if it had one. The same request again gets the same
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub request: Option<Name>,
}

impl Lease {
    /// When the lease expires: at its deadline, but not before one whole TTL after the store came
    /// back.
    pub fn due_ms(&self, back_ms: u64) -> u64 {
        if back_ms <= self.acquired_ms {
            return self.deadline_ms;
        }
        self.deadline_ms.max(back_ms + self.ttl_ms)
    }

    /// Whether the lease has expired.
    pub fn is_expired(&self, at: &ClockReading) -> bool {
        at.is_over(self.due_ms(at.back_ms))
    }
}

/// A state that waits for the decision of its transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Staged))]
pub struct StagedState {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub txn: Name,
    /// The state if the transaction commits.
    pub state: LeaseState,
}

/// Everything stored for one key. It outlives every lease of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The newest token that was granted; 0 if none was.
    pub token: LeaseToken,
    /// The lease with that token, if it has not ended.
    pub lease: Option<Lease>,
    /// A small value that the application stores with the key.
    pub state: Option<LeaseState>,
    /// State that the holder has staged for a transaction.
    pub staged: Option<StagedState>,
    /// When the last lease ended, in milliseconds of the store's clock: its deadline, or later.
    /// 0: it has not ended, or a version of lapsed ended it that did not write this down.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ended_ms: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What becomes of the record of a key that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleRecord {
    /// The record stays: the key is held, or it has a state.
    Kept,
    /// The record may be deleted at this time, in milliseconds of the store's clock, if the key is
    /// not used until then.
    ForgetAt(u64),
    /// It is not known since when nobody has used the key. Set `ended_ms` to now.
    Undated,
}

/// A lease that expired and was cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearedLease {
    /// Token of that lease.
    pub token: LeaseToken,
    /// The lease before it was cleared.
    pub lease: Lease,
    /// The transaction of its staged state and the decision that was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<(Name, Decision)>,
}

/// Result of an attempt to acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The caller holds the lease now.
    Granted,
    /// The same request was carried out before, and the caller holds the lease. Nothing changed.
    Repeated,
    /// Another holder has the lease. Nothing changed.
    Held,
}

impl LeaseRecord {
    /// The lease, if it has expired.
    pub fn expired(&self, at: &ClockReading) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.is_expired(at))
    }

    /// The transaction whose decision is needed before the lease can end. Read it, and if there is
    /// none decide `rollback`, before calling [`clear`](Self::clear) or [`release`](Self::release).
    pub fn undecided(&self) -> Option<&Name> {
        self.staged.as_ref().map(|staged| &staged.txn)
    }

    /// Clears the lease if it has expired. `decision` is the one on [`undecided`](Self::undecided);
    /// without it, a lease with staged work stays as it is.
    pub fn clear(&mut self, at: &ClockReading, decision: Option<Decision>) -> Option<ClearedLease> {
        self.expired(at)?;
        if self.staged.is_some() && decision.is_none() {
            return None;
        }
        let lease = self.lease.take()?;
        self.ended_ms = lease.deadline_ms.max(at.judging_ms);
        let staged = self.settle(decision);
        Some(ClearedLease { token: self.token, lease, staged })
    }

    /// Applies or discards the staged state, depending on its transaction's decision.
    fn settle(&mut self, decision: Option<Decision>) -> Option<(Name, Decision)> {
        let staged = self.staged.take()?;
        let decision = decision?;
        if decision == Decision::Commit {
            self.state = Some(staged.state);
        }
        Some((staged.txn, decision))
    }

    /// Grants the next token unless the key is held. An expired lease must have been cleared
    /// before.
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
        self.ended_ms = 0;
        self.lease = Some(Lease {
            owner: owner.clone(),
            ttl_ms,
            acquired_ms: at.granting_ms,
            deadline_ms: at.granting_ms + ttl_ms,
            request: request.cloned(),
        });
        AcquireOutcome::Granted
    }

    /// Moves the deadline forward, never back. An expired lease must have been cleared before.
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

    /// Ends the lease for its holder. `decision` as in [`clear`](Self::clear).
    pub fn release(&mut self, token: LeaseToken, decision: Option<Decision>) -> Result<(), Loss> {
        self.check(token)?;
        // Its deadline, because a release has no clock: the key is forgotten later, never earlier.
        self.ended_ms = self.lease.take().map_or(0, |lease| lease.deadline_ms);
        self.settle(decision);
        Ok(())
    }

    /// Sets the state, or removes it.
    pub fn set_state(&mut self, token: LeaseToken, state: Option<LeaseState>) -> Result<(), Loss> {
        self.check(token)?;
        self.state = state;
        Ok(())
    }

    /// Stages a state for a transaction, replacing what was staged before.
    pub fn stage(&mut self, token: LeaseToken, staged: Option<StagedState>) -> Result<(), Loss> {
        self.check(token)?;
        self.staged = staged;
        Ok(())
    }

    /// Whether `token` is the current holder's. An expired lease must have been cleared before.
    pub fn check(&self, token: LeaseToken) -> Result<(), Loss> {
        if self.lease.is_some() && token == self.token { Ok(()) } else { Err(self.loss(token)) }
    }

    /// Why `token` is not valid.
    fn loss(&self, token: LeaseToken) -> Loss {
        let why = match () {
            () if token == LeaseToken(0) || token > self.token => LossReason::Unknown,
            () if token < self.token => LossReason::Superseded,
            () => LossReason::Ended,
        };
        let holder = self.lease.as_ref().map(|lease| lease.owner.clone());
        Loss { why, token: self.token, holder }
    }

    /// Whether the next token must be taken above the store's floor: the record has never had one.
    pub fn is_new(&self) -> bool {
        self.token == LeaseToken(0)
    }

    /// Makes the first token of a new record the one above `floor`. The floor must have been read
    /// in the transaction that writes the record, or after the record was seen in the store.
    pub fn begin_above(&mut self, floor: u64) {
        if self.is_new() {
            self.token = LeaseToken(floor);
        }
    }

    /// The loss of a token whose key has no record: at or below the floor, the key may have been
    /// forgotten since.
    pub fn loss_without_record(token: LeaseToken, floor: u64) -> Loss {
        let newest = if token.0 <= floor { token } else { LeaseToken(0) };
        LeaseRecord { token: newest, ..LeaseRecord::default() }.loss(token)
    }

    /// When the record may be deleted, if nobody uses its key for `forget_after_ms`.
    pub fn idle(&self, forget_after_ms: u64) -> IdleRecord {
        if self.lease.is_some() || self.state.is_some() || self.staged.is_some() {
            return IdleRecord::Kept;
        }
        match self.ended_ms {
            0 => IdleRecord::Undated,
            ended_ms => IdleRecord::ForgetAt(ended_ms.saturating_add(forget_after_ms)),
        }
    }

    /// The current lease as a grant.
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

/// The stored decision on a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionMarker {
    pub decision: Decision,
    /// When it was made, in milliseconds of the store's clock.
    pub decided_ms: u64,
    /// How long it is kept, in milliseconds.
    pub ttl_ms: u64,
    /// Until when it is kept, in milliseconds of the store's clock.
    pub deadline_ms: u64,
}

impl DecisionMarker {
    pub fn new(decision: Decision, ttl_ms: u64, at: &ClockReading) -> DecisionMarker {
        let now_ms = at.granting_ms;
        DecisionMarker { decision, decided_ms: now_ms, ttl_ms, deadline_ms: now_ms + ttl_ms }
    }

    /// Whether it has expired. An absence of the store does not extend it, because decisions are
    /// not renewed.
    pub fn is_expired(&self, at: &ClockReading) -> bool {
        at.is_over(self.deadline_ms)
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
