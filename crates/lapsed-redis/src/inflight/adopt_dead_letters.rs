//! Dead letters: listed, put back, deleted; and what a receipt took, put back.

use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Job, JobPlace, RecoveredJob, RecoveryAction};
use lapsed_core::receipt::Receipt;
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};

use super::adopt::{AdoptedInflight, end_word};
use super::records::{self, RecordHead, RecordTail};
use crate::script;
use crate::system_context::Args;

/// How often a call is made again because the letter was another one by then.
const TRIES: usize = 8;

/// What became of a call for one letter.
enum LetterOutcome {
    Done,
    Missing,
    RestoredBefore,
    Refused(String),
}

impl AdoptedInflight {
    /// Dead letters, by id.
    pub(super) async fn letters(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        let connection = &self.context().connection;
        let mut cmd = redis::cmd("ZRANGEBYLEX");
        cmd.arg(self.letter_ids()).arg(after.map_or("-".to_owned(), |id| format!("({id}")));
        cmd.arg("+").arg("LIMIT").arg(0).arg(limit);
        let ids: Vec<String> = connection.query("ZRANGEBYLEX", &cmd).await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.letters_key()).arg(&ids);
        let packed: Vec<Option<Vec<u8>>> = connection.query("HMGET", &cmd).await?;
        let now_ms: u64 =
            self.context().run(self.shard(), &script::SERVER_TIME, Args::default()).await?;
        let mut jobs = Vec::with_capacity(ids.len());
        for (id, packed) in ids.iter().zip(packed) {
            // Somebody else put it back or deleted it between the two looks.
            let Some(packed) = packed else { continue };
            let job = self.letter(&Name::new(id)?, &packed, now_ms);
            jobs.push(job.ok_or_else(|| {
                self.context().unexpected_answer(&script::INFLIGHT_ADOPT_DEAD_LETTER)
            })?);
        }
        Ok(jobs)
    }

    /// Takes a letter apart.
    pub(super) fn letter(&self, id: &Name, record: &[u8], now_ms: u64) -> Option<Job> {
        let (RecordHead::Dead { why, at_ms, .. }, tail) = records::read(record)? else {
            return None;
        };
        Some(Job {
            id: id.clone(),
            payload: tail.shown(),
            crashes: tail.crashes(self.layout.recovery.crash_window_ms, now_ms),
            queue: tail.queue,
            entered_ms: 0,
            place: JobPlace::Dead { why, at_ms, error: None },
            now_ms,
        })
    }

    pub(super) async fn put_letter_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        match self.move_letter(id, end, None).await? {
            LetterOutcome::Done => Ok(true),
            LetterOutcome::Missing | LetterOutcome::RestoredBefore => Ok(false),
            LetterOutcome::Refused(why) => Err(Error::Unavailable {
                store: self.context().place(),
                what: format!("the dead letter `{id}` cannot be put back: {why}. Nothing changed"),
            }),
        }
    }

    pub(super) async fn delete_letter(&self, id: &Name) -> Result<bool> {
        let none = self.none();
        let args = self.letter_args("delete", id, &none, "", QueueEnd::Front, None);
        let words: Vec<String> =
            self.context().run(self.shard(), &script::INFLIGHT_ADOPT_DEAD_LETTER, args).await?;
        Ok(words.first().is_some_and(|word| word == "done"))
    }

    fn letter_args(
        &self,
        op: &str,
        id: &Name,
        queue_key: &str,
        queue: &str,
        end: QueueEnd,
        receipt: Option<u64>,
    ) -> Args {
        Args::default()
            .key(self.letters_key())
            .key(self.letter_ids())
            .key(self.crashes())
            .key(self.crashes_at())
            .key(self.names())
            .key(queue_key)
            .key(self.restored())
            .arg(op)
            .arg(id)
            .arg(queue)
            .arg(end_word(end))
            .arg(self.layout.queues.as_str())
            .arg(receipt.map_or(String::new(), |seq| seq.to_string()))
    }

    /// From among the dead to its queue, which it names itself: the call is made with the queue that
    /// it had when it was looked at, and made again if it has another.
    async fn move_letter(
        &self,
        id: &Name,
        end: QueueEnd,
        receipt: Option<u64>,
    ) -> Result<LetterOutcome> {
        let unexpected_answer =
            || self.context().unexpected_answer(&script::INFLIGHT_ADOPT_DEAD_LETTER);
        let Some(job) = self.find_letter(id).await? else { return Ok(LetterOutcome::Missing) };
        let mut of = job.queue;
        for _ in 0..TRIES {
            let key = self.queues.key_of(&of);
            let args = self.letter_args("put_back", id, &key, of.as_str(), end, receipt);
            let words: Vec<String> =
                self.context().run(self.shard(), &script::INFLIGHT_ADOPT_DEAD_LETTER, args).await?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words[..] {
                ["done"] => return Ok(LetterOutcome::Done),
                ["missing"] => return Ok(LetterOutcome::Missing),
                ["before"] => return Ok(LetterOutcome::RestoredBefore),
                ["refused", why] => return Ok(LetterOutcome::Refused(why.to_owned())),
                ["again", queue] => of = Name::new(queue)?,
                _ => return Err(unexpected_answer()),
            }
        }
        Err(unexpected_answer())
    }

    async fn find_letter(&self, id: &Name) -> Result<Option<Job>> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(self.letters_key()).arg(id.as_str());
        let packed: Option<Vec<u8>> = self.context().connection.query("HGET", &cmd).await?;
        let Some(packed) = packed else { return Ok(None) };
        let job = self.letter(id, &packed, 0);
        job.map(Some)
            .ok_or_else(|| self.context().unexpected_answer(&script::INFLIGHT_ADOPT_DEAD_LETTER))
    }

    pub(super) async fn restore_receipt(&self, seq: u64) -> Result<Restored> {
        let refused = |why: String| Ok(Restored::Refused { why });
        let Some(receipt) = self.context().one_receipt(seq).await? else {
            return refused(self.context().no_receipt(seq));
        };
        let recovered: Option<RecoveredJob> = serde_json::from_value(receipt.removed.clone()).ok();
        let Some(recovered) = recovered else {
            return refused(format!("receipt {} does not say what was done", receipt.id));
        };
        let outcome = match recovered.did {
            _ if receipt.restored_ms.is_some() => LetterOutcome::RestoredBefore,
            RecoveryAction::PutBack => {
                return refused(format!(
                    "`{}` was put back on queue `{}` when it was taken; it is there, in flight or \
                     done",
                    receipt.key, recovered.queue
                ));
            }
            RecoveryAction::DeadLetter => {
                self.move_letter(&receipt.key, self.end(), Some(seq)).await?
            }
            RecoveryAction::Dropped => self.put_dropped_back(&receipt, &recovered).await?,
        };
        Ok(match outcome {
            LetterOutcome::Done => Restored::Restored {
                key: receipt.key.to_string(),
                owner: recovered.queue.to_string(),
                incarnation: 0,
            },
            LetterOutcome::RestoredBefore => {
                Restored::Refused { why: "it was put back before".to_owned() }
            }
            LetterOutcome::Missing => Restored::Refused {
                why: format!(
                    "`{}` is not where the receipt says any more: it was put back, deleted, or \
                     registered anew",
                    receipt.key
                ),
            },
            LetterOutcome::Refused(why) => Restored::Refused { why },
        })
    }

    async fn put_dropped_back(
        &self,
        receipt: &Receipt,
        recovered: &RecoveredJob,
    ) -> Result<LetterOutcome> {
        let seq = receipt.id.seq;
        let row = self.context().row_of(self.shard(), seq).await?.unwrap_or_default();
        let Some(tail) = row.own("y").and_then(RecordTail::read) else {
            return Ok(LetterOutcome::Refused(
                "the receipt does not have what it carried".to_owned(),
            ));
        };
        let mut args = Args::default()
            .key(&self.layout.index_key)
            .key(self.letters_key())
            .key(self.names())
            .key(self.queues.key_of(&recovered.queue))
            .key(self.restored())
            .arg(seq)
            .arg(&receipt.key)
            .arg(&recovered.queue)
            .arg(end_word(self.end()))
            .arg(self.layout.queues.as_str());
        args.args.push(tail.payload);
        let script = &script::INFLIGHT_ADOPT_RESTORE;
        let words: Vec<String> = self.context().run(self.shard(), script, args).await?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["done"] => Ok(LetterOutcome::Done),
            ["before"] => Ok(LetterOutcome::RestoredBefore),
            ["taken"] => Ok(LetterOutcome::Missing),
            ["refused", why] => Ok(LetterOutcome::Refused(why.to_owned())),
            _ => Err(self.context().unexpected_answer(script)),
        }
    }
}
