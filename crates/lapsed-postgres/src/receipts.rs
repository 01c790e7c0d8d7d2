//! Receipts as rows: numbered in the order in which they become visible.
//!
//! The numbers of a system are handed out under the lock of its row in the settings, which is held until
//! the transaction is over: a reader that has read up to a number has missed none below it.

use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::BatchId;
use lapsed_core::{Result, SystemId};
use tokio_postgres::Row;

use crate::call_error::{CallResult, unexpected_answer};
use crate::number::{to_i64, to_u64};
use crate::own_tables::OwnTables;
use crate::pool::Call;

/// The columns that are read of a receipt.
pub(crate) const READ_COLUMNS: &str =
    "body::text, floor(extract(epoch FROM restored_at) * 1000)::bigint";

pub(crate) fn read_receipt(place: &str, row: &Row) -> Result<Receipt> {
    let mut receipt: Receipt = serde_json::from_str(row.get(0))
        .map_err(|error| unexpected_answer(place, "receipts", error))?;
    receipt.restored_ms = row.get::<_, Option<i64>>(1).map(to_u64);
    Ok(receipt)
}

/// The first of `count` new numbers: larger than any before, also on a server that lost its last commits,
/// because they follow the clock.
pub(crate) async fn take_numbers(
    call: &Call,
    own: &OwnTables,
    system: &SystemId,
    count: usize,
) -> CallResult<u64> {
    let sql = format!(
        "INSERT INTO {} AS s (system, receipts_last, receipts_kept) VALUES ($1, \
         floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2 - 1, $2) \
         ON CONFLICT (system) DO UPDATE SET \
         receipts_last = greatest(s.receipts_last + $2, EXCLUDED.receipts_last), \
         receipts_kept = s.receipts_kept + $2 RETURNING receipts_last",
        own.settings
    );
    let count = to_i64(count as u64);
    let row = call.query_opt(&sql, &[&system.to_string(), &count]).await?;
    let row = row.ok_or_else(|| call.unexpected_answer("no number for a receipt"))?;
    Ok(to_u64(row.get::<_, i64>(0) - count + 1))
}

/// Writes receipts, in one statement.
pub(crate) async fn write(call: &Call, own: &OwnTables, receipts: &[Receipt]) -> CallResult<()> {
    let Some(first) = receipts.first() else { return Ok(()) };
    let sql = format!(
        "INSERT INTO {} (system, seq, sweeper, batch, at, body) \
         SELECT $1, seq, $2, $3, to_timestamp(at / 1000.0), body::jsonb \
         FROM unnest($4::bigint[], $5::bigint[], $6::text[]) AS r(seq, at, body)",
        own.receipts
    );
    let seqs: Vec<i64> = receipts.iter().map(|receipt| to_i64(receipt.id.seq)).collect();
    let ats: Vec<i64> = receipts.iter().map(|receipt| to_i64(receipt.at_ms)).collect();
    let mut bodies = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        bodies.push(serde_json::to_string(receipt).map_err(|error| call.unexpected_answer(error))?);
    }
    let (system, batch) = (first.id.system.to_string(), to_i64(first.batch));
    let sweeper = &*first.sweeper;
    call.query(&sql, &[&system, &sweeper, &batch, &seqs, &ats, &bodies]).await?;
    Ok(())
}

/// Notes a batch as carried out (or as never to be carried out), as the first statement of its
/// transaction. Nothing comes back if it was noted before.
pub(crate) fn note_batch(own: &OwnTables) -> String {
    format!(
        "INSERT INTO {} (system, sweeper, number, carried_out) VALUES ($1, $2, $3, $4) \
         ON CONFLICT DO NOTHING RETURNING number",
        own.batches
    )
}

/// The key under which a batch is remembered.
pub(crate) fn batch_key(system: &SystemId, batch: &BatchId) -> (String, String, i64) {
    (system.to_string(), batch.sweeper.to_string(), to_i64(batch.number))
}
