//! BullMQ 5 and 6 on Redis.
//!
//! A job in `PREFIX:QUEUE:active` without its lock has no worker: BullMQ sets the lock in the step that moves the job there, and the
//! worker renews it. A lock says nothing about who holds it; the job's field `pb` names its worker if the worker has a name. Living workers show
//! in the names of connections only (`workers.rs`).

mod drift;
mod workers;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::{Error, Name, Result};

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    BehindPrefix, DriftPage, DriftRequest, FoundJob, HeldJob, LookRequest, Profile, ProfileFacts,
    Seen, SeenWorker,
};
use super::reader::Reader;
use crate::script::{Script, rescue_script};

static PUT_BACK: Script = rescue_script!("rescue_bullmq", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`failed` of BullMQ",
    retried_by: Some("`Job.retry()` of BullMQ, or the button of a dashboard such as bull-board"),
    deleted_by: Some("`Job.remove()` of BullMQ"),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_bullmq_letters", "letters.lua");

/// The lock lasts for `lockDuration`, 30 s by default. Without a lock nothing has to be waited for any more.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "bullmq",
    title: "BullMQ",
    limit: Duration::ZERO,
    grace: Duration::from_secs(30),
    script: &PUT_BACK,
    keys: 11,
    words: 4,
    shows_workers: false,
    own_recovery: "BullMQ itself puts them back when another worker of the queue looks twice, 30 s apart, and blocks Redis for seconds if there are many",
    must_watch: false,
    no_delay: None,
    no_class: None,
};

/// Which of a job's keys is the list `active`.
const ACTIVE_KEY: usize = 0;

/// Which of them is its hash.
const JOB_KEY: usize = 3;

/// How often BullMQ itself puts a stalled job back before it fails the job, unless the application sets `maxStalledCount`.
const MAX_STALLED: u32 = 1;

/// The first release whose workers fail a job with the field `defa` without running it. (From 5.53.2 on, BullMQ's own check for
/// stalled jobs leaves that to them, too.)
const FAILS_DEFERRED: [u32; 3] = [5, 49, 2];

/// Keys of a queue that the package `bull` has, too.
const BULL_LISTS: [&str; 3] = [":active", ":wait", ":stalled-check"];

/// What `prefix` is if the application sets none.
const USUAL_PREFIX: &str = "bull";

/// How often the names of queues are looked for, in milliseconds of the server's clock.
const QUEUES_EVERY_MS: u64 = 60_000;

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    let max_stalled = layout.max_stalled.unwrap_or(MAX_STALLED);
    let (known, checked) = (Mutex::default(), Mutex::default());
    Box::new(BullMq { prefix: layout.prefix.clone(), max_stalled, known, checked })
}

struct BullMq {
    /// `prefix` of the application's queues, `bull` if it sets none; `None`: any.
    prefix: Option<String>,
    /// How often a job may stall before it is failed.
    max_stalled: u32,
    known: Mutex<KnownQueues>,
    /// The queues whose stalled jobs somebody was seen to check for.
    checked: Mutex<BTreeSet<String>>,
}

/// The queues that were found, as the part of their keys before the last colon.
#[derive(Clone, Default)]
struct KnownQueues {
    at_ms: u64,
    bases: BTreeSet<String>,
    /// Where keys may be those of the package `bull`; only `detect` learns them.
    bull: BTreeSet<String>,
}

const LOCK: &str = "no holder of this lock panics";

/// One queue that is BullMQ's.
struct Queue {
    base: String,
    name: Name,
    version: String,
    major: &'static str,
    /// What stands before the ids of its jobs, so that no two jobs of a server have the same name.
    title: String,
    /// Whether its workers fail a job with the field `defa`.
    fails_deferred: bool,
}

#[async_trait]
impl Profile for BullMq {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn may_be_key(&self, key: &[u8]) -> bool {
        key.ends_with(b":meta") || BULL_LISTS.iter().any(|list| key.ends_with(list.as_bytes()))
    }

    fn learn(&self, keys: &[Vec<u8>]) -> Vec<BehindPrefix> {
        let base =
            |key: &Vec<u8>| Some(std::str::from_utf8(key).ok()?.strip_suffix(":meta")?.to_owned());
        let mut known = self.known.lock().expect(LOCK);
        known.bases = keys.iter().filter_map(base).collect();
        let of_bull = |key: &Vec<u8>| {
            let key = std::str::from_utf8(key).ok()?;
            BULL_LISTS.iter().find_map(|list| key.strip_suffix(list)).map(str::to_owned)
        };
        known.bull = keys.iter().filter_map(of_bull).collect();
        known.at_ms = u64::MAX;
        Vec::new()
    }

    fn delayed_keys(&self, job: &HeldJob, _: &Name) -> Vec<String> {
        let base = job.keys[ACTIVE_KEY].strip_suffix("active").unwrap_or_default();
        vec![format!("{base}delayed")]
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| vec![job.keys[JOB_KEY].clone().into_bytes(), b"name".to_vec()])
            .collect();
        let texts: Vec<Option<Option<Vec<u8>>>> = reader.each("HGET", &asked).await?;
        Ok(texts.into_iter().map(|text| String::from_utf8(text.flatten()?).ok()).collect())
    }

    async fn began(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<u64>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| vec![job.keys[JOB_KEY].clone().into_bytes(), b"processedOn".to_vec()])
            .collect();
        let began: Vec<Option<Option<u64>>> = reader.each("HGET", &asked).await?;
        Ok(began.into_iter().map(Option::flatten).collect())
    }

    fn drift_subject(&self) -> &'static str {
        "the lists `active`, the sets `stalled` and the locks"
    }

    /// By `QUEUE/ID`, as receipts have it, or by the id alone.
    async fn find(&self, reader: &Reader<'_>, id: &str) -> Result<Option<FoundJob>> {
        let bases = self.bases(reader).await?;
        for queue in self.queues(reader, bases, &mut Seen::default()).await? {
            let own =
                id.strip_prefix(&queue.title).and_then(|rest| rest.strip_prefix('/')).unwrap_or(id);
            let key = |what: &str| format!("{}:{what}", queue.base).into_bytes();
            let there: u64 = reader.one("EXISTS", &[&key(own)]).await?;
            if there == 1 {
                return find_in(reader, &queue, own).await.map(Some);
            }
        }
        Ok(None)
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let mut seen = Seen { silence_is_noticed: true, ..Seen::default() };
        let bases = self.bases(reader).await?;
        let queues = self.queues(reader, bases, &mut seen).await?;
        if queues.is_empty() {
            return self.refuse_bull(reader).await.map(|()| None);
        }
        let now_ms = reader.now_ms().await?;
        for queue in &queues {
            self.look_at(reader, queue, now_ms, &mut seen).await?;
        }
        if request.own.is_none() {
            workers::add_connected(reader, &queues, &mut seen).await?;
        }
        let mut versions: Vec<&str> = queues.iter().map(|queue| queue.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        seen.version = versions.join(", ");
        Ok(Some(seen))
    }
}

/// What the keys of a job say.
async fn find_in(reader: &Reader<'_>, queue: &Queue, id: &str) -> Result<FoundJob> {
    let key = |what: &str| format!("{}:{what}", queue.base).into_bytes();
    let left: i64 = reader.one("PTTL", &[&key(&format!("{id}:lock"))]).await?;
    let asked = [vec![key(id), b"pb".to_vec()]];
    let worker: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
    let worker = worker.into_iter().flatten().flatten().next();
    let found = |state: &str, because| FoundJob { state: state.to_owned(), because };
    let name = &queue.name;
    if left > 0 {
        let who =
            worker.map_or("a worker without a name".to_owned(), |name| format!("worker `{name}`"));
        return Ok(found(
            "live",
            vec![
                format!("job `{id}` of queue `{name}` is active: {who} has it"),
                format!(
                    "that worker lives: the lock of the job runs out in {:.1} s, and the worker renews it",
                    left as f64 / 1_000.0
                ),
            ],
        ));
    }
    for (set, state) in [
        ("delayed", "delayed"),
        ("prioritized", "queued"),
        ("failed", "failed"),
        ("completed", "completed"),
    ] {
        let score: Option<f64> =
            reader.one("ZSCORE", &[&key(set), id.as_bytes()]).await.unwrap_or(None);
        if score.is_some() {
            return Ok(found(state, vec![format!("job `{id}` is in `{set}` of queue `{name}`")]));
        }
    }
    Ok(found(
        "queued",
        vec![format!("job `{id}` of queue `{name}` has no lock: no worker runs it")],
    ))
}

/// Major, minor and patch; what cannot be read is 0.
fn release(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

impl BullMq {
    /// Refuses queues of the package `bull`, 3 or 4: they have a counter of ids and no `meta`.
    async fn refuse_bull(&self, reader: &Reader<'_>) -> Result<()> {
        let bases = self.known.lock().expect(LOCK).bull.clone();
        let asked: Vec<Vec<Vec<u8>>> =
            bases.iter().map(|base| vec![format!("{base}:id").into_bytes()]).collect();
        let kinds: Vec<Option<String>> = reader.each("TYPE", &asked).await?;
        let has_ids = |kind: &Option<String>| kind.as_deref() == Some("string");
        let found: Vec<String> = bases
            .into_iter()
            .zip(kinds)
            .filter(|(_, kind)| has_ids(kind))
            .map(|(b, _)| b)
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        Err(Error::Unsupported {
            operation: format!(
                "the queues {} are of Bull 3 or 4, or of BullMQ before 5: BullMQ 5 and 6 are known",
                found.join(", ")
            ),
            store: reader.connection.place.to_string(),
        })
    }

    async fn bases(&self, reader: &Reader<'_>) -> Result<BTreeSet<String>> {
        let known = self.known.lock().expect(LOCK).clone();
        let now_ms = reader.now_ms().await?;
        if known.at_ms == u64::MAX || (known.at_ms > 0 && now_ms < known.at_ms + QUEUES_EVERY_MS) {
            return Ok(known.bases);
        }
        let mut bases = BTreeSet::new();
        reader
            .scan(Some(b"*:meta"), u64::MAX, |key| {
                let base = std::str::from_utf8(key).ok().and_then(|key| key.strip_suffix(":meta"));
                bases.extend(base.map(str::to_owned));
            })
            .await?;
        *self.known.lock().expect(LOCK) =
            KnownQueues { at_ms: now_ms, bases: bases.clone(), ..KnownQueues::default() };
        Ok(bases)
    }

    /// Those that are BullMQ's. A hash that only ends in the same word is somebody else's.
    async fn queues(
        &self,
        reader: &Reader<'_>,
        bases: BTreeSet<String>,
        seen: &mut Seen,
    ) -> Result<Vec<Queue>> {
        let mut queues = Vec::new();
        for base in bases {
            let meta = format!("{base}:meta");
            let versions: Vec<Option<Vec<Option<String>>>> = reader
                .each(
                    "HMGET",
                    &[[meta.as_str(), "version", "opts.maxLenEvents"]
                        .map(|w| w.as_bytes().to_vec())
                        .to_vec()],
                )
                .await?;
            let Some([version, events]) =
                versions.into_iter().next().flatten().and_then(|v| <[_; 2]>::try_from(v).ok())
            else {
                continue;
            };
            let Some((prefix, name)) = base.rsplit_once(':') else { continue };
            if self.prefix.as_deref().is_some_and(|own| own != prefix) {
                continue;
            }
            let Ok(name) = Name::new(name) else { continue };
            let version = match version {
                Some(version) => version,
                // Written by the queue's object, not by the worker. Marker and events tell BullMQ from Bull.
                None if events.is_some() && self.has_marker(reader, &base).await? => {
                    "bullmq:5".to_owned()
                }
                None => continue,
            };
            let number = version.strip_prefix("bullmq:");
            let major = match number.and_then(|number| number.split('.').next()) {
                Some("5") => "5",
                // A `paused` list is left from version 5, whose workers may still be there.
                Some("6") if reader.kind(format!("{base}:paused").as_bytes()).await? == "list" => {
                    "5"
                }
                Some("6") => "6",
                _ => {
                    seen.notes.push(format!(
                        "queue `{name}`: version `{version}` is not known and is left alone"
                    ));
                    continue;
                }
            };
            let version = number.unwrap_or_default().to_owned();
            let title = match self.prefix.is_some() || prefix == USUAL_PREFIX {
                true => name.to_string(),
                false => format!("{prefix}:{name}"),
            };
            let fails_deferred = release(&version) >= FAILS_DEFERRED;
            queues.push(Queue { base, name, version, major, title, fails_deferred });
        }
        if queues.is_empty() && !seen.notes.is_empty() {
            return Err(Error::Unsupported {
                operation: format!(
                    "a layout of BullMQ that is not known ({})",
                    seen.notes.join("; ")
                ),
                store: reader.connection.place.to_string(),
            });
        }
        Ok(queues)
    }

    async fn has_marker(&self, reader: &Reader<'_>, base: &str) -> Result<bool> {
        let (marker, events) = (format!("{base}:marker"), format!("{base}:events"));
        Ok(reader.kind(marker.as_bytes()).await? == "zset"
            || reader.kind(events.as_bytes()).await? == "stream")
    }

    async fn look_at(
        &self,
        reader: &Reader<'_>,
        queue: &Queue,
        now_ms: u64,
        seen: &mut Seen,
    ) -> Result<()> {
        let key = |what: &str| format!("{}:{what}", queue.base);
        let waiting: Option<u64> = reader.one("LLEN", &[key("wait").as_bytes()]).await.ok();
        seen.queues.insert(queue.name.clone(), waiting.unwrap_or(0));
        if reader.kind(key("active").as_bytes()).await? != "list" {
            return Ok(());
        }
        let ids = reader.list_from_end(key("active").as_bytes()).await?;
        seen.in_flight += ids.len() as u64;
        seen.examined += ids.len() as u64;
        let ids: Vec<String> =
            ids.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect();
        let locks: Vec<Vec<Vec<u8>>> =
            ids.iter().map(|id| vec![key(&format!("{id}:lock")).into_bytes()]).collect();
        let locked: Vec<Option<u64>> = reader.each("EXISTS", &locks).await?;
        let free: Vec<String> = ids
            .into_iter()
            .zip(locked)
            .filter(|(_, locked)| *locked == Some(0))
            .map(|(id, _)| id)
            .collect();
        let is_checked = workers::is_checked(reader, queue).await?;
        let was_checked = {
            let mut checked = self.checked.lock().expect(LOCK);
            if is_checked {
                checked.insert(queue.base.clone());
            }
            checked.contains(&queue.base)
        };
        if !free.is_empty()
            && !was_checked
            && let Some(why) = workers::unchecked(reader, queue).await?
        {
            seen.notes.push(why);
            return Ok(());
        }
        let asked: Vec<Vec<Vec<u8>>> =
            free.iter().map(|id| vec![key(id).into_bytes(), b"pb".to_vec()]).collect();
        let workers: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
        for (id, worker) in free.into_iter().zip(workers) {
            let worker = worker.flatten().and_then(|name| Name::new(&name).ok());
            let worker = worker.unwrap_or(Name::new("a worker without a name")?);
            let Ok(job) = Name::new(&format!("{}/{id}", queue.title)) else { continue };
            let held = seen.workers.entry(worker.clone()).or_insert(SeenWorker {
                due_ms: now_ms,
                is_silent: true,
                ..SeenWorker::default()
            });
            held.held += 1;
            let own = key(&id);
            let keys = ["active", &format!("{id}:lock"), "stalled"].map(key).into_iter();
            let keys = keys
                .chain([own])
                .chain(["wait", "paused", "meta", "marker", "events", "repeat", "failed"].map(key));
            seen.jobs.push(HeldJob {
                key: job,
                worker,
                queue: queue.name.clone(),
                keys: keys.collect(),
                words: vec![
                    id,
                    queue.major.to_owned(),
                    self.max_stalled.to_string(),
                    if queue.fails_deferred { "later" } else { "now" }.to_owned(),
                ],
            });
        }
        Ok(())
    }
}
