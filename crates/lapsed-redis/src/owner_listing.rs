//! Listing owners in pages. There may be many times as many ended owners as live ones, so no command
//! and no script reads more of them than a page.

use std::collections::BTreeSet;

use lapsed_core::Result;
use lapsed_core::owner::{Incarnation, OwnerInfo};

use crate::owners::OwnerService;
use crate::system_context::{Args, Shard};

/// How many records one script reads: about a millisecond of the server's time.
const RECORDS_READ: usize = 500;

/// How many numbers of incarnations one command reads: some tenths of a millisecond.
const NUMBERS_READ: usize = 1_000;

impl OwnerService {
    pub async fn owners(&self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        let mut after = after.map_or(0, |inc| inc.0);
        let mut infos: Vec<OwnerInfo> = Vec::new();
        // A record can be removed between the two steps; the page is filled up then, because a page
        // that is not full counts as the last one.
        while infos.len() < limit {
            let wanted = limit - infos.len();
            let incs = self.incarnations_after(&self.context.shards[0], after, wanted).await?;
            for some in incs.chunks(RECORDS_READ) {
                let args =
                    || some.iter().fold(Args::default().arg("some"), |args, inc| args.arg(inc));
                infos.extend(self.infos(args).await?);
            }
            let Some(last) = incs.last().filter(|_| incs.len() == wanted) else { break };
            after = *last;
        }
        Ok(infos)
    }

    /// The numbers of the first `limit` incarnations after `after` in one shard. The server is asked for some at a
    /// time, so that no command keeps it from others, and they are sorted here. An incarnation that
    /// ends meanwhile moves from the first set to the second one, and is found in one of them.
    pub async fn incarnations_after(
        &self,
        shard: &Shard,
        after: u64,
        limit: usize,
    ) -> Result<Vec<u64>> {
        let mut first = BTreeSet::new();
        for set in ["due", "past"] {
            let (key, mut cursor) = (shard.prefix.key(set), 0_u64);
            loop {
                let mut cmd = redis::cmd("ZSCAN");
                cmd.arg(&key).arg(cursor).arg("COUNT").arg(NUMBERS_READ);
                let (next, page): (u64, Vec<String>) =
                    self.context.connection.query("ZSCAN", &cmd).await?;
                for inc in page.iter().step_by(2).filter_map(|inc| inc.parse::<u64>().ok()) {
                    if inc > after && first.insert(inc) && first.len() > limit {
                        first.pop_last();
                    }
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(first.into_iter().collect())
    }
}
