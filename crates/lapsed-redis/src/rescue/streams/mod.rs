//! Streams of Redis that are read through a consumer group, whatever program reads them.
//!
//! An entry is an orphan when its consumer is dead: its heartbeat key has been missing, and it has called nothing for its group, for
//! the limit; or, without such a key, both the consumer and the entry have been idle for the limit. A long job looks idle, so that the limit must be longer than
//! the longest job unless there is a heartbeat key.
//!
//! XAUTOCLAIM is not used: it would make lapsed the consumer of entries that others are to work on. Pending entries are read in pages
//! with XPENDING instead, and an orphan is added to the stream again. Streams with several groups are refused for that reason.

mod drift;

use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::{Error, Name, Result};
use redis::FromRedisValue;

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    DriftPage, DriftRequest, HeldJob, LookRequest, Profile, ProfileFacts, Seen, SeenWorker,
};
use super::reader::Reader;
use crate::script::{Script, rescue_script};

static PUT_BACK: Script = rescue_script!("rescue_streams", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`STREAM:dead`",
    retried_by: None,
    deleted_by: Some("`XDEL STREAM:dead ID`"),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_streams_letters", "letters.lua");

/// Ten minutes is what taskiq waits, too.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "streams",
    title: "Redis streams",
    limit: Duration::from_secs(600),
    grace: Duration::from_secs(30),
    script: &PUT_BACK,
    keys: 2,
    words: 4,
    shows_workers: true,
    own_recovery: "Redis itself never gives them to another consumer; only a program that calls XCLAIM or XAUTOCLAIM does",
    must_watch: false,
    no_delay: Some("a stream has no place for entries that wait. Use on_death = \"back\""),
    no_class: Some(
        "the entries of a stream have no class that every program writes in the same way. Use crashes_max",
    ),
};

/// How many pending entries one call asks for, and how many one look reads of a group.
const PAGE: usize = 500;
const PENDING_MAX: usize = 100_000;

/// What a heartbeat key has in the place of the consumer's name.
const CONSUMER: &str = "{consumer}";

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    Box::new(Streams {
        named: layout.queues.iter().cloned().collect(),
        heartbeat_key: layout.heartbeat_key.clone(),
        limit_ms: layout.limit.unwrap_or(FACTS.limit).as_millis() as u64,
    })
}

struct Streams {
    named: Vec<Name>,
    /// With `{consumer}` in the place of the name.
    heartbeat_key: Option<String>,
    limit_ms: u64,
}

/// A group, as XINFO GROUPS has it.
struct Group {
    name: String,
    pending: u64,
    lag: u64,
}

/// A consumer, as XINFO CONSUMERS has it.
struct Consumer {
    name: String,
    pending: u64,
    idle_ms: u64,
}

#[async_trait]
impl Profile for Streams {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    fn may_be_key(&self, _: &[u8]) -> bool {
        // A stream is known by its type only, which `look` asks the server for.
        false
    }

    fn drift_subject(&self) -> &'static str {
        "its pending entries and the consumers of its groups"
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        if self.named.is_empty() && request.own.is_some() {
            return Err(Error::Unsupported {
                operation: "rescuing entries of every stream: name the streams in `queues`"
                    .to_owned(),
                store: reader.connection.place.to_string(),
            });
        }
        let streams = match self.named.is_empty() {
            true => self.scan(reader).await?,
            false => self.named.clone(),
        };
        let mut seen = Seen { silence_is_noticed: self.heartbeat_key.is_some(), ..Seen::default() };
        let now_ms = reader.now_ms().await?;
        let mut is_there = false;
        for stream in &streams {
            is_there |= self.look_at(reader, stream, request, now_ms, &mut seen).await?;
        }
        Ok(is_there.then_some(seen))
    }
}

fn word(text: impl ToString) -> Vec<u8> {
    text.to_string().into_bytes()
}

/// The value of a field in an answer that lists names and values in turn.
fn field<T: FromRedisValue>(row: &[redis::Value], name: &str) -> Option<T> {
    let mut pairs = row.chunks_exact(2);
    let found = pairs
        .find(|pair| String::from_redis_value(pair[0].clone()).is_ok_and(|found| found == name))?;
    T::from_redis_value(found[1].clone()).ok()
}

impl Streams {
    /// Every stream of the server but lapsed's own. Only `detect` asks for it.
    async fn scan(&self, reader: &Reader<'_>) -> Result<Vec<Name>> {
        let mut found = Vec::new();
        reader
            .scan_type("stream", u64::MAX, |key| {
                if !key.starts_with(b"lapsed:") {
                    found.extend(Name::from_bytes(key));
                }
            })
            .await?;
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// False: nobody reads this stream through a group.
    async fn look_at(
        &self,
        reader: &Reader<'_>,
        stream: &Name,
        request: LookRequest<'_>,
        now_ms: u64,
        seen: &mut Seen,
    ) -> Result<bool> {
        if reader.kind(stream.as_str().as_bytes()).await? != "stream" {
            return Ok(false);
        }
        let groups = self.groups(reader, stream).await?;
        if groups.is_empty() || (self.named.is_empty() && groups.iter().all(|g| g.pending == 0)) {
            return Ok(false);
        }
        if groups.len() > 1 {
            let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
            seen.notes.push(format!(
                "stream `{stream}` has several groups ({}) and is left alone: an entry that is added again would reach all of them",
                names.join(", ")
            ));
        }
        seen.queues.insert(stream.clone(), groups.iter().map(|group| group.lag).sum());
        seen.in_flight += groups.iter().map(|group| group.pending).sum::<u64>();
        let is_shared = groups.len() > 1;
        for group in groups.iter().filter(|group| group.pending > 0 && !is_shared) {
            self.look_at_group(reader, stream, group, request, now_ms, seen).await?;
        }
        Ok(true)
    }

    async fn groups(&self, reader: &Reader<'_>, stream: &Name) -> Result<Vec<Group>> {
        let rows: Vec<Vec<redis::Value>> =
            reader.one("XINFO", &[b"GROUPS", stream.as_str().as_bytes()]).await?;
        let group = |row: Vec<redis::Value>| {
            Some(Group {
                name: field(&row, "name")?,
                pending: field(&row, "pending")?,
                lag: field::<Option<u64>>(&row, "lag").flatten().unwrap_or(0),
            })
        };
        Ok(rows.into_iter().filter_map(group).collect())
    }

    async fn consumers(
        &self,
        reader: &Reader<'_>,
        stream: &Name,
        group: &Group,
    ) -> Result<Vec<Consumer>> {
        let args: [&[u8]; 3] = [b"CONSUMERS", stream.as_str().as_bytes(), group.name.as_bytes()];
        let rows: Vec<Vec<redis::Value>> = reader.one("XINFO", &args).await?;
        let consumer = |row: Vec<redis::Value>| {
            let (name, pending) = (field(&row, "name")?, field(&row, "pending")?);
            Some(Consumer { name, pending, idle_ms: field(&row, "idle")? })
        };
        Ok(rows.into_iter().filter_map(consumer).collect())
    }

    fn heartbeat_of(&self, consumer: &str) -> String {
        self.heartbeat_key.as_ref().map_or(String::new(), |key| key.replace(CONSUMER, consumer))
    }

    async fn look_at_group(
        &self,
        reader: &Reader<'_>,
        stream: &Name,
        group: &Group,
        request: LookRequest<'_>,
        now_ms: u64,
        seen: &mut Seen,
    ) -> Result<()> {
        let consumers = self.consumers(reader, stream, group).await?;
        seen.examined += consumers.len() as u64;
        let asked: Vec<Vec<Vec<u8>>> =
            consumers.iter().map(|one| vec![word(self.heartbeat_of(&one.name))]).collect();
        let beats: Vec<Option<u64>> = match self.heartbeat_key {
            Some(_) => reader.each("EXISTS", &asked).await?,
            None => vec![None; consumers.len()],
        };
        let limit_ms = request.limit.as_millis() as u64;
        for (consumer, beat) in consumers.iter().zip(beats) {
            let is_silent = match beat {
                Some(beat) => beat == 0,
                None => self.heartbeat_key.is_none() && consumer.idle_ms >= limit_ms,
            };
            let name = format!("{stream}/{}/{}", group.name, consumer.name);
            let Ok(worker) = Name::new(&name) else { continue };
            if is_silent && consumer.pending == 0 {
                continue;
            }
            let due_ms = (now_ms + limit_ms).saturating_sub(consumer.idle_ms);
            let (held, active_until_ms) = (consumer.pending, due_ms);
            let one =
                SeenWorker { due_ms, held, is_silent, active_until_ms, ..SeenWorker::default() };
            seen.workers.insert(worker.clone(), one);
            if is_silent && due_ms <= now_ms {
                self.add_pending(reader, stream, group, consumer, &worker, limit_ms, seen).await?;
            }
        }
        Ok(())
    }

    /// What a silent consumer holds, in pages.
    #[allow(clippy::too_many_arguments)]
    async fn add_pending(
        &self,
        reader: &Reader<'_>,
        stream: &Name,
        group: &Group,
        consumer: &Consumer,
        worker: &Name,
        limit_ms: u64,
        seen: &mut Seen,
    ) -> Result<()> {
        let idle_ms = if self.heartbeat_key.is_some() { 0 } else { limit_ms };
        let (idle, count) = (idle_ms.to_string(), PAGE.to_string());
        let (mut from, mut read) = ("-".to_owned(), 0);
        loop {
            let args: [&[u8]; 8] = [
                stream.as_str().as_bytes(),
                group.name.as_bytes(),
                b"IDLE",
                idle.as_bytes(),
                from.as_bytes(),
                b"+",
                count.as_bytes(),
                consumer.name.as_bytes(),
            ];
            let page: Vec<(String, Vec<u8>, u64, u64)> = reader.one("XPENDING", &args).await?;
            for (id, ..) in &page {
                let Ok(key) = Name::new(&format!("{stream}/{}/{id}", group.name)) else { continue };
                let heartbeat = self.heartbeat_of(&consumer.name);
                seen.jobs.push(HeldJob {
                    key,
                    worker: worker.clone(),
                    queue: stream.clone(),
                    keys: vec![stream.to_string(), format!("{stream}:dead")],
                    words: vec![id.clone(), group.name.clone(), consumer.name.clone(), heartbeat],
                });
            }
            read += page.len();
            seen.examined += page.len() as u64;
            match page.last() {
                Some((id, ..)) if page.len() == PAGE && read < PENDING_MAX => {
                    from = format!("({id}");
                }
                _ => return Ok(()),
            }
        }
    }
}
