//! asynq from 0.22 on, which has leases. Earlier versions are recognised by their `deadlines` and refused.
//!
//! A task in `asynq:{QUEUE}:active` has no worker when its lease is over, or missing, and no server that lives shows the task as its own.
//! The lease is 30 s of the worker's clock, and a worker that finds its lease over writes nothing about the task any more.
//! A task without a lease (asynq#1144) is found by nobody else; since when it has none, no key tells, so that lapsed notes it.
//!
//! The keys of one queue share a slot of a cluster, but `asynq:workers` does not.

mod drift;

use std::collections::{BTreeMap, BTreeSet, HashMap};
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

static PUT_BACK: Script = rescue_script!("rescue_asynq", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`asynq:{QUEUE}:archived` of asynq",
    retried_by: None,
    deleted_by: Some("`asynq task delete`"),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_asynq_letters", "letters.lua");

/// The limit counts from the end of the lease: a server shows its tasks every 5 s.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "asynq",
    title: "asynq",
    limit: Duration::from_secs(5),
    grace: Duration::from_secs(30),
    script: &PUT_BACK,
    keys: 10,
    words: 2,
    shows_workers: false,
    own_recovery: "asynq itself counts them as failed and retries them with back-off, 60 to 120 s after the death, while another server of the queue lives; those without a lease it never finds",
    must_watch: false,
    no_delay: None,
    no_class: None,
};

/// Which of a job's keys is its hash.
const TASK_KEY: usize = 2;

/// A server whose clock is wrong by more than this counts as gone.
const CLOCKS_DIFFER_S: u64 = 3_600;

pub(super) fn open(_: &RescueLayout) -> Box<dyn Profile> {
    Box::new(Asynq { holders: Mutex::default() })
}

struct Asynq {
    /// Which server was last seen with a task, as long as the task is active. Servers' own lists are gone 10 s after their death.
    holders: Mutex<HashMap<String, Name>>,
}

const LOCK: &str = "no holder of this lock panics";

/// What the servers that live say about themselves.
#[derive(Default)]
struct Servers {
    /// Every server that lives.
    alive: BTreeSet<Name>,
    /// Which server shows a task as its own.
    claims: HashMap<String, Name>,
}

#[async_trait]
impl Profile for Asynq {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn may_be_key(&self, _: &[u8]) -> bool {
        false
    }

    fn delayed_keys(&self, _: &HeldJob, queue: &Name) -> Vec<String> {
        vec![format!("asynq:{{{queue}}}:scheduled")]
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| vec![job.keys[TASK_KEY].clone().into_bytes(), b"msg".to_vec()])
            .collect();
        let texts: Vec<Option<Option<Vec<u8>>>> = reader.each("HGET", &asked).await?;
        Ok(texts.into_iter().map(|text| type_of(&text.flatten()?)).collect())
    }

    /// By `QUEUE/ID`, as receipts have it, or by the id alone.
    async fn find(&self, reader: &Reader<'_>, id: &str) -> Result<Option<FoundJob>> {
        let now_ms = reader.now_ms().await?;
        for queue in self.queues(reader, &mut Seen::default()).await? {
            let own = id.strip_prefix(queue.as_str()).and_then(|rest| rest.strip_prefix('/'));
            let own = own.unwrap_or(id);
            let asked = [vec![word(&format!("asynq:{{{queue}}}:t:{own}")), word("state")]];
            let state: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
            let Some(state) = state.into_iter().flatten().flatten().next() else { continue };
            let mut because =
                vec![format!("task `{own}` of queue `{queue}` has the state `{state}`")];
            let servers = self.servers(reader, now_ms).await?;
            let holder = servers.claims.get(own).filter(|server| servers.alive.contains(*server));
            if let (Some(server), "active") = (holder, state.as_str()) {
                because.push(format!(
                    "server `{server}` lives, and shows the task as its own; it does so every 5 s"
                ));
                return Ok(Some(FoundJob { state: "live".to_owned(), because }));
            }
            return Ok(Some(FoundJob { state, because }));
        }
        Ok(None)
    }

    fn drift_subject(&self) -> &'static str {
        "the lists and sets of its queues, their leases and their tasks"
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        if reader.kind(b"asynq:queues").await? != "set" {
            return Ok(None);
        }
        let mut seen = Seen { silence_is_noticed: true, ..Seen::default() };
        let now_ms = reader.now_ms().await?;
        let servers = self.servers(reader, now_ms).await?;
        let limit_ms = request.limit.as_millis() as u64;
        let due_ms = now_ms + limit_ms;
        for name in &servers.alive {
            seen.workers.insert(name.clone(), SeenWorker { due_ms, ..SeenWorker::default() });
        }
        let mut active = BTreeSet::new();
        for queue in self.queues(reader, &mut seen).await? {
            active.extend(self.look_at(reader, &queue, &servers, now_ms, &mut seen).await?);
        }
        self.holders.lock().expect(LOCK).retain(|id, _| active.contains(id));
        Ok(Some(seen))
    }
}

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

impl Asynq {
    /// The servers that live, and their tasks. `asynq:workers` also has dead ones, whose own key has expired.
    async fn servers(&self, reader: &Reader<'_>, now_ms: u64) -> Result<Servers> {
        let from = (now_ms / 1_000).saturating_sub(CLOCKS_DIFFER_S).to_string();
        let mut keys = BTreeMap::new();
        for (key, _) in reader.scores(b"asynq:servers", &from, "+inf").await? {
            let Ok(key) = String::from_utf8(key) else { continue };
            let name = key.strip_prefix("asynq:servers:{").and_then(|rest| rest.strip_suffix('}'));
            keys.extend(name.and_then(|name| Name::new(name).ok()).map(|name| (name, key.clone())));
        }
        let asked: Vec<Vec<Vec<u8>>> = keys.values().map(|key| vec![word(key)]).collect();
        let exists: Vec<Option<u64>> = reader.each("EXISTS", &asked).await?;
        let asked: Vec<Vec<Vec<u8>>> =
            keys.keys().map(|name| vec![word(&format!("asynq:workers:{{{name}}}"))]).collect();
        let tasks: Vec<Option<Vec<Vec<u8>>>> = reader.each("HKEYS", &asked).await?;
        let mut servers = Servers::default();
        for ((name, exists), tasks) in keys.into_keys().zip(exists).zip(tasks) {
            if exists == Some(1) {
                servers.alive.insert(name.clone());
            }
            let ids = tasks.unwrap_or_default().into_iter();
            let ids = ids.filter_map(|id| String::from_utf8(id).ok());
            servers.claims.extend(ids.map(|id| (id, name.clone())));
        }
        self.holders.lock().expect(LOCK).extend(servers.claims.clone());
        Ok(servers)
    }

    async fn queues(&self, reader: &Reader<'_>, seen: &mut Seen) -> Result<Vec<Name>> {
        let names = reader.set(b"asynq:queues").await?;
        let names: Vec<Name> =
            names.iter().filter_map(|name| Name::from_bytes(name).ok()).collect();
        for name in &names {
            let old = format!("asynq:{{{name}}}:deadlines");
            if reader.kind(old.as_bytes()).await? != "none" {
                return Err(Error::Unsupported {
                    operation: format!(
                        "rescuing tasks of asynq before 0.22: `{old}` is there, and leases are known"
                    ),
                    store: reader.connection.place.to_string(),
                });
            }
            let pending = format!("asynq:{{{name}}}:pending");
            let waiting: Option<u64> = reader.one("LLEN", &[pending.as_bytes()]).await.ok();
            seen.queues.insert(name.clone(), waiting.unwrap_or(0));
        }
        Ok(names)
    }

    /// Returns the ids of all tasks that are active in a queue.
    async fn look_at(
        &self,
        reader: &Reader<'_>,
        queue: &Name,
        servers: &Servers,
        now_ms: u64,
        seen: &mut Seen,
    ) -> Result<Vec<String>> {
        let active = format!("asynq:{{{queue}}}:active");
        if reader.kind(active.as_bytes()).await? != "list" {
            return Ok(Vec::new());
        }
        let ids = reader.list_from_end(active.as_bytes()).await?;
        seen.in_flight += ids.len() as u64;
        seen.examined += ids.len() as u64;
        let ids: Vec<String> =
            ids.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect();
        let lease = format!("asynq:{{{queue}}}:lease");
        let asked: Vec<Vec<Vec<u8>>> = ids.iter().map(|id| vec![word(&lease), word(id)]).collect();
        let leases: Vec<Option<Option<f64>>> = reader.each("ZSCORE", &asked).await?;
        let date = day(now_ms);
        let mut without = 0;
        for (id, lease) in ids.iter().zip(leases) {
            let over_ms =
                lease.flatten().map(|score| (score.max(0.0) as u64).saturating_add(1) * 1_000);
            if let Some(holder) = servers.claims.get(id) {
                seen.workers.entry(holder.clone()).or_default().held += 1;
            } else if over_ms.is_none_or(|over_ms| over_ms <= now_ms) {
                without += u64::from(over_ms.is_none());
                self.add(queue, id, over_ms, servers, &date, seen);
            }
        }
        if without > 0 {
            seen.notes.push(format!(
                "queue `{queue}`: {without} active tasks have no lease; asynq itself never finds them"
            ));
        }
        Ok(ids)
    }

    /// A task that nobody works on. One without a lease counts as a worker of its own, so that its silence is noted by
    /// itself; so does one that a living server has given up because its lease was over.
    fn add(
        &self,
        queue: &Name,
        id: &str,
        over_ms: Option<u64>,
        servers: &Servers,
        date: &str,
        seen: &mut Seen,
    ) {
        let holder = self.holders.lock().expect(LOCK).get(id).cloned();
        let worker = match (over_ms, holder) {
            (None, _) => Name::new(&format!("no lease:{queue}/{id}")),
            (Some(_), Some(holder)) if servers.alive.contains(&holder) => {
                Name::new(&format!("given up:{queue}/{id}"))
            }
            (Some(_), Some(holder)) => Ok(holder),
            (Some(_), None) => Name::new("a server that is gone"),
        };
        let (Ok(worker), Ok(key)) = (worker, Name::new(&format!("{queue}/{id}"))) else { return };
        let held = seen.workers.entry(worker.clone()).or_default();
        held.held += 1;
        held.is_silent = true;
        let of_queue = |what: &str| format!("asynq:{{{queue}}}:{what}");
        let keys = vec![
            of_queue("active"),
            of_queue("lease"),
            of_queue(&format!("t:{id}")),
            of_queue("pending"),
            of_queue("archived"),
            "asynq:workers".to_owned(),
            of_queue(&format!("processed:{date}")),
            of_queue(&format!("failed:{date}")),
            of_queue("processed"),
            of_queue("failed"),
        ];
        let words = vec![id.to_owned(), of_queue("t:")];
        seen.jobs.push(HeldJob { key, worker, queue: queue.clone(), keys, words });
    }
}

/// The type of a task: field 1 of its message, which is in the format of Protocol Buffers.
fn type_of(message: &[u8]) -> Option<String> {
    let mut rest = message;
    loop {
        let tag = varint(&mut rest)?;
        let length = match tag & 7 {
            0 => {
                varint(&mut rest)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut rest)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, after) = rest.split_at_checked(length)?;
        if tag == (1 << 3 | 2) {
            return String::from_utf8(value.to_vec()).ok();
        }
        rest = after;
    }
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The day in UTC, as asynq's counters have it: 2026-11-18.
fn day(now_ms: u64) -> String {
    let at = i64::try_from(now_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or(String::new(), |at| at.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_task_is_read_wherever_it_stands() {
        assert_eq!(type_of(b"\x0a\x04send\x12\x02\0\xff").as_deref(), Some("send"));
        assert_eq!(type_of(b"\x28\x96\x01\x12\x02\0\xff\x0a\x04send").as_deref(), Some("send"));
        assert_eq!(type_of(b"\x12\x05\0"), None);
        assert_eq!(type_of(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }

    #[test]
    fn days_are_written_as_asynq_writes_them() {
        assert_eq!(day(1_795_012_423_000), "2026-11-18");
    }
}
