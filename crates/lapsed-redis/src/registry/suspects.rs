//! Owners that beat without lapsed, and how much there is.

use lapsed_core::Result;

use super::native::NativeRegistry;
use crate::ground::{Args, Shard};
use crate::script;

/// How many overdue owners are looked through for such that beat without lapsed, and how many of
/// those one step looks at.
const EXTERNAL_MAX: usize = 2_000;
const EXTERNAL_STEP: usize = 200;

impl NativeRegistry {
    /// Owners that beat without lapsed and whose heartbeat is there go on.
    pub(super) async fn refile_external(&self, shard: &Shard) -> Result<()> {
        let args = Args::default().arg("list").arg(EXTERNAL_MAX);
        let words: Vec<String> = self.ground().run(shard, &script::EXTERNAL, args).await?;
        for lives in words.chunks(2 * EXTERNAL_STEP) {
            let mut args = Args::default().arg("refile");
            for life in lives.chunks_exact(2) {
                if let Some(heartbeat) = self.lives.heartbeat_read(shard, &life[1]) {
                    args = args.key(heartbeat).arg(&life[0]);
                }
            }
            let _: u64 = self.ground().run(shard, &script::EXTERNAL, args).await?;
        }
        Ok(())
    }

    /// How many entries there are.
    pub(super) async fn population(&self) -> Result<u64> {
        let mut sum = 0;
        for shard in &self.ground().shards {
            let mut cmd = redis::cmd("HLEN");
            cmd.arg(&shard.anchor);
            sum += self.ground().link.query::<u64>("HLEN", &cmd).await?;
        }
        Ok(sum)
    }
}
