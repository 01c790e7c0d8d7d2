//! The row of a receipt. What was removed is JSON inside, because each system stores another thing.

use lapsed_core::SystemId;
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Evidence, Reason, Receipt, ReceiptId};

use crate::compact::{RowReader, RowWriter};
use crate::fault::{Fault, Tried};

/// Name of this store's clock in receipts.
pub(crate) const CLOCK: &str = "embedded";

/// The evidence of a receipt that was written at `at_ms`.
pub(crate) fn evidence(deadline_ms: u64, at_ms: u64) -> Evidence {
    Evidence {
        clock: CLOCK.to_owned(),
        deadline_ms,
        judged_ms: at_ms,
        late_ms: at_ms.saturating_sub(deadline_ms),
    }
}

pub(crate) fn reason(text: &str) -> Tried<Reason> {
    let reason = Reason::ALL.iter().find(|known| known.as_str() == text);
    Ok(*reason.ok_or_else(|| Fault::row("a receipt has a reason that is not known"))?)
}

pub(crate) fn write(receipt: &Receipt) -> Tried<Vec<u8>> {
    let deadline_ms = receipt.evidence.deadline_ms;
    if receipt.evidence != evidence(deadline_ms, receipt.at_ms) {
        return Ok(serde_json::to_vec(receipt)?);
    }
    let row = RowWriter::new()
        .number(receipt.id.seq)
        .text(receipt.key.as_str())
        .text(receipt.owner.as_str())
        .number(receipt.incarnation.0)
        .text(receipt.reason.as_str())
        .number(deadline_ms)
        .number(receipt.at_ms)
        .json(&receipt.removed)?
        .text(&receipt.sweeper)
        .number(receipt.batch)
        .option(receipt.restored_ms, RowWriter::number);
    Ok(row.finish())
}

/// Reads a receipt of `system`.
pub(crate) fn read(row: &[u8], system: &SystemId) -> Tried<Receipt> {
    let Some(mut reader) = RowReader::new(row)? else { return Ok(serde_json::from_slice(row)?) };
    let id = ReceiptId { system: system.clone(), seq: reader.number()? };
    let (key, owner) = (reader.name()?, reader.name()?);
    let incarnation = Incarnation(reader.number()?);
    let reason = reason(reader.text()?)?;
    let (deadline_ms, at_ms) = (reader.number()?, reader.number()?);
    let evidence = evidence(deadline_ms, at_ms);
    let removed = reader.json()?;
    let (sweeper, batch) = (reader.text()?.into(), reader.number()?);
    let restored_ms = reader.option(RowReader::number)?;
    reader.finish(Receipt {
        id,
        key,
        owner,
        incarnation,
        reason,
        evidence,
        removed,
        sweeper,
        batch,
        at_ms,
        restored_ms,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lapsed_core::{Kind, Name};
    use serde_json::json;

    use super::*;

    fn receipt(reason: Reason) -> Receipt {
        let system = SystemId::new(Kind::Leases, "locks").unwrap();
        Receipt {
            id: ReceiptId { system, seq: 300 },
            key: Name::new("ns/k").unwrap(),
            owner: Name::new("o").unwrap(),
            incarnation: Incarnation(9),
            reason,
            evidence: Evidence {
                clock: CLOCK.to_owned(),
                deadline_ms: 1_700_000_000_000,
                judged_ms: 1_700_000_000_250,
                late_ms: 250,
            },
            removed: json!({ "token": 9, "lease": { "ttl_ms": 30_000 } }),
            sweeper: "s".into(),
            batch: 4,
            at_ms: 1_700_000_000_250,
            restored_ms: None,
        }
    }

    #[test]
    fn a_receipt_is_read_as_it_was_written() {
        for reason in Reason::ALL {
            let mut receipt = receipt(*reason);
            for restored_ms in [None, Some(1_700_000_000_300)] {
                receipt.restored_ms = restored_ms;
                let row = write(&receipt).unwrap();
                assert_eq!(read(&row, &receipt.id.system).unwrap(), receipt);
                assert!(row.len() * 2 < serde_json::to_vec(&receipt).unwrap().len());
            }
        }
    }

    #[test]
    fn a_receipt_with_other_evidence_keeps_it() {
        let mut receipt = receipt(Reason::OwnerDead);
        receipt.evidence.late_ms = 1;
        let row = write(&receipt).unwrap();
        assert_eq!(read(&row, &receipt.id.system).unwrap(), receipt);
    }
}
