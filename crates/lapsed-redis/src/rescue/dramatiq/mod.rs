//! Dramatiq on Redis: 1.17 to 2.x, whose keys are the same.
//!
//! A worker's score in `NAMESPACE:__heartbeats__` is set by every command of it. Producers are there, too, and hold nothing. What a
//! worker has fetched lies in its sets `NAMESPACE:__acks__.WORKER.QUEUE`. A worker whose score did not change since its
//! sets were looked for can have no new ones, so each silent worker is looked for once.

mod drift;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::{Name, Result};

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    BehindPrefix, DriftPage, DriftRequest, FoundJob, HeldJob, LookRequest, Profile, ProfileFacts,
    Seen, SeenWorker,
};
use super::reader::{Reader, escaped};
use crate::script::{Script, rescue_script};

static PUT_BACK: Script = rescue_script!("rescue_dramatiq", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`QUEUE.XQ` of Dramatiq",
    retried_by: None,
    deleted_by: Some("Dramatiq itself, which forgets them after 7 days"),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_dramatiq_letters", "letters.lua");

/// The limit is Dramatiq's own default for `heartbeat_timeout`.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "dramatiq",
    title: "Dramatiq",
    limit: Duration::from_secs(60),
    grace: Duration::from_secs(60),
    script: &PUT_BACK,
    keys: 6,
    words: 2,
    shows_workers: true,
    own_recovery: "Dramatiq itself puts them back at a random time: one command in a thousand does maintenance, for its own queue only",
    must_watch: false,
    no_delay: None,
    no_class: None,
};

const NAMESPACE: &str = "dramatiq";

/// Which of a job's keys is the hash of messages.
const MESSAGES_KEY: usize = 2;

/// Which of a job's keys is its queue.
const QUEUE_KEY: usize = 3;

/// The length of a worker's name, a UUID.
const WORKER_CHARS: usize = 36;

/// How many keys are gone through at most to find the sets of silent workers.
pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    Box::new(behind(layout.prefix.as_deref().unwrap_or(NAMESPACE)))
}

fn behind(namespace: &str) -> Dramatiq {
    Dramatiq { namespace: namespace.to_owned(), sets: Mutex::default() }
}

struct Dramatiq {
    namespace: String,
    /// What was found of each silent worker, by its namespace and its name.
    sets: Mutex<HashMap<(String, String), WorkerSets>>,
}

/// The score of a worker when its sets were looked for, and the queues that it has sets of.
type WorkerSets = (u64, Vec<String>);

const LOCK: &str = "no holder of this lock panics";

#[async_trait]
impl Profile for Dramatiq {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn may_be_key(&self, key: &[u8]) -> bool {
        key.ends_with(b":__heartbeats__")
    }

    fn learn(&self, keys: &[Vec<u8>]) -> Vec<BehindPrefix> {
        let namespace =
            |key: &Vec<u8>| String::from_utf8(key.strip_suffix(b":__heartbeats__")?.into()).ok();
        let found: BTreeSet<String> = keys.iter().filter_map(namespace).collect();
        let others = found.into_iter().filter(|namespace| *namespace != self.namespace);
        others.map(|one| (one.clone(), Box::new(behind(&one)) as Box<dyn Profile>)).collect()
    }

    /// What waits for its time, in `mails.DQ`, belongs to `mails`.
    fn queue_of<'a>(&self, job: &'a HeldJob) -> &'a str {
        job.queue.as_str().strip_suffix(".DQ").unwrap_or(job.queue.as_str())
    }

    fn delayed_keys(&self, job: &HeldJob, _: &Name) -> Vec<String> {
        let queue = job.keys[QUEUE_KEY].strip_suffix(".DQ").unwrap_or(&job.keys[QUEUE_KEY]);
        vec![format!("{queue}.DQ"), format!("{queue}.DQ.msgs")]
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| {
                vec![job.keys[MESSAGES_KEY].clone().into_bytes(), job.words[1].clone().into_bytes()]
            })
            .collect();
        let texts: Vec<Option<Option<Vec<u8>>>> = reader.each("HGET", &asked).await?;
        Ok(texts.into_iter().map(|text| actor_of(&text.flatten()?)).collect())
    }

    fn drift_subject(&self) -> &'static str {
        "the queues, the messages and the sets of what workers have fetched"
    }

    /// By the id of the message in Redis (`redis_message_id`).
    async fn find(&self, reader: &Reader<'_>, id: &str) -> Result<Option<FoundJob>> {
        let namespace = &self.namespace;
        let start = format!("{namespace}:__acks__.");
        let pattern = format!("{}*", escaped(&start));
        let mut sets: Vec<Vec<u8>> = Vec::new();
        reader.scan(Some(pattern.as_bytes()), u64::MAX, |key| sets.push(key.to_vec())).await?;
        let asked: Vec<Vec<Vec<u8>>> =
            sets.iter().map(|set| vec![set.clone(), id.as_bytes().to_vec()]).collect();
        let holds: Vec<Option<u64>> = reader.each("SISMEMBER", &asked).await?;
        let set = sets.iter().zip(holds).find(|(_, holds)| *holds == Some(1));
        let name = set.and_then(|(set, _)| std::str::from_utf8(set).ok()?.strip_prefix(&start));
        let Some((worker, queue)) = name.and_then(split_set) else { return Ok(None) };
        let heartbeats = format!("{namespace}:__heartbeats__");
        let score: Option<f64> =
            reader.one("ZSCORE", &[heartbeats.as_bytes(), worker.as_bytes()]).await?;
        let ago_ms = reader.now_ms().await?.saturating_sub(score.unwrap_or(0.0) as u64);
        let because = vec![
            format!("message `{id}` of queue `{queue}` was fetched by worker `{worker}`"),
            format!(
                "the last command of that worker was {:.1} s ago (`{heartbeats}`); a living one sends one each second",
                ago_ms as f64 / 1_000.0
            ),
        ];
        Ok(Some(FoundJob { state: "live".to_owned(), because }))
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let heartbeats = format!("{}:__heartbeats__", self.namespace);
        if reader.kind(heartbeats.as_bytes()).await? != "zset" {
            return Ok(None);
        }
        let mut seen = Seen::default();
        self.look_at(reader, &self.namespace, request.limit, &mut seen).await?;
        if request.own.is_none() {
            self.count_all(reader, &mut seen).await?;
        }
        Ok(Some(seen))
    }
}

impl Dramatiq {
    async fn look_at(
        &self,
        reader: &Reader<'_>,
        namespace: &str,
        limit: Duration,
        seen: &mut Seen,
    ) -> Result<()> {
        let (now_ms, limit_ms) = (reader.now_ms().await?, limit.as_millis() as u64);
        let heartbeats = format!("{namespace}:__heartbeats__");
        let scores = reader.scores(heartbeats.as_bytes(), "-inf", "+inf").await?;
        seen.examined += scores.len() as u64;
        let mut silent: BTreeMap<String, u64> = BTreeMap::new();
        for (worker, score) in scores {
            let Ok(name) = Name::from_bytes(&worker) else { continue };
            let (score_ms, due_ms) = (score as u64, score as u64 + limit_ms);
            let is_silent = due_ms <= now_ms;
            if is_silent {
                silent.insert(name.to_string(), score_ms);
            }
            seen.workers.insert(name, SeenWorker { due_ms, is_silent, ..SeenWorker::default() });
        }
        let sets = self.sets_of(reader, namespace, &silent).await?;
        self.read_jobs(reader, namespace, &sets, seen).await?;
        // A silent worker that holds nothing is a producer, or was recovered: nobody is interested in it.
        seen.workers.retain(|_, worker| !worker.is_silent || worker.held > 0);
        seen.in_flight = seen.jobs.len() as u64;
        Ok(())
    }

    /// Counts what every worker has fetched, and names all queues, for `detect`: a pass looks at silent workers only.
    async fn count_all(&self, reader: &Reader<'_>, seen: &mut Seen) -> Result<()> {
        let start = format!("{}:", self.namespace);
        let pattern = format!("{}*", escaped(&start));
        let (mut sets, mut queues): (Vec<String>, BTreeSet<String>) = Default::default();
        reader
            .scan(Some(pattern.as_bytes()), u64::MAX, |key| {
                let text = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&start));
                let Some(name) = text else { return };
                if name.starts_with("__acks__.") {
                    sets.push(name.to_owned());
                } else if let Some(queue) = name.strip_suffix(".msgs") {
                    let queue = queue.strip_suffix(".DQ").or(queue.strip_suffix(".XQ"));
                    queues.insert(queue.unwrap_or(name.trim_end_matches(".msgs")).to_owned());
                }
            })
            .await?;
        sets.sort();
        sets.dedup();
        let asked: Vec<Vec<Vec<u8>>> =
            sets.iter().map(|set| vec![format!("{start}{set}").into_bytes()]).collect();
        let counts: Vec<Option<u64>> = reader.each("SCARD", &asked).await?;
        seen.in_flight = counts.into_iter().flatten().sum();
        let holders: BTreeSet<&str> = sets
            .iter()
            .filter_map(|set| Some(split_set(set.strip_prefix("__acks__.")?)?.0))
            .collect();
        let idle = seen
            .workers
            .iter()
            .filter(|(name, worker)| !worker.is_silent && !holders.contains(name.as_str()));
        let idle = idle.count();
        if idle > 0 {
            seen.notes.push(format!("{idle} of the living workers hold nothing: they are idle, or programs that only send messages, which Dramatiq's keys do not tell apart"));
        }
        for queue in queues {
            let waiting: Option<u64> =
                reader.one("LLEN", &[format!("{start}{queue}").as_bytes()]).await.ok();
            let name = Name::new(&queue).ok();
            seen.queues.extend(name.map(|name| (name, waiting.unwrap_or(0))));
        }
        seen.queues.retain(|name, _| !name.as_str().ends_with(".DQ"));
        Ok(())
    }

    /// The sets of silent workers. Goes through the keyspace only if a worker is silent that was not looked for since its last
    /// command.
    async fn sets_of(
        &self,
        reader: &Reader<'_>,
        namespace: &str,
        silent: &BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, Vec<String>>> {
        let is_known = |worker: &String, score: u64| {
            let sets = self.sets.lock().expect(LOCK);
            sets.get(&(namespace.to_owned(), worker.clone())).is_some_and(|(at, _)| *at == score)
        };
        if silent.iter().any(|(worker, score)| !is_known(worker, *score)) {
            let start = format!("{namespace}:__acks__.");
            let pattern = format!("{}*", escaped(&start));
            let mut found: HashMap<String, Vec<String>> = HashMap::new();
            reader
                .scan(Some(pattern.as_bytes()), u64::MAX, |key| {
                    let Ok(text) = std::str::from_utf8(key) else { return };
                    let Some((worker, queue)) = text.strip_prefix(&start).and_then(split_set)
                    else {
                        return;
                    };
                    found.entry(worker.to_owned()).or_default().push(queue.to_owned());
                })
                .await?;
            let mut sets = self.sets.lock().expect(LOCK);
            sets.retain(|(of, worker), _| of != namespace || silent.contains_key(worker));
            for (worker, score) in silent {
                let mut queues = found.remove(worker).unwrap_or_default();
                queues.sort();
                queues.dedup();
                sets.insert((namespace.to_owned(), worker.clone()), (*score, queues));
            }
        }
        let sets = self.sets.lock().expect(LOCK);
        let of = |worker: &String| {
            sets.get(&(namespace.to_owned(), worker.clone())).map(|(_, queues)| queues.clone())
        };
        Ok(silent.keys().filter_map(|worker| Some((worker.clone(), of(worker)?))).collect())
    }

    async fn read_jobs(
        &self,
        reader: &Reader<'_>,
        namespace: &str,
        sets: &BTreeMap<String, Vec<String>>,
        seen: &mut Seen,
    ) -> Result<()> {
        for (worker, queues) in sets {
            for queue in queues {
                let key = |what: &str| format!("{namespace}:{what}");
                let acks = key(&format!("__acks__.{worker}.{queue}"));
                // Delayed messages have no place of their own for dead letters.
                let letters = queue.strip_suffix(".DQ").unwrap_or(queue);
                let kind = reader.kind(acks.as_bytes()).await?;
                if kind != "set" {
                    if kind != "none" {
                        seen.notes
                            .push(format!("`{acks}` is a {kind}, not a set, and is left alone"));
                    }
                    continue;
                }
                let ids = reader.set(acks.as_bytes()).await?;
                seen.examined += ids.len() as u64;
                let (Ok(owner), Ok(name)) = (Name::new(worker), Name::new(queue)) else { continue };
                for id in ids {
                    let Ok(id) = String::from_utf8(id) else { continue };
                    let Ok(job) = Name::new(&id) else { continue };
                    seen.jobs.push(HeldJob {
                        key: job,
                        worker: owner.clone(),
                        queue: name.clone(),
                        keys: vec![
                            key("__heartbeats__"),
                            acks.clone(),
                            key(&format!("{queue}.msgs")),
                            key(queue),
                            key(&format!("{letters}.XQ")),
                            key(&format!("{letters}.XQ.msgs")),
                        ],
                        words: vec![worker.clone(), id],
                    });
                    if let Some(worker) = seen.workers.get_mut(&owner) {
                        worker.held += 1;
                    }
                }
                let waiting: Option<u64> = reader.one("LLEN", &[key(queue).as_bytes()]).await.ok();
                seen.queues.insert(name, waiting.unwrap_or(0));
            }
        }
        Ok(())
    }
}

/// The actor of a message; `None` if the application does not encode messages as JSON.
fn actor_of(message: &[u8]) -> Option<String> {
    let message: serde_json::Value = serde_json::from_slice(message).ok()?;
    Some(message.get("actor_name")?.as_str()?.to_owned())
}

/// `WORKER.QUEUE`: the worker is a UUID, and the queue may contain dots.
fn split_set(rest: &str) -> Option<(&str, &str)> {
    let (worker, queue) = rest.split_at_checked(WORKER_CHARS)?;
    Some((worker, queue.strip_prefix('.')?)).filter(|(_, queue)| !queue.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_split_after_the_worker_whatever_the_queue_is_called() {
        let worker = "306d24c2-4422-4f1e-a42b-6b7630a5d3ab";
        assert_eq!(split_set(&format!("{worker}.a.b.DQ")), Some((worker, "a.b.DQ")));
        assert_eq!(split_set(&format!("{worker}.")), None);
        assert_eq!(split_set("short.q"), None);
        assert_eq!(escaped("a*b"), "a\\*b");
    }
}
