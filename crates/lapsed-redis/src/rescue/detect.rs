//! Which foreign job systems a server carries, which of their workers are dead, and what nobody will run.
//!
//! Leaves every key as it is: one walk through the names of the keys, in pages, and then one look for each system. Workers
//! of Celery can only be asked, so that their look adds a reply queue and removes it again.

use lapsed_core::sweep::PassMode;
use lapsed_core::{Error, Result};
use serde::Serialize;

use super::profile::{BehindPrefix, LookRequest, Profile, Seen};
use super::profiles::open_all;
use super::reader::Reader;
use crate::Redis;

/// How much `detect` may read.
#[derive(Clone, Copy, Debug)]
pub struct DetectOptions {
    /// The walk through the keyspace ends after so many keys.
    pub keys_max: u64,
}

impl Default for DetectOptions {
    fn default() -> Self {
        DetectOptions { keys_max: 50_000_000 }
    }
}

/// One foreign job system that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundSystem {
    /// The word for `preset` in the configuration.
    pub preset: String,
    /// What stands before its keys, for `prefix` in the configuration; `None`: what is usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// As its keys tell it; empty if they do not.
    pub version: String,
    pub queues: Vec<String>,
    pub in_flight: u64,
    pub workers_alive: u64,
    pub workers_dead: u64,
    /// Jobs in flight whose worker is dead.
    pub orphans: u64,
    /// How long the worker of the oldest orphan has been dead, in milliseconds; where no key tells, how long ago it began with the
    /// job; 0: unknown.
    pub oldest_ms: u64,
    /// What an operator should know.
    pub notes: Vec<String>,
}

/// The foreign job systems that a server carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detected {
    /// The address without user and password.
    pub store: String,
    pub found: Vec<FoundSystem>,
}

impl Redis {
    /// Looks for foreign job systems. `progress` is called with the number of keys seen and the number of keys in all.
    pub async fn detect(
        &self,
        options: DetectOptions,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Detected> {
        let store = self.address().place();
        if self.is_cluster() {
            return Err(Error::Unsupported { operation: "detect".to_owned(), store });
        }
        let reader = Reader { connection: self.connection(), clock: &**self.clock() };
        let profiles = open_all();
        let behind = self.learn_keys(&reader, &profiles, options, progress).await?;
        let mut found = Vec::new();
        let usual = profiles.iter().map(|profile| (None, profile));
        let mut all: Vec<_> =
            usual.chain(behind.iter().map(|(prefix, one)| (Some(prefix.clone()), one))).collect();
        // In the order of the documentation; those behind a prefix after the usual one.
        let rank = |name| profiles.iter().position(|one| one.facts().name == name);
        all.sort_by_key(|(_, profile)| rank(profile.facts().name));
        for (prefix, profile) in all {
            let facts = profile.facts();
            let request = LookRequest { limit: facts.limit, act: PassMode::DryRun, own: None };
            match profile.look(&reader, request).await {
                Ok(Some(seen)) => {
                    let now_ms = reader.now_ms().await?;
                    let one = describe(&**profile, &reader, seen, now_ms).await?;
                    found.push(FoundSystem { prefix, ..one });
                }
                Ok(None) => {}
                Err(Error::Unsupported { operation, .. }) => found.push(FoundSystem {
                    preset: facts.name.to_owned(),
                    prefix,
                    version: "unknown".to_owned(),
                    queues: Vec::new(),
                    in_flight: 0,
                    workers_alive: 0,
                    workers_dead: 0,
                    orphans: 0,
                    oldest_ms: 0,
                    notes: vec![format!("refused: {operation}")],
                }),
                Err(error) => return Err(error),
            }
        }
        Ok(Detected { store, found })
    }

    async fn learn_keys(
        &self,
        reader: &Reader<'_>,
        profiles: &[Box<dyn Profile>],
        options: DetectOptions,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Vec<BehindPrefix>> {
        let total: u64 = reader.one("DBSIZE", &[]).await?;
        let mut hints: Vec<Vec<Vec<u8>>> = vec![Vec::new(); profiles.len()];
        let mut seen = 0;
        reader
            .scan(None, options.keys_max, |key| {
                seen += 1;
                if seen % 10_000 == 0 {
                    progress(seen, total);
                }
                for (profile, names) in profiles.iter().zip(&mut hints) {
                    if profile.may_be_key(key) {
                        names.push(key.to_vec());
                    }
                }
            })
            .await?;
        progress(seen, total);
        let learned = profiles.iter().zip(&hints);
        Ok(learned.flat_map(|(profile, names)| profile.learn(names)).collect())
    }
}

/// Of how many orphans the age is asked for, where the system's keys do not tell since when their workers are dead.
const AGES_MAX: usize = 1_000;

async fn describe(
    profile: &dyn Profile,
    reader: &Reader<'_>,
    seen: Seen,
    now_ms: u64,
) -> Result<FoundSystem> {
    let facts = profile.facts();
    let is_dead = |name| {
        let worker = seen.workers.get(name);
        worker.is_none_or(|worker| {
            worker.is_silent && (seen.silence_is_noticed || worker.due_ms <= now_ms)
        })
    };
    let orphans: Vec<_> = seen.jobs.iter().filter(|job| is_dead(&job.worker)).collect();
    let since = |job: &&super::profile::HeldJob| {
        seen.workers.get(&job.worker).map_or(0, |worker| now_ms.saturating_sub(worker.due_ms))
    };
    let mut dead: Vec<_> = orphans.iter().map(|job| &job.worker).collect();
    dead.sort();
    dead.dedup();
    let mut notes = seen.notes.clone();
    if !orphans.is_empty() || facts.must_watch {
        notes.push(facts.own_recovery.to_owned());
    }
    let mut oldest_ms = orphans.iter().map(since).max().unwrap_or(0);
    if oldest_ms == 0 || seen.silence_is_noticed {
        let some = &orphans[..orphans.len().min(AGES_MAX)];
        let began = profile.began(reader, some).await?;
        let ages = began.into_iter().flatten().map(|began| now_ms.saturating_sub(began));
        oldest_ms = ages.max().unwrap_or(oldest_ms);
    }
    Ok(FoundSystem {
        preset: facts.name.to_owned(),
        prefix: None,
        version: seen.version.clone(),
        queues: seen.queues.keys().map(ToString::to_string).collect(),
        in_flight: seen.in_flight,
        workers_alive: seen.workers.values().filter(|worker| !worker.is_silent).count() as u64,
        workers_dead: dead.len() as u64,
        orphans: orphans.len() as u64,
        oldest_ms,
        notes,
    })
}
