//! The decisive step: one script for a batch of jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lapsed_core::receipt::{Evidence, Reason, Receipt, ReceiptId};
use lapsed_core::sweep::{Batch, BatchAnswer, Outcome, PassMode, Refusal, Suspect};
use lapsed_core::{Name, Result};

use super::message_pack::PackedArray;
use super::profile::HeldJob;
use super::{LOCK, RescuedInflight};
use crate::inflight::{log_recovery, policy_way, recovered};
use crate::system_context::Args;

/// How many refusals are remembered, so that the log says each once and not at every pass.
const TOLD_MAX: usize = 10_000;

/// The suspects of a batch as the script reads them. Most of their keys are the same, and each key and argument costs the server
/// time before the script begins.
#[derive(Default)]
struct PackedSuspects {
    keys: Vec<String>,
    places: HashMap<String, u64>,
    values: PackedArray,
}

impl PackedSuspects {
    /// Adds a job with its keys, and the keys of the places where it may go.
    fn add(&mut self, job: &HeldJob, places_to_go: Vec<String>) {
        for part in [&job.key, &job.worker, &job.queue] {
            self.values.push_text(part.as_str());
        }
        for key in job.keys.iter().chain(&places_to_go) {
            let place = self.place_of(key);
            self.values.push_number(place);
        }
        job.words.iter().for_each(|word| self.values.push_text(word));
    }

    /// The number of a key among those of all suspects, from 1.
    fn place_of(&mut self, key: &str) -> u64 {
        if let Some(place) = self.places.get(key) {
            return *place;
        }
        self.keys.push(key.to_owned());
        let place = self.keys.len() as u64;
        self.places.insert(key.to_owned(), place);
        place
    }
}

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
        let (backoff, quarantine) = (self.layout.backoff, self.quarantine_letters(jobs).await?);
        let seen_ms = context.last_seen_for(self.shard(), batch.act).await?;
        let mut args = Args::default()
            .key(self.own("crashes"))
            .key(self.own("crashes_at"))
            .key(self.own("silence"))
            .key(self.own("deaths"))
            .key(self.own("letters"))
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
            .arg(facts.keys)
            .arg(facts.words)
            .arg(recovery.move_to.as_ref().map_or("", Name::as_str))
            .arg(backoff.map_or(0, |backoff| backoff.first_ms))
            .arg(backoff.map_or(0, |backoff| backoff.max_ms))
            .arg(quarantine);
        let mut packed = PackedSuspects::default();
        for job in jobs {
            packed.add(job, self.places_to_go(job));
        }
        args.keys.extend(packed.keys);
        args.args.push(packed.values.into_array());
        Ok(args)
    }

    /// The queue that a job is moved to, and the keys that it is delayed in, if the policy does so.
    fn places_to_go(&self, job: &HeldJob) -> Vec<String> {
        let moved = self.layout.recovery.move_to.as_ref();
        let mut keys: Vec<String> =
            moved.and_then(|queue| self.profile.other_queue(job, queue)).into_iter().collect();
        if self.layout.backoff.is_some() {
            keys.extend(self.profile.delayed_keys(job, moved.unwrap_or(&job.queue)));
        }
        keys
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
        let mut told = self.told.lock().expect(LOCK);
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        if told.insert(suspect.key.clone(), why.to_owned()).as_deref() == Some(why) {
            return Outcome::Refused(Refusal::Unreadable);
        }
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
