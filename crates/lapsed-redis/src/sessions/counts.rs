//! Counts sessions, and those that are due, from the indexes alone.

use lapsed_core::Result;
use lapsed_core::sweep::Census;

use super::RedisSessions;
use super::suspects::{MILLISECONDS_FROM, seconds};
use crate::system_context::Shard;

impl RedisSessions {
    pub(super) async fn count_disconnected(&self) -> Result<u64> {
        let mut sum = 0;
        for shard in &self.context().shards {
            let mut cmd = redis::cmd("ZCARD");
            cmd.arg(&shard.anchor);
            sum += self.context().connection.query::<u64>("ZCARD", &cmd).await?;
        }
        Ok(sum)
    }

    pub(super) async fn count(&self) -> Result<Census> {
        let (mut census, back_ms) = self.owners().count_since().await?;
        let until_ms = census.now_ms.saturating_sub(self.grace_ms());
        for shard in &self.context().shards {
            let due = self.count_due(shard, until_ms).await?;
            census.orphans += due;
            if due > 0 && !self.is_native() {
                let before_ms = until_ms.saturating_sub(self.context().threshold_ms());
                census.entries_due_recently +=
                    due - self.count_due(shard, before_ms).await?.min(due);
            }
            if due > 0 {
                let (oldest, _) = self.idle_in(shard, 1, 0, None).await?;
                let due_ms = oldest.first().map_or(census.now_ms, |(at, _)| at + self.grace_ms());
                let late_ms = census.now_ms.saturating_sub(due_ms);
                census.oldest_late_ms = census.oldest_late_ms.max(late_ms);
            }
            // Clients that were disconnected before the server's return could not connect again.
            if back_ms > 0 && self.count_due(shard, back_ms).await? > 0 {
                census.back_ms = back_ms;
            }
            census.population += self.population_in(shard).await?;
        }
        // Clients have a whole grace after the server's return to connect again.
        if census.now_ms < back_ms + self.grace_ms() {
            census.orphans_spared = std::mem::take(&mut census.orphans);
            census.entries_due_recently = 0;
        }
        // Sessions that the application makes itself have no owner.
        if !self.is_native() {
            (census.entries_tracked, census.entries_run_out) = (census.population, true);
            census.observation = Some(self.observation().await?);
        }
        census.suspects += census.orphans;
        Ok(census)
    }

    /// Counts the sessions that have been idle since `until_ms` or longer.
    async fn count_due(&self, shard: &Shard, until_ms: u64) -> Result<u64> {
        if self.is_native() {
            let idle = shard.prefix.key("idle");
            return self.count_between(&idle, "-inf", &until_ms.to_string()).await;
        }
        // The current second is not over, but a deadline within it may have passed.
        let (second, key) = (until_ms / 1_000, &shard.anchor);
        let mut sum = self.count_between(key, "0", &format!("({second}")).await?;
        sum += self.count_between(key, &format!("({second}"), &seconds(until_ms)).await?;
        let from = MILLISECONDS_FROM.to_string();
        Ok(sum + self.count_between(key, &from, &until_ms.to_string()).await?)
    }

    async fn count_between(&self, index: &str, from: &str, to: &str) -> Result<u64> {
        let mut cmd = redis::cmd("ZCOUNT");
        cmd.arg(index).arg(from).arg(to);
        self.context().connection.query("ZCOUNT", &cmd).await
    }

    /// How many sessions there are; of those that the application makes itself, how many are known.
    async fn population_in(&self, shard: &Shard) -> Result<u64> {
        let connection = &self.context().connection;
        let mut cmd = redis::cmd("HGET");
        cmd.arg(shard.prefix.key("meta")).arg("population");
        let counted: Option<i64> = connection.query("HGET", &cmd).await?;
        match counted {
            Some(count) if self.is_native() => Ok(count.max(0) as u64),
            _ => connection.query("ZCARD", redis::cmd("ZCARD").arg(&shard.anchor)).await,
        }
    }
}
