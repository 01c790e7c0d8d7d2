//! The decisive step: one script for a batch of jobs.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::receipt::{Evidence, Reason, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchAnswer, Outcome, PassMode, Refusal, Suspect};
use lapsed_core::{Name, Result};

use super::RescuedInflight;
use super::profile::HeldJob;
use crate::inflight::{log_recovery, policy_way, recovered};
use crate::system_context::Args;

impl RescuedInflight {
    pub(super) async fn reclaim_batch(&self, batch: &Batch) -> Result<BatchAnswer> {
        let survey = self.last_or_look().await?;
        let jobs: Vec<Option<&HeldJob>> =
            batch.suspects.iter().map(|suspect| survey.job(&suspect.key)).collect();
        let known: Vec<&HeldJob> = jobs.iter().flatten().copied().collect();
        let args = self.batch_args(batch, &known).await?;
        let script = self.profile.facts().script;
        let words: Vec<Vec<u8>> = self.context().run(self.shard(), script, args).await?;
        let suspects: Vec<&Suspect> = batch
            .suspects
            .iter()
            .zip(&jobs)
            .filter_map(|(suspect, job)| job.map(|_| suspect))
            .collect();
        let mut answer = self.read_answer(batch, &suspects, &words).await?;
        // A job that the last look did not find is not there any more.
        let mut outcomes = std::mem::take(&mut answer.outcomes).into_iter();
        for job in &jobs {
            let outcome = job.and_then(|_| outcomes.next()).unwrap_or(Outcome::Gone);
            answer.outcomes.push(outcome);
        }
        Ok(answer)
    }

    async fn batch_args(&self, batch: &Batch, jobs: &[&HeldJob]) -> Result<Args> {
        let (context, recovery, facts) =
            (self.context(), &self.layout.recovery, self.profile.facts());
        let seen_ms = context.last_seen_for(self.shard(), batch.act).await?;
        let mut args = Args::default()
            .key(self.own("crashes"))
            .key(self.own("crashes_at"))
            .key(self.own("silence"))
            .arg(&batch.id.sweeper)
            .arg(batch.id.number)
            .arg(batch.term.map_or(String::new(), |term| term.to_string()))
            .arg(if batch.act == PassMode::Reclaim { "reclaim" } else { "dry" })
            .arg(seen_ms)
            .arg(context.gap().as_millis())
            .arg(context.threshold_ms())
            .arg(self.limit_ms())
            .arg(policy_way(recovery))
            .arg(recovery.crashes_max)
            .arg(recovery.crash_window_ms)
            .arg(recovery.age_max_ms)
            .arg(jobs.len())
            .arg(facts.keys + usize::from(recovery.move_to.is_some()))
            .arg(facts.words + 3)
            .arg(recovery.move_to.as_ref().map_or("", Name::as_str));
        let move_to = recovery.move_to.as_ref();
        for job in jobs {
            for key in job
                .keys
                .iter()
                .chain(&move_to.and_then(|queue| self.profile.other_queue(job, queue)))
            {
                args = args.key(key);
            }
            args = args.arg(&job.key).arg(&job.worker).arg(&job.queue);
            for word in &job.words {
                args = args.arg(word);
            }
        }
        Ok(args)
    }

    async fn read_answer(
        &self,
        batch: &Batch,
        suspects: &[&Suspect],
        words: &[Vec<u8>],
    ) -> Result<BatchAnswer> {
        let unexpected = || self.context().unexpected_answer(self.profile.facts().script);
        let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let number = |at: usize| -> Result<u64> {
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(unexpected)
        };
        let (now_ms, held_us, mut seq) = (number(0)?, number(1)?, number(2)?);
        let codes = words.get(3).ok_or_else(unexpected)?;
        let mut rest = words[4..].iter();
        let mut answer =
            BatchAnswer { held: Duration::from_micros(held_us), ..BatchAnswer::default() };
        for (suspect, code) in suspects.iter().zip(codes.chars()) {
            let mut word = || rest.next().map(|word| &**word).ok_or_else(unexpected);
            answer.outcomes.push(match code {
                'R' => {
                    let deadline_ms = word()?.parse().map_err(|_| unexpected())?;
                    let evidence = Evidence {
                        clock: "redis".to_owned(),
                        deadline_ms,
                        judged_ms: now_ms,
                        late_ms: now_ms.saturating_sub(deadline_ms),
                    };
                    let removed = recovered(word()?, None).ok_or_else(unexpected)?;
                    let receipt = Receipt {
                        id: ReceiptId { system: self.context().id.clone(), seq },
                        key: suspect.key.clone(),
                        owner: suspect.owner.clone(),
                        incarnation: suspect.incarnation,
                        reason: Reason::OwnerDead,
                        at_ms: now_ms,
                        evidence,
                        removed: serde_json::json!(removed),
                        sweeper: Arc::clone(&batch.id.sweeper),
                        batch: batch.id.number,
                        restored_ms: None,
                    };
                    seq += 1;
                    Outcome::Reclaimed((batch.act == PassMode::Reclaim).then(|| Box::new(receipt)))
                }
                'U' => self.refuse(suspect, word()?),
                'A' => Outcome::Refused(Refusal::Alive),
                'S' => Outcome::Refused(Refusal::StoreAway),
                'L' => Outcome::Refused(Refusal::NotLeader),
                _ => Outcome::Gone,
            });
        }
        if answer.outcomes.len() != suspects.len() {
            return Err(unexpected());
        }
        if codes.starts_with('D') {
            self.answer_from_receipts(batch, suspects, &mut answer).await?;
        }
        for outcome in &answer.outcomes {
            if let Outcome::Reclaimed(Some(receipt)) = outcome {
                log_recovery(receipt);
            }
        }
        Ok(answer)
    }

    fn refuse(&self, suspect: &Suspect, why: &str) -> Outcome {
        let system = &self.context().id;
        tracing::error!(%system, job = %suspect.key, owner = %suspect.owner, why,
            "an orphaned job could not be put back; it stays where it is");
        Outcome::Refused(Refusal::Unreadable)
    }

    /// The connection sent the batch twice: the receipts of the first time are the answer.
    async fn answer_from_receipts(
        &self,
        batch: &Batch,
        suspects: &[&Suspect],
        answer: &mut BatchAnswer,
    ) -> Result<()> {
        let mut receipts = self.context().settle_in(self.shard(), &batch.id).await?;
        for (suspect, outcome) in suspects.iter().zip(&mut answer.outcomes) {
            if let Some(found) = receipts.iter().position(|receipt| receipt.key == suspect.key) {
                *outcome = Outcome::Reclaimed(Some(Box::new(receipts.swap_remove(found))));
            }
        }
        Ok(())
    }
}
