//! What is done with receipts after they were written: batches are settled, receipts are pruned and restored.

use std::collections::BTreeMap;
use std::time::Duration;

use lapsed_availability::ProviderState;
use lapsed_core::receipt::{Receipt, ReceiptId};
use lapsed_core::store::Store;
use lapsed_core::sweep::{BatchId, Tidied, TidyLimits};
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};

use crate::availability::PostgresTruth;
use crate::availability::states::{LockScope, Locked};
use crate::call_error::CallResult;
use crate::number::{to_i64, to_u64};
use crate::pool::{Call, TransactionEnd};
use crate::receipts::{READ_COLUMNS, batch_key, note_batch, read_receipt};

/// How long batches are remembered, which is far longer than a call can take to arrive.
const BATCHES_KEPT: &str = "1 day";

/// After this time the table is read again, because other processes write receipts, too.
const LOOK_AGAIN: Duration = Duration::from_secs(3_600);

/// The result of the last pruning, so that a pass with nothing to prune costs no statement.
#[derive(Default)]
pub(super) struct PruneSchedule {
    last: Option<LastPrune>,
}

struct LastPrune {
    at: Duration,
    /// How many receipts were left, and how old the oldest was.
    kept: u64,
    oldest_age_ms: Option<u64>,
}

impl PruneSchedule {
    fn is_due(&self, limits: &TidyLimits, now: Duration) -> bool {
        let Some(last) = &self.last else { return true };
        let since = now.saturating_sub(last.at);
        let since_ms = since.as_millis() as u64;
        let old = |age_ms: u64| age_ms.saturating_add(since_ms) >= limits.retention.age_ms;
        since >= LOOK_AGAIN
            || last.kept > limits.retention.count
            || last.oldest_age_ms.is_some_and(old)
    }
}

impl PostgresTruth {
    /// Adds `count` written receipts to the number of kept ones.
    pub(super) fn note_written(&self, count: usize) {
        let mut prune_schedule = self.prune_schedule.lock().expect("no holder of this lock panics");
        if let Some(last) = &mut prune_schedule.last {
            last.kept += count as u64;
            last.oldest_age_ms.get_or_insert(0);
        }
    }

    pub(super) async fn settle_batch(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        // Waits for a transaction that is carrying out the batch at this moment.
        let (system, sweeper, number) = batch_key(&self.id, batch);
        let sql = note_batch(self.postgres.own());
        let noted =
            self.pool().query("settle", &sql, &[&system, &sweeper, &number, &false]).await?;
        if !noted.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {READ_COLUMNS} FROM {} WHERE system = $1 AND sweeper = $2 AND batch = $3 \
             ORDER BY seq",
            self.postgres.own().receipts
        );
        let rows = self.pool().query("settle", &sql, &[&system, &sweeper, &number]).await?;
        rows.iter().map(|row| read_receipt(self.pool().place(), row)).collect()
    }

    pub(super) async fn tidy_up(&self, limits: &TidyLimits) -> Result<Tidied> {
        let now = self.pool().clock().mono();
        if !self.prune_schedule.lock().expect("no holder of this lock panics").is_due(limits, now) {
            return Ok(Tidied::default());
        }
        if let Some(term) = limits.term
            && !self.holds_term_now(term).await?
        {
            return Ok(Tidied::default());
        }
        let (pruned, tidy) = self.prune(limits, now).await?;
        let sql = format!(
            "DELETE FROM {0} WHERE ctid IN (SELECT ctid FROM {0} WHERE system = $1 \
             AND at < clock_timestamp() - interval '{BATCHES_KEPT}' LIMIT $2)",
            self.postgres.own().batches
        );
        let rows = to_i64(limits.rows as u64);
        self.pool().query("tidy", &sql, &[&self.system, &rows]).await?;
        self.postgres.prune_requests(&self.id, rows).await?;
        self.prune_schedule.lock().expect("no holder of this lock panics").last = Some(tidy);
        let has_more = pruned >= limits.rows as u64;
        Ok(Tidied { receipts_pruned: pruned, has_more, ..Tidied::default() })
    }

    async fn holds_term_now(&self, term: u64) -> Result<bool> {
        let sql = format!(
            "SELECT number = $2 AND until > clock_timestamp() FROM {} WHERE system = $1",
            self.postgres.own().terms
        );
        let rows = self.pool().query("tidy", &sql, &[&self.system, &to_i64(term)]).await?;
        Ok(rows.first().is_none_or(|row| row.get(0)))
    }

    /// Removes receipts that are too old or too many, oldest first, within the limits.
    async fn prune(&self, limits: &TidyLimits, now: Duration) -> Result<(u64, LastPrune)> {
        let own = self.postgres.own();
        let sql = format!(
            "WITH held AS MATERIALIZED (SELECT receipts_kept FROM {settings} WHERE system = $1 \
             FOR UPDATE), \
             oldest AS (SELECT o.seq, o.at, row_number() OVER (ORDER BY o.seq) AS n FROM \
             (SELECT seq, at FROM {receipts} WHERE system = $1 ORDER BY seq LIMIT $2) o), \
             gone AS (DELETE FROM {receipts} r USING oldest o, held h \
             WHERE r.system = $1 AND r.seq = o.seq AND (o.n <= h.receipts_kept - $4 \
             OR o.at <= clock_timestamp() - $3 * interval '1 millisecond') RETURNING r.seq), \
             counted AS (UPDATE {settings} SET receipts_kept = greatest(0, receipts_kept - \
             (SELECT count(*) FROM gone)) WHERE system = $1 RETURNING receipts_kept) \
             SELECT (SELECT count(*) FROM gone), coalesce((SELECT receipts_kept FROM counted), 0), \
             (SELECT greatest(0, floor(extract(epoch FROM clock_timestamp() - o.at) * 1000))::bigint \
             FROM oldest o WHERE NOT EXISTS (SELECT 1 FROM gone g WHERE g.seq = o.seq) \
             ORDER BY o.seq LIMIT 1)",
            settings = own.settings,
            receipts = own.receipts,
        );
        let rows = to_i64(limits.rows as u64);
        let age = limits.retention.age_ms as f64;
        let count = to_i64(limits.retention.count);
        let params: crate::pool::Params<'_> = &[&self.system, &rows, &age, &count];
        let row = self.pool().query_one("tidy", &sql, params).await?;
        let (pruned, kept) = (to_u64(row.get(0)), to_u64(row.get(1)));
        // All that was looked at is gone: there may be more.
        let oldest: Option<i64> = row.get(2);
        let oldest_age_ms = oldest.map(to_u64).or((kept > 0).then_some(u64::MAX));
        Ok((pruned, LastPrune { at: now, kept, oldest_age_ms }))
    }

    pub(super) async fn try_restore(
        &self,
        seq: u64,
    ) -> CallResult<(Restored, Option<ProviderState>)> {
        let Some(receipt) = self.postgres.receipt(&self.id, seq).await? else {
            let id = ReceiptId { system: self.id.clone(), seq };
            let why = format!("there is no receipt {id}, or it is past its retention");
            return Ok((Restored::Refused { why }, None));
        };
        let (call, locked) =
            self.begin("restore", [(&receipt.key, 0)], LockScope::Existing).await?;
        let restored = self.restore_in(&call, &locked, &receipt).await;
        let (restored, state) = call.finish(restored).await?;
        if state.is_some() {
            return Ok((restored, state));
        }
        // Refused, and the version that was taken for it undone: as it is without that.
        let state = self.read_states(std::slice::from_ref(&receipt.key)).await?.pop();
        Ok((restored, state))
    }

    async fn restore_in(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        receipt: &Receipt,
    ) -> CallResult<TransactionEnd<(Restored, Option<ProviderState>)>> {
        let id = &receipt.key;
        if let Some(why) = self.taken(call, locked, receipt).await? {
            return Ok(TransactionEnd::Rollback((Restored::Refused { why }, None)));
        }
        let sql = format!(
            "UPDATE {} SET restored_at = clock_timestamp() WHERE system = $1 AND seq = $2 RETURNING 1",
            self.postgres.own().receipts
        );
        call.query(&sql, &[&self.system, &to_i64(receipt.id.seq)]).await?;
        self.go_online(call, id).await?;
        let state = self.conclude(call, locked, &[id]).await?.remove(id);
        let restored = Restored::Restored {
            key: id.to_string(),
            owner: id.to_string(),
            incarnation: state.as_ref().map_or(0, |state| state.epoch),
        };
        Ok(TransactionEnd::Commit((restored, state)))
    }

    /// Why the provider cannot be restored; the caller holds the lock on its version.
    async fn taken(
        &self,
        call: &Call,
        locked: &BTreeMap<Name, Locked>,
        receipt: &Receipt,
    ) -> CallResult<Option<String>> {
        let (id, key) = (&receipt.id, &receipt.key);
        let Some(held) = locked.get(key) else {
            return Ok(Some(format!("there is no provider `{key}`")));
        };
        let sql = format!(
            "SELECT restored_at IS NULL FROM {} WHERE system = $1 AND seq = $2",
            self.postgres.own().receipts
        );
        let row = call.query_opt(&sql, &[&self.system, &to_i64(id.seq)]).await?;
        if !row.is_some_and(|row| row.get(0)) {
            return Ok(Some(format!("`{key}` was put back from {id} before")));
        }
        let offline = receipt.removed.get("offline_epoch").and_then(serde_json::Value::as_u64);
        Ok((offline != Some(held.epoch) || self.was_toggled(call, key).await?)
            .then(|| format!("`{key}` has been toggled since")))
    }

    /// Whether the application toggled it by itself: it is otherwise than it was last seen.
    async fn was_toggled(&self, call: &Call, id: &Name) -> CallResult<bool> {
        let names = self.names().await?;
        let sql = format!(
            "SELECT s.{online} OR v.was_online IS DISTINCT FROM s.{online} \
             OR v.online_mark IS DISTINCT FROM s.{last_online} \
             FROM {status} s JOIN {own} v ON v.system = $1 AND v.provider = $2 \
             WHERE s.{provider} = {id} FOR NO KEY UPDATE OF s",
            online = names.s_online,
            last_online = names.s_last_online,
            status = names.status,
            own = names.own.availability,
            provider = names.s_provider,
            id = names.status_provider.one(2),
        );
        let row = call.query_opt(&sql, &[&self.system, &id.as_str()]).await?;
        Ok(row.is_none_or(|row| row.get::<_, Option<bool>>(0).unwrap_or(true)))
    }
}
