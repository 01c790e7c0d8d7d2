//! Reclaims a batch of jobs: one script, one receipt item an incarnation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::Incarnation;
use lapsed_core::receipt::{Evidence, Reason, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchAnswer, Outcome, PassMode, Refusal};
use lapsed_core::{Error, Name, Result};
use serde_json::json;

use super::native::NativeInflight;
use super::operations::{AnswerWords, number};
use super::records::{policy_way, recovered};
use crate::held_entries::{held_key, lost_key};
use crate::receipt_item::reason_of;
use crate::receipt_item::{ReceiptRow, jobs};
use crate::script;
use crate::system_context::Args;

/// How many times a batch is sent again because its jobs go to queues that it did not name.
const TRIES: usize = 20;

/// The positions in a batch of one incarnation's suspects.
struct OwnerGroup {
    owner: Name,
    inc: Incarnation,
    places: Vec<usize>,
}

fn group(batch: &Batch) -> Vec<OwnerGroup> {
    let mut groups: Vec<OwnerGroup> = Vec::new();
    let mut found = std::collections::HashMap::new();
    for (at, suspect) in batch.suspects.iter().enumerate() {
        let index = *found.entry((&suspect.owner, suspect.incarnation)).or_insert(groups.len());
        if index == groups.len() {
            let (owner, inc) = (suspect.owner.clone(), suspect.incarnation);
            groups.push(OwnerGroup { owner, inc, places: Vec::new() });
        }
        groups[index].places.push(at);
    }
    groups
}

/// What a script said of one incarnation: how it ended, when its time ran out, a letter a job, and a row for each
/// that was reclaimed.
struct OwnerAnswer<'a> {
    reason: Option<Reason>,
    evidence: Evidence,
    codes: &'a [u8],
    rows: std::vec::IntoIter<ReceiptRow>,
}

impl NativeInflight {
    pub(super) async fn reclaim_batch(&self, batch: &Batch) -> Result<BatchAnswer> {
        let groups = group(batch);
        let seen_ms = self.context().last_seen_for(self.shard(), batch.act).await?;
        let mut queues = self.known_queues();
        for _ in 0..TRIES {
            let args = self.reclaim_args(batch, &groups, &queues, seen_ms);
            let words: AnswerWords =
                self.context().run(self.shard(), &script::INFLIGHT_RECLAIM, args).await?;
            if words.first().is_none_or(|word| word != b"again") {
                return self.read_answer(batch, &groups, &words).await;
            }
            for queue in &words[1..] {
                queues.insert(Name::from_bytes(queue)?);
            }
            self.remember(&queues);
        }
        Err(self.retries_exhausted(script::INFLIGHT_RECLAIM.name))
    }

    fn reclaim_args(
        &self,
        batch: &Batch,
        groups: &[OwnerGroup],
        queues: &BTreeSet<Name>,
        seen_ms: u64,
    ) -> Args {
        let rule = &self.inner.recovery;
        let mut args = Args::default();
        for what in ["jobs", "dead", "queues", "crashes", "crashes_at"] {
            args = args.key(self.key(what));
        }
        args = args
            .key(self.set_of_queues())
            .arg(&batch.id.sweeper)
            .arg(batch.id.number)
            .arg(batch.term.map_or(String::new(), |term| term.to_string()))
            .arg(if batch.act == PassMode::Reclaim { "reclaim" } else { "dry" })
            .arg(seen_ms)
            .arg(self.context().gap().as_millis())
            .arg(self.format().as_str())
            .arg(policy_way(rule))
            .arg(rule.crashes_max)
            .arg(rule.crash_window_ms.min(1 << 50))
            .arg(rule.age_max_ms.min(1 << 50))
            .arg(self.outbox())
            .arg(groups.len())
            .arg(queues.len())
            .arg(rule.move_to.as_ref().map_or("", Name::as_str));
        args = queues.iter().fold(args, |args, queue| args.arg(queue));
        for group in groups {
            let inc = group.inc.to_string();
            args = args.key(held_key(self.shard(), &inc)).key(lost_key(self.shard(), &inc));
            args = args.arg(inc).arg(&group.owner).arg(group.places.len());
            for at in &group.places {
                args = args.arg(&batch.suspects[*at].key);
            }
        }
        queues.iter().fold(args, |args, queue| args.key(self.queue_key(queue)))
    }

    async fn read_answer(
        &self,
        batch: &Batch,
        groups: &[OwnerGroup],
        words: &AnswerWords,
    ) -> Result<BatchAnswer> {
        let at = |at: usize| {
            words.get(at).and_then(|word| number(word)).ok_or_else(|| self.unexpected_answer())
        };
        let (now_ms, held_us, owners_ended, mut seq) = (at(0)?, at(1)?, at(2)?, at(3)?);
        let mut outcomes = vec![Outcome::Gone; batch.suspects.len()];
        for (group, words) in groups.iter().zip(words[4..].chunks_exact(4)) {
            let mut owner_answer = self.owner_answer(words, now_ms)?;
            for (at, code) in group.places.iter().zip(owner_answer.codes) {
                outcomes[*at] = match code {
                    b'R' => {
                        let receipt = self.receipt(batch, *at, &mut owner_answer, seq)?;
                        seq += 1;
                        let is_real = batch.act == PassMode::Reclaim;
                        Outcome::Reclaimed(is_real.then(|| Box::new(receipt)))
                    }
                    code => refused(*code),
                };
            }
        }
        let first = words.get(6).and_then(|codes| codes.first());
        if first == Some(&b'D') {
            self.answer_from_receipts(batch, &mut outcomes).await?;
        }
        Ok(BatchAnswer { outcomes, owners_ended, held: Duration::from_micros(held_us) })
    }

    fn owner_answer<'a>(&self, words: &'a [Vec<u8>], now_ms: u64) -> Result<OwnerAnswer<'a>> {
        let deadline_ms = number(&words[0]).ok_or_else(|| self.unexpected_answer())?;
        let evidence = Evidence {
            clock: "redis".to_owned(),
            deadline_ms,
            judged_ms: now_ms,
            late_ms: now_ms.saturating_sub(deadline_ms),
        };
        let reason = std::str::from_utf8(&words[1]).ok().and_then(reason_of);
        let rows = match words[3].is_empty() {
            true => Vec::new(),
            false => jobs(&words[3]).ok_or_else(|| self.unexpected_answer())?,
        };
        Ok(OwnerAnswer { reason, evidence, codes: &words[2], rows: rows.into_iter() })
    }

    fn receipt(
        &self,
        batch: &Batch,
        at: usize,
        owner_answer: &mut OwnerAnswer<'_>,
        seq: u64,
    ) -> Result<Receipt> {
        let suspect = &batch.suspects[at];
        let row = owner_answer.rows.next().filter(|row| row.key == suspect.key.as_str().as_bytes());
        let row = row.ok_or_else(|| self.unexpected_answer())?;
        let note = row.own("j").and_then(|note| std::str::from_utf8(note).ok());
        let removed = note.and_then(|note| recovered(note, row.own("y")));
        Ok(Receipt {
            id: ReceiptId { system: self.context().id.clone(), seq },
            key: suspect.key.clone(),
            owner: suspect.owner.clone(),
            incarnation: suspect.incarnation,
            reason: owner_answer.reason.ok_or_else(|| self.unexpected_answer())?,
            at_ms: owner_answer.evidence.judged_ms,
            evidence: owner_answer.evidence.clone(),
            removed: json!(removed.ok_or_else(|| self.unexpected_answer())?),
            sweeper: Arc::clone(&batch.id.sweeper),
            batch: batch.id.number,
            restored_ms: None,
        })
    }

    /// The connection sent the batch twice and the first time's answer was lost: its receipts are
    /// the answer.
    async fn answer_from_receipts(&self, batch: &Batch, outcomes: &mut [Outcome]) -> Result<()> {
        let mut receipts = self.context().settle_in(self.shard(), &batch.id).await?;
        for (suspect, outcome) in batch.suspects.iter().zip(outcomes) {
            if let Some(found) = receipts.iter().position(|receipt| receipt.key == suspect.key) {
                *outcome = Outcome::Reclaimed(Some(Box::new(receipts.swap_remove(found))));
            }
        }
        Ok(())
    }

    fn unexpected_answer(&self) -> Error {
        self.context().unexpected_answer(&script::INFLIGHT_RECLAIM)
    }
}

fn refused(code: u8) -> Outcome {
    match code {
        b'A' => Outcome::Refused(Refusal::Alive),
        b'S' => Outcome::Refused(Refusal::StoreAway),
        b'M' => Outcome::Refused(Refusal::Moved),
        b'N' => Outcome::Refused(Refusal::NotTaken),
        b'L' => Outcome::Refused(Refusal::NotLeader),
        _ => Outcome::Gone,
    }
}
