//! Jobs: put on a queue, taken, registered, and their claims ended.
//!
//! What an incarnation holds and each queue are Redis keys of their own, which a script must get as arguments.
//! A call names those that it expects to need; when another one turns out to be needed the script
//! does nothing and says which, and the call is made again.

use std::collections::BTreeSet;

use lapsed_core::inflight::rules::QueueEnd;
use lapsed_core::inflight::{
    Enqueued, Finish, Finished, JobTicket, JobToken, NewJob, TrackAnswer, Tracked,
};
use lapsed_core::owner::{Beat, Claim, Incarnation};
use lapsed_core::request::{self, RequestId};
use lapsed_core::{Error, Name, Result};

use super::batching::Complete;
use super::native::NativeInflight;
use super::records::way_letter;
use crate::held_entries::held_key;
use crate::owners::{incarnation_arg, unknown_incarnation};
use crate::queues::QueueFormat;
use crate::script::{self, Script};
use crate::system_context::Args;

/// How many jobs one script works on at the most, and about how many bytes of payload it carries, so
/// that none holds the server for long.
pub(crate) const JOBS_A_CALL: usize = 200;
const BYTES_A_CALL: usize = 256 << 10;

/// How many times a call is repeated because it needs keys that it did not name.
pub(super) const TRIES: usize = 20;

/// One answer, word by word: payloads may be any bytes.
pub(super) type AnswerWords = Vec<Vec<u8>>;

/// One claim of an incarnation through several calls: once found out, the same incarnation is meant.
pub(super) struct ClaimProgress {
    claim: Claim,
    pub started: Option<Beat>,
}

impl ClaimProgress {
    pub fn new(claim: &Claim) -> ClaimProgress {
        ClaimProgress { claim: claim.clone(), started: None }
    }

    pub fn incarnation(&self) -> Incarnation {
        self.claim.incarnation.unwrap_or(Incarnation(0))
    }
}

impl NativeInflight {
    pub(super) async fn enqueue_jobs(
        &self,
        request: Option<&RequestId>,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>> {
        if self.format() != QueueFormat::Own {
            return Err(self.unsupported(
                "enqueue",
                "these queues are the application's: jobs are put there by its own client",
            ));
        }
        let mut answers = Vec::with_capacity(jobs.len());
        for (index, jobs) in parts(jobs).into_iter().enumerate() {
            let queues: BTreeSet<&Name> = jobs.iter().map(|job| &job.queue).collect();
            let mut args = self.job_keys().arg(queues.len());
            for queue in queues {
                args = args.key(self.queue_key(queue)).arg(queue);
            }
            let args = jobs.iter().fold(args, job_args);
            let (context, shard) = (self.context(), self.shard());
            let letters: String = match request {
                None => context.run_with_keys(&script::INFLIGHT_ENQUEUE, args).await?,
                Some(request) => {
                    let (step, script) = (request.step(1 + index)?, &script::INFLIGHT_ENQUEUE_ONCE);
                    context.run_once(shard, script, &step, args).await?
                }
            };
            answers.extend(letters.chars().map(|letter| match letter {
                'q' => Enqueued::Queued,
                _ => Enqueued::Exists,
            }));
        }
        Ok(answers)
    }

    pub(super) async fn register_jobs(
        &self,
        claim: &Claim,
        jobs: &[NewJob],
    ) -> Result<TrackAnswer> {
        let script = &script::INFLIGHT_REGISTER;
        let mut hold = ClaimProgress::new(claim);
        let mut answers = Vec::with_capacity(jobs.len());
        let format = self.format().as_str();
        for jobs in parts(jobs) {
            let call = |claim: Claim, inc: String| {
                let args = self.job_keys().key(held_key(self.shard(), &inc));
                let args = args.arg(&claim.owner).arg(incarnation_arg(&claim)).arg(inc).arg(format);
                self.context().change(self.shard(), script, jobs.iter().fold(args, job_args))
            };
            let words = self.with_incarnation(&mut hold, script, call).await?;
            let tracked = words[1..].iter().map(|word| tracked(word));
            let tracked: Option<Vec<Tracked>> = tracked.collect();
            answers.extend(tracked.ok_or_else(|| self.context().unexpected_answer(script))?);
        }
        Ok(TrackAnswer { incarnation: hold.incarnation(), started: hold.started, jobs: answers })
    }

    /// Runs a script for the incarnation that is claimed: begun if the name was never seen, found out if
    /// only the name was given.
    pub(super) async fn with_incarnation<F: Future<Output = Result<AnswerWords>> + Send>(
        &self,
        hold: &mut ClaimProgress,
        script: &Script,
        call: impl Fn(Claim, String) -> F,
    ) -> Result<AnswerWords> {
        let owners = self.owners();
        let mut inc = incarnation_arg(&hold.claim);
        for _ in 0..TRIES {
            let words = call(hold.claim.clone(), inc.clone()).await?;
            let word = |at: usize| String::from_utf8_lossy(words.get(at).map_or(b"", |w| w));
            match &*word(0) {
                "unknown" => {
                    let owner = &hold.claim.owner;
                    let begun = owners.begin(owner, owners.ttl_ms, "unless_known").await?;
                    hold.started = begun.or(hold.started.take());
                    inc = hold.started.map_or(inc, |beat| beat.incarnation.to_string());
                }
                "again" => inc = word(1).into_owned(),
                "stranger" => return Err(unknown_incarnation(&hold.claim)),
                // The caller handles these answers, because it knows the request.
                "given_up" | "reused" => return Ok(words),
                "ended" => {
                    let inc =
                        word(1).parse().map_err(|_| self.context().unexpected_answer(script))?;
                    return Err(owners.lost(&hold.claim.owner, inc).await?);
                }
                inc => {
                    let inc = inc.parse().map_err(|_| self.context().unexpected_answer(script))?;
                    hold.claim.incarnation = Some(Incarnation(inc));
                    return Ok(words);
                }
            }
        }
        Err(self.retries_exhausted(script.name))
    }

    pub(super) async fn finish_claims(
        &self,
        tickets: &[JobTicket],
        how: &Finish,
    ) -> Result<Vec<Finished>> {
        let mut answers = Vec::with_capacity(tickets.len());
        for tickets in tickets.chunks(JOBS_A_CALL) {
            // Each claim that is completed is judged by itself; whatever else is done goes alone, and so
            // does what is kept for a request.
            let known = tickets.iter().all(|ticket| ticket.incarnation.is_some());
            let is_kept = request::current(&self.context().id).is_some();
            answers.extend(match how {
                Finish::Complete if known && !is_kept => {
                    self.inner.completions.call(Complete(tickets.to_vec()), self).await?
                }
                how => self.finish_some(tickets, how).await?,
            });
        }
        Ok(answers)
    }

    pub(super) async fn finish_some(
        &self,
        tickets: &[JobTicket],
        how: &Finish,
    ) -> Result<Vec<Finished>> {
        let script = &script::INFLIGHT_FINISH;
        let unexpected_answer = || self.context().unexpected_answer(script);
        let mut incarnations: Vec<String> = tickets
            .iter()
            .map(|ticket| ticket.incarnation.map_or(String::new(), |inc| inc.to_string()))
            .collect();
        let mut queues = match how {
            Finish::GiveBack(_) => self.known_queues(),
            Finish::Complete | Finish::Fail { .. } => BTreeSet::new(),
        };
        for _ in 0..TRIES {
            let groups = by_incarnation(&incarnations);
            let args = self.finish_args(tickets, how, &groups, &queues);
            let answer: redis::Value = self.context().change(self.shard(), script, args).await?;
            if let Some(letters) = text_of(&answer) {
                return in_order(&groups, &letters, tickets.len()).ok_or_else(unexpected_answer);
            }
            let words: Vec<String> =
                redis::FromRedisValue::from_redis_value(answer).map_err(|_| unexpected_answer())?;
            match words.split_first() {
                Some((what, queue_names)) if what == "queues" => {
                    for queue in queue_names {
                        queues.insert(Name::new(queue)?);
                    }
                    self.remember(&queues);
                }
                Some((what, found)) if what == "lives" && found.len() == tickets.len() => {
                    let places: Vec<usize> =
                        groups.into_iter().flat_map(|(_, places)| places).collect();
                    places
                        .iter()
                        .zip(found)
                        .for_each(|(at, inc)| incarnations[*at].clone_from(inc));
                }
                _ => return Err(unexpected_answer()),
            }
        }
        Err(self.retries_exhausted(script.name))
    }

    fn finish_args(
        &self,
        tickets: &[JobTicket],
        how: &Finish,
        groups: &[(&str, Vec<usize>)],
        queues: &BTreeSet<Name>,
    ) -> Args {
        let (letter, word) = match how {
            Finish::Complete => ("c", ""),
            Finish::Fail { error } => ("f", error.as_str()),
            Finish::GiveBack(QueueEnd::Front) => ("g", "front"),
            Finish::GiveBack(QueueEnd::Back) => ("g", "back"),
        };
        let mut args = self.job_keys().arg(letter).arg(word).arg(self.format().as_str());
        args = args.arg(self.outbox()).arg(groups.len()).arg(queues.len());
        args = queues.iter().fold(args, |args, queue| args.arg(queue));
        for (inc, places) in groups {
            args = args.key(held_key(self.shard(), inc)).arg(inc).arg(places.len());
            for JobTicket { id, token, .. } in places.iter().map(|at| &tickets[*at]) {
                args = args.bytes(id.as_str().as_bytes()).arg(token);
            }
        }
        queues.iter().fold(args, |args, queue| args.key(self.queue_key(queue)))
    }

    pub(super) fn unsupported(&self, operation: &str, why: &str) -> Error {
        let format = self.format().as_str();
        Error::Unsupported {
            operation: format!("`{operation}` with queues = \"{format}\" ({why})"),
            store: self.context().place(),
        }
    }

    pub(super) fn retries_exhausted(&self, call: &str) -> Error {
        Error::Unavailable {
            store: self.context().place(),
            what: format!(
                "`{call}` needed other keys at each of {TRIES} tries; nothing was changed"
            ),
        }
    }
}

/// Groups positions by incarnation.
fn by_incarnation(incarnations: &[String]) -> Vec<(&str, Vec<usize>)> {
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    for (at, inc) in incarnations.iter().enumerate() {
        match groups.iter_mut().rev().find(|(known, _)| known == inc) {
            Some((_, places)) => places.push(at),
            None => groups.push((inc, vec![at])),
        }
    }
    groups
}

/// Puts the answers, which come grouped by incarnation, into the order of the requests.
fn in_order(groups: &[(&str, Vec<usize>)], letters: &str, count: usize) -> Option<Vec<Finished>> {
    let mut answers = vec![Finished::Gone; count];
    let places = groups.iter().flat_map(|(_, places)| places);
    if letters.len() != count {
        return None;
    }
    for (at, letter) in places.zip(letters.chars()) {
        answers[*at] = finished(letter)?;
    }
    Some(answers)
}

/// Adds a job to the arguments of a script.
fn job_args(args: Args, job: &NewJob) -> Args {
    let most = job.crashes_max.map_or(String::new(), |max| max.to_string());
    let args = args.arg(&job.id).arg(&job.queue).arg(way_letter(job.on_death)).arg(most);
    args.bytes(job.payload.as_bytes())
}

/// Divides jobs into calls of bounded numbers of jobs and bytes.
fn parts(jobs: &[NewJob]) -> Vec<&[NewJob]> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (at, job) in jobs.iter().enumerate() {
        bytes += job.payload.len();
        if at > from && (bytes > BYTES_A_CALL || at - from == JOBS_A_CALL) {
            parts.push(&jobs[from..at]);
            (from, bytes) = (at, job.payload.len());
        }
    }
    if from < jobs.len() || jobs.is_empty() {
        parts.push(&jobs[from..]);
    }
    parts
}

pub(super) fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn text_of(value: &redis::Value) -> Option<String> {
    match value {
        redis::Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        redis::Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn tracked(word: &[u8]) -> Option<Tracked> {
    let token = || Some(JobToken(number(&word[1..])?));
    match word.first()? {
        b't' => Some(Tracked::Tracked { token: token()? }),
        b'k' => Some(Tracked::Kept { token: token()? }),
        b'x' => Some(Tracked::Taken),
        _ => None,
    }
}

fn finished(letter: char) -> Option<Finished> {
    match letter {
        'd' => Some(Finished::Done),
        'e' => Some(Finished::OwnerEnded),
        's' => Some(Finished::Superseded),
        'g' => Some(Finished::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_bounded_in_jobs_and_in_bytes() {
        let job = |bytes: usize| {
            NewJob::new(Name::new("a").unwrap(), Name::new("q").unwrap(), &"x".repeat(bytes))
        };
        let sizes = |jobs: &[NewJob]| parts(jobs).iter().map(|p| p.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), [0], "an empty call still asks who lives");
        assert_eq!(sizes(&vec![job(1); 401]), [200, 200, 1]);
        let large = [job(10), job(BYTES_A_CALL), job(BYTES_A_CALL), job(1)];
        assert_eq!(sizes(&large), [1, 1, 1, 1]);
    }
}
