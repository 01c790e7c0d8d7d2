//! Reads jobs, queues and totals; handles dead letters; restores jobs from receipts.

use lapsed_core::inflight::{Job, JobCounts, JobPlace, JobToken, RecoveredJob, RecoveryAction};
use lapsed_core::owner::Incarnation;
use lapsed_core::registry::rules::due_ms;
use lapsed_core::system::Restored;
use lapsed_core::{Name, Result};

use super::native::NativeInflight;
use super::operations::{AnswerWords, number};
use super::records::{self, RecordHead, name};
use crate::owners::OwnerRecord;
use crate::queues::QueueFormat;
use crate::script;
use crate::system_context::Args;

/// How many dead letters are read in one step; each comes with its payload.
const LETTERS_A_CALL: usize = 100;

/// How many queues are read in one call.
const QUEUES_A_CALL: usize = 200;

/// How many times a call is repeated because a letter has changed in the meantime.
const TRIES: usize = 20;

impl NativeInflight {
    pub(super) async fn find_job(&self, id: &Name) -> Result<Option<Job>> {
        let jobs = self.find(|args| args.arg("one").arg(id)).await?;
        Ok(jobs.into_iter().next())
    }

    pub(super) async fn list_dead(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Job>> {
        let mut found: Vec<Job> = Vec::new();
        let mut after = after.cloned();
        while found.len() < limit {
            let want = (limit - found.len()).min(LETTERS_A_CALL);
            let from = after.as_ref().map_or("", Name::as_str).to_owned();
            let page = self.find(|args| args.arg("dead").arg(&from).arg(want)).await?;
            let is_last = page.len() < want;
            found.extend(page);
            after = found.last().map(|job| job.id.clone());
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    async fn find(&self, ask: impl FnOnce(Args) -> Args) -> Result<Vec<Job>> {
        let script = &script::INFLIGHT_FIND;
        let args = Args::default().key(self.key("jobs")).key(self.key("dead"));
        let words: AnswerWords = self.context().run(self.shard(), script, ask(args)).await?;
        let unexpected_answer = || self.context().unexpected_answer(script);
        let at =
            |at: usize| words.get(at).and_then(|word| number(word)).ok_or_else(unexpected_answer);
        let (now_ms, back_ms) = (at(0)?, at(1)?);
        let read =
            |row: &[Vec<u8>]| self.read_job(row, now_ms, back_ms).ok_or_else(unexpected_answer);
        words[2..].chunks_exact(4).map(read).collect()
    }

    /// Reads a job from a row: its id, its record, its holder's record and the holder's deadline.
    fn read_job(&self, row: &[Vec<u8>], now_ms: u64, back_ms: u64) -> Option<Job> {
        let (head, tail) = records::read(&row[1])?;
        let place = match head {
            RecordHead::Queued => JobPlace::Queued,
            RecordHead::Dead { why, at_ms, error } => {
                let error = (!error.is_empty()).then_some(error);
                JobPlace::Dead { why, at_ms, error, kept_in: None }
            }
            RecordHead::InFlight { token, inc, since_ms } => {
                let deadline_ms = number(&row[3]).unwrap_or(0);
                let record = OwnerRecord::read(std::str::from_utf8(&row[2]).ok()?, deadline_ms)?;
                let ended = record.ended();
                JobPlace::InFlight {
                    owner: Name::new(&record.name).ok()?,
                    incarnation: Incarnation(inc),
                    token: JobToken(token),
                    since_ms,
                    due_ms: match ended {
                        Some(_) => record.end_deadline_ms,
                        None => due_ms(&record.state, back_ms),
                    },
                    ended,
                }
            }
        };
        Some(Job {
            id: name(&row[0]).ok()?,
            payload: tail.shown(),
            crashes: tail.crashes(self.inner.recovery.crash_window_ms, now_ms),
            entered_ms: tail.entered_ms,
            queue: tail.queue,
            place,
            now_ms,
        })
    }

    pub(super) async fn account(&self) -> Result<JobCounts> {
        let script = &script::INFLIGHT_COUNTS;
        let args = Args::default().key(self.key("meta")).key(self.key("jobs"));
        let args = args.key(self.key("dead")).arg(self.format().as_str());
        let counts: Vec<u64> = self.context().run_with_keys(script, args).await?;
        let [entered, completed, queued, in_flight, dead, dropped] = counts[..] else {
            return Err(self.context().unexpected_answer(script));
        };
        Ok(JobCounts { entered, completed, queued, in_flight, dead, dropped })
    }

    /// Names are read by page, and those whose queue is empty are left out.
    pub(super) async fn list_queues(
        &self,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, u64)>> {
        let mut found = Vec::new();
        let mut from = after.map_or("-".to_owned(), |after| format!("({after}"));
        loop {
            let mut cmd = redis::cmd("ZRANGEBYLEX");
            cmd.arg(self.key("queues")).arg(&from).arg("+").arg("LIMIT").arg(0).arg(QUEUES_A_CALL);
            let names: Vec<String> = self.context().connection.query("ZRANGEBYLEX", &cmd).await?;
            let names: Result<Vec<Name>> = names.iter().map(|name| Name::new(name)).collect();
            let names = names?;
            let lengths = self.lengths(&names).await?;
            let full = names.len() == QUEUES_A_CALL;
            from = names.last().map_or(String::new(), |last| format!("({last}"));
            found.extend(names.into_iter().zip(lengths).filter(|(_, length)| *length > 0));
            if found.len() >= limit || !full {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    async fn lengths(&self, queues: &[Name]) -> Result<Vec<u64>> {
        let verb = if self.format() == QueueFormat::Stream { "XLEN" } else { "LLEN" };
        let mut pipeline = redis::pipe();
        for queue in queues {
            pipeline.cmd(verb).arg(self.queue_key(queue));
        }
        let lengths = self.context().connection.query_each(verb, &pipeline, queues.len()).await?;
        Ok(lengths.into_iter().map(|length| length.unwrap_or(0)).collect())
    }

    /// Puts a letter back on its queue, or deletes it; returns whether it existed.
    pub(super) async fn move_letter(&self, id: &Name, what: &str) -> Result<bool> {
        let script = &script::INFLIGHT_DEAD_LETTER;
        let mut queue = self.inner.recovery.outbox.clone();
        for _ in 0..TRIES {
            let key = queue.as_ref().map_or_else(|| self.key("meta"), |name| self.queue_key(name));
            let queue_name = queue.as_ref().map_or("", Name::as_str).to_owned();
            let args = self.job_keys().key(key).arg(id).arg(what).arg(self.format().as_str());
            let args = args.arg(self.outbox()).arg(queue_name);
            let words: Vec<String> = self.context().change(self.shard(), script, args).await?;
            match words.first().map(String::as_str) {
                Some("done") => return Ok(true),
                Some("none") => return Ok(false),
                Some("again") => queue = words.get(1).map(|name| Name::new(name)).transpose()?,
                _ => return Err(self.context().unexpected_answer(script)),
            }
        }
        Err(self.retries_exhausted(script.name))
    }

    pub(super) async fn restore_job(&self, seq: u64) -> Result<Restored> {
        let (context, script) = (self.context(), &script::INFLIGHT_RESTORE);
        let refused = |why: String| Ok(Restored::Refused { why });
        let Some(receipt) = context.one_receipt(seq).await? else {
            return refused(context.no_receipt(seq));
        };
        let recovered: RecoveredJob = serde_json::from_value(receipt.removed.clone())
            .map_err(|_| context.connection.unexpected_answer("receipts"))?;
        let kept = match recovered.did {
            RecoveryAction::Dropped => self.kept(seq).await?,
            _ => Vec::new(),
        };
        let place = self.inner.recovery.outbox.as_ref().unwrap_or(&recovered.queue);
        let args = self.job_keys().key(self.key("restored")).key(self.queue_key(place));
        let args = args.arg(seq).arg(&receipt.key).arg(self.format().as_str()).arg(place);
        let args = args.bytes(&kept);
        let words: Vec<String> = context.change(self.shard(), script, args).await?;
        let key = receipt.key.to_string();
        match (words.first().map(String::as_str), recovered.did) {
            (Some("done"), _) => {
                let (owner, incarnation) = (receipt.owner.to_string(), receipt.incarnation.0);
                Ok(Restored::Restored { key, owner, incarnation })
            }
            (Some("before"), _) => refused("it was put back before".to_owned()),
            (Some("queued" | "flying"), RecoveryAction::Dropped) => {
                refused(format!("its place is taken: there is a job `{key}` again"))
            }
            (Some("queued"), _) => {
                refused(format!("it is on its queue, `{}`, already", recovered.queue))
            }
            (Some("flying"), _) => refused("a worker holds it".to_owned()),
            (Some("gone"), _) => refused(
                "it is neither on its queue nor a dead letter any more: somebody has completed or \
                 deleted it"
                    .to_owned(),
            ),
            _ => Err(context.unexpected_answer(script)),
        }
    }

    /// The dropped job that a receipt keeps, byte by byte.
    async fn kept(&self, seq: u64) -> Result<Vec<u8>> {
        let row = self.context().row_of(self.shard(), seq).await?.unwrap_or_default();
        let tail = row.own("y").map(<[u8]>::to_vec);
        tail.ok_or_else(|| self.context().connection.unexpected_answer("receipts"))
    }
}
