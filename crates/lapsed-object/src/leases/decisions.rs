//! Decisions of transactions: one object each, made by whoever is first.
//!
//! An expired marker is not deleted at once but emptied, by a conditional write that also notes the
//! receipt; empty it counts as "nothing there", and the sweep removes it. Deleting is not a conditional
//! write on every store, and a late delete must never hit a later decision.

use lapsed_core::leases::rules::{ClockReading, DecisionMarker};
use lapsed_core::leases::{Decision, DecisionInfo, Expiry, RemovedLease, Subject, WithCleared};
use lapsed_core::{Error, Name, Result};

use super::ObjectLeases;
use crate::document::{Content, Document, OwedReceipt};
use crate::system_context::StoredObject;

const TRIES: u32 = 30;

impl ObjectLeases {
    pub(crate) async fn decide_once(
        &self,
        txn: &Name,
        decision: Decision,
        ttl_ms: u64,
    ) -> Result<WithCleared<DecisionInfo>> {
        let subject = Subject::Decision(txn.clone());
        for attempt in 0..TRIES {
            let held = self.context.load(&subject).await?;
            let at = self.context.clock_reading().await?;
            if let Some(marker) = live(&held.doc, &at) {
                return Ok(WithCleared::clean(decided(txn, marker, false, &at)));
            }
            let mut doc = held.doc.clone();
            let cleared = clear(&mut doc, &at);
            let marker = DecisionMarker::new(decision, ttl_ms, &at);
            doc.content = Content::Decision(txn.clone(), Some(marker.clone()));
            self.ensure_entry_before_write(&subject, &mut doc).await?;
            if let Some(written) = self.context.replace(&held, doc).await? {
                self.ensure_entry_after_write(&subject, &written.doc).await?;
                return Ok(WithCleared { answer: decided(txn, &marker, true, &at), cleared });
            }
            self.pause(attempt).await;
        }
        Err(self.too_many(txn))
    }

    pub(crate) async fn decision_kept(
        &self,
        txn: &Name,
    ) -> Result<WithCleared<Option<DecisionInfo>>> {
        let subject = Subject::Decision(txn.clone());
        for attempt in 0..TRIES {
            let held = self.context.load(&subject).await?;
            let at = self.context.clock_reading().await?;
            if let Some(marker) = live(&held.doc, &at) {
                return Ok(WithCleared::clean(Some(decided(txn, marker, false, &at))));
            }
            let mut doc = held.doc.clone();
            let cleared = clear(&mut doc, &at);
            if cleared.is_empty() || self.context.replace(&held, doc).await?.is_some() {
                return Ok(WithCleared { answer: None, cleared });
            }
            self.pause(attempt).await;
        }
        Err(self.too_many(txn))
    }

    pub(crate) async fn look_at_decision(
        &self,
        txn: &Name,
    ) -> Result<Option<(DecisionInfo, bool)>> {
        let held = self.context.load(&Subject::Decision(txn.clone())).await?;
        let at = self.context.clock_reading().await?;
        let Content::Decision(_, Some(marker)) = &held.doc.content else { return Ok(None) };
        Ok(Some((decided(txn, marker, false, &at), marker.is_expired(&at))))
    }

    /// Writes a decision again from its receipt. False: the transaction has a decision by now.
    pub(crate) async fn restore_decision(
        &self,
        txn: &Name,
        marker: &DecisionMarker,
    ) -> Result<bool> {
        Ok(self.decide_once(txn, marker.decision, marker.ttl_ms).await?.answer.first)
    }

    fn too_many(&self, txn: &Name) -> Error {
        Error::Throttled {
            store: self.context.name().to_owned(),
            what: format!("the decision on {txn} is being changed by too many at once"),
        }
    }

    /// Whether an object is the empty marker of a deleted decision.
    pub(crate) fn is_empty_marker(held: &StoredObject) -> bool {
        matches!(held.doc.content, Content::Decision(_, None)) && held.doc.owed.is_empty()
    }
}

/// Empties an expired marker and adds the receipt to what it owes.
pub(crate) fn clear(doc: &mut Document, at: &ClockReading) -> Vec<Expiry> {
    let Content::Decision(txn, marker) = &mut doc.content else { return Vec::new() };
    let Some(over) = marker.take_if(|marker| marker.is_expired(at)) else { return Vec::new() };
    let expiry = Expiry {
        subject: Subject::Decision(txn.clone()),
        deadline_ms: over.deadline_ms,
        at_ms: at.judging_ms,
    };
    doc.owed.push(OwedReceipt { removed: RemovedLease::Decision(over), judged_ms: at.judging_ms });
    vec![expiry]
}

/// The decision in force; `None` if there is none or it has expired.
fn live<'d>(doc: &'d Document, at: &ClockReading) -> Option<&'d DecisionMarker> {
    match &doc.content {
        Content::Decision(_, marker) => marker.as_ref().filter(|marker| !marker.is_expired(at)),
        Content::Lease(..) => None,
    }
}

fn decided(txn: &Name, marker: &DecisionMarker, first: bool, at: &ClockReading) -> DecisionInfo {
    DecisionInfo {
        txn: txn.clone(),
        decision: marker.decision,
        first,
        decided_ms: marker.decided_ms,
        deadline_ms: marker.deadline_ms,
        now_ms: at.granting_ms,
    }
}
