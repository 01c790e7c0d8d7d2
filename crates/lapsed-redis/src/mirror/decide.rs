//! Declares silent providers pending offline: the guard and the write in one script.

use lapsed_availability::rules::PendingOffline;
use lapsed_core::Result;
use lapsed_core::sweep::{Batch, PassMode, Refusal, Suspect};

use super::Inner;
use crate::script;

/// How many one script decides about: each of the silent is a dozen changes. What one script has decided
/// stays decided if the next one fails: a provider that is pending offline is taken up by the next pass.
const SUSPECTS_A_CALL: usize = 250;

pub(super) fn parse_pending(text: &str) -> Option<PendingOffline> {
    let mut numbers = text.splitn(3, ':').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(PendingOffline { epoch: next()?, beat_ms: next()?, decided_ms: next()? })
}

impl Inner {
    pub(super) async fn decide(
        &self,
        batch: &Batch,
        stale_ms: u64,
    ) -> Result<Vec<std::result::Result<PendingOffline, Refusal>>> {
        self.note_stale(stale_ms);
        let mut decided = Vec::with_capacity(batch.suspects.len());
        for part in batch.suspects.chunks(SUSPECTS_A_CALL) {
            decided.extend(self.decide_some(batch, part, stale_ms).await?);
        }
        Ok(decided)
    }

    async fn decide_some(
        &self,
        batch: &Batch,
        suspects: &[Suspect],
        stale_ms: u64,
    ) -> Result<Vec<std::result::Result<PendingOffline, Refusal>>> {
        let seen_ms = self.context.last_seen_for(self.shard(), batch.act).await?;
        let args = self
            .args(8)
            .arg(batch.term.map_or(String::new(), |term| term.to_string()))
            .arg(if batch.act == PassMode::Reclaim { "reclaim" } else { "dry" })
            .arg(seen_ms)
            .arg(self.context.gap().as_millis())
            .arg(stale_ms);
        let args = suspects.iter().fold(self.heartbeats(args).arg(&self.alive), |args, suspect| {
            args.arg(&suspect.key).arg(suspect.incarnation)
        });
        let script = &script::MIRROR_DECIDE;
        let words: Vec<String> = self.context.run_with_keys(script, args).await?;
        if words.len() != suspects.len() {
            return Err(self.context.unexpected_answer(script));
        }
        let read = |word: String| match word.as_str() {
            "M" => Ok(Err(Refusal::Moved)),
            "A" => Ok(Err(Refusal::Alive)),
            "S" => Ok(Err(Refusal::StoreAway)),
            "U" => Ok(Err(Refusal::Unreadable)),
            "L" => Ok(Err(Refusal::NotLeader)),
            doom => {
                parse_pending(doom).map(Ok).ok_or_else(|| self.context.unexpected_answer(script))
            }
        };
        words.into_iter().map(read).collect()
    }
}
