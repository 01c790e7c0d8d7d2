//! Reclaims a batch of sessions and references: one script per shard.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use lapsed_core::receipt::{Evidence, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchAnswer, Outcome, PassMode, Refusal, Suspect};
use lapsed_core::{Name, Result};

use super::{RedisSessions, refs};
use crate::held_entries::{held_key, lost_key};
use crate::receipt_item::reason_of;
use crate::script;
use crate::system_context::{Args, Shard};

/// The answer of one shard to a batch.
struct ShardAnswer {
    outcomes: Vec<(usize, Outcome)>,
    ended: u64,
    held: Duration,
}

impl RedisSessions {
    pub(super) async fn reclaim_batch(&self, batch: &Batch) -> Result<BatchAnswer> {
        let keys: Vec<Name> = batch.suspects.iter().map(|s| s.key.clone()).collect();
        let shards = self.context().group_by_shard(&keys).into_iter();
        let decided = shards.map(|(shard, places)| self.reclaim_in(shard, batch, places));
        let mut answer = BatchAnswer {
            outcomes: vec![Outcome::Gone; batch.suspects.len()],
            ..BatchAnswer::default()
        };
        for one in try_join_all(decided).await? {
            one.outcomes.into_iter().for_each(|(at, outcome)| answer.outcomes[at] = outcome);
            answer.owners_ended += one.ended;
            answer.held = answer.held.max(one.held);
        }
        if answer.owners_ended > 0 && self.context().shards.len() > 1 {
            self.end_in_other_shards(batch, &mut answer).await?;
        }
        Ok(answer)
    }

    /// An incarnation that one shard has declared dead is dead in the others, too.
    async fn end_in_other_shards(&self, batch: &Batch, answer: &mut BatchAnswer) -> Result<()> {
        let released = batch.suspects.iter().zip(&answer.outcomes);
        let released = released.filter(|(_, outcome)| **outcome == Outcome::Released);
        let mut incarnations: Vec<(Name, u64)> =
            released.map(|(s, _)| (s.owner.clone(), s.incarnation.0)).collect();
        incarnations.sort();
        incarnations.dedup();
        answer.owners_ended = answer.owners_ended.min(incarnations.len() as u64);
        for (owner, inc) in incarnations {
            self.owners().end_everywhere(&owner, inc).await?;
        }
        Ok(())
    }

    async fn reclaim_in(
        &self,
        shard: &Shard,
        batch: &Batch,
        places: Vec<usize>,
    ) -> Result<ShardAnswer> {
        // The script requires references before sessions.
        let (mut places, sessions): (Vec<usize>, Vec<usize>) =
            places.into_iter().partition(|at| batch.suspects[*at].incarnation.0 > 0);
        let context = self.context();
        let seen_ms = context.last_seen_for(shard, batch.act).await?;
        let mut args = Args::default()
            .key(&shard.anchor)
            .key(self.idle(shard))
            .key(shard.prefix.key("pointers"))
            .arg(&batch.id.sweeper)
            .arg(batch.id.number)
            .arg(batch.term.map_or(String::new(), |term| term.to_string()))
            .arg(if batch.act == PassMode::Reclaim { "reclaim" } else { "dry" })
            .arg(seen_ms)
            .arg(context.gap().as_millis())
            .arg(self.grace_ms())
            .arg(context.shards.len())
            .arg(shard.index)
            .arg(places.len())
            .arg(sessions.len());
        for at in &places {
            args = self.reference_args(args, shard, &batch.suspects[*at]);
        }
        for at in &sessions {
            args = self.orphan_args(args, shard, &batch.suspects[*at]);
        }
        places.extend(sessions);
        let words: Vec<String> = context.run(shard, &script::SESSION_RECLAIM, args).await?;
        self.decide(shard, batch, &places, &words).await
    }

    fn reference_args(&self, args: Args, shard: &Shard, suspect: &Suspect) -> Args {
        let (id, inc) = (suspect.key.as_str(), suspect.incarnation.to_string());
        args.key(self.session(shard, id))
            .key(self.ref_count(shard, id))
            .key(refs(shard, id))
            .key(held_key(shard, &inc))
            .key(lost_key(shard, &inc))
            .arg(id)
            .arg(&suspect.owner)
            .arg(inc)
    }

    fn orphan_args(&self, args: Args, shard: &Shard, suspect: &Suspect) -> Args {
        let id = suspect.key.as_str();
        // Without a broadcaster a session is listed under its own id.
        let broadcaster = if suspect.owner == suspect.key { "" } else { suspect.owner.as_str() };
        args.key(self.session(shard, id))
            .key(self.ref_count(shard, id))
            .key(refs(shard, id))
            .key(self.pointer(shard, broadcaster))
            .arg(id)
            .arg(broadcaster)
    }

    async fn decide(
        &self,
        shard: &Shard,
        batch: &Batch,
        places: &[usize],
        words: &[String],
    ) -> Result<ShardAnswer> {
        let unexpected_answer = || self.context().unexpected_answer(&script::SESSION_RECLAIM);
        let number = |at: usize| -> Result<u64> {
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(unexpected_answer)
        };
        let (now_ms, held_us, ended, mut seq, step) =
            (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
        let [codes, reasons, deadlines @ ..] = words.get(5..).unwrap_or_default() else {
            return Err(unexpected_answer());
        };
        let mut dead = reasons.chars().zip(deadlines);
        let mut outcomes = Vec::with_capacity(places.len());
        for (at, code) in places.iter().zip(codes.chars()) {
            let outcome = match code {
                'R' => {
                    let (reason, deadline_ms) = dead.next().ok_or_else(unexpected_answer)?;
                    let deadline_ms: u64 = deadline_ms.parse().map_err(|_| unexpected_answer())?;
                    let reason =
                        reason_of(reason.encode_utf8(&mut [0; 4])).ok_or_else(unexpected_answer)?;
                    let evidence = Evidence {
                        clock: "redis".to_owned(),
                        deadline_ms,
                        judged_ms: now_ms,
                        late_ms: now_ms.saturating_sub(deadline_ms),
                    };
                    let receipt = self.receipt(batch, &batch.suspects[*at], reason, evidence, seq);
                    seq += step;
                    Outcome::Reclaimed((batch.act == PassMode::Reclaim).then(|| Box::new(receipt)))
                }
                'F' => Outcome::Released,
                'A' => Outcome::Refused(Refusal::Alive),
                'S' => Outcome::Refused(Refusal::StoreAway),
                'T' => Outcome::Refused(Refusal::Active),
                'M' => Outcome::Refused(Refusal::Moved),
                'U' => Outcome::Refused(Refusal::Unreadable),
                'L' => Outcome::Refused(Refusal::NotLeader),
                _ => Outcome::Gone,
            };
            outcomes.push((*at, outcome));
        }
        if codes.starts_with('D') {
            self.answer_from_receipts(shard, batch, &mut outcomes).await?;
        }
        Ok(ShardAnswer { outcomes, ended, held: Duration::from_micros(held_us) })
    }

    /// The session's content is in the store's receipt only.
    fn receipt(
        &self,
        batch: &Batch,
        suspect: &Suspect,
        reason: lapsed_core::receipt::Reason,
        evidence: Evidence,
        seq: u64,
    ) -> Receipt {
        Receipt {
            id: ReceiptId { system: self.context().id.clone(), seq },
            key: suspect.key.clone(),
            owner: suspect.owner.clone(),
            incarnation: suspect.incarnation,
            reason,
            at_ms: evidence.judged_ms,
            evidence,
            removed: serde_json::json!({}),
            sweeper: Arc::clone(&batch.id.sweeper),
            batch: batch.id.number,
            restored_ms: None,
        }
    }

    /// The connection sent the batch twice, so the receipts of the first attempt are the answer.
    async fn answer_from_receipts(
        &self,
        shard: &Shard,
        batch: &Batch,
        outcomes: &mut [(usize, Outcome)],
    ) -> Result<()> {
        let mut receipts = self.context().settle_in(shard, &batch.id).await?;
        for (at, outcome) in outcomes {
            let key = &batch.suspects[*at].key;
            if let Some(found) = receipts.iter().position(|receipt| receipt.key == *key) {
                *outcome = Outcome::Reclaimed(Some(Box::new(receipts.swap_remove(found))));
            }
        }
        Ok(())
    }
}
