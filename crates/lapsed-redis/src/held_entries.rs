//! The entries that each incarnation holds: one sorted set an incarnation and shard, all scores 0, so that it is read by key.

use lapsed_core::owner::{Claim, Incarnation};
use lapsed_core::receipt::Reason;
use lapsed_core::sweep::Suspect;
use lapsed_core::{Name, Result};

use crate::owners::{OwnerService, unknown_incarnation};
use crate::system_context::Shard;

/// The key of the set of entries that one incarnation holds.
pub(crate) fn held_key(shard: &Shard, inc: &str) -> String {
    shard.prefix.key(&format!("held:{inc}"))
}

/// The key of the set of entries that were reclaimed from one incarnation.
pub(crate) fn lost_key(shard: &Shard, inc: &str) -> String {
    shard.prefix.key(&format!("lost:{inc}"))
}

/// The command that reads what one incarnation holds, by key.
pub(crate) fn held_entries_cmd(
    shard: &Shard,
    inc: &str,
    after: Option<&str>,
    limit: usize,
) -> redis::Cmd {
    let mut cmd = redis::cmd("ZRANGEBYLEX");
    cmd.arg(held_key(shard, inc)).arg(after.map_or("-".to_owned(), |key| format!("({key}")));
    cmd.arg("+").arg("LIMIT").arg(0).arg(limit);
    cmd
}

impl OwnerService {
    /// Reads what one incarnation holds in one shard, ordered by key.
    pub async fn held_in(
        &self,
        shard: &Shard,
        inc: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let cmd = held_entries_cmd(shard, inc, after, limit);
        let keys: Vec<String> = self.context.connection.query("ZRANGEBYLEX", &cmd).await?;
        keys.iter().map(|key| Name::new(key)).collect()
    }

    /// Reads what the claimed incarnation holds in all shards, ordered by key. `Lost` when it has ended.
    pub async fn held_by(
        &self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let owner = self.owner(claim).await?.ok_or_else(|| unknown_incarnation(claim))?;
        if owner.ended.is_some() {
            return Err(self.lost(&claim.owner, owner.incarnation.0).await?);
        }
        self.all_held(owner.incarnation, after, limit).await
    }

    async fn all_held(
        &self,
        incarnation: Incarnation,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let inc = incarnation.to_string();
        let mut keys = Vec::new();
        for shard in &self.context.shards {
            keys.extend(self.held_in(shard, &inc, after.map(Name::as_str), limit).await?);
        }
        keys.sort();
        keys.truncate(limit);
        Ok(keys)
    }

    /// Reads what an ended incarnation still holds, as suspects.
    pub async fn left_by(&self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        let Some(owner) = self.owner(claim).await? else { return Ok(Vec::new()) };
        let Some((ending, _)) = owner.ended else { return Ok(Vec::new()) };
        let reason = Reason::from(ending);
        let keys = self.all_held(owner.incarnation, None, limit).await?;
        let suspect = |key| Suspect {
            key,
            owner: owner.owner.clone(),
            incarnation: owner.incarnation,
            deadline_ms: owner.due_ms,
            reason,
        };
        Ok(keys.into_iter().map(suspect).collect())
    }
}
