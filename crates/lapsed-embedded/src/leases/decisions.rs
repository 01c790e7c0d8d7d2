//! Making and reading decisions, and deleting expired ones.

use lapsed_core::leases::rules::{ClockReading, DecisionMarker};
use lapsed_core::leases::{Decision, DecisionInfo, WithCleared};
use lapsed_core::{Name, Result};

use crate::fault::Tried;
use crate::leases::{Core, EmbeddedLeases};
use crate::tx::Tx;

fn decided(txn: &Name, marker: &DecisionMarker, first: bool, at: &ClockReading) -> DecisionInfo {
    DecisionInfo {
        txn: txn.clone(),
        decision: marker.decision,
        first,
        decided_ms: marker.decided_ms,
        deadline_ms: marker.deadline_ms,
        now_ms: at.judging_ms,
    }
}

impl Core {
    pub(super) fn decide(
        &self,
        tx: &mut Tx,
        txn: &Name,
        decision: Decision,
        ttl_ms: u64,
    ) -> Tried<WithCleared<DecisionInfo>> {
        let (at, mut cleared) = (self.moment(), Vec::new());
        if let Some(marker) = self.live_marker(tx, txn, &at, &mut cleared)? {
            return Ok(WithCleared { answer: decided(txn, &marker, false, &at), cleared });
        }
        let marker = DecisionMarker::new(decision, ttl_ms, &at);
        self.put_marker(tx, txn, None, Some(&marker))?;
        Ok(WithCleared { answer: decided(txn, &marker, true, &at), cleared })
    }
}

impl EmbeddedLeases {
    /// The committed decision, and whether it has expired.
    pub(super) fn look_at_decision(&self, txn: &Name) -> Result<Option<(DecisionInfo, bool)>> {
        let at = self.core.moment();
        let marker = self.read(&self.core.tables.decisions, |table| {
            let row = table.get(txn.as_str().as_bytes())?;
            Ok(row.map(|row| serde_json::from_slice::<DecisionMarker>(row.value())).transpose()?)
        })?;
        let look =
            |marker: DecisionMarker| (decided(txn, &marker, false, &at), marker.is_expired(&at));
        Ok(marker.flatten().map(look))
    }

    pub(super) async fn decision_cleared(
        &self,
        txn: &Name,
    ) -> Result<WithCleared<Option<DecisionInfo>>> {
        match self.look_at_decision(txn)? {
            None => return Ok(WithCleared::clean(None)),
            Some((decided, false)) => return Ok(WithCleared::clean(Some(decided))),
            Some((_, true)) => {}
        }
        let txn = txn.clone();
        self.write(move |core, tx| {
            let (at, mut cleared) = (core.moment(), Vec::new());
            let marker = core.live_marker(tx, &txn, &at, &mut cleared)?;
            let answer = marker.map(|marker| decided(&txn, &marker, false, &at));
            Ok(WithCleared { answer, cleared })
        })
        .await
    }
}
