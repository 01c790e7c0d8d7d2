//! What every system's sweep does the same way: counting incarnations, settling batches, housekeeping.

use futures::future::try_join_all;
use lapsed_core::Result;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{BatchId, Census, Tidied, TidyLimits};

use crate::owners::OwnerService;
use crate::script;
use crate::system_context::{Args, Shard, SystemContext};

/// How many overdue owners a census examines one by one.
const COUNTED_MAX: usize = 2_000;

/// How long a batch that was carried out or forbidden is remembered.
const BATCHES_KEPT_MS: u64 = 24 * 3_600_000;

impl SystemContext {
    /// Returns what a batch did in all shards. Forbids it in the shards where it was not carried out.
    pub async fn settle(&self, batch: &BatchId) -> Result<Vec<Receipt>> {
        let settled = self.shards.iter().map(|shard| self.settle_in(shard, batch));
        Ok(try_join_all(settled).await?.into_iter().flatten().collect())
    }

    pub async fn settle_in(&self, shard: &Shard, batch: &BatchId) -> Result<Vec<Receipt>> {
        let args = Args::default().arg(&batch.sweeper).arg(batch.number);
        let range: Vec<u64> = self.run(shard, &script::SETTLE_BATCH, args).await?;
        match range[..] {
            [first, last] => self.receipts_between(shard, first, last).await,
            _ => Ok(Vec::new()),
        }
    }

    pub async fn one_receipt(&self, seq: u64) -> Result<Option<Receipt>> {
        let found = self.receipts_between(self.shard_of_receipt(seq), seq, seq).await?;
        Ok(found.into_iter().find(|receipt| receipt.id.seq == seq))
    }

    /// The reason for refusing to restore a receipt that does not exist.
    pub fn no_receipt(&self, seq: u64) -> String {
        format!("there is no receipt {}-{}-{seq}", self.id.kind, self.id.name)
    }
}

impl OwnerService {
    /// Everything but the population. Owners are in every shard: the first one's count is taken;
    /// what they hold is summed up.
    pub async fn count(&self) -> Result<Census> {
        Ok(self.count_since().await?.0)
    }

    /// The same, and since when the servers are back, whether or not an incarnation was there before.
    pub async fn count_since(&self) -> Result<(Census, u64)> {
        let threshold_ms = self.context.threshold_ms();
        let args = |_: &Shard| Args::default().arg(threshold_ms).arg(COUNTED_MAX);
        let counts: Vec<Vec<String>> = self.context.run_all(&script::CENSUS, args).await?;
        let (mut census, mut back_ms) = (Census::default(), 0);
        for (index, words) in counts.iter().enumerate() {
            let number = |at: usize| -> Result<u64> {
                let word = words.get(at).and_then(|word| word.parse().ok());
                word.ok_or_else(|| self.context.unexpected_answer(&script::CENSUS))
            };
            census.back_ms = census.back_ms.max(number(1)?);
            back_ms = back_ms.max(number(9)?);
            self.context.check_return_time(&self.context.shards[index], number(9)?, number(0)?);
            census.suspects += number(7)?;
            census.owners_overdue = census.owners_overdue.max(number(4)?);
            census.owners_spared = census.owners_spared.max(number(5)?);
            let late_ms =
                number(8).map_or(0, |oldest| number(0).unwrap_or(0).saturating_sub(oldest));
            census.oldest_late_ms = census.oldest_late_ms.max(late_ms);
            census.store = match index {
                0 => words.get(2).cloned().unwrap_or_default(),
                _ => format!("{} {}", census.store, words.get(2).map_or("", String::as_str)),
            };
            if index == 0 {
                census.now_ms = number(0)?;
                census.owners_live = number(3)?;
                census.owners_died_recently = number(6)?;
            }
            // Only systems whose keys show no owners note these, each shard its own.
            census.entries_died_recently += number(10)?;
            census.entries_died_last_half += number(11)?;
        }
        Ok((census, back_ms))
    }

    pub async fn tidy(&self, limits: &TidyLimits) -> Result<Tidied> {
        let mut tidied = Tidied::default();
        for shard in &self.context.shards {
            let answer = self.tidy_in(shard, limits).await?;
            let [ended, pruned, more, forgotten @ ..] = &answer[..] else { continue };
            tidied.receipts_pruned += pruned;
            tidied.has_more |= *more == 1;
            for inc in forgotten {
                let mut cmd = redis::cmd("UNLINK");
                cmd.arg(shard.prefix.key(&format!("lost:{inc}")));
                let _: u64 = self.context.connection.query("UNLINK", &cmd).await?;
            }
            if shard.index == 0 {
                tidied.owners_ended = *ended;
                tidied.owners_forgotten = forgotten.len() as u64;
            }
        }
        Ok(tidied)
    }

    async fn tidy_in(&self, shard: &Shard, limits: &TidyLimits) -> Result<Vec<u64>> {
        let seen_ms = self.context.seen_ms(shard).await?;
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        let args = Args::default()
            .key(shard.prefix.key("restored"))
            .arg(limits.rows.min(500))
            .arg(number(limits.undeclared_max.map(|max| max as u64)))
            .arg(limits.retention.age_ms.min(1 << 50))
            .arg(limits.retention.count.min(1 << 50))
            .arg(number(limits.term))
            .arg(seen_ms)
            .arg(self.context.gap().as_millis())
            .arg(BATCHES_KEPT_MS)
            .arg(limits.retention.owners.min(1 << 50))
            .arg(limits.retention.owners_age_ms.min(1 << 50));
        self.context.run(shard, &script::TIDY, args).await
    }
}
