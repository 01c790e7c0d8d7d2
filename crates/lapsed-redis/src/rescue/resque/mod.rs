//! Resque 2 and 3 (Ruby), and node-resque, which share their keys but for the heartbeat.
//!
//! A worker's job is in `resque:worker:ID`. A worker is silent when its heartbeat is overdue, and dead when the same heartbeat has
//! been its last for the limit. Silence is noted with the heartbeat's own value, so that a worker whose clock is slow is
//! never taken for dead while it beats. Workers that never beat (Resque 1) are left alone, as Resque itself does.

mod drift;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::{Name, Result};

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    BehindPrefix, DriftPage, DriftRequest, HeldJob, LookRequest, Profile, ProfileFacts, Seen,
    SeenWorker,
};
use super::reader::Reader;
use crate::script::{Script, rescue_script};
use members::member;

static PUT_BACK: Script = rescue_script!("rescue_resque", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`failed` of Resque",
    retried_by: Some(
        "`Resque::Failure.requeue(INDEX)`, `queue.retryAndRemoveFailed(job)` of node-resque, or resque-web",
    ),
    deleted_by: Some(
        "`Resque::Failure.remove(INDEX)`, or `queue.removeFailed(job)` of node-resque",
    ),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_resque_letters", "letters.lua");

/// The limit counts from when a heartbeat is overdue.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "resque",
    title: "Resque",
    limit: Duration::from_secs(60),
    grace: Duration::from_secs(90),
    script: &PUT_BACK,
    keys: 12,
    words: 11,
    shows_workers: true,
    own_recovery: "Resque itself does not run them again: the next worker that starts (with node-resque a scheduler, after an hour) moves them to the failed jobs",
    must_watch: false,
    no_delay: Some(
        "Resque itself has no delayed jobs, and no key shows whether a scheduler runs that would enqueue them. Use on_death = \"back\"",
    ),
    no_class: None,
};

/// Which of a job's keys is the record of its worker.
const RECORD_KEY: usize = 1;

const NAMESPACE: &str = "resque";

/// When a heartbeat is overdue: every 60 s in Ruby, every 5 s in Node.
const RUBY_OVERDUE_MS: u64 = 90_000;
const NODE_OVERDUE_MS: u64 = 15_000;

/// Node rounds the second of its start, and cuts that of a job's start.
const STARTS_DIFFER_MS: u64 = 2_000;

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    Box::new(Resque { namespace: layout.prefix.as_deref().unwrap_or(NAMESPACE).to_owned() })
}

struct Resque {
    namespace: String,
}

/// What the keys of one worker say.
struct Worker {
    id: String,
    /// `host:pid`, as node-resque has it.
    name: String,
    record: Option<String>,
    started: String,
    /// `node` or `ruby`; empty: it never beat.
    kind: &'static str,
    beat: String,
    beat_ms: u64,
}

#[async_trait]
impl Profile for Resque {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn read_whole<'a>(&self, job: &'a HeldJob) -> Option<(&'a str, Option<&'a str>)> {
        Some((&job.keys[RECORD_KEY], None))
    }

    fn may_be_key(&self, key: &[u8]) -> bool {
        key.ends_with(b":workers")
    }

    fn learn(&self, keys: &[Vec<u8>]) -> Vec<BehindPrefix> {
        let namespace = |key: &Vec<u8>| {
            Some(std::str::from_utf8(key).ok()?.strip_suffix(":workers")?.to_owned())
        };
        let found: BTreeSet<String> = keys.iter().filter_map(namespace).collect();
        let others = found.into_iter().filter(|namespace| *namespace != self.namespace);
        let behind = |namespace: String| {
            (namespace.clone(), Box::new(Resque { namespace }) as Box<dyn Profile>)
        };
        others.map(behind).collect()
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, _: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        // As `fingerprint` wrote it: `QUEUE/CLASS/DIGEST`.
        let class = |job: &&HeldJob| {
            let rest = job.key.as_str().strip_prefix(job.queue.as_str())?.strip_prefix('/')?;
            Some(rest.rsplit_once('/')?.0.to_owned())
        };
        Ok(jobs.iter().map(class).collect())
    }

    fn drift_subject(&self) -> &'static str {
        "its workers and what they work on"
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, _: LookRequest<'_>) -> Result<Option<Seen>> {
        let mut seen = Seen { silence_is_noticed: true, ..Seen::default() };
        let now_ms = reader.now_ms().await?;
        let namespace = &self.namespace;
        let key = format!("{namespace}:workers");
        if reader.kind(key.as_bytes()).await? != "set" {
            return Ok(None);
        }
        let workers = self.workers(reader, namespace).await?;
        // Other systems have a set of this name, too.
        if workers.iter().all(|worker| worker.kind.is_empty() && worker.started.is_empty()) {
            return Ok(None);
        }
        self.queues(reader, namespace, &mut seen).await?;
        for worker in workers {
            add(namespace, worker, now_ms, &mut seen);
        }
        Ok(Some(seen))
    }
}

impl Resque {
    async fn queues(&self, reader: &Reader<'_>, namespace: &str, seen: &mut Seen) -> Result<()> {
        let key = format!("{namespace}:queues");
        if reader.kind(key.as_bytes()).await? != "set" {
            return Ok(());
        }
        let names = reader.set(key.as_bytes()).await?;
        let names: Vec<Name> =
            names.iter().filter_map(|name| Name::from_bytes(name).ok()).collect();
        let asked: Vec<Vec<Vec<u8>>> = names
            .iter()
            .map(|name| vec![format!("{namespace}:queue:{name}").into_bytes()])
            .collect();
        let lengths: Vec<Option<u64>> = reader.each("LLEN", &asked).await?;
        seen.queues
            .extend(names.into_iter().zip(lengths.into_iter().map(Option::unwrap_or_default)));
        Ok(())
    }

    async fn workers(&self, reader: &Reader<'_>, namespace: &str) -> Result<Vec<Worker>> {
        let ids = reader.set(format!("{namespace}:workers").as_bytes()).await?;
        let ids: Vec<String> =
            ids.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect();
        let texts = async |keys: Vec<String>| -> Result<Vec<Option<String>>> {
            let asked: Vec<Vec<Vec<u8>>> =
                keys.into_iter().map(|key| vec![key.into_bytes()]).collect();
            let answers: Vec<Option<Option<Vec<u8>>>> = reader.each("GET", &asked).await?;
            let text = |bytes: Option<Option<Vec<u8>>>| String::from_utf8(bytes.flatten()?).ok();
            Ok(answers.into_iter().map(text).collect())
        };
        let records =
            texts(ids.iter().map(|id| format!("{namespace}:worker:{id}")).collect()).await?;
        let started =
            texts(ids.iter().map(|id| format!("{namespace}:worker:{id}:started")).collect())
                .await?;
        let names: Vec<String> =
            ids.iter().zip(&records).map(|(id, record)| node_name(id, record.as_deref())).collect();
        let pings =
            texts(names.iter().map(|name| format!("{namespace}:worker:ping:{name}")).collect())
                .await?;
        let heartbeats = self.heartbeats(reader, namespace, &ids).await?;
        let mut workers = Vec::new();
        for (at, id) in ids.into_iter().enumerate() {
            let ruby = heartbeats.get(&id).cloned();
            let (kind, beat, beat_ms) = match (ruby, pings[at].as_deref().and_then(ping_time)) {
                (Some(beat), _) => ("ruby", beat.clone(), time_ms(&beat)),
                (None, Some((beat, ms))) => ("node", beat, Some(ms)),
                (None, None) => ("", String::new(), None),
            };
            workers.push(Worker {
                id,
                name: names[at].clone(),
                record: records[at].clone(),
                started: started[at].clone().unwrap_or_default(),
                kind: if beat_ms.is_some() { kind } else { "" },
                beat,
                beat_ms: beat_ms.unwrap_or(0),
            });
        }
        Ok(workers)
    }

    async fn heartbeats(
        &self,
        reader: &Reader<'_>,
        namespace: &str,
        ids: &[String],
    ) -> Result<BTreeMap<String, String>> {
        let key = format!("{namespace}:workers:heartbeat").into_bytes();
        let asked: Vec<Vec<Vec<u8>>> =
            ids.iter().map(|id| vec![key.clone(), id.as_bytes().to_vec()]).collect();
        let beats: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
        let beats =
            ids.iter().zip(beats).filter_map(|(id, beat)| Some((id.clone(), beat.flatten()?)));
        Ok(beats.collect())
    }
}

/// The job says who has it in node-resque. Without a job, the name is `host:pid`, or what stands before the queues.
fn node_name(id: &str, record: Option<&str>) -> String {
    let told = record.and_then(|record| text_member(record, "worker"));
    match told
        .filter(|name| id.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(':')))
    {
        Some(name) => name,
        None => {
            let parts: Vec<&str> = id.split(':').collect();
            parts[..parts.len().saturating_sub(1).clamp(1, 2)].join(":")
        }
    }
}

fn text_member(text: &str, name: &str) -> Option<String> {
    serde_json::from_str(&text[member(text, name)?]).ok()
}

/// The second in a ping, as it is written, and in milliseconds.
fn ping_time(ping: &str) -> Option<(String, u64)> {
    let text = &ping[member(ping, "time")?];
    Some((text.to_owned(), text.parse::<u64>().ok()? * 1_000))
}

/// A time of Ruby (2026-11-18T14:00:00Z), of Node (Wed Nov 18 2026 14:00:00 GMT+0100 (CET)) or in seconds.
fn time_ms(text: &str) -> Option<u64> {
    let date = text.split(" (").next().unwrap_or(text);
    let at = text
        .parse::<jiff::Timestamp>()
        .or_else(|_| jiff::Timestamp::strptime("%a %b %d %Y %H:%M:%S GMT%z", date))
        .or_else(|_| jiff::Timestamp::strptime("%Y-%m-%d %H:%M:%S %z", date));
    match at {
        Ok(at) => u64::try_from(at.as_millisecond()).ok(),
        Err(_) => text.parse::<u64>().ok().map(|seconds| seconds * 1_000),
    }
}

/// When the job was begun, by its worker's clock; Node cuts it to the second.
fn began_ms(record: &str) -> Option<u64> {
    time_ms(&text_member(record, "run_at")?)
}

/// Whether the job was begun by an earlier worker with the same ID.
fn is_of_another(record: &str, started: &str) -> bool {
    matches!((began_ms(record), time_ms(started)), (Some(run), Some(start)) if run + STARTS_DIFFER_MS < start)
}

fn add(namespace: &str, worker: Worker, now_ms: u64, seen: &mut Seen) {
    seen.examined += 1;
    seen.in_flight += u64::from(worker.record.is_some());
    if worker.kind.is_empty() {
        seen.notes.push(format!("worker `{}` has no heartbeat and is left alone", worker.id));
        return;
    }
    let overdue_ms = if worker.kind == "ruby" { RUBY_OVERDUE_MS } else { NODE_OVERDUE_MS };
    let is_late = worker.beat_ms + overdue_ms <= now_ms;
    let is_another =
        worker.record.as_ref().is_some_and(|record| is_of_another(record, &worker.started));
    let Some(record) = worker.record.as_ref().filter(|_| is_late || is_another) else {
        // A silent worker without a job is nobody's concern.
        if let (false, Ok(name)) = (is_late, Name::new(&worker.id)) {
            let held = u64::from(worker.record.is_some());
            seen.workers.insert(name, SeenWorker { due_ms: now_ms, held, ..SeenWorker::default() });
        }
        return;
    };
    let name = match is_another {
        true => format!("{}, before {}", worker.id, worker.started),
        false => format!("{}, last seen {}", worker.id, worker.beat),
    };
    let started = if is_another { worker.started.as_str() } else { "" };
    match (held_job(namespace, &worker, &name, started, record, now_ms), Name::new(&name)) {
        (Some(job), Ok(name)) => {
            let silent = SeenWorker { held: 1, is_silent: true, ..SeenWorker::default() };
            seen.workers.insert(name, silent);
            seen.jobs.push(job);
        }
        _ => seen.notes.push(format!("the job of worker `{}` cannot be read", worker.id)),
    }
}

fn held_job(
    namespace: &str,
    worker: &Worker,
    name: &str,
    started: &str,
    record: &str,
    now_ms: u64,
) -> Option<HeldJob> {
    let queue = text_member(record, "queue")?;
    let range = member(record, "payload")?;
    let payload = &record[range.clone()];
    let args = member(payload, "args").filter(|args| &payload[args.clone()] == "{}");
    let args_at = args.map_or(0, |args| range.start + args.start + 1);
    let is_node = worker.kind == "node";
    let stat = if is_node { &worker.name } else { &worker.id };
    let key = |what: &str| format!("{namespace}:{what}");
    let at = jiff::Timestamp::from_millisecond(i64::try_from(now_ms).ok()?).ok()?;
    Some(HeldJob {
        key: Name::new(&format!("{queue}/{}", fingerprint(payload)?)).ok()?,
        worker: Name::new(name).ok()?,
        queue: Name::new(&queue).ok()?,
        keys: vec![
            key("workers"),
            key(&format!("worker:{}", worker.id)),
            key(&format!("worker:{}:started", worker.id)),
            key(&format!("worker:ping:{}", worker.name)),
            key("workers:heartbeat"),
            key(&format!("queue:{queue}")),
            key("queues"),
            key("failed"),
            key("stat:failed"),
            key(&format!("stat:processed:{stat}")),
            key(&format!("stat:failed:{stat}")),
            key("pruning_dead_workers_in_progress"),
        ],
        words: vec![
            worker.id.clone(),
            stat.clone(),
            sha1(record),
            worker.beat.clone(),
            worker.kind.to_owned(),
            (range.start + 1).to_string(),
            range.end.to_string(),
            if is_node { args_at } else { 0 }.to_string(),
            started.to_owned(),
            at.strftime("%Y/%m/%d %H:%M:%S UTC").to_string(),
            began_ms(record).unwrap_or(u64::MAX).to_string(),
        ],
    })
}

/// Jobs of Resque have no id: those with the same class and arguments are the same, in whatever order their members are written.
fn fingerprint(payload: &str) -> Option<String> {
    let mut value: serde_json::Value = serde_json::from_str(payload).ok()?;
    let args = value.get_mut("args")?;
    if args.as_object().is_some_and(serde_json::Map::is_empty) {
        *args = serde_json::Value::Array(Vec::new());
    }
    let class = value.get("class")?.as_str()?.to_owned();
    Some(format!("{class}/{}", &sha1(&in_order(value).to_string())[..12]))
}

/// With the members of every object in alphabetical order, whether or not serde_json keeps the order that it read.
fn in_order(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(members) => {
            let sorted: BTreeMap<String, serde_json::Value> = members.into_iter().collect();
            sorted.into_iter().map(|(name, value)| (name, in_order(value))).collect()
        }
        serde_json::Value::Array(items) => items.into_iter().map(in_order).collect(),
        other => other,
    }
}

/// As the server's `redis.sha1hex`.
fn sha1(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_languages_are_read() {
        let noon = Some(1_795_003_200_000);
        assert_eq!(time_ms("2026-11-18T12:00:00Z"), noon);
        assert_eq!(time_ms("2026-11-18T13:00:00+01:00"), noon);
        assert_eq!(
            time_ms("Wed Nov 18 2026 13:00:00 GMT+0100 (Central European Standard Time)"),
            noon
        );
        assert_eq!(time_ms("2026-11-18 12:00:00 +0000"), noon);
        assert_eq!(time_ms("1795003200"), noon);
        assert_eq!(time_ms("soon"), None);
    }

    #[test]
    fn node_names_stand_before_the_queues() {
        assert_eq!(node_name("vm:12:mails,pages", None), "vm:12");
        assert_eq!(node_name("w1:mails", None), "w1");
        assert_eq!(node_name("a:b:c:mails", Some(r#"{"worker":"a:b:c"}"#)), "a:b:c");
    }

    #[test]
    fn the_order_of_members_makes_no_other_job() {
        let one = fingerprint(r#"{"class":"A","queue":"q","args":{}}"#);
        assert_eq!(one, fingerprint(r#"{"args":[],"queue":"q","class":"A"}"#));
        assert_ne!(one, fingerprint(r#"{"args":[1],"queue":"q","class":"A"}"#));
    }
}
