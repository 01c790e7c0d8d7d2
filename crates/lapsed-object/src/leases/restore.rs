//! Putting back what a receipt removed. The grant comes first and names the receipt; then the receipt is
//! marked. Whoever dies in between leaves a receipt that says "not yet", and repeating finds the grant.

use lapsed_core::leases::rules::ClearedLease;
use lapsed_core::leases::{RemovedLease, Subject};
use lapsed_core::receipt::Receipt;
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};

use super::ObjectLeases;
use crate::document::Content;

const TRIES: u32 = 30;

impl ObjectLeases {
    pub(crate) async fn restore_receipt(&self, seq: u64) -> Result<Restored> {
        let Some(receipt) = self.log.receipt(seq).await? else {
            return refused("there is no such receipt, or it is no longer kept");
        };
        if receipt.restored_ms.is_some() {
            return refused("it was put back before");
        }
        let removed: RemovedLease =
            serde_json::from_value(receipt.removed.clone()).map_err(|error| Error::Corrupt {
                store: self.context.name().to_owned(),
                what: format!("receipt {}: {error}", receipt.id),
            })?;
        let restored = match (Subject::parse(receipt.key.as_str())?, removed) {
            (Subject::Lease(key), RemovedLease::Lease(cleared)) => {
                self.restore_lease(&Subject::Lease(key), &cleared, &receipt).await?
            }
            (Subject::Decision(txn), RemovedLease::Decision(marker)) => {
                if !self.restore_decision(&txn, &marker).await? {
                    return refused("there is a decision on it by now");
                }
                done(&receipt, 0)
            }
            _ => return refused("the receipt is about something else"),
        };
        if matches!(restored, Restored::Restored { .. }) {
            let now = self.context.clock_reading().await?;
            self.log.mark_restored(seq, now.judging_ms).await?;
        }
        Ok(restored)
    }

    async fn restore_lease(
        &self,
        subject: &Subject,
        cleared: &ClearedLease,
        receipt: &Receipt,
    ) -> Result<Restored> {
        let request = Name::new(&format!("~restore-{}", receipt.id.seq))?;
        for attempt in 0..TRIES {
            let held = self.context.load(subject).await?;
            let at = self.context.clock_reading().await?;
            let mut doc = held.doc.clone();
            let Content::Lease(key, record) = &mut doc.content else {
                return refused("it is not a lease");
            };
            if record.lease.as_ref().is_some_and(|lease| lease.request.as_ref() == Some(&request)) {
                return Ok(done(receipt, record.token.0));
            }
            if record.is_new() {
                return refused("the key is forgotten, because nobody has used it for long");
            }
            if record.lease.is_some() || record.token != cleared.token {
                return refused("the key has been held since");
            }
            record.acquire(&cleared.lease.owner, cleared.lease.ttl_ms, Some(&request), &at);
            let (token, key) = (record.token.0, key.clone());
            self.ensure_entry_before_write(subject, &mut doc).await?;
            self.cache.forget(&key);
            if let Some(written) = self.context.replace(&held, doc).await? {
                self.ensure_entry_after_write(subject, &written.doc).await?;
                return Ok(done(receipt, token));
            }
            self.pause(attempt).await;
        }
        refused("it is being changed by too many at once")
    }
}

fn done(receipt: &Receipt, incarnation: u64) -> Restored {
    Restored::Restored {
        key: receipt.key.to_string(),
        owner: receipt.owner.to_string(),
        incarnation,
    }
}

fn refused(why: &str) -> Result<Restored> {
    Ok(Restored::Refused { why: why.to_owned() })
}
