//! The beacon's snapshot, which one daemon makes for all.

use lapsed_availability::{Snapshot, SnapshotTurn};
use lapsed_core::{Error, Result};

use super::Inner;
use crate::script;

impl Inner {
    pub(super) async fn snapshot(&self, lease_ms: u64) -> Result<Option<SnapshotTurn>> {
        let script = &script::MIRROR_SNAPSHOT;
        let args = self.args(4).key(&self.keys[7]).arg(lease_ms);
        let words: Option<Vec<String>> = self.context.run_with_keys(script, args).await?;
        let Some(words) = words else { return Ok(None) };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let turn = match words[..] {
            ["there", available, count] => {
                let count = count.parse().map_err(|_| self.context.unexpected_answer(script))?;
                SnapshotTurn::There(Snapshot { available: available == "1", count })
            }
            ["yours", turn] => SnapshotTurn::Yours(turn.to_owned()),
            ["theirs"] => SnapshotTurn::Theirs,
            _ => return Err(self.context.unexpected_answer(script)),
        };
        Ok(Some(turn))
    }

    pub(super) async fn put_snapshot(
        &self,
        turn: &str,
        snapshot: &Snapshot,
        ttl_ms: u64,
    ) -> Result<bool> {
        let text = serde_json::to_string(snapshot)
            .map_err(|error| Error::Invalid(format!("the snapshot: {error}")))?;
        // Without a turn the script would delete the snapshot.
        if turn.is_empty() {
            return Ok(false);
        }
        self.put(turn, &text, ttl_ms.max(1)).await
    }

    pub(super) async fn drop_snapshot(&self) -> Result<()> {
        self.put("", "", 0).await.map(drop)
    }

    async fn put(&self, turn: &str, text: &str, ttl_ms: u64) -> Result<bool> {
        let args = self.args(1).key(&self.keys[7]).arg(turn).arg(text).arg(ttl_ms);
        self.context.run_with_keys(&script::MIRROR_SNAPSHOT_PUT, args).await
    }
}
