//! Reclaims a batch of entries: one script per shard, one receipt item an incarnation.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Evidence, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchAnswer, Outcome, PassMode, Refusal, Suspect};
use lapsed_core::{Name, Result};
use serde_json::json;

use super::native::NativeRegistry;
use crate::held_entries::{held_key, lost_key};
use crate::receipt_item::reason_of;
use crate::script;
use crate::system_context::{Args, Shard, SystemContext};

/// The suspects of one incarnation within one batch.
pub(super) struct OwnerGroup {
    pub owner: Name,
    pub inc: Incarnation,
    pub deadline_ms: u64,
    /// The positions of these suspects in the batch.
    pub places: Vec<usize>,
}

/// Puts together what belongs together, in the order of the batch. What comes twice counts once: the
/// script takes each key that it is given for another one.
pub(super) fn group(batch: &Batch, places: impl Iterator<Item = usize>) -> Vec<OwnerGroup> {
    let mut groups: Vec<OwnerGroup> = Vec::new();
    let mut known = HashSet::new();
    for at in places {
        let suspect = &batch.suspects[at];
        if !known.insert((suspect.incarnation, &suspect.key)) {
            continue;
        }
        let same = |g: &&mut OwnerGroup| (&g.owner, g.inc) == (&suspect.owner, suspect.incarnation);
        match groups.iter_mut().rev().find(same) {
            Some(group) => group.places.push(at),
            None => groups.push(OwnerGroup {
                owner: suspect.owner.clone(),
                inc: suspect.incarnation,
                deadline_ms: suspect.deadline_ms,
                places: vec![at],
            }),
        }
    }
    groups
}

/// The answer of one shard to a batch.
pub(super) struct ShardAnswer {
    pub outcomes: Vec<(usize, Outcome)>,
    pub ended: u64,
    pub held: Duration,
    /// Whether the batch was carried out before; its receipts then have the answer.
    pub done_before: bool,
}

impl NativeRegistry {
    pub(super) async fn reclaim_batch(&self, batch: &Batch) -> Result<BatchAnswer> {
        let context = self.context();
        let keys: Vec<Name> = batch.suspects.iter().map(|s| s.key.clone()).collect();
        let shards = context.group_by_shard(&keys).into_iter();
        let decided = shards.map(|(shard, places)| self.reclaim_in(shard, batch, places));
        let decided = try_join_all(decided).await?;
        let mut answer = BatchAnswer {
            outcomes: vec![Outcome::Gone; batch.suspects.len()],
            ..BatchAnswer::default()
        };
        for one in decided {
            one.outcomes.into_iter().for_each(|(at, outcome)| answer.outcomes[at] = outcome);
            answer.owners_ended += one.ended;
            answer.held = answer.held.max(one.held);
        }
        if answer.owners_ended > 0 && context.shards.len() > 1 {
            self.end_in_other_shards(batch, &answer).await?;
        }
        Ok(answer)
    }

    async fn reclaim_in(
        &self,
        shard: &Shard,
        batch: &Batch,
        places: Vec<usize>,
    ) -> Result<ShardAnswer> {
        let groups = group(batch, places.into_iter());
        let seen_ms = self.context().last_seen_for(shard, batch.act).await?;
        let mut args = Args::default().key(&shard.anchor);
        for group in &groups {
            let inc = group.inc.to_string();
            args = args.key(held_key(shard, &inc)).key(lost_key(shard, &inc));
            let none = shard.prefix.key("meta");
            args =
                args.key(self.owners.heartbeat_read(shard, group.owner.as_str()).unwrap_or(none));
        }
        let args = self.context().batch_args(args, shard, batch, seen_ms, &groups);
        let words = self.context().run(shard, &script::REGISTRY_RECLAIM, args).await?;
        self.context().decide(shard, batch, &groups, words).await
    }

    /// An incarnation that one shard has declared dead is dead in the others, too.
    async fn end_in_other_shards(&self, batch: &Batch, answer: &BatchAnswer) -> Result<()> {
        let dead = batch.suspects.iter().zip(&answer.outcomes);
        let dead = dead.filter(|(_, outcome)| matches!(outcome, Outcome::Reclaimed(_)));
        let mut incarnations: Vec<(Name, u64)> =
            dead.map(|(s, _)| (s.owner.clone(), s.incarnation.0)).collect();
        incarnations.dedup();
        for (owner, inc) in incarnations {
            self.owners.end_everywhere(&owner, inc).await?;
        }
        Ok(())
    }
}

impl SystemContext {
    /// The arguments that every reclaim has.
    pub(super) fn batch_args(
        &self,
        mut args: Args,
        shard: &Shard,
        batch: &Batch,
        seen_ms: u64,
        groups: &[OwnerGroup],
    ) -> Args {
        let act = if batch.act == PassMode::Reclaim { "reclaim" } else { "dry" };
        args = args
            .arg(&batch.id.sweeper)
            .arg(batch.id.number)
            .arg(batch.term.map_or(String::new(), |term| term.to_string()))
            .arg(act)
            .arg(seen_ms)
            .arg(self.gap().as_millis())
            .arg(self.threshold_ms())
            .arg(self.shards.len())
            .arg(shard.index)
            .arg(groups.len());
        for group in groups {
            args = args.arg(group.inc).arg(&group.owner).arg(group.deadline_ms);
            args = args.arg(group.places.len());
            for at in &group.places {
                args = args.arg(&batch.suspects[*at].key);
            }
        }
        args
    }

    /// Reads the script's answer: what became of each suspect, and its receipt.
    pub(super) async fn decide(
        &self,
        shard: &Shard,
        batch: &Batch,
        groups: &[OwnerGroup],
        words: Vec<String>,
    ) -> Result<ShardAnswer> {
        let unexpected_answer = || self.unexpected_answer(&script::REGISTRY_RECLAIM);
        let number = |at: usize| -> Result<u64> {
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(unexpected_answer)
        };
        let (now_ms, held_us, ended, mut seq, step) =
            (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
        let mut decided = ShardAnswer {
            outcomes: Vec::new(),
            ended,
            held: Duration::from_micros(held_us),
            done_before: false,
        };
        let mut answers = words[5..].chunks_exact(3);
        for group in groups {
            let [deadline_ms, how, codes] = answers.next().ok_or_else(unexpected_answer)? else {
                return Err(unexpected_answer());
            };
            let deadline_ms: u64 = deadline_ms.parse().map_err(|_| unexpected_answer())?;
            for (at, code) in group.places.iter().zip(codes.chars()) {
                let suspect = &batch.suspects[*at];
                let outcome = match code {
                    'R' if batch.act == PassMode::DryRun => Outcome::Reclaimed(None),
                    'R' => {
                        let reason = reason_of(how).ok_or_else(unexpected_answer)?;
                        let evidence = Evidence {
                            clock: "redis".to_owned(),
                            deadline_ms,
                            judged_ms: now_ms,
                            late_ms: now_ms.saturating_sub(deadline_ms),
                        };
                        let receipt = self.receipt(batch, suspect, reason, evidence, seq);
                        seq += step;
                        Outcome::Reclaimed(Some(Box::new(receipt)))
                    }
                    'A' => Outcome::Refused(Refusal::Alive),
                    'N' => Outcome::Refused(Refusal::Newcomer),
                    'S' => Outcome::Refused(Refusal::StoreAway),
                    'M' => Outcome::Refused(Refusal::Moved),
                    'L' => Outcome::Refused(Refusal::NotLeader),
                    'D' => {
                        decided.done_before = true;
                        Outcome::Gone
                    }
                    _ => Outcome::Gone,
                };
                decided.outcomes.push((*at, outcome));
            }
        }
        if decided.done_before {
            self.answer_from_receipts(shard, batch, &mut decided).await?;
        }
        Ok(decided)
    }

    fn receipt(
        &self,
        batch: &Batch,
        suspect: &Suspect,
        reason: lapsed_core::receipt::Reason,
        evidence: Evidence,
        seq: u64,
    ) -> Receipt {
        Receipt {
            id: ReceiptId { system: self.id.clone(), seq },
            key: suspect.key.clone(),
            owner: suspect.owner.clone(),
            incarnation: suspect.incarnation,
            reason,
            at_ms: evidence.judged_ms,
            evidence,
            removed: json!({}),
            sweeper: Arc::clone(&batch.id.sweeper),
            batch: batch.id.number,
            restored_ms: None,
        }
    }

    /// The connection sent the batch twice and the first time's answer was lost: its receipts are
    /// the answer.
    async fn answer_from_receipts(
        &self,
        shard: &Shard,
        batch: &Batch,
        decided: &mut ShardAnswer,
    ) -> Result<()> {
        let mut receipts = self.settle_in(shard, &batch.id).await?;
        for (at, outcome) in &mut decided.outcomes {
            let key = &batch.suspects[*at].key;
            if let Some(found) = receipts.iter().position(|receipt| receipt.key == *key) {
                *outcome = Outcome::Reclaimed(Some(Box::new(receipts.swap_remove(found))));
            }
        }
        Ok(())
    }
}
