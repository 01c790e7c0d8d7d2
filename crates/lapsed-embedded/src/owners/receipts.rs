//! Receipts in the table `S/receipts`, where those of a batch are one row and every other one has a row of its own.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::sweep::TidyLimits;
use lapsed_core::{Kind, Result, SystemId};

use crate::StoreState;
use crate::fault::{Fault, Tried};
use crate::owners::OwnerTable;
use crate::owners::load::open;
use crate::receipt_block::{BlockReader, BlockWriter};
use crate::receipt_row;
use crate::snapshot::{Cell, Table};
use crate::tables::{Tables, batch_key, held_key, number, to_number};
use crate::tx::Tx;

type Row = (Cell, Cell);

/// The number of the only or the last receipt of a row.
fn last_seq((key, _): &Row) -> Tried<u64> {
    to_number(key.value()).ok_or_else(|| Fault::row("a key of `receipts` is not a number"))
}

/// The receipts of a row, in order, with the numbers that `pick` makes of those that the row has.
fn receipts_of(
    row: &Row,
    system: &SystemId,
    pick: impl FnOnce(RangeInclusive<u64>) -> RangeInclusive<u64>,
) -> Tried<Vec<Receipt>> {
    let last = last_seq(row)?;
    let Some(block) = BlockReader::new(last, row.1.value())? else {
        return match pick(last..=last).contains(&last) {
            true => Ok(vec![receipt_row::read(row.1.value(), system)?]),
            false => Ok(Vec::new()),
        };
    };
    let (head, picked) = (block.head.clone(), pick(block.first_seq()..=last));
    let mut receipts = Vec::new();
    for item in block {
        let item = item?;
        if item.seq > *picked.end() {
            break;
        }
        if picked.contains(&item.seq) {
            receipts.push(item.receipt(&head, system)?);
        }
    }
    Ok(receipts)
}

/// The first `limit` receipts from number `from` on, in order.
fn oldest(table: &Table, id: &SystemId, from: u64, limit: usize) -> Tried<Vec<Receipt>> {
    let mut found = Vec::new();
    for row in table.range(&number(from)[..]..)? {
        let left = (limit - found.len()) as u64;
        if left == 0 {
            break;
        }
        found.extend(receipts_of(&row?, id, |all| {
            let first = from.max(*all.start());
            first..=first.saturating_add(left - 1)
        })?);
    }
    Ok(found)
}

/// The last `limit` receipts with numbers below `before`, the newest first.
fn newest(table: &Table, id: &SystemId, before: u64, limit: usize) -> Tried<Vec<Receipt>> {
    let mut found = Vec::new();
    let key = number(before);
    // A block that ends later may begin earlier.
    let across = table.range(&key[..]..)?.take(1);
    for row in across.chain(table.range(..&key[..])?.rev()) {
        let left = (limit - found.len()) as u64;
        if left == 0 {
            break;
        }
        let receipts = receipts_of(&row?, id, |all| {
            let end = before.min(all.end().saturating_add(1));
            end.saturating_sub(left)..=end.saturating_sub(1)
        })?;
        found.extend(receipts.into_iter().rev());
    }
    Ok(found)
}

impl StoreState {
    pub(crate) fn read_receipts(
        &self,
        id: &SystemId,
        query: &ReceiptQuery,
    ) -> Result<Vec<Receipt>> {
        let read = || -> Tried<Vec<Receipt>> {
            let txn = self.disk.read()?;
            let Some(table) = open(&txn, &Tables::of(id).receipts)? else { return Ok(Vec::new()) };
            match query.after {
                Some(after) => oldest(&table, id, after.saturating_add(1), query.limit),
                None => newest(&table, id, query.before.unwrap_or(u64::MAX), query.limit),
            }
        };
        read().map_err(|fault| fault.told(&self.disk.name))
    }
}

impl OwnerTable {
    /// The row that has receipt `seq`, if it is still kept.
    fn receipt_row(&self, tx: &mut Tx, seq: u64) -> Tried<Option<Row>> {
        if seq < self.receipts_from.load(Ordering::Relaxed) {
            return Ok(None);
        }
        tx.range(&self.tables.receipts, &number(seq)[..]..)?.next().transpose()
    }

    /// The receipt with that number; `None`: there is none, or it is past its retention.
    pub fn receipt(&self, tx: &mut Tx, seq: u64) -> Tried<Option<Receipt>> {
        let Some(row) = self.receipt_row(tx, seq)? else { return Ok(None) };
        Ok(receipts_of(&row, &self.id, |_| seq..=seq)?.pop())
    }

    /// Writes down that what a receipt removed was put back.
    pub fn note_restored(&self, tx: &mut Tx, receipt: &Receipt, now_ms: u64) -> Tried<()> {
        let seq = receipt.id.seq;
        let Some(row) = self.receipt_row(tx, seq)? else { return Ok(()) };
        let last = last_seq(&row)?;
        let Some(block) = BlockReader::new(last, row.1.value())? else {
            let restored = Receipt { restored_ms: Some(now_ms), ..receipt.clone() };
            return tx.put(&self.tables.receipts, &number(seq), &receipt_row::write(&restored)?);
        };
        let (head, mut rewritten) = (block.head.clone(), BlockWriter::default());
        for item in block {
            let mut item = item?;
            if item.seq == seq {
                item.restored_ms = Some(now_ms);
            }
            rewritten.add(&item);
        }
        self.put_block(tx, rewritten.finish(&head))
    }

    pub(super) fn put_block(&self, tx: &mut Tx, block: Option<(u64, Vec<u8>)>) -> Tried<()> {
        match block {
            Some((last_seq, row)) => tx.put(&self.tables.receipts, &number(last_seq), &row),
            None => Ok(()),
        }
    }

    /// Removes receipts that are past their retention, and what belongs to them; returns how many.
    pub(super) fn prune_receipts(
        &self,
        tx: &mut Tx,
        limits: &TidyLimits,
        now_ms: u64,
    ) -> Tried<u64> {
        let next = tx.take_numbers(&self.tables.next_receipt, 0)?;
        let keep_from = next.saturating_sub(limits.retention.count);
        let from = self.receipts_from.load(Ordering::Relaxed);
        let mut old = OldReceipts::default();
        for row in tx.range(&self.tables.receipts, &number(from)[..]..)? {
            let row = row?;
            let left = limits.rows - old.count;
            let is_old = |seq: u64, at_ms: u64| {
                seq < keep_from || now_ms.saturating_sub(at_ms) > limits.retention.age_ms
            };
            if left == 0 || !old.add(&row, &self.id, left, is_old)? {
                break;
            }
        }
        let Some(end) = old.end else { return Ok(0) };
        for key in &old.rows {
            tx.remove(&self.tables.receipts, key)?;
        }
        if matches!(self.id.kind, Kind::Registry | Kind::Inflight) {
            for key in &old.lost {
                tx.remove(&self.tables.lost, key)?;
            }
        }
        for key in &old.batches {
            tx.remove(&self.tables.batches, key)?;
        }
        self.put_block(tx, old.rest)?;
        let receipts_from = self.receipts_from.clone();
        tx.then(move || {
            receipts_from.fetch_max(end, Ordering::Relaxed);
        });
        Ok(old.count as u64)
    }
}

/// Receipts that are to be removed, with their rows and what belongs to them.
#[derive(Default)]
struct OldReceipts {
    count: usize,
    /// The number after the last of them.
    end: Option<u64>,
    rows: Vec<Vec<u8>>,
    lost: Vec<Vec<u8>>,
    batches: Vec<Vec<u8>>,
    /// What stays of the last row, if it is a block of which only a part is old.
    rest: Option<(u64, Vec<u8>)>,
}

impl OldReceipts {
    /// Adds the old receipts of the next row, at most `left`; `false`: the next receipt stays.
    fn add(
        &mut self,
        row: &Row,
        system: &SystemId,
        left: usize,
        is_old: impl Fn(u64, u64) -> bool,
    ) -> Tried<bool> {
        let last = last_seq(row)?;
        let Some(block) = BlockReader::new(last, row.1.value())? else {
            let receipt = receipt_row::read(row.1.value(), system)?;
            if !is_old(last, receipt.at_ms) {
                return Ok(false);
            }
            self.remove(last, receipt.incarnation.0, receipt.key.as_str());
            self.batches.push(batch_key(&receipt.sweeper, receipt.batch));
            self.rows.push(row.0.value().to_vec());
            return Ok(true);
        };
        let (head, mut rest) = (block.head.clone(), BlockWriter::default());
        let most = self.count + left;
        for item in block {
            let item = item?;
            if self.count < most && is_old(item.seq, head.at_ms) {
                self.remove(item.seq, item.incarnation, item.key);
            } else {
                rest.add(&item);
            }
        }
        self.rest = rest.finish(&head);
        match self.rest {
            Some(_) => Ok(false),
            None => {
                self.batches.push(batch_key(head.sweeper, head.batch));
                self.rows.push(row.0.value().to_vec());
                Ok(true)
            }
        }
    }

    fn remove(&mut self, seq: u64, incarnation: u64, key: &str) {
        self.count += 1;
        self.end = Some(seq + 1);
        self.lost.push(held_key(incarnation, key));
    }
}
