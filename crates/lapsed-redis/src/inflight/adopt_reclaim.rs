//! The decisive step for jobs that the application registered, and the log lines about it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::inflight::rules::{DeadLetterReason, OnDeath};
use lapsed_core::inflight::{RecoveredJob, RecoveryAction};
use lapsed_core::receipt::{Evidence, Reason, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchAnswer, Outcome, PassMode, Refusal, Suspect};
use lapsed_core::{Error, Name, Result};

use super::adopt::{AdoptedInflight, LOCK};
use super::records::{policy_way, recovered};
use crate::script;
use crate::system_context::Args;

/// How many times a batch is sent again because it needs queues that it did not name.
const TRIES: usize = 8;

/// How many queues a batch names that it may not need.
const KNOWN_MAX: usize = 32;

/// How a batch and its script call Sidekiq's set of dead jobs among the queues: no queue has that name.
const DEAD_SET: &[u8] = b"\x01dead";

/// The answer, word by word. What the application wrote may be any bytes.
type AnswerWords = Vec<Vec<u8>>;

impl AdoptedInflight {
    pub(super) async fn reclaim_batch(&self, batch: &Batch) -> Result<BatchAnswer> {
        if batch.act == PassMode::Reclaim {
            *self.collector.lock().expect(LOCK) = Some(batch.id.sweeper.clone());
        }
        let mut queues = self.known.lock().expect(LOCK).clone();
        for _ in 0..TRIES {
            let args = self.batch_args(batch, &queues).await?;
            let script = &script::INFLIGHT_ADOPT_RECLAIM;
            let words: AnswerWords = self.context().run(self.shard(), script, args).await?;
            match words.split_first() {
                Some((first, missing)) if first == b"again" => {
                    queues.extend(missing.iter().cloned());
                }
                _ => {
                    self.remember(queues);
                    return self.decide(batch, &words).await;
                }
            }
        }
        Err(Error::Unavailable {
            store: self.context().place(),
            what: "jobs change their queues faster than they can be put back; nothing was changed"
                .to_owned(),
        })
    }

    fn remember(&self, queues: BTreeSet<Vec<u8>>) {
        let queues = if queues.len() > KNOWN_MAX { BTreeSet::new() } else { queues };
        *self.known.lock().expect(LOCK) = queues;
    }

    /// The key of a queue; `None` if the bytes are not a valid name.
    fn queue_key(&self, name: &[u8]) -> String {
        if name == DEAD_SET {
            return self.dead_set();
        }
        match Name::from_bytes(name) {
            Ok(name) => self.queues.key_of(&name),
            Err(_) => self.none(),
        }
    }

    async fn batch_args(&self, batch: &Batch, queues: &BTreeSet<Vec<u8>>) -> Result<Args> {
        let (context, layout) = (self.context(), &self.layout);
        let recovery = &layout.recovery;
        let seen_ms = context.last_seen_for(self.shard(), batch.act).await?;
        let none = self.none();
        let (details, details_index) = layout.details().unwrap_or((&none, &none));
        let mut args = Args::default()
            .key(&layout.index_key)
            .key(&layout.jobs_key)
            .key(&layout.gc_lock_key)
            .key(self.letters_key())
            .key(self.letter_ids())
            .key(self.crashes())
            .key(self.crashes_at())
            .key(self.names())
            .key(details)
            .key(details_index)
            .arg(&batch.id.sweeper)
            .arg(batch.id.number)
            .arg(batch.term.map_or(String::new(), |term| term.to_string()))
            .arg(if batch.act == PassMode::Reclaim { "reclaim" } else { "dry" })
            .arg(seen_ms)
            .arg(context.gap().as_millis())
            .arg(context.threshold_ms())
            .arg(layout.lock_ttl_s())
            .arg(layout.keys_ttl_s())
            .arg(layout.queues.as_str())
            .arg(policy_way(recovery))
            .arg(recovery.crashes_max)
            .arg(recovery.crash_window_ms)
            .arg(recovery.age_max_ms)
            .arg(queues.len())
            .arg(batch.suspects.len())
            .arg(layout.dead_letter.as_str())
            .arg(recovery.move_to.as_ref().map_or("", Name::as_str));
        for name in queues {
            args = args.key(self.queue_key(name));
            args.args.push(name.clone());
        }
        Ok(self.suspect_args(args, batch))
    }

    fn suspect_args(&self, mut args: Args, batch: &Batch) -> Args {
        let mut processes: Vec<String> = Vec::new();
        for suspect in &batch.suspects {
            let id = suspect.key.as_str();
            // Jobs of one process are usually next to each other.
            let place = self.process(id).map_or(0, |key| {
                let place = processes.iter().rposition(|known| *known == key);
                place.map_or_else(
                    || {
                        processes.push(key);
                        processes.len()
                    },
                    |at| at + 1,
                )
            });
            args = args.arg(id).arg(place);
        }
        args.keys.extend(processes);
        args
    }

    async fn decide(&self, batch: &Batch, words: &[Vec<u8>]) -> Result<BatchAnswer> {
        let unexpected_answer =
            || self.context().unexpected_answer(&script::INFLIGHT_ADOPT_RECLAIM);
        let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let number = |at: usize| -> Result<u64> {
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(unexpected_answer)
        };
        let (now_ms, held_us, mut seq) = (number(0)?, number(1)?, number(2)?);
        let codes = words.get(3).ok_or_else(unexpected_answer)?;
        let mut rest = words[4..].iter();
        // Some servers stop their clock while a script runs: then the answer's way counts as well.
        let held = Duration::from_micros(held_us);
        let mut answer = BatchAnswer { held, ..BatchAnswer::default() };
        for (suspect, code) in batch.suspects.iter().zip(codes.chars()) {
            let mut word = || rest.next().map(|word| &**word).ok_or_else(unexpected_answer);
            let outcome = match code {
                'R' => {
                    let evidence =
                        evidence(word()?.parse().map_err(|_| unexpected_answer())?, now_ms);
                    let recovered = recovered(word()?, None).ok_or_else(unexpected_answer)?;
                    let receipt = self.receipt(batch, suspect, evidence, seq, &recovered);
                    seq += 1;
                    Outcome::Reclaimed((batch.act == PassMode::Reclaim).then(|| Box::new(receipt)))
                }
                'N' => self.refuse(suspect, Refusal::NotTaken, word()?),
                'U' => self.refuse(suspect, Refusal::Unreadable, word()?),
                'A' => Outcome::Refused(Refusal::Alive),
                'S' => Outcome::Refused(Refusal::StoreAway),
                'B' => Outcome::Refused(Refusal::Busy),
                'L' => Outcome::Refused(Refusal::NotLeader),
                _ => Outcome::Gone,
            };
            answer.outcomes.push(outcome);
        }
        if answer.outcomes.len() != batch.suspects.len() {
            return Err(unexpected_answer());
        }
        if codes.starts_with('D') {
            self.answer_from_receipts(batch, &mut answer).await?;
        }
        answer.outcomes.iter().for_each(|outcome| {
            if let Outcome::Reclaimed(Some(receipt)) = outcome {
                log_recovery(receipt);
            }
        });
        Ok(answer)
    }

    /// Logs that a job stays registered.
    fn refuse(&self, suspect: &Suspect, refusal: Refusal, why: &str) -> Outcome {
        let system = &self.context().id;
        tracing::error!(%system, job = %suspect.key, owner = %suspect.owner, why,
            "an orphaned job could not be put back; it stays registered");
        Outcome::Refused(refusal)
    }

    /// The connection sent the batch twice, so the receipts of the first attempt are the answer.
    async fn answer_from_receipts(&self, batch: &Batch, answer: &mut BatchAnswer) -> Result<()> {
        let mut receipts = self.context().settle_in(self.shard(), &batch.id).await?;
        for (suspect, outcome) in batch.suspects.iter().zip(&mut answer.outcomes) {
            let found = receipts.iter().position(|receipt| receipt.key == suspect.key);
            if let Some(found) = found {
                *outcome = Outcome::Reclaimed(Some(Box::new(receipts.swap_remove(found))));
            }
        }
        Ok(())
    }

    /// The payload of a dropped job is in the store's receipt only.
    fn receipt(
        &self,
        batch: &Batch,
        suspect: &Suspect,
        evidence: Evidence,
        seq: u64,
        recovered: &RecoveredJob,
    ) -> Receipt {
        Receipt {
            id: ReceiptId { system: self.context().id.clone(), seq },
            key: suspect.key.clone(),
            owner: suspect.owner.clone(),
            incarnation: suspect.incarnation,
            reason: Reason::OwnerDead,
            at_ms: evidence.judged_ms,
            evidence,
            removed: serde_json::json!(recovered),
            sweeper: Arc::clone(&batch.id.sweeper),
            batch: batch.id.number,
            restored_ms: None,
        }
    }
}

fn evidence(deadline_ms: u64, now_ms: u64) -> Evidence {
    Evidence {
        clock: "redis".to_owned(),
        deadline_ms,
        judged_ms: now_ms,
        late_ms: now_ms.saturating_sub(deadline_ms),
    }
}

/// Logs one line per job, in the original's words, after the store's answer.
pub(crate) fn log_recovery(receipt: &Receipt) {
    let Ok(recovered) = serde_json::from_value::<RecoveredJob>(receipt.removed.clone()) else {
        return;
    };
    let (system, job, owner) = (&receipt.id.system, &receipt.key, &receipt.owner);
    let RecoveredJob { queue, crashes, did, why, moved_to, kept_in, due_ms, .. } = recovered;
    match (did, moved_to) {
        (RecoveryAction::PutBack, to) if due_ms.is_some() => {
            let (to, wait_ms) = (
                to.as_ref().unwrap_or(&queue),
                due_ms.map(|due| due.saturating_sub(receipt.at_ms)),
            );
            tracing::info!(%system, %job, %queue, %to, %owner, crashes, wait_ms, "an orphaned job waits before it may run again");
        }
        (RecoveryAction::PutBack, Some(to)) => {
            tracing::info!(%system, %job, %queue, %to, %owner, crashes, "an orphaned job was moved to another queue");
        }
        (RecoveryAction::PutBack, None) => {
            tracing::info!(%system, %job, %queue, %owner, crashes, "an orphaned job is back on its queue");
        }
        (RecoveryAction::DeadLetter, _) => {
            let why = why.map_or("", DeadLetterReason::as_str);
            let kept_in = kept_in.as_deref().unwrap_or("lapsed");
            tracing::warn!(%system, %job, %queue, %owner, crashes, why, kept_in, "an orphaned job is a dead letter");
        }
        (RecoveryAction::Dropped, _) => {
            let rule = OnDeath::Drop;
            tracing::warn!(%system, %job, %queue, %owner, crashes, %rule, "an orphaned job was dropped");
        }
        (other, _) => {
            tracing::warn!(%system, %job, %queue, %owner, crashes, action = ?other, "an orphaned job was recovered");
        }
    }
}
