//! Rows of keys and decisions, and the receipts of what was cleared. The change in memory follows
//! the commit.

use std::borrow::Cow;

use lapsed_core::leases::rules::{ClearedLease, ClockReading, DecisionMarker, LeaseRecord};
use lapsed_core::leases::{
    DECISION_TTL_MS, DECISIONS, Decision, Expiry, LeaseKey, Namespace, RemovedLease as Gone,
    Subject,
};
use lapsed_core::receipt::{Reason, Receipt};
use lapsed_core::sweep::BatchId;
use lapsed_core::{Name, Result};

use crate::fault::{Fault, Tried};
use crate::leases::due::{of_marker, of_record};
use crate::leases::{Core, record_row};
use crate::owners::batch::Removed;
use crate::removed_fields::RemovedFields;
use crate::tx::Tx;

/// Name of the sweeper in receipts of what an operation cleared.
const BY_OPERATION: &str = "operation";

/// The key of a row. No namespace contains a zero byte, so that namespaces do not mix.
pub(super) fn row_key(key: &LeaseKey) -> Vec<u8> {
    let mut bytes = prefix(&key.namespace);
    bytes.extend_from_slice(key.key.as_str().as_bytes());
    bytes
}

/// The same for the key of a suspect, `namespace/key`; `None`: it is not written like that, or it is a decision.
pub(super) fn row_key_of(subject: &Name) -> Option<Vec<u8>> {
    let (namespace, _) =
        subject.as_str().split_once('/').filter(|(space, _)| *space != DECISIONS)?;
    let mut bytes = subject.as_str().as_bytes().to_vec();
    bytes[namespace.len()] = 0;
    Some(bytes)
}

/// Common prefix of the rows of a namespace.
pub(super) fn prefix(namespace: &Namespace) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(namespace.as_str().len() + 1);
    bytes.extend_from_slice(namespace.as_str().as_bytes());
    bytes.push(0);
    bytes
}

/// First key after all rows of the namespace.
pub(super) fn prefix_end(namespace: &Namespace) -> Vec<u8> {
    let mut bytes = namespace.as_str().as_bytes().to_vec();
    bytes.push(1);
    bytes
}

/// Takes the key of a row apart.
pub(super) fn split_row(bytes: &[u8]) -> Tried<LeaseKey> {
    let split = || -> Option<Result<LeaseKey>> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (namespace, key) = text.split_once('\0')?;
        Some(LeaseKey::new(namespace, key))
    };
    match split() {
        Some(Ok(key)) => Ok(key),
        _ => Err(Fault::row("a row of `leases` is not under a namespace and a key")),
    }
}

impl Core {
    pub(super) fn record(&self, tx: &mut Tx, key: &LeaseKey) -> Tried<Option<LeaseRecord>> {
        let row = tx.get(&self.tables.leases, &row_key(key))?;
        row.map(|row| record_row::read(&row)).transpose()
    }

    pub(super) fn put_record(
        &self,
        tx: &mut Tx,
        key: &LeaseKey,
        before: Option<&LeaseRecord>,
        record: &LeaseRecord,
    ) -> Tried<()> {
        tx.put(&self.tables.leases, &row_key(key), &record_row::write(record)?)?;
        let (before, after) = (before.and_then(of_record), of_record(record));
        if before == after {
            return Ok(());
        }
        let (due, waiters, subject) = (self.due.clone(), self.waiters.clone(), key.subject());
        let is_free = after.is_none();
        tx.then(move || {
            let mut due = due.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            due.change(&subject, before, after);
            drop(due);
            if is_free {
                waiters.ring(&subject);
            }
        });
        Ok(())
    }

    pub(super) fn marker(&self, tx: &mut Tx, txn: &Name) -> Tried<Option<DecisionMarker>> {
        let row = tx.get(&self.tables.decisions, txn.as_str().as_bytes())?;
        Ok(row.map(|row| serde_json::from_slice(&row)).transpose()?)
    }

    /// Writes or removes a decision.
    pub(super) fn put_marker(
        &self,
        tx: &mut Tx,
        txn: &Name,
        before: Option<&DecisionMarker>,
        marker: Option<&DecisionMarker>,
    ) -> Tried<()> {
        let key = txn.as_str().as_bytes();
        match marker {
            Some(marker) => {
                tx.put(&self.tables.decisions, key, &serde_json::to_vec(marker)?)?;
            }
            None => {
                tx.remove(&self.tables.decisions, key)?;
            }
        }
        let (before, after) = (before.map(of_marker), marker.map(of_marker));
        let (due, subject) = (self.due.clone(), Subject::Decision(txn.clone()).name());
        tx.then(move || {
            let mut due = due.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            due.change(&subject, before, after);
        });
        Ok(())
    }

    /// The decision that ends staged work; if there is none, `rollback` is decided now (D9). An
    /// expired decision that still exists counts, because the state was staged under it.
    pub(super) fn decide_stage(
        &self,
        tx: &mut Tx,
        record: &LeaseRecord,
        at: &ClockReading,
    ) -> Tried<Option<Decision>> {
        let Some(txn) = record.undecided() else { return Ok(None) };
        if let Some(marker) = self.marker(tx, txn)? {
            return Ok(Some(marker.decision));
        }
        let marker = DecisionMarker::new(Decision::Rollback, DECISION_TTL_MS, at);
        self.put_marker(tx, txn, None, Some(&marker))?;
        Ok(Some(Decision::Rollback))
    }

    /// The decision, if it has not expired; an expired one is deleted first, with its receipt.
    pub(super) fn live_marker(
        &self,
        tx: &mut Tx,
        txn: &Name,
        at: &ClockReading,
        cleared: &mut Vec<Expiry>,
    ) -> Tried<Option<DecisionMarker>> {
        let Some(marker) = self.marker(tx, txn)? else { return Ok(None) };
        if !marker.is_expired(at) {
            return Ok(Some(marker));
        }
        self.put_marker(tx, txn, Some(&marker), None)?;
        let subject = Subject::Decision(txn.clone());
        cleared.push(expiry(&subject, marker.deadline_ms, at));
        self.note(tx, &subject, &Gone::Decision(marker), at)?;
        Ok(None)
    }

    /// The receipt of what an operation cleared.
    pub(super) fn note(
        &self,
        tx: &mut Tx,
        subject: &Subject,
        gone: &Gone,
        at: &ClockReading,
    ) -> Tried<Receipt> {
        let seq = tx.take_numbers(&self.tables.next_receipt, 1)?;
        let by = BatchId { sweeper: BY_OPERATION.into(), number: 0 };
        let key = subject.name();
        match gone {
            Gone::Lease(cleared) => {
                let removed = removed_lease(&key, cleared)?;
                self.put_receipt(tx, seq, &by, at.judging_ms, removed)
            }
            Gone::Decision(marker) => {
                let word = word(marker)?;
                let removed = removed_decision(&key, &word, marker.clone())?;
                self.put_receipt(tx, seq, &by, at.judging_ms, removed)
            }
        }
    }
}

pub(super) fn expiry(subject: &Subject, deadline_ms: u64, at: &ClockReading) -> Expiry {
    Expiry { subject: subject.clone(), deadline_ms, at_ms: at.judging_ms }
}

/// When the cleared lease had expired.
pub(super) fn due_ms(cleared: &ClearedLease, at: &ClockReading) -> u64 {
    cleared.lease.due_ms(at.back_ms)
}

/// What a receipt of a decision has for its owner.
pub(super) fn word(marker: &DecisionMarker) -> Result<Name> {
    Name::new(marker.decision.as_str())
}

pub(super) fn removed_lease<'a>(key: &'a Name, cleared: &'a ClearedLease) -> Tried<Removed<'a>> {
    let ClearedLease { token, lease, staged } = cleared;
    let staged = staged.as_ref().map(serde_json::to_string).transpose()?;
    Ok(Removed {
        key,
        owner: &lease.owner,
        incarnation: token.0,
        reason: Reason::LeaseExpired,
        deadline_ms: lease.deadline_ms,
        what: RemovedFields::Lease {
            ttl_ms: lease.ttl_ms,
            acquired_ms: lease.acquired_ms,
            request: lease.request.as_ref().map(Name::as_str),
            staged: staged.map(Cow::Owned),
        },
    })
}

pub(super) fn removed_decision<'a>(
    key: &'a Name,
    word: &'a Name,
    marker: DecisionMarker,
) -> Tried<Removed<'a>> {
    let (reason, deadline_ms) = (Reason::DecisionExpired, marker.deadline_ms);
    let what = RemovedFields::json(&Gone::Decision(marker))?;
    Ok(Removed { key, owner: word, incarnation: 0, reason, deadline_ms, what })
}
