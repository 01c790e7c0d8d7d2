//! Lists, puts back and deletes dead letters, and restores jobs from receipts.

use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{Job, JobPlace, RecoveredJob, RecoveryAction};
use lapsed_core::receipt::Receipt;
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};

use super::adopt::{AdoptedInflight, LOCK, end_word};
use super::records::{self, DeadSetPlace, IN_SIDEKIQ, RecordHead, RecordTail};
use crate::script;
use crate::system_context::Args;

/// How many times a call is repeated because the letter has changed in the meantime.
const TRIES: usize = 8;

/// How many dead letters the end of a pass compares with Sidekiq's set.
const COMPARED_MAX: usize = 100;

/// The result of a call for one letter.
enum LetterOutcome {
    Done,
    Missing,
    /// The job has left Sidekiq's set.
    LeftDeadSet,
    RestoredBefore,
    Refused(String),
}

/// What a call does with a letter.
#[derive(Clone, Copy)]
enum LetterMove {
    PutBack(QueueEnd),
    Delete,
    /// Forgets the letter if Sidekiq's set does not have its job any more.
    Forget,
}

/// A letter as it was read.
struct SeenLetter {
    queue: Name,
    /// Whether its job is in Sidekiq's set.
    is_in_set: bool,
}

fn place_in_set(record: &[u8]) -> Option<DeadSetPlace> {
    match records::read(record)? {
        (RecordHead::Dead { error, .. }, _) => DeadSetPlace::read(&error),
        _ => None,
    }
}

impl AdoptedInflight {
    /// Lists dead letters, ordered by id.
    pub(super) async fn letters(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        let now_ms: u64 =
            self.context().run(self.shard(), &script::SERVER_TIME, Args::default()).await?;
        let (mut jobs, mut after) = (Vec::new(), after.cloned());
        // A job that has left Sidekiq's set must not end the list before its time.
        while jobs.len() < limit {
            let wanted = limit - jobs.len();
            let page = self.letter_records(after.as_ref(), wanted).await?;
            let is_last = page.len() < wanted;
            after = page.last().map(|(id, _)| id.clone());
            let found = page.into_iter().filter_map(|(id, record)| Some((id, record?)));
            jobs.extend(self.read_letters(found.collect(), now_ms).await?);
            if is_last {
                break;
            }
        }
        Ok(jobs)
    }

    /// The records of letters, by id. `None`: it was put back or deleted between the two
    /// looks.
    async fn letter_records(
        &self,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Option<Vec<u8>>)>> {
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
        let records: Vec<Option<Vec<u8>>> = connection.query("HMGET", &cmd).await?;
        ids.iter().zip(records).map(|(id, record)| Ok((Name::new(id)?, record))).collect()
    }

    /// The jobs of these records, without those that have left Sidekiq's set.
    pub(super) async fn read_letters(
        &self,
        records: Vec<(Name, Vec<u8>)>,
        now_ms: u64,
    ) -> Result<Vec<Job>> {
        let is_there = self.are_there(records.iter().map(|(_, record)| record.as_slice())).await?;
        let mut jobs = Vec::with_capacity(records.len());
        for ((id, record), is_there) in records.iter().zip(is_there) {
            let job = self.letter(id, record, now_ms);
            let job = job.ok_or_else(|| self.unexpected_letter())?;
            jobs.extend(Some(job).filter(|_| is_there));
        }
        Ok(jobs)
    }

    /// For each record whether its job is where it says. Sidekiq's set is only asked if one of them
    /// is there.
    async fn are_there(&self, records: impl Iterator<Item = &[u8]>) -> Result<Vec<bool>> {
        let places: Vec<_> = records.map(place_in_set).collect();
        let mut args = Args::default().key(self.dead_set());
        for place in places.iter().flatten() {
            args = args.arg(&place.score).arg(&place.sha);
        }
        let answer: String = match args.args.is_empty() {
            true => String::new(),
            false => {
                self.context().run_with_keys(&script::INFLIGHT_ADOPT_IN_DEAD_SET, args).await?
            }
        };
        let mut answer = answer.chars();
        let is_there = |place: &Option<_>| place.is_none() || answer.next() == Some('1');
        Ok(places.iter().map(is_there).collect())
    }

    fn unexpected_letter(&self) -> Error {
        self.context().unexpected_answer(&script::INFLIGHT_ADOPT_DEAD_LETTER)
    }

    /// Reads the parts of a letter's record.
    fn letter(&self, id: &Name, record: &[u8], now_ms: u64) -> Option<Job> {
        let (RecordHead::Dead { why, at_ms, error }, tail) = records::read(record)? else {
            return None;
        };
        let kept_in = DeadSetPlace::read(&error).map(|_| IN_SIDEKIQ.to_owned());
        Some(Job {
            id: id.clone(),
            payload: tail.shown(),
            crashes: tail.crashes(self.layout.recovery.crash_window_ms, now_ms),
            queue: tail.queue,
            entered_ms: 0,
            place: JobPlace::Dead { why, at_ms, error: None, kept_in },
            now_ms,
        })
    }

    pub(super) async fn put_letter_back(&self, id: &Name, end: QueueEnd) -> Result<bool> {
        match self.move_letter(id, LetterMove::PutBack(end), None).await? {
            LetterOutcome::Done => Ok(true),
            LetterOutcome::Refused(why) => Err(Error::Unavailable {
                store: self.context().place(),
                what: format!("the dead letter `{id}` cannot be put back: {why}. Nothing changed"),
            }),
            _ => Ok(false),
        }
    }

    pub(super) async fn delete_letter(&self, id: &Name) -> Result<bool> {
        let outcome = self.move_letter(id, LetterMove::Delete, None).await?;
        Ok(matches!(outcome, LetterOutcome::Done))
    }

    /// Forgets letters, and the crashes of their jobs, that were retried or deleted in Sidekiq:
    /// a part of them at the end of each pass.
    pub(super) async fn forget_settled_letters(&self) -> Result<()> {
        let after = self.compared.lock().expect(LOCK).clone();
        let page = self.letter_records(after.as_ref(), COMPARED_MAX).await?;
        let next = page.last().filter(|_| page.len() == COMPARED_MAX).map(|(id, _)| id.clone());
        let records = page.iter().map(|(_, record)| record.as_deref().unwrap_or_default());
        let is_there = self.are_there(records).await?;
        for ((id, _), _) in page.iter().zip(is_there).filter(|(_, is_there)| !is_there) {
            self.move_letter(id, LetterMove::Forget, None).await?;
        }
        *self.compared.lock().expect(LOCK) = next;
        Ok(())
    }

    fn letter_args(
        &self,
        id: &Name,
        how: LetterMove,
        seen: &SeenLetter,
        receipt: Option<u64>,
    ) -> Args {
        let (op, end) = match how {
            LetterMove::PutBack(end) => ("put_back", end),
            LetterMove::Delete => ("delete", QueueEnd::Front),
            LetterMove::Forget => ("forget", QueueEnd::Front),
        };
        Args::default()
            .key(self.letters_key())
            .key(self.letter_ids())
            .key(self.crashes())
            .key(self.crashes_at())
            .key(self.names())
            .key(self.queues.key_of(&seen.queue))
            .key(self.restored())
            .key(if seen.is_in_set { self.dead_set() } else { self.none() })
            .arg(op)
            .arg(id)
            .arg(&seen.queue)
            .arg(end_word(end))
            .arg(self.layout.queues.as_str())
            .arg(receipt.map_or(String::new(), |seq| seq.to_string()))
    }

    /// Moves a letter, which names its queue itself: the call is made with what the letter was when
    /// it was looked at, and made again if it is another one by then.
    async fn move_letter(
        &self,
        id: &Name,
        how: LetterMove,
        receipt: Option<u64>,
    ) -> Result<LetterOutcome> {
        for _ in 0..TRIES {
            let Some(seen) = self.see_letter(id).await? else { return Ok(LetterOutcome::Missing) };
            let args = self.letter_args(id, how, &seen, receipt);
            let (context, script) = (self.context(), &script::INFLIGHT_ADOPT_DEAD_LETTER);
            let args = context.with_base(self.shard(), args);
            let words: Vec<String> = context.change(self.shard(), script, args).await?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words[..] {
                ["done" | "kept"] => return Ok(LetterOutcome::Done),
                ["missing"] => return Ok(LetterOutcome::Missing),
                ["left"] => return Ok(LetterOutcome::LeftDeadSet),
                ["before"] => return Ok(LetterOutcome::RestoredBefore),
                ["refused", why] => return Ok(LetterOutcome::Refused(why.to_owned())),
                ["again"] => {}
                _ => return Err(self.unexpected_letter()),
            }
        }
        Err(self.unexpected_letter())
    }

    async fn see_letter(&self, id: &Name) -> Result<Option<SeenLetter>> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(self.letters_key()).arg(id.as_str());
        let record: Option<Vec<u8>> = self.context().connection.query("HGET", &cmd).await?;
        let Some(record) = record else { return Ok(None) };
        let (_, tail) = records::read(&record).ok_or_else(|| self.unexpected_letter())?;
        let is_in_set = place_in_set(&record).is_some();
        Ok(Some(SeenLetter { queue: tail.queue, is_in_set }))
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
                let how = LetterMove::PutBack(self.end());
                self.move_letter(&receipt.key, how, Some(seq)).await?
            }
            RecoveryAction::Dropped => self.put_dropped_back(&receipt, &recovered).await?,
            other => return refused(format!("this version cannot put back what was `{other:?}`")),
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
            LetterOutcome::LeftDeadSet => Restored::Refused {
                why: format!(
                    "`{}` is not in {IN_SIDEKIQ} any more: it was retried or deleted there, or \
                     Sidekiq dropped it to make room. If it was retried, it is on its queue, in \
                     flight or done",
                    receipt.key
                ),
            },
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
        let (context, shard) = (self.context(), self.shard());
        let args = context.with_base(shard, args);
        let words: Vec<String> = context.change(shard, script, args).await?;
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
