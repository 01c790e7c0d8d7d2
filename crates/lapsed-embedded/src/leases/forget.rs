//! Forgets unused keys: their rows are deleted, and no token is ever used twice.
//!
//! What can happen between finding a row and deleting it: the key is acquired, or another pass
//! deletes it first. Both are jobs, and jobs are serial; the row is judged again inside the job that
//! deletes it. That job also raises the token floor, in the same transaction: after a crash either
//! the row is there, or the floor is at least its token. An acquire of a key without a row takes its
//! token above the floor, in its own transaction.
//!
//! Rows are found by reading the table on, a part per pass; there is no index of idle keys, which
//! every acquire and release would have to change.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use lapsed_core::Result;
use lapsed_core::leases::LeaseKey;
use lapsed_core::leases::rules::{ClockReading, IdleRecord, LeaseRecord};

use crate::fault::Tried;
use crate::leases::rows::{row_key, split_row};
use crate::leases::{Core, EmbeddedLeases, record_row};
use crate::tables::{number, to_number};
use crate::tx::Tx;

/// How many rows one pass reads to find idle keys.
const ROWS_READ: usize = 2_000;

impl Core {
    /// The token that no new record starts below.
    pub(super) fn token_floor(&self, tx: &mut Tx) -> Tried<u64> {
        let row = tx.meta_get(&self.tables.token_floor)?;
        Ok(row.and_then(|row| to_number(&row)).unwrap_or(0))
    }

    /// Whether the record of a key must change because nobody uses it.
    fn is_idle(&self, record: &LeaseRecord, at: &ClockReading) -> bool {
        let Some(forget_after) = self.forget_after else { return false };
        match record.idle(forget_after.as_millis() as u64) {
            IdleRecord::Kept => false,
            IdleRecord::Undated => true,
            IdleRecord::ForgetAt(at_ms) => at.is_over(at_ms),
        }
    }

    /// Deletes the rows of these keys, if they are still idle.
    fn forget(&self, tx: &mut Tx, keys: &[LeaseKey]) -> Tried<()> {
        let at = self.moment();
        let (mut highest, mut count) = (0, 0);
        for key in keys {
            let Some(record) = self.record(tx, key)?.filter(|record| self.is_idle(record, &at))
            else {
                continue;
            };
            if record.ended_ms == 0 {
                let dated = LeaseRecord { ended_ms: at.judging_ms, ..record.clone() };
                self.put_record(tx, key, Some(&record), &dated)?;
                continue;
            }
            tx.remove(&self.tables.leases, &row_key(key))?;
            highest = highest.max(record.token.0);
            count += 1;
        }
        if highest > self.token_floor(tx)? {
            tx.meta_put(&self.tables.token_floor, &number(highest))?;
        }
        let forgotten = self.forgotten.clone();
        tx.then(move || {
            forgotten.fetch_add(count, Ordering::Relaxed);
        });
        Ok(())
    }
}

impl EmbeddedLeases {
    /// Reads the table on from where the last call stopped, and forgets at most `max` keys.
    pub(super) async fn forget_idle(&self, max: usize) -> Result<()> {
        if self.core.forget_after.is_none() {
            return Ok(());
        }
        let idle = self.idle_keys(max)?;
        if idle.is_empty() {
            return Ok(());
        }
        self.write(move |core, tx| core.forget(tx, &idle)).await
    }

    fn idle_keys(&self, max: usize) -> Result<Vec<LeaseKey>> {
        let at = self.core.moment();
        let mut from = self.forget_from.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.read(&self.core.tables.leases, |table| {
            let (mut idle, mut read) = (Vec::new(), 0);
            for row in table.range(&**from..)?.take(ROWS_READ) {
                let (key, record) = row?;
                if idle.len() == max {
                    return Ok((idle, Some(key.value().to_vec())));
                }
                let record = record_row::read(record.value())?;
                if self.core.is_idle(&record, &at) {
                    idle.push(split_row(key.value())?);
                }
                read += 1;
                if read == ROWS_READ {
                    return Ok((idle, Some(key.value().to_vec())));
                }
            }
            Ok((idle, None))
        })?;
        let (idle, next) = read.unwrap_or_default();
        *from = next.unwrap_or_default();
        Ok(idle)
    }
}
