//! Takes jobs, and repeats or gives up takes whose answer was lost.

use std::collections::BTreeSet;

use lapsed_core::inflight::{Claimed, JobToken, Taken};
use lapsed_core::owner::Claim;
use lapsed_core::request::RequestId;
use lapsed_core::{Name, Result};
use redis::FromRedisValue;

use super::batching::{RequestedCall, TakeCall};
use super::native::NativeInflight;
use super::operations::{AnswerWords, ClaimProgress, JOBS_A_CALL, TRIES, number};
use super::records::{RecordTail, name};
use crate::held_entries::held_key;
use crate::queues::QueueFormat;
use crate::script;

/// The answer to one call of a take.
struct SomeJobs {
    popped: usize,
    /// Whether an earlier attempt of the request took them.
    is_kept: bool,
    jobs: Vec<Claimed>,
}

impl NativeInflight {
    /// Takes jobs in as many calls as are needed. With a request, an error gives none of them to the
    /// caller, who then gives up this attempt.
    pub(super) async fn take_jobs(
        &self,
        request: Option<&RequestId>,
        claim: &Claim,
        queue: &Name,
        limit: usize,
    ) -> Result<Taken> {
        if self.format() == QueueFormat::Stream {
            return Err(self.unsupported(
                "take",
                "a stream is read by a consumer group: register what it hands out",
            ));
        }
        let mut hold = ClaimProgress::new(claim);
        let mut jobs: Vec<Claimed> = Vec::new();
        let (mut number, mut popped) = (1, 0);
        while popped < limit {
            let want = (limit - popped).min(JOBS_A_CALL);
            let requested =
                request.map(|request| RequestedCall { request: request.clone(), number });
            let some = match self.take_some(&mut hold, requested, queue, want).await {
                Ok(some) => some,
                // The jobs that were taken before belong to the caller, which gets the error at its next
                // call.
                Err(_) if !jobs.is_empty() && request.is_none() => break,
                Err(error) => return Err(error),
            };
            let took_something = some.is_kept || !some.jobs.is_empty();
            number += usize::from(took_something);
            // Leftovers of a queue do not count: the caller wants this many jobs.
            popped += if some.is_kept { some.popped } else { some.jobs.len() };
            jobs.extend(some.jobs);
            if some.popped < want {
                break;
            }
        }
        Ok(Taken { incarnation: hold.incarnation(), started: hold.started, jobs })
    }

    async fn take_some(
        &self,
        hold: &mut ClaimProgress,
        requested: Option<RequestedCall>,
        queue: &Name,
        limit: usize,
    ) -> Result<SomeJobs> {
        let script = &script::INFLIGHT_TAKE;
        let request = requested.as_ref().map(|call| call.request.clone());
        let call = |claim: Claim, inc: String| {
            let requested = requested.clone();
            let call = TakeCall { requested, claim, inc, queue: queue.clone(), limit };
            async move { self.inner.takes.call(call, self).await }
        };
        let words = self.with_incarnation(hold, script, call).await?;
        match (words.first().map(Vec::as_slice), request) {
            (Some(b"given_up"), Some(request)) => Err(request.given_up(&self.context().place())),
            (Some(b"reused"), Some(request)) => Err(request.reused()),
            _ => self.read_taken(&words),
        }
    }

    fn read_taken(&self, words: &AnswerWords) -> Result<SomeJobs> {
        let unexpected_answer = || self.context().unexpected_answer(&script::INFLIGHT_TAKE);
        let number =
            |at: usize| words.get(at).and_then(|word| number(word)).ok_or_else(unexpected_answer);
        let is_kept = words.get(2).is_some_and(|word| word == b"kept");
        let (now_ms, popped) = (number(1)?, number(3)? as usize);
        let window_ms = self.inner.recovery.crash_window_ms;
        let claimed = |token: u64, id: &[u8], tail: &[u8]| {
            let tail = RecordTail::read(tail).ok_or_else(unexpected_answer)?;
            Ok(Claimed {
                id: name(id)?,
                token: JobToken(token),
                crashes: tail.crashes(window_ms, now_ms),
                payload: tail.shown(),
                queue: tail.queue,
            })
        };
        let jobs: Result<Vec<Claimed>> = if is_kept {
            let jobs = words[4..].chunks_exact(3).enumerate();
            jobs.map(|(index, job)| claimed(number(4 + 3 * index)?, &job[1], &job[2])).collect()
        } else {
            let first = number(2)?;
            let jobs = words[4..].chunks_exact(2).enumerate();
            jobs.map(|(index, job)| claimed(first + index as u64, &job[0], &job[1])).collect()
        };
        Ok(SomeJobs { popped, is_kept, jobs: jobs? })
    }

    pub(super) async fn give_up_attempt(&self, request: &RequestId) -> Result<usize> {
        let script = &script::INFLIGHT_UNDELIVERED;
        let (mut inc, mut queues) = (String::new(), self.known_queues());
        for _ in 0..TRIES {
            let args = self.job_keys().key(self.key("requests")).key(self.key("requests_at"));
            let args = args.key(held_key(self.shard(), &inc));
            let args = args.arg(&request.key).arg(&request.attempt).arg(&request.fingerprint);
            let args = args.arg(self.format().as_str()).arg(self.outbox());
            let args = args.arg(&inc).arg(queues.len());
            let args =
                queues.iter().fold(args, |args, queue| args.key(self.queue_key(queue)).arg(queue));
            let answer: redis::Value = self.context().run_with_keys(script, args).await?;
            if let redis::Value::Int(count) = answer {
                return Ok(usize::try_from(count).unwrap_or(0));
            }
            let unexpected_answer = |_| self.context().unexpected_answer(script);
            let words = Vec::<String>::from_redis_value(answer).map_err(unexpected_answer)?;
            match words.split_first() {
                Some((what, needed)) if what == "again" && needed.len() == 1 => {
                    inc.clone_from(&needed[0]);
                }
                Some((what, names)) if what == "queues" => {
                    let names: Result<Vec<Name>> =
                        names.iter().map(|name| Name::new(name)).collect();
                    queues.extend(names?);
                    self.remember(&queues.iter().cloned().collect::<BTreeSet<_>>());
                }
                _ => return Err(self.context().unexpected_answer(script)),
            }
        }
        Err(self.retries_exhausted(script.name))
    }
}
