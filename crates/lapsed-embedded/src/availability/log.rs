//! The log: one row per flip between online and offline, written by the job that flips.

use lapsed_availability::OnlineToggle;
use lapsed_core::sweep::{Tidied, TidyLimits};
use lapsed_core::{Name, Result};
use serde::{Deserialize, Serialize};

use crate::availability::{Core, EmbeddedTruth};
use crate::fault::{Fault, Tried};
use crate::owners::load::open;
use crate::services::term_holds;
use crate::tables::{number, queued_key, split_queued, to_number};
use crate::tx::Tx;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogStatus {
    /// The provider was offline before.
    Online,
    /// The provider was online before.
    Offline,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRow {
    /// Number of the row, which only grows.
    #[serde(skip)]
    pub seq: u64,
    pub provider: Name,
    pub status: LogStatus,
    /// When it was flipped, in milliseconds of the store's clock.
    pub at_ms: u64,
}

impl LogRow {
    fn toggle(&self) -> OnlineToggle {
        OnlineToggle { online: self.status == LogStatus::Online, at_ms: self.at_ms }
    }
}

fn read_row(key: &[u8], row: &[u8]) -> Tried<LogRow> {
    let seq = to_number(key).ok_or_else(|| Fault::row("a row of the log has no number"))?;
    Ok(LogRow { seq, ..serde_json::from_slice(row)? })
}

impl Core {
    pub(super) fn write_log(
        &self,
        tx: &mut Tx,
        provider: &Name,
        status: LogStatus,
        at_ms: u64,
    ) -> Tried<()> {
        let seq = tx.take_numbers(&self.tables.next_log, 1)?;
        let row = LogRow { seq, provider: provider.clone(), status, at_ms };
        tx.put(&self.tables.log_of, &queued_key(provider.as_str(), seq), &[])?;
        tx.put(&self.tables.log, &number(seq), &serde_json::to_vec(&row)?)
    }

    /// Bounded housekeeping of receipts and of the log.
    pub(super) fn tidy_all(&self, tx: &mut Tx, limits: &TidyLimits) -> Tried<Tidied> {
        let (tidied, _) = self.tidy(tx, limits)?;
        if let Some(term) = limits.term
            && !term_holds(tx, &self.id, term, self.store_clock.now_ms())?
        {
            return Ok(tidied);
        }
        self.prune_log(tx, limits)?;
        Ok(tidied)
    }

    /// Removes rows of the log that are older than the retention of receipts.
    fn prune_log(&self, tx: &mut Tx, limits: &TidyLimits) -> Tried<()> {
        let now_ms = self.store_clock.now_ms();
        let next = tx.take_numbers(&self.tables.next_log, 0)?;
        let keep_from = next.saturating_sub(limits.retention.count);
        let mut old = Vec::new();
        for row in tx.range::<&[u8]>(&self.tables.log, ..)?.take(limits.rows) {
            let (key, row) = row?;
            let row = read_row(key.value(), row.value())?;
            let aged = now_ms.saturating_sub(row.at_ms) > limits.retention.age_ms;
            if row.seq >= keep_from && !aged {
                break;
            }
            old.push(row);
        }
        for row in &old {
            tx.remove(&self.tables.log_of, &queued_key(row.provider.as_str(), row.seq))?;
            tx.remove(&self.tables.log, &number(row.seq))?;
        }
        Ok(())
    }
}

impl EmbeddedTruth {
    /// The log of one provider, newest first, at most `limit` rows.
    pub(super) fn log_of(&self, id: &Name, limit: usize) -> Result<Vec<OnlineToggle>> {
        let disk = &self.owner_service.inner.disk;
        let read = || -> Tried<Vec<OnlineToggle>> {
            let txn = disk.read()?;
            let tables = &self.core.tables;
            let (Some(index), Some(log)) = (open(&txn, &tables.log_of)?, open(&txn, &tables.log)?)
            else {
                return Ok(Vec::new());
            };
            let (from, to) = (queued_key(id.as_str(), 0), queued_key(id.as_str(), u64::MAX));
            let rows = index.range(&*from..=&*to)?.rev().take(limit).map(|key| {
                let seq = split_queued(key?.0.value()).map_or(0, |(_, seq)| seq);
                match log.get(&number(seq)[..])? {
                    Some(row) => read_row(&number(seq), row.value()).map(|row| row.toggle()),
                    None => Err(Fault::row(format!("log row {seq} of provider `{id}` is missing"))),
                }
            });
            rows.collect()
        };
        read().map_err(|fault| fault.told(&disk.name))
    }

    /// The log after row `after` (0: from its beginning), oldest first, at most `limit` rows.
    pub fn logs(&self, after: u64, limit: usize) -> Result<Vec<LogRow>> {
        let disk = &self.owner_service.inner.disk;
        let read = || -> Tried<Vec<LogRow>> {
            let txn = disk.read()?;
            let Some(log) = open(&txn, &self.core.tables.log)? else { return Ok(Vec::new()) };
            let from = number(after.saturating_add(1));
            let rows = log.range(&from[..]..)?.take(limit).map(|row| {
                let (key, row) = row?;
                read_row(key.value(), row.value())
            });
            rows.collect()
        };
        read().map_err(|fault| fault.told(&disk.name))
    }
}
