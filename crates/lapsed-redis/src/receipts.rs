//! Receipts: a stream a shard, one item for everything that one batch took from one incarnation.
//!
//! An item's id is the number of its last receipt. With several shards each has its own residue of
//! the numbers; what is read of all of them goes only as far as no shard can still add to.

use std::sync::Arc;

use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Evidence, Receipt, ReceiptId, ReceiptQuery};
use lapsed_core::{Name, Result};
use serde_json::{Map, Value as Json, json};

use crate::inflight::recovered;
use crate::receipt_item::{Field, ReceiptItem, ReceiptRow, StreamItem, reason_of};
use crate::script;
use crate::system_context::{Args, Shard, SystemContext};

/// How many items are read at a time; one item may hold hundreds of receipts with what they removed.
const ITEMS: usize = 32;

impl SystemContext {
    /// Reads receipts of all shards.
    pub async fn receipts(&self, query: &ReceiptQuery) -> Result<Vec<Receipt>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(self.shard_receipts(shard, query).await?);
        }
        if query.after.is_some() && self.shards.len() > 1 {
            self.keep_complete(&mut found).await?;
        }
        match query.after {
            Some(_) => found.sort_by_key(|receipt| receipt.id.seq),
            None => found.sort_by_key(|receipt| std::cmp::Reverse(receipt.id.seq)),
        }
        found.truncate(query.limit);
        Ok(found)
    }

    /// Removes what is beyond the place up to which no shard will add a receipt any more. What was
    /// written just now is a moment beyond it: that moment is waited for.
    async fn keep_complete(&self, found: &mut Vec<Receipt>) -> Result<()> {
        let newest = found.iter().map(|receipt| receipt.id.seq).max().unwrap_or(0);
        let mut ceiling = self.complete_until().await?;
        for _ in 0..5 {
            if newest < ceiling {
                return Ok(());
            }
            self.clock.sleep(std::time::Duration::from_millis(1)).await;
            ceiling = self.complete_until().await?;
        }
        found.retain(|receipt| receipt.id.seq < ceiling);
        Ok(())
    }

    /// The number below which no shard will add a receipt any more.
    async fn complete_until(&self) -> Result<u64> {
        let shards = self.shards.len() as u64;
        let now: Vec<u64> = self.run_all(&script::SERVER_TIME, |_| Args::default()).await?;
        Ok(now.into_iter().min().unwrap_or(0) * (2_048 / shards) * shards)
    }

    async fn shard_receipts(&self, shard: &Shard, query: &ReceiptQuery) -> Result<Vec<Receipt>> {
        let floor = self.floor(shard).await?;
        let mut found: Vec<Receipt> = Vec::new();
        let mut from = match query.after {
            Some(after) => format!("{}", after + 1),
            None => self.newest_place(shard, query.before).await?,
        };
        let fits = |seq: u64| {
            seq >= floor
                && query.after.is_none_or(|after| seq > after)
                && query.before.is_none_or(|before| query.after.is_some() || seq < before)
        };
        while found.len() < query.limit {
            let (verb, end) =
                if query.after.is_some() { ("XRANGE", "+") } else { ("XREVRANGE", "-") };
            let mut cmd = redis::cmd(verb);
            cmd.arg(shard.prefix.key("receipts")).arg(&from).arg(end).arg("COUNT").arg(ITEMS);
            let items: Vec<StreamItem> = self.connection.query(verb, &cmd).await?;
            let (count, last) = (items.len(), items.last().map(|item| item.0.clone()));
            for item in items {
                let mut receipts = self.open(&item)?;
                receipts.retain(|receipt| fits(receipt.id.seq));
                if query.after.is_none() {
                    receipts.reverse();
                }
                found.extend(receipts);
            }
            match last {
                Some(last) if count == ITEMS => from = format!("({last}"),
                _ => break,
            }
        }
        found.truncate(query.limit);
        self.mark_restored(shard, &mut found).await?;
        Ok(found)
    }

    /// The item that holds the newest receipt before `before`: where reading backwards begins.
    async fn newest_place(&self, shard: &Shard, before: Option<u64>) -> Result<String> {
        let Some(before) = before else { return Ok("+".to_owned()) };
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(shard.prefix.key("receipts")).arg(before.saturating_sub(1)).arg("+");
        cmd.arg("COUNT").arg(1);
        let items: Vec<StreamItem> = self.connection.query("XRANGE", &cmd).await?;
        Ok(items.into_iter().next().map_or("+".to_owned(), |item| item.0))
    }

    async fn floor(&self, shard: &Shard) -> Result<u64> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(shard.prefix.key("meta")).arg("floor");
        let floor: Option<u64> = self.connection.query("HGET", &cmd).await?;
        Ok(floor.unwrap_or(0))
    }

    async fn mark_restored(&self, shard: &Shard, receipts: &mut [Receipt]) -> Result<()> {
        if receipts.is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(shard.prefix.key("restored"));
        receipts.iter().for_each(|receipt| {
            cmd.arg(receipt.id.seq);
        });
        let marks: Vec<Option<u64>> = self.connection.query("HMGET", &cmd).await?;
        for (receipt, mark) in receipts.iter_mut().zip(marks) {
            receipt.restored_ms = mark;
        }
        Ok(())
    }

    /// Reads the receipts of one shard between two numbers.
    pub async fn receipts_between(
        &self,
        shard: &Shard,
        first: u64,
        last: u64,
    ) -> Result<Vec<Receipt>> {
        let query = ReceiptQuery {
            after: first.checked_sub(1),
            before: None,
            limit: (last - first + 1) as usize,
        };
        let mut found = self.shard_receipts(shard, &query).await?;
        found.retain(|receipt| receipt.id.seq <= last);
        Ok(found)
    }

    /// The fields of a receipt's session, byte by byte; `None` if they are not known.
    pub async fn fields_of(&self, shard: &Shard, seq: u64) -> Result<Option<Vec<Field>>> {
        let row = self.row_of(shard, seq).await?.unwrap_or_default();
        Ok(row.session.map(|(fields, _)| fields).filter(|fields| !fields.is_empty()))
    }

    /// The stored row of a receipt; `None` if there is no such receipt.
    pub async fn row_of(&self, shard: &Shard, seq: u64) -> Result<Option<ReceiptRow>> {
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(shard.prefix.key("receipts")).arg(seq).arg("+").arg("COUNT").arg(1);
        let items: Vec<StreamItem> = self.connection.query("XRANGE", &cmd).await?;
        let Some(item) = items.into_iter().next() else { return Ok(None) };
        let Some(mut opened) = ReceiptItem::read(&item) else { return Ok(None) };
        let place = (0..opened.rows.len()).find(|place| opened.seq(*place) == seq);
        let Some(place) = place else { return Ok(None) };
        Ok(Some(opened.rows.swap_remove(place)))
    }

    /// The shard that has a receipt.
    pub fn shard_of_receipt(&self, seq: u64) -> &Shard {
        &self.shards[(seq % self.shards.len() as u64) as usize]
    }

    /// Converts an item to its receipts.
    fn open(&self, item: &StreamItem) -> Result<Vec<Receipt>> {
        let opened =
            ReceiptItem::read(item).ok_or_else(|| self.connection.unexpected_answer("receipts"))?;
        let sweeper =
            opened.text("s").ok_or_else(|| self.connection.unexpected_answer("receipts"))?;
        let sweeper: Arc<str> = Arc::from(sweeper);
        let rows = opened.rows.iter().enumerate();
        rows.map(|(place, row)| self.receipt_of(&opened, place, row, &sweeper)).collect()
    }

    fn receipt_of(
        &self,
        item: &ReceiptItem,
        place: usize,
        row: &ReceiptRow,
        sweeper: &Arc<str>,
    ) -> Result<Receipt> {
        let unexpected_answer = || self.connection.unexpected_answer("receipts");
        let key = String::from_utf8_lossy(&row.key);
        let named = row.owner.as_deref().map(String::from_utf8_lossy).filter(|o| !o.is_empty());
        let owner = named.as_deref().or(item.text("o")).filter(|o| !o.is_empty()).unwrap_or(&key);
        let deadline_ms = row.deadline_ms.or(item.number("d")).unwrap_or(0);
        let reason = row.reason.as_deref().and_then(|r| std::str::from_utf8(r).ok());
        let reason = reason.or(item.text("r")).unwrap_or("d");
        let at_ms = item.number("t").ok_or_else(unexpected_answer)?;
        Ok(Receipt {
            id: ReceiptId { system: self.id.clone(), seq: item.seq(place) },
            key: Name::new(&key)?,
            owner: Name::new(owner)?,
            incarnation: Incarnation(item.number("i").unwrap_or(0)),
            reason: reason_of(reason).ok_or_else(unexpected_answer)?,
            evidence: Evidence {
                clock: "redis".to_owned(),
                deadline_ms,
                judged_ms: at_ms,
                late_ms: at_ms.saturating_sub(deadline_ms),
            },
            removed: removed_of(row),
            sweeper: sweeper.clone(),
            batch: item.number("b").ok_or_else(unexpected_answer)?,
            at_ms,
            restored_ms: None,
        })
    }
}

/// What was removed: of a session its fields, and whether its broadcaster pointed to it; of a job in
/// flight what became of it.
pub(crate) fn removed_of(row: &ReceiptRow) -> Json {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Some(note) = row.own("j") {
        let recovered = recovered(&text(note), row.own("y"));
        return recovered.map_or_else(|| json!({}), |recovered| json!(recovered));
    }
    let Some((fields, pointed)) = &row.session else { return json!({}) };
    let shown = |(field, value): &Field| (text(field), Json::String(text(value)));
    let fields: Map<String, Json> = fields.iter().map(shown).collect();
    json!({ "fields": fields, "pointer": pointed })
}
