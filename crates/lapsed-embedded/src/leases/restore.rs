//! Restoring what a receipt removed, if its key is still free.

use lapsed_core::leases::rules::{AcquireOutcome, ClearedLease, DecisionMarker};
use lapsed_core::leases::{LeaseKey, RemovedLease, Subject};
use lapsed_core::receipt::ReceiptId;
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};

use crate::fault::Tried;
use crate::leases::Core;
use crate::tx::Tx;

/// The new token, or why it was not restored.
type PutBack = std::result::Result<u64, String>;

impl Core {
    pub(super) fn restore(&self, tx: &mut Tx, seq: u64) -> Tried<Restored> {
        let id = ReceiptId { system: self.id.clone(), seq };
        let Some(receipt) = self.receipt(tx, seq)? else {
            let why = format!("there is no receipt {id}, or it is past its retention");
            return Ok(Restored::Refused { why });
        };
        if receipt.restored_ms.is_some() {
            let why = format!("`{}` was put back from {id} before", receipt.key);
            return Ok(Restored::Refused { why });
        }
        let subject: Result<Subject> = Subject::parse(receipt.key.as_str());
        let put_back = match (subject?, serde_json::from_value(receipt.removed.clone())?) {
            (Subject::Lease(key), RemovedLease::Lease(cleared)) => {
                self.grant_again(tx, &key, &cleared)?
            }
            (Subject::Decision(txn), RemovedLease::Decision(marker)) => {
                self.decide_again(tx, &txn, &marker)?
            }
            _ => Err(format!("{id} does not say what it removed")),
        };
        match put_back {
            Err(why) => Ok(Restored::Refused { why }),
            Ok(incarnation) => {
                self.note_restored(tx, &receipt, self.store_clock.now_ms())?;
                let (key, owner) = (receipt.key.to_string(), receipt.owner.to_string());
                Ok(Restored::Restored { key, owner, incarnation })
            }
        }
    }

    /// Grants the next token, because the holder of the old one was told that it ended.
    fn grant_again(&self, tx: &mut Tx, key: &LeaseKey, cleared: &ClearedLease) -> Tried<PutBack> {
        let mut open = self.open(tx, key)?;
        if open.record.is_new() {
            return Ok(Err(format!("`{key}` is forgotten, because nobody has used it for long")));
        }
        if open.record.token != cleared.token {
            let token = open.record.token;
            return Ok(Err(format!("`{key}` has been held since, by token {token}")));
        }
        let lease = &cleared.lease;
        match open.record.acquire(&lease.owner, lease.ttl_ms, None, &open.at) {
            AcquireOutcome::Granted => {}
            AcquireOutcome::Repeated | AcquireOutcome::Held => {
                return Ok(Err(format!("`{key}` is held")));
            }
        }
        let token = open.record.token.0;
        self.close(tx, open, ())?;
        Ok(Ok(token))
    }

    fn decide_again(&self, tx: &mut Tx, txn: &Name, marker: &DecisionMarker) -> Tried<PutBack> {
        let met = self.decide(tx, txn, marker.decision, marker.ttl_ms)?;
        Ok(match met.answer.first {
            true => Ok(0),
            false => Err(format!("`{txn}` has been decided again: {}", met.answer.decision)),
        })
    }
}
