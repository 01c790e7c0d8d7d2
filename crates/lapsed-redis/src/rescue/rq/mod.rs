//! RQ 2 on Redis; RQ 1 is recognised and refused, because its keys do not say which execution a job belongs to.
//!
//! A worker and its work horse are dead when nobody is subscribed to `rq:pubsub:WORKER` any more. A killed process loses its
//! connection at once, a stopped one keeps it, and a living one that lost it is subscribed again within a second. Where
//! the server does not answer `PUBSUB`, the deadline in `rq:wip:QUEUE` decides, which the worker renews. A living worker may have no
//! subscription at all (see `workers.rs`).

mod drift;
mod search;
mod whereabouts;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::{Error, Name, Result};

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    DriftPage, DriftRequest, FoundJob, HeldJob, LookRequest, Profile, ProfileFacts, Seen,
    SeenWorker,
};
use super::reader::Reader;
use crate::script::{Script, rescue_script};
use search::QueueSearch;

static PUT_BACK: Script = rescue_script!("rescue_rq", "iso.lua", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`rq:failed:QUEUE` of RQ",
    retried_by: None,
    deleted_by: Some("`Job.delete()` of RQ, or rq-dashboard"),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_rq_letters", "iso.lua", "letters.lua");

/// A connection that has been gone for the limit does not come back. After the server was away, a worker may take a minute
/// to connect again.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "rq",
    title: "RQ",
    limit: Duration::from_secs(6),
    grace: Duration::from_secs(90),
    script: &PUT_BACK,
    keys: 12,
    words: 7,
    shows_workers: true,
    own_recovery: "RQ itself does not run them again: after 7 to 16 minutes it moves them to the failed jobs, unless they have retries left",
    must_watch: false,
    no_delay: None,
    no_class: None,
};

/// For how long a job is hidden from RQ's own cleanup, in seconds, as `put_back.lua` has it.
const HIDDEN_S: f64 = 60.5;

/// Which of a job's keys is its hash.
const JOB_KEY: usize = 1;

/// The worker of jobs that nobody has started.
const NOBODY: &str = "intermediate";

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    let rule = if layout.as_system { "as-rq" } else { "" };
    Box::new(Rq { rule, subscribed: Mutex::default(), searches: tokio::sync::Mutex::default() })
}

struct Rq {
    /// `as-rq`: what happens to a job is what RQ's own cleanup would do with it.
    rule: &'static str,
    /// The births of the workers that this process has seen with a subscription.
    subscribed: Mutex<BTreeMap<Name, String>>,
    /// Searches in long queues, which go on from look to look.
    searches: tokio::sync::Mutex<BTreeMap<Name, QueueSearch>>,
}

/// A job that is in `rq:wip:QUEUE`.
struct Execution {
    queue: Name,
    member: String,
    id: String,
    execution: String,
    deadline_ms: u64,
    worker: Option<Name>,
    /// When the execution began, in milliseconds of the worker's clock; 0: unknown.
    started_ms: u64,
    /// When the job was enqueued, if its status is still `queued`.
    queued_at: Option<String>,
}

/// A job that is in `rq:queue:QUEUE:intermediate` and was not registered.
struct Taken {
    queue: Name,
    id: String,
    /// When the job was enqueued, if its status is still `queued`.
    queued_at: Option<String>,
}

#[async_trait]
impl Profile for Rq {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn may_be_key(&self, _: &[u8]) -> bool {
        false
    }

    fn can_move_jobs(&self) -> bool {
        true
    }

    fn other_queue(&self, _: &HeldJob, queue: &Name) -> Option<String> {
        Some(format!("rq:queue:{queue}"))
    }

    fn delayed_keys(&self, _: &HeldJob, queue: &Name) -> Vec<String> {
        vec![format!("rq:scheduled:{queue}")]
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| vec![job.keys[JOB_KEY].clone().into_bytes(), b"description".to_vec()])
            .collect();
        let texts: Vec<Option<Option<Vec<u8>>>> = reader.each("HGET", &asked).await?;
        Ok(texts.into_iter().map(|text| function_of(&text.flatten()?)).collect())
    }

    async fn began(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<u64>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| vec![job.keys[JOB_KEY].clone().into_bytes(), b"started_at".to_vec()])
            .collect();
        let started: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
        let ms = |at: Option<Option<String>>| Some(born_ms(&at.flatten()?)).filter(|ms| *ms > 0);
        Ok(started.into_iter().map(ms).collect())
    }

    fn drift_subject(&self) -> &'static str {
        "its queues, the jobs that are queued or started, `rq:wip`, the intermediate lists and the sets of workers"
    }

    async fn find(&self, reader: &Reader<'_>, id: &str) -> Result<Option<FoundJob>> {
        whereabouts::find(reader, id).await
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let (queues, workers) =
            (reader.kind(b"rq:queues").await?, reader.kind(b"rq:workers").await?);
        if queues != "set" && workers != "set" {
            return Ok(None);
        }
        let mut seen = Seen { silence_is_noticed: true, ..Seen::default() };
        let queues =
            if queues == "set" { self.queues(reader, &mut seen).await? } else { Vec::new() };
        if workers == "set" {
            self.registered_workers(reader, &mut seen).await?;
        }
        let mut running = Vec::new();
        for queue in &queues {
            running.extend(self.running(reader, queue, &mut seen).await?);
        }
        self.read_workers(reader, &mut running).await?;
        let has_pubsub = self.ask_connections(reader, &running, &mut seen, request).await?;
        let mut taken = Vec::new();
        for queue in &queues {
            taken.extend(read_taken(reader, queue).await?);
        }
        if request.own.is_some() {
            let suspects = self.not_started(&running, &taken, has_pubsub, &seen);
            self.search_queues(reader, suspects, &mut seen).await?;
        }
        for one in running {
            self.add(one, has_pubsub, &mut seen).await;
        }
        for one in taken {
            self.add_taken(one, &mut seen).await;
        }
        Ok(Some(seen))
    }
}

/// The function of a job, as its description begins: RQ writes the call, `app.tasks.send('a')`, unless the application
/// describes the job itself. The call itself is pickled.
fn function_of(description: &[u8]) -> Option<String> {
    let description = text(description)?;
    Some(description.split('(').next().unwrap_or(description).trim().to_owned())
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

impl Rq {
    async fn queues(&self, reader: &Reader<'_>, seen: &mut Seen) -> Result<Vec<Name>> {
        let keys = reader.set(b"rq:queues").await?;
        let names: Vec<Name> = keys
            .iter()
            .filter_map(|key| Name::new(text(key)?.strip_prefix("rq:queue:")?).ok())
            .collect();
        let asked: Vec<Vec<Vec<u8>>> =
            names.iter().map(|name| vec![format!("rq:queue:{name}").into_bytes()]).collect();
        let lengths: Vec<Option<u64>> = reader.each("LLEN", &asked).await?;
        seen.queues
            .extend(names.iter().cloned().zip(lengths.into_iter().map(Option::unwrap_or_default)));
        Ok(names)
    }

    /// Those in the set are no list of the living: RQ removes frozen ones, and killed ones stay. They tell the version.
    async fn registered_workers(&self, reader: &Reader<'_>, seen: &mut Seen) -> Result<()> {
        let keys = reader.set(b"rq:workers").await?;
        let asked: Vec<Vec<Vec<u8>>> =
            keys.iter().map(|key| vec![key.clone(), b"version".to_vec()]).collect();
        let versions: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
        let versions: BTreeSet<String> = versions.into_iter().flatten().flatten().collect();
        seen.version = versions.iter().cloned().collect::<Vec<_>>().join(", ");
        for key in &keys {
            let name = text(key).and_then(|key| Name::new(key.strip_prefix("rq:worker:")?).ok());
            seen.workers.extend(name.map(|name| (name, SeenWorker::default())));
        }
        match versions.iter().find(|version| !version.starts_with("2.")) {
            None => Ok(()),
            Some(other) => Err(Error::Unsupported {
                operation: format!("rescuing jobs of RQ {other}: RQ 2 is known"),
                store: reader.connection.place.to_string(),
            }),
        }
    }

    async fn running(
        &self,
        reader: &Reader<'_>,
        queue: &Name,
        seen: &mut Seen,
    ) -> Result<Vec<Execution>> {
        let key = format!("rq:wip:{queue}");
        let kind = reader.kind(key.as_bytes()).await?;
        if kind != "zset" {
            if kind != "none" {
                let note = format!("`{key}` is a {kind}, not a sorted set, and is left alone");
                seen.notes.push(note);
            }
            return Ok(Vec::new());
        }
        let members = reader.scores(key.as_bytes(), "-inf", "+inf").await?;
        seen.in_flight += members.len() as u64;
        seen.examined += members.len() as u64;
        let (mut running, mut odd) = (Vec::new(), 0);
        for (member, score) in members {
            let Some((member, id, execution)) = text(&member).and_then(split_member) else {
                odd += 1;
                continue;
            };
            running.push(Execution {
                queue: queue.clone(),
                member: member.to_owned(),
                id: id.to_owned(),
                execution: execution.to_owned(),
                deadline_ms: deadline_ms(score),
                worker: None,
                started_ms: 0,
                queued_at: None,
            });
        }
        if odd > 0 && running.is_empty() && seen.version.is_empty() {
            return Err(Error::Unsupported {
                operation: format!(
                    "rescuing jobs of RQ 1 (`{key}` has jobs without executions): RQ 2 is known"
                ),
                store: reader.connection.place.to_string(),
            });
        }
        if odd > 0 {
            seen.notes.push(format!("{odd} of `{key}` are not `ID:EXECUTION` and are left alone"));
        }
        Ok(running)
    }

    /// The execution names its worker from RQ 2.11 on, and expires; the job names the last one that started it.
    async fn read_workers(&self, reader: &Reader<'_>, running: &mut [Execution]) -> Result<()> {
        let fields = |key: String, words: &[&str]| {
            let words = words.iter().map(|word| word.as_bytes().to_vec());
            std::iter::once(key.into_bytes()).chain(words).collect::<Vec<_>>()
        };
        let of_execution = |one: &Execution| {
            fields(format!("rq:execution:{}", one.member), &["worker_name", "created_at"])
        };
        let of_job = |one: &Execution| {
            let words = ["worker_name", "started_at", "status", "enqueued_at"];
            fields(format!("rq:job:{}", one.id), &words)
        };
        let executions: Vec<_> = running.iter().map(of_execution).collect();
        let jobs: Vec<_> = running.iter().map(of_job).collect();
        type Fields = Option<Vec<Option<String>>>;
        let executions: Vec<Fields> = reader.each("HMGET", &executions).await?;
        let jobs: Vec<Fields> = reader.each("HMGET", &jobs).await?;
        for ((one, execution), job) in running.iter_mut().zip(executions).zip(jobs) {
            let first = |fields: &Fields, at: usize| {
                fields.as_ref().and_then(|fields| fields.get(at).cloned().flatten())
            };
            // Until the work horse has begun, the job names the worker of the run before.
            let has_begun = first(&job, 2).is_none_or(|status| status == "started");
            let name = first(&execution, 0).or_else(|| first(&job, 0).filter(|_| has_begun));
            let name = name.filter(|name| !name.is_empty());
            one.worker = name.and_then(|name| Name::new(&name).ok());
            // The job's own time of start is that of the run before, until the work horse has begun.
            let created = first(&execution, 1).and_then(|seconds| seconds.parse::<f64>().ok());
            one.started_ms = match created {
                Some(seconds) => (seconds * 1_000.0).ceil() as u64 + 1,
                None => first(&job, 1).map_or(0, |at| born_ms(&at)),
            };
            one.queued_at = first(&job, 3).filter(|_| first(&job, 2).as_deref() == Some("queued"));
        }
        Ok(())
    }

    async fn add(&self, one: Execution, has_pubsub: bool, seen: &mut Seen) {
        let nobody = Name::new("unknown worker").expect("a valid name");
        let worker = one.worker.clone().unwrap_or_else(|| nobody.clone());
        let by_connection = has_pubsub && one.worker.is_some();
        let held = seen.workers.entry(worker.clone()).or_default();
        held.held += 1;
        if !by_connection {
            // The deadline of its job is the only sign of life.
            held.is_silent = true;
            held.due_ms = held.due_ms.max(one.deadline_ms);
        }
        let (is_silent, limit_ms) = (held.is_silent, held.limit_ms);
        let key = Name::new(&format!("{}/{}", one.queue, one.id));
        if let (true, Ok(key)) = (is_silent, key) {
            let keys = keys_of(&one.queue, &one.id, &one.execution, worker.as_str());
            let name = one.worker.map_or(String::new(), |worker| worker.to_string());
            let limit =
                limit_ms.filter(|_| by_connection).map_or(String::new(), |ms| ms.to_string());
            let absent = self.absent_since(&one.queue, &one.id, one.queued_at).await;
            let rule = self.rule.to_owned();
            let words = vec![one.member, one.id, one.execution, name, limit, rule, absent];
            seen.jobs.push(HeldJob { key, worker, queue: one.queue, keys, words });
        }
    }

    /// Counts as a job of a worker of its own, which is silent.
    async fn add_taken(&self, one: Taken, seen: &mut Seen) {
        let Taken { queue, id, queued_at } = one;
        let (Ok(key), Ok(worker)) =
            (Name::new(&format!("{queue}/{id}")), Name::new(&format!("{NOBODY}:{id}")))
        else {
            return;
        };
        seen.in_flight += 1;
        seen.workers.insert(
            worker.clone(),
            SeenWorker { held: 1, is_silent: true, ..SeenWorker::default() },
        );
        let absent = self.absent_since(&queue, &id, queued_at).await;
        let words = ["", &id, "", "", "", self.rule, &absent].map(str::to_owned).to_vec();
        let keys = keys_of(&queue, &id, "", NOBODY);
        seen.jobs.push(HeldJob { key, worker, queue, keys, words });
    }
}

/// Ids that were taken from a queue and that no worker has registered.
async fn read_taken(reader: &Reader<'_>, queue: &Name) -> Result<Vec<Taken>> {
    let list = format!("rq:queue:{queue}:intermediate");
    if reader.kind(list.as_bytes()).await? != "list" {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for id in reader.list_from_end(list.as_bytes()).await? {
        let Some(id) = text(&id) else { continue };
        let executions: u64 =
            reader.one("ZCARD", &[format!("rq:executions:{id}").as_bytes()]).await.unwrap_or(1);
        if executions > 0 {
            continue;
        }
        let job = format!("rq:job:{id}");
        let (status, enqueued): (Option<String>, Option<String>) =
            reader.one("HMGET", &[job.as_bytes(), b"status", b"enqueued_at"]).await?;
        let queued_at = enqueued.filter(|_| status.as_deref() == Some("queued"));
        all.push(Taken { queue: queue.clone(), id: id.to_owned(), queued_at });
    }
    Ok(all)
}

/// `ID:EXECUTION`, its id and its execution. Ids are free text; executions have 32 hexadecimal digits, which tells them from the ids of
/// RQ 1, which may have colons, too.
fn split_member(member: &str) -> Option<(&str, &str, &str)> {
    let (id, execution) = member.rsplit_once(':')?;
    let is_execution = execution.len() == 32 && execution.bytes().all(|b| b.is_ascii_hexdigit());
    is_execution.then_some((member, id, execution))
}

/// When a sign of life in `rq:wip` ends. One with half a second was written by lapsed, which hides a job whose deadline has
/// passed from RQ's own cleanup (see `put_back.lua`).
fn deadline_ms(score: f64) -> u64 {
    let is_hidden = score.fract() == 0.5;
    let seconds = if is_hidden { score - HIDDEN_S } else { score.floor() + 1.0 };
    (seconds.max(0.0) * 1_000.0) as u64
}

/// A time as RQ writes it, in milliseconds; 0 if it cannot be read.
fn born_ms(birth: &str) -> u64 {
    let at = birth.parse::<jiff::Timestamp>();
    at.ok().and_then(|at| u64::try_from(at.as_millisecond()).ok()).unwrap_or(0)
}

fn keys_of(queue: &Name, id: &str, execution: &str, worker: &str) -> Vec<String> {
    vec![
        format!("rq:wip:{queue}"),
        format!("rq:job:{id}"),
        format!("rq:execution:{id}:{execution}"),
        format!("rq:executions:{id}"),
        format!("rq:queue:{queue}"),
        format!("rq:queue:{queue}:intermediate"),
        "rq:queues".to_owned(),
        format!("rq:failed:{queue}"),
        format!("rq:worker:{worker}"),
        format!("rq:results:{id}"),
        format!("rq:scheduled:{queue}"),
        format!("rq:clean_registries:{queue}"),
    ]
}
