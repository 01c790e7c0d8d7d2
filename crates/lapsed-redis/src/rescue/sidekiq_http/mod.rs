//! HTTP requests of Sidekiq jobs: the gem `sidekiq-async_http`, and its successor `patient_http-sidekiq`.
//!
//! The gem registers each request itself, with its last heartbeat, so that its jobs are put back by the system of adopted jobs
//! (`crate::inflight`, `AdoptedInflightLayout`), which observes first. This profile recognises the keys and counts what they show.

use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::inflight::{HEARTBEAT_INTERVAL_MS, ORPHAN_THRESHOLD_MS};
use lapsed_core::{Name, Result};
use serde::Deserialize;

use super::RescueLayout;
use super::profile::{HeldJob, LookRequest, Profile, ProfileFacts, Seen};
use super::reader::Reader;
use crate::script;

pub(super) static ASYNC_HTTP: ProfileFacts = facts("sidekiq-async-http", "sidekiq-async_http");

pub(super) static PATIENT_HTTP: ProfileFacts =
    facts("sidekiq-patient-http", "patient_http-sidekiq");

/// With the gem's own defaults.
const fn facts(name: &'static str, title: &'static str) -> ProfileFacts {
    ProfileFacts {
        name,
        title,
        limit: Duration::from_millis(ORPHAN_THRESHOLD_MS),
        grace: Duration::from_millis(HEARTBEAT_INTERVAL_MS),
        script: &script::INFLIGHT_ADOPT_RECLAIM,
        keys: 0,
        words: 0,
        shows_workers: false,
        own_recovery: "the gem's own collector puts them back while a process of it lives, and loses a job if it is killed between two steps",
        must_watch: false,
        no_delay: Some("the gem has no delayed requests. Use on_death = \"back\""),
        no_class: Some("requests of the gem have no class of their own. Use crashes_max"),
    }
}

pub(super) fn open_async_http(_: &RescueLayout) -> Box<dyn Profile> {
    Box::new(SidekiqHttp { facts: &ASYNC_HTTP, prefix: "sidekiq:async_http:" })
}

pub(super) fn open_patient_http(_: &RescueLayout) -> Box<dyn Profile> {
    Box::new(SidekiqHttp { facts: &PATIENT_HTTP, prefix: "sidekiq:patient_http:" })
}

struct SidekiqHttp {
    facts: &'static ProfileFacts,
    prefix: &'static str,
}

/// What matters of a job.
#[derive(Deserialize)]
struct Head {
    queue: String,
}

#[async_trait]
impl Profile for SidekiqHttp {
    fn facts(&self) -> &'static ProfileFacts {
        self.facts
    }

    fn may_be_key(&self, _: &[u8]) -> bool {
        false
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let (index, jobs) = (self.key("inflight_index"), self.key("inflight_jobs"));
        if reader.kind(index.as_bytes()).await? != "zset" {
            return Ok(None);
        }
        let (now_ms, limit_ms) = (reader.now_ms().await?, request.limit.as_millis() as u64);
        let scores = reader.scores(index.as_bytes(), "-inf", "+inf").await?;
        let has_jobs = reader.kind(jobs.as_bytes()).await? == "hash";
        let mut seen = Seen { examined: scores.len() as u64, ..Seen::default() };
        if has_jobs {
            seen.in_flight = reader.one("HLEN", &[jobs.as_bytes()]).await?;
        }
        let mut silent = Vec::new();
        for (id, score) in scores {
            let Ok(id) = Name::from_bytes(&id) else { continue };
            let (worker, due_ms) = (process_of(&id), to_ms(score) + limit_ms);
            let one = seen.workers.entry(worker.clone()).or_default();
            one.held += 1;
            one.due_ms = one.due_ms.max(due_ms);
            one.is_silent = one.due_ms <= now_ms;
            silent.push((id, worker));
        }
        self.spare_living(reader, &mut seen).await?;
        silent.retain(|(_, worker)| has_jobs && seen.workers[worker].is_silent);
        self.add_jobs(reader, jobs, silent, &mut seen).await?;
        Ok(Some(seen))
    }
}

impl SidekiqHttp {
    fn key(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }

    /// Newer versions keep a key of each process for as long as it lives.
    async fn spare_living(&self, reader: &Reader<'_>, seen: &mut Seen) -> Result<()> {
        let names: Vec<Name> = seen.workers.keys().cloned().collect();
        let key = |name: &Name| self.key(&format!("processes:{name}:max_connections")).into_bytes();
        let asked: Vec<Vec<Vec<u8>>> = names.iter().map(|name| vec![key(name)]).collect();
        let alive: Vec<Option<u64>> = reader.each("EXISTS", &asked).await?;
        for (name, _) in names.iter().zip(alive).filter(|(_, alive)| *alive == Some(1)) {
            seen.workers.entry(name.clone()).or_default().is_silent = false;
        }
        Ok(())
    }

    /// The jobs of silent processes. An entry without a job is none.
    async fn add_jobs(
        &self,
        reader: &Reader<'_>,
        jobs: String,
        silent: Vec<(Name, Name)>,
        seen: &mut Seen,
    ) -> Result<()> {
        let asked: Vec<Vec<Vec<u8>>> = silent
            .iter()
            .map(|(id, _)| vec![jobs.clone().into_bytes(), id.as_str().as_bytes().to_vec()])
            .collect();
        let payloads: Vec<Option<Option<Vec<u8>>>> = reader.each("HGET", &asked).await?;
        for ((key, worker), payload) in silent.into_iter().zip(payloads) {
            let head = payload.flatten().and_then(|job| serde_json::from_slice::<Head>(&job).ok());
            let Some(queue) = head.and_then(|head| Name::new(&head.queue).ok()) else { continue };
            seen.queues.entry(queue.clone()).or_default();
            seen.jobs.push(HeldJob { key, worker, queue, keys: Vec::new(), words: Vec::new() });
        }
        Ok(())
    }
}

/// Requests are called `PROCESS/REQUEST`, or by the request alone.
fn process_of(id: &Name) -> Name {
    let process = id.as_str().rsplit_once('/').and_then(|(process, _)| Name::new(process).ok());
    process.unwrap_or_else(|| id.clone())
}

/// A time as the gem writes it: milliseconds, or seconds. Whole seconds may have been cut off.
fn to_ms(score: f64) -> u64 {
    const MILLISECONDS_FROM: f64 = 1e11;
    let ms = match score {
        ms if ms >= MILLISECONDS_FROM => ms,
        seconds if seconds.fract() == 0.0 => (seconds + 1.0) * 1_000.0,
        seconds => (seconds * 1_000.0).ceil(),
    };
    ms.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_or_seconds() {
        assert_eq!(to_ms(1_795_000_000_123.0), 1_795_000_000_123);
        assert_eq!(to_ms(1_795_000_000.0), 1_795_000_001_000);
        assert_eq!(to_ms(1_795_000_000.5), 1_795_000_000_500);
        assert_eq!(to_ms(-1.0), 0);
        let id = Name::new("vm:12:ab/r-1").unwrap();
        assert_eq!(process_of(&id).as_str(), "vm:12:ab");
    }
}
