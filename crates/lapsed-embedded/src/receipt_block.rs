//! The receipts of one batch as one row: what they have in common is written once.
//!
//! The numbers of the receipts of a block follow each other, and the last one is the key of the row. So the receipt `n` is
//! in the first row whose key is at least `n`, whether that row is a block or a single receipt.

use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Reason, Receipt, ReceiptId};
use lapsed_core::{Name, SystemId};

use crate::compact::{RowReader, RowWriter};
use crate::fault::{Fault, Tried};
use crate::receipt_row;
use crate::removed_fields::RemovedFields;

/// When a block has more bytes, the next receipt begins another one.
const BYTES_MAX: usize = 256 << 10;

/// What the receipts of a block have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockHead<'r> {
    pub at_ms: u64,
    pub sweeper: &'r str,
    pub batch: u64,
}

/// The rest of one receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockItem<'r> {
    pub seq: u64,
    pub key: &'r str,
    pub owner: &'r str,
    pub incarnation: u64,
    pub reason: Reason,
    pub deadline_ms: u64,
    pub removed: RemovedFields<'r>,
    pub restored_ms: Option<u64>,
}

impl BlockItem<'_> {
    pub fn receipt(&self, head: &BlockHead<'_>, system: &SystemId) -> Tried<Receipt> {
        let name = |text| {
            Name::new(text).map_err(|error| Fault::row(format!("a receipt has no name: {error}")))
        };
        Ok(Receipt {
            id: ReceiptId { system: system.clone(), seq: self.seq },
            key: name(self.key)?,
            owner: name(self.owner)?,
            incarnation: Incarnation(self.incarnation),
            reason: self.reason,
            evidence: receipt_row::evidence(self.deadline_ms, head.at_ms),
            removed: self.removed.to_json(self.owner, self.incarnation, self.deadline_ms)?,
            sweeper: head.sweeper.into(),
            batch: head.batch,
            at_ms: head.at_ms,
            restored_ms: self.restored_ms,
        })
    }
}

/// A block that is being filled.
#[derive(Default)]
pub(crate) struct BlockWriter {
    items: Vec<u8>,
    count: u64,
    last_seq: u64,
    owner: String,
    reason: Option<Reason>,
}

impl BlockWriter {
    pub fn is_full(&self) -> bool {
        self.items.len() > BYTES_MAX
    }

    /// Adds the receipt whose number follows that of the one before.
    pub fn add(&mut self, item: &BlockItem<'_>) {
        let (same_owner, same_reason) =
            (self.owner == item.owner, self.reason == Some(item.reason));
        let row = RowWriter::append_to(std::mem::take(&mut self.items))
            .text(item.key)
            .text(if same_owner { "" } else { item.owner })
            .number(item.incarnation)
            .text(if same_reason { "" } else { item.reason.as_str() })
            .number(item.deadline_ms);
        let row = item.removed.write(row).option(item.restored_ms, RowWriter::number);
        self.items = row.finish();
        if !same_owner {
            item.owner.clone_into(&mut self.owner);
        }
        self.reason = Some(item.reason);
        (self.count, self.last_seq) = (self.count + 1, item.seq);
    }

    /// The number of the last receipt and the row of all of them, if there are any. The next block is empty.
    pub fn finish(&mut self, head: &BlockHead<'_>) -> Option<(u64, Vec<u8>)> {
        let filled = std::mem::take(self);
        let row = RowWriter::block()
            .number(filled.count)
            .number(head.at_ms)
            .text(head.sweeper)
            .number(head.batch);
        let mut row = row.finish();
        row.extend_from_slice(&filled.items);
        (filled.count > 0).then_some((filled.last_seq, row))
    }
}

/// Reads a block from its first receipt to its last.
pub(crate) struct BlockReader<'r> {
    pub head: BlockHead<'r>,
    reader: RowReader<'r>,
    next_seq: u64,
    left: u64,
    owner: &'r str,
    reason: Option<Reason>,
}

impl<'r> BlockReader<'r> {
    /// `None`: the row is a single receipt.
    pub fn new(last_seq: u64, row: &'r [u8]) -> Tried<Option<Self>> {
        let Some(mut reader) = RowReader::block(row) else { return Ok(None) };
        let left = reader.number()?;
        let head =
            BlockHead { at_ms: reader.number()?, sweeper: reader.text()?, batch: reader.number()? };
        let next_seq = last_seq.checked_add(1).and_then(|end| end.checked_sub(left));
        let next_seq = next_seq.ok_or_else(|| Fault::row("a block has too many receipts"))?;
        Ok(Some(BlockReader { head, reader, next_seq, left, owner: "", reason: None }))
    }

    /// The number of the receipt that is read next.
    pub fn first_seq(&self) -> u64 {
        self.next_seq
    }

    fn item(&mut self) -> Tried<BlockItem<'r>> {
        let reader = &mut self.reader;
        let key = reader.text()?;
        match reader.text()? {
            "" => {}
            owner => self.owner = owner,
        }
        let incarnation = reader.number()?;
        match reader.text()? {
            "" => {}
            reason => self.reason = Some(receipt_row::reason(reason)?),
        }
        let reason = self.reason.ok_or_else(|| Fault::row("a receipt has no reason"))?;
        let deadline_ms = reader.number()?;
        let removed = RemovedFields::read(reader)?;
        let restored_ms = reader.option(RowReader::number)?;
        let (seq, owner) = (self.next_seq, self.owner);
        self.next_seq += 1;
        Ok(BlockItem { seq, key, owner, incarnation, reason, deadline_ms, removed, restored_ms })
    }
}

impl<'r> Iterator for BlockReader<'r> {
    type Item = Tried<BlockItem<'r>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let item = self.item();
        if item.is_err() {
            self.left = 0;
        }
        if self.left == 0 && item.is_ok() && !self.reader.is_at_end() {
            return Some(Err(Fault::row("a block is longer than its receipts")));
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    const HEAD: BlockHead<'static> = BlockHead { at_ms: 1_700_000_000_250, sweeper: "s", batch: 4 };

    fn items() -> Vec<BlockItem<'static>> {
        let item = |seq, key, owner, reason, removed, restored_ms| BlockItem {
            seq,
            key,
            owner,
            incarnation: seq * 3,
            reason,
            deadline_ms: 1_700_000_000_000 + seq,
            removed,
            restored_ms,
        };
        let lease = |request, staged| RemovedFields::Lease {
            ttl_ms: 30_000,
            acquired_ms: 1_699_999_970_000,
            request,
            staged,
        };
        let json = RemovedFields::Json(Cow::Borrowed("{\"a\":1}"));
        let staged = Some(Cow::Borrowed("[\"txn\",\"commit\"]"));
        vec![
            item(7, "ns/a", "o", Reason::LeaseExpired, lease(None, None), None),
            item(8, "ns/b", "o", Reason::LeaseExpired, lease(Some("r"), staged), Some(9)),
            item(9, "t", "commit", Reason::DecisionExpired, json, None),
            item(
                10,
                "imei",
                "o",
                Reason::OwnerDead,
                RemovedFields::Entry { registered_ms: 5 },
                None,
            ),
        ]
    }

    fn block() -> (u64, Vec<u8>) {
        let mut writer = BlockWriter::default();
        items().iter().for_each(|item| writer.add(item));
        writer.finish(&HEAD).unwrap()
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let (last_seq, row) = block();
        assert_eq!(last_seq, 10);
        let reader = BlockReader::new(last_seq, &row).unwrap().unwrap();
        assert_eq!(reader.head, HEAD);
        assert_eq!(reader.collect::<Tried<Vec<_>>>().unwrap(), items());
        assert!(BlockWriter::default().finish(&HEAD).is_none(), "no receipt, no row");
    }

    #[test]
    fn a_single_receipt_is_no_block() {
        let row = RowWriter::new().number(7).finish();
        assert!(BlockReader::new(7, &row).unwrap().is_none());
        assert!(BlockReader::new(7, b"{\"id\":7}").unwrap().is_none());
    }

    #[test]
    fn a_block_that_is_cut_off_or_too_long_is_refused() {
        let (last_seq, row) = block();
        let read = |row: &[u8]| -> Tried<usize> {
            let Some(reader) = BlockReader::new(last_seq, row)? else { return Ok(0) };
            Ok(reader.collect::<Tried<Vec<_>>>()?.len())
        };
        for length in 1..row.len() {
            assert!(read(&row[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&[&row[..], &[0]].concat()).is_err());
        assert!(BlockReader::new(2, &row).is_err(), "more receipts than numbers");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut row in proptest::collection::vec(any::<u8>(), 1..200)) {
            row[0] = RowWriter::block().finish()[0];
            if let Ok(Some(reader)) = BlockReader::new(1_000, &row) {
                let system = SystemId::new(lapsed_core::Kind::Leases, "locks").unwrap();
                let head = reader.head.clone();
                for item in reader.take(1_000).flatten() {
                    let _ = item.receipt(&head, &system);
                }
            }
        }
    }
}
