//! Which workers of RQ show a sign of life.
//!
//! A subscription that is gone proves a death only of a worker that had one. A worker whose user of Redis may not subscribe to channels works
//! without one, and so does one whose subscribing thread has ended. Such a worker still writes `last_heartbeat` into its record
//! every 30 s while it works and with each job that it takes. So lapsed notes with a silence what the record said, and the silence
//! begins anew when that changes. No clock of a worker is compared, except by a dry run, which notes nothing.

use std::collections::{BTreeSet, HashSet};

use lapsed_core::sweep::PassMode;
use lapsed_core::{Name, Result};

use super::{Execution, Rq, born_ms};
use crate::rescue::profile::{LookRequest, Seen, SeenWorker};
use crate::rescue::reader::Reader;

/// How many limits a worker may be without a subscription and without any other act, if it was never seen with one: 36 s, because a
/// worker of RQ writes its record every 30 s while it works.
const UNKNOWN_FOR: u64 = 6;

/// How far ahead of a worker's last act the deadline of its job may be, if the worker beats while it works, as `put_back.lua` has it.
const BEATS_MS: u64 = 92_000;

const LOCK: &str = "no holder of this lock panics";

/// What a worker says of itself, in RQ's notation of times; empty: its record has expired.
#[derive(Default)]
struct WorkerRecord {
    birth: String,
    current_job: String,
    last_heartbeat: String,
    /// The address of its connection, as `CLIENT LIST` has it.
    address: String,
}

impl WorkerRecord {
    /// Whether it is of a worker that was started after this execution, and has another job.
    fn is_another_than_of(&self, one: &Execution) -> bool {
        one.started_ms > 0 && born_ms(&self.birth) > one.started_ms && self.current_job != one.id
    }
}

async fn read_records(reader: &Reader<'_>, names: &BTreeSet<Name>) -> Result<Vec<WorkerRecord>> {
    let asked: Vec<Vec<Vec<u8>>> = names
        .iter()
        .map(|name| {
            [
                format!("rq:worker:{name}").as_str(),
                "birth",
                "current_job",
                "last_heartbeat",
                "ip_address",
            ]
            .map(|word| word.as_bytes().to_vec())
            .to_vec()
        })
        .collect();
    let records: Vec<Option<[Option<String>; 4]>> = reader.each("HMGET", &asked).await?;
    let read = |fields: Option<[Option<String>; 4]>| {
        let [birth, current_job, last_heartbeat, address] =
            fields.unwrap_or_default().map(Option::unwrap_or_default);
        WorkerRecord { birth, current_job, last_heartbeat, address }
    };
    Ok(records.into_iter().map(read).collect())
}

/// The addresses and names of all connections; `None`: this user may not see them.
async fn read_clients(reader: &Reader<'_>) -> Option<HashSet<String>> {
    let list: String = reader.one("CLIENT", &[b"LIST"]).await.ok()?;
    let words = list.split_whitespace();
    let known =
        |word: &str| word.strip_prefix("addr=").or(word.strip_prefix("name=")).map(str::to_owned);
    Some(words.filter_map(known).filter(|word| !word.is_empty()).collect())
}

impl Rq {
    /// Asks who is subscribed. False: this user or this server does not answer, and deadlines decide.
    pub(super) async fn ask_connections(
        &self,
        reader: &Reader<'_>,
        running: &[Execution],
        seen: &mut Seen,
        request: LookRequest<'_>,
    ) -> Result<bool> {
        let mut names: BTreeSet<Name> =
            running.iter().filter_map(|one| one.worker.clone()).collect();
        names.extend(seen.workers.keys().cloned());
        let asked: Vec<Vec<Vec<u8>>> = names
            .iter()
            .map(|name| vec![b"NUMSUB".to_vec(), format!("rq:pubsub:{name}").into_bytes()])
            .collect();
        let answers: Vec<Option<(Vec<u8>, u64)>> = reader.each("PUBSUB", &asked).await?;
        let has_pubsub = answers.iter().all(Option::is_some);
        let now_ms = reader.now_ms().await?;
        let records = read_records(reader, &names).await?;
        let clients = if request.act.reclaims() { None } else { read_clients(reader).await };
        self.subscribed.lock().expect(LOCK).retain(|name, _| names.contains(name));
        for ((name, record), answer) in names.into_iter().zip(&records).zip(answers) {
            let own = |one: &&Execution| one.worker.as_ref() == Some(&name);
            let own: Vec<&Execution> = running.iter().filter(own).collect();
            let subscribers = answer.map(|(_, subscribers)| subscribers);
            let worker = self.judge(&name, record, &own, subscribers, now_ms, request);
            let is_connected = clients.as_ref().is_none_or(|clients| {
                clients.contains(name.as_str()) || clients.contains(&record.address)
            });
            let is_silent = match subscribers {
                // Nothing is noted, so that only its connection and the time of its last act tell.
                Some(0) if request.act == PassMode::DryRun && is_connected => {
                    let limit_ms = worker.limit_ms.unwrap_or_default();
                    worker.is_silent && born_ms(&record.last_heartbeat) + limit_ms <= now_ms
                }
                _ => worker.is_silent,
            };
            let worker = SeenWorker { is_silent, ..worker };
            seen.workers.insert(name, worker);
        }
        if !has_pubsub {
            seen.silence_is_noticed = false;
            seen.notes.push("this user may not call PUBSUB, so that a dead worker is known only when the deadline of its job has passed (up to 90 s, or the job's timeout with SimpleWorker)".to_owned());
        }
        Ok(has_pubsub)
    }

    /// Whether a worker shows a sign of life. One that was never seen with a subscription may have none: its user of Redis may not
    /// subscribe, or its subscribing thread has ended. For it, the acts count that it notes in its record.
    fn judge(
        &self,
        name: &Name,
        record: &WorkerRecord,
        running: &[&Execution],
        subscribers: Option<u64>,
        now_ms: u64,
        request: LookRequest<'_>,
    ) -> SeenWorker {
        // A worker that was started later under the same name does not speak for the one before it, but the work horse of
        // that one may be the second who is subscribed.
        let is_another = running.iter().any(|one| record.is_another_than_of(one));
        let is_subscribed = subscribers.is_none_or(|count| count > u64::from(is_another));
        let mut known = self.subscribed.lock().expect(LOCK);
        if is_subscribed && subscribers.is_some() {
            known.insert(name.clone(), record.birth.clone());
        }
        let was_subscribed =
            known.get(name).is_some_and(|birth| record.birth.is_empty() || *birth == record.birth);
        let (mut limit_ms, mut is_silent) = (request.limit.as_millis() as u64, !is_subscribed);
        let acted_ms = born_ms(&record.last_heartbeat);
        if !was_subscribed && !is_another {
            limit_ms *= UNKNOWN_FOR;
            let does_not_beat = |one: &&&Execution| {
                acted_ms > 0
                    && one.deadline_ms > now_ms
                    && one.deadline_ms > acted_ms + BEATS_MS + 1_000
            };
            is_silent &= !running.iter().any(|one| does_not_beat(&one));
        }
        SeenWorker {
            due_ms: now_ms + limit_ms,
            is_silent,
            came_ms: born_ms(&record.birth),
            act: if is_another { &record.birth } else { &record.last_heartbeat }.clone(),
            limit_ms: Some(limit_ms),
            ..SeenWorker::default()
        }
    }
}
