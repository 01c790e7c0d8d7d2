//! Putting back and deleting dead letters, and restoring jobs from receipts. Each operation is one
//! job of the writer.

use lapsed_core::Name;
use lapsed_core::inflight::RecoveredJob;
use lapsed_core::inflight::rules::{OnDeath, QueueEnd};
use lapsed_core::receipt::ReceiptId;
use lapsed_core::system::Restored;
use serde::{Deserialize, Serialize};

use crate::fault::Tried;
use crate::inflight::Core;
use crate::inflight::job_index::JobLocation;
use crate::inflight::rows::{Body, Head, split};
use crate::tx::Tx;

/// The receipt's `removed`: for a dropped job, everything that is needed to restore it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    #[serde(flatten)]
    pub recovered: RecoveredJob,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entered_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_death: Option<OnDeath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashes_max: Option<u32>,
}

impl Core {
    pub(super) fn put_back(&self, tx: &mut Tx, id: &Name, end: QueueEnd) -> Tried<bool> {
        if self.location(tx, id) != Some(JobLocation::Dead) {
            return Ok(false);
        }
        let row = self.take_dead_letter(tx, id)?;
        let (_, body) = split(&row)?;
        let head = Head { crashes: Vec::new(), ..body.head()? };
        let bytes = head.bytes();
        self.put_on(tx, self.return_queue(&head), end, id, Body { head: &bytes, ..body })?;
        Ok(true)
    }

    pub(super) fn delete(&self, tx: &mut Tx, id: &Name) -> Tried<bool> {
        if self.location(tx, id) != Some(JobLocation::Dead) {
            return Ok(false);
        }
        self.take_dead_letter(tx, id)?;
        self.account(tx).dropped += 1;
        Ok(true)
    }

    pub(super) fn restore(&self, tx: &mut Tx, seq: u64) -> Tried<Restored> {
        let refused = |why: String| Ok(Restored::Refused { why });
        let receipt_id = ReceiptId { system: self.id.clone(), seq };
        let Some(receipt) = self.receipt(tx, seq)? else {
            return refused(format!(
                "there is no receipt {receipt_id}, or it is past its retention"
            ));
        };
        let id = receipt.key.clone();
        if receipt.restored_ms.is_some() {
            return refused(format!("`{id}` was put back from {receipt_id} before"));
        }
        let kept: Kept = serde_json::from_value(receipt.removed.clone())?;
        if let Err(why) = self.bring_back(tx, &id, kept)? {
            return refused(why);
        }
        self.note_restored(tx, &receipt, self.store_clock.now_ms())?;
        let (key, owner) = (id.to_string(), receipt.owner.to_string());
        Ok(Restored::Restored { key, owner, incarnation: receipt.incarnation.0 })
    }

    /// Puts a job back from where it is now, or from what the receipt kept; or the reason why that
    /// is impossible.
    fn bring_back(
        &self,
        tx: &mut Tx,
        id: &Name,
        kept: Kept,
    ) -> Tried<std::result::Result<(), String>> {
        let payload = match (self.location(tx, id), &kept.recovered.payload) {
            (Some(JobLocation::Queued { queue, .. }), _) => {
                return Ok(Err(format!("its place is taken: job `{id}` is on queue `{queue}`")));
            }
            (Some(JobLocation::InFlight { incarnation, .. }), _) => {
                return Ok(Err(format!(
                    "its place is taken: job `{id}` is held by incarnation {incarnation}"
                )));
            }
            (Some(JobLocation::Dead), _) => {
                self.put_back(tx, id, QueueEnd::Front)?;
                return Ok(Ok(()));
            }
            (None, None) => {
                return Ok(Err(format!("job `{id}` was completed or deleted since")));
            }
            (None, Some(payload)) => payload,
        };
        let head = Head {
            queue: kept.recovered.queue.clone(),
            entered_ms: kept.entered_ms.unwrap_or_else(|| self.store_clock.now_ms()),
            crashes: Vec::new(),
            on_death: kept.on_death,
            crashes_max: kept.crashes_max,
        };
        let bytes = head.bytes();
        let body = Body { head: &bytes, payload: payload.as_bytes() };
        self.put_on(tx, self.return_queue(&head), QueueEnd::Front, id, body)?;
        // It is no longer dropped, so the totals must count it only where it is.
        let account = self.account(tx);
        account.dropped = account.dropped.saturating_sub(1);
        Ok(Ok(()))
    }
}
