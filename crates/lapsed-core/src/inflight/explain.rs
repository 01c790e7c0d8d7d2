//! Explains why a job is where it is.

use serde_json::json;

use crate::error::Result;
use crate::inflight::rules::DeadLetterReason;
use crate::inflight::{Inflight, Job, JobPlace, RecoveredJob, RecoveryAction, Whereabouts};
use crate::name::Name;
use crate::owner::Claim;
use crate::receipt::{Reason, Receipt};
use crate::sweep::Suspect;
use crate::system::Explanation;
use crate::system::explain::{BeatState, Explainer, RECEIPTS_SEARCHED, of_incarnation, seconds};

impl Inflight {
    pub(super) async fn explain_key(&self, key: &Name) -> Result<Explanation> {
        let inflight = &self.parts.entries;
        if let Some(job) = self.calls.quiet("job", inflight.job(key)).await? {
            return self.explain_job(key, &job).await;
        }
        if let Some(found) = self.calls.quiet("whereabouts", inflight.whereabouts(key)).await? {
            return self.explain_foreign(key, found).await;
        }
        let claim = Claim::newest(key.clone());
        if let Some(owner) = self.calls.quiet("owner", inflight.owner(&claim)).await? {
            return self.words().owner(key, &owner).await;
        }
        let receipt = self.words().last_receipt(key).await?;
        let (verdict, because) = match &receipt {
            Some(receipt) => ("reclaimed", vec![recovered(receipt)]),
            None => (
                "unknown",
                vec![format!(
                    "there is no job `{key}` (it may have been completed), no owner has that \
                     name, and none of the last {RECEIPTS_SEARCHED} receipts is for it"
                )],
            ),
        };
        Ok(self.words().explanation(key, verdict, because, json!({ "receipt": receipt })))
    }

    /// A job of a foreign job system, in that system's words.
    async fn explain_foreign(&self, key: &Name, found: Whereabouts) -> Result<Explanation> {
        let receipt = self.words().last_receipt(key).await?;
        let mut because = found.because;
        because.extend(receipt.iter().map(|receipt| {
            format!("it was taken from `{}` before, receipt {}", receipt.owner, receipt.id)
        }));
        Ok(self.words().explanation(key, &found.state, because, json!({ "receipt": receipt })))
    }

    async fn explain_job(&self, key: &Name, job: &Job) -> Result<Explanation> {
        let mut because = Vec::new();
        let verdict = match &job.place {
            JobPlace::Queued => {
                because
                    .push(format!("`{key}` is on queue `{}`; no worker has taken it", job.queue));
                "queued"
            }
            JobPlace::Dead { why, at_ms, error, kept_in } => {
                let ago = seconds(job.now_ms.saturating_sub(*at_ms));
                because.push(format!(
                    "`{key}` has been a dead letter for {ago:.1} s: {}",
                    words(*why)
                ));
                because.extend(error.iter().map(|said| format!("its worker said: {said}")));
                because.push(match kept_in {
                    Some(place) => format!(
                        "it is in {place} until it is retried or deleted by hand, there or with \
                         `lapsed dead`"
                    ),
                    None => {
                        "it stays a dead letter until it is put back or deleted by hand".to_owned()
                    }
                });
                "dead_letter"
            }
            JobPlace::InFlight { owner, incarnation, token, since_ms, due_ms, ended } => {
                let held = seconds(job.now_ms.saturating_sub(*since_ms));
                let queue = &job.queue;
                because.push(match token.0 {
                    // A foreign job system does not say since when.
                    0 if *since_ms == 0 => {
                        format!("`{key}` of queue `{queue}` is in the hands of `{owner}`")
                    }
                    // Where the application registers its jobs itself there are no claims.
                    0 => format!(
                        "`{key}` of queue `{queue}` is in flight by the application's own word, of \
                         {held:.1} s ago"
                    ),
                    _ => format!(
                        "`{key}` of queue `{queue}` is in the hands of `{owner}`, incarnation \
                         {incarnation}, by claim {token}, for {held:.1} s"
                    ),
                });
                let named = Some(*incarnation).filter(|incarnation| incarnation.0 > 0);
                let claim = Claim { owner: owner.clone(), incarnation: named };
                let info = self.calls.quiet("owner", self.parts.entries.owner(&claim)).await?;
                let ttl_ms = info.map_or(0, |info| info.ttl_ms);
                let beat = BeatState { ended: *ended, due_ms: *due_ms, ttl_ms };
                let verdict = self.words().judge(&mut because, beat, job.now_ms).await?;
                let suspect = Suspect {
                    key: key.clone(),
                    owner: owner.clone(),
                    incarnation: *incarnation,
                    deadline_ms: *due_ms,
                    reason: Reason::OwnerDead,
                };
                match verdict {
                    "live" | "spared" => verdict,
                    _ => {
                        let refusal = self.words().refusal(suspect).await?;
                        self.words().obstacle(&mut because, refusal).unwrap_or(verdict)
                    }
                }
            }
        };
        if job.crashes > 0 {
            because.push(format!("{} of its workers died with it lately", job.crashes));
        }
        Ok(self.words().explanation(key, verdict, because, json!(job)))
    }

    pub(super) fn words(&self) -> Explainer<'_> {
        self.parts.explainer(&self.calls, &*self.parts.entries, ("job", "jobs"))
    }
}

fn words(why: DeadLetterReason) -> &'static str {
    match why {
        DeadLetterReason::Failed => "it failed",
        DeadLetterReason::Crashes => "too many workers died with it",
        DeadLetterReason::TooOld => "its worker had been dead for too long for it to be put back",
        DeadLetterReason::Asked => "the policy makes jobs of dead workers dead letters",
        DeadLetterReason::Quarantined => {
            "jobs of its class are in quarantine: they are not put back when their worker dies"
        }
    }
}

fn recovered(receipt: &Receipt) -> String {
    let done: Option<RecoveredJob> = serde_json::from_value(receipt.removed.clone()).ok();
    let place = done.as_ref().and_then(|done| done.kept_in.clone());
    let is_delayed = done.as_ref().is_some_and(|done| done.due_ms.is_some());
    let did = match done.map(|done| done.did) {
        Some(RecoveryAction::PutBack) if is_delayed => {
            "put among the delayed jobs of its system".to_owned()
        }
        Some(RecoveryAction::PutBack) => {
            "put back on its queue, and is not there any more".to_owned()
        }
        Some(RecoveryAction::DeadLetter) => match place {
            Some(place) => format!("put in {place}, and is not there any more"),
            None => "made a dead letter, and is not there any more".to_owned(),
        },
        Some(RecoveryAction::Dropped) => "dropped".to_owned(),
        None => "taken back".to_owned(),
    };
    format!(
        "there is no job `{}`; it was taken from `{}`{} ({}, {:.1} s late) and {did}, receipt {}",
        receipt.key,
        receipt.owner,
        of_incarnation(receipt.incarnation),
        receipt.reason,
        seconds(receipt.evidence.late_ms),
        receipt.id
    )
}
