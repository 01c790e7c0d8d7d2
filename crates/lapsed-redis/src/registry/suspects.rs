//! Owners that send heartbeats without lapsed, and the number of entries.

use lapsed_core::Result;

use super::native::NativeRegistry;
use crate::script;
use crate::system_context::{Args, Shard};

/// How many overdue owners are looked through for such that beat without lapsed, and how many of
/// those one step looks at.
const EXTERNAL_MAX: usize = 2_000;
const EXTERNAL_STEP: usize = 200;

impl NativeRegistry {
    /// Renews owners that send heartbeats without lapsed and whose heartbeat key exists.
    pub(super) async fn renew_external(&self, shard: &Shard) -> Result<()> {
        let args = Args::default().arg("list").arg(EXTERNAL_MAX);
        let words: Vec<String> = self.context().run(shard, &script::EXTERNAL_OWNERS, args).await?;
        for incarnations in words.chunks(2 * EXTERNAL_STEP) {
            let mut args = Args::default().arg("refile");
            for incarnation in incarnations.chunks_exact(2) {
                if let Some(heartbeat) = self.owners.heartbeat_read(shard, &incarnation[1]) {
                    args = args.key(heartbeat).arg(&incarnation[0]);
                }
            }
            let _: u64 = self.context().run(shard, &script::EXTERNAL_OWNERS, args).await?;
        }
        Ok(())
    }

    /// The number of entries.
    pub(super) async fn population(&self) -> Result<u64> {
        let mut sum = 0;
        for shard in &self.context().shards {
            let mut cmd = redis::cmd("HLEN");
            cmd.arg(&shard.anchor);
            sum += self.context().connection.query::<u64>("HLEN", &cmd).await?;
        }
        Ok(sum)
    }
}
