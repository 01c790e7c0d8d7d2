//! Sidekiq 6.1 to 8 on Redis. Tested with 6.4.1; 6.5 to 8 by their layout. At least once, for jobs that a heartbeat has shown.
//!
//! A process pops a job off its queue and keeps it in memory. Every 5 s (10 s from 7.0) its heartbeat writes what each thread
//! runs to `ID:workers` (`ID:work` from 6.5) and renews `ID`; both live for 60 s. Sidekiq takes a process for dead when `ID`
//! is gone, and then nobody knows what it ran. So lapsed copies that picture while the process lives (`copy.lua`), and puts the
//! jobs of the last picture back when `ID` is gone (`put_back.lua`), unless they are found elsewhere (`search.rs`).
//!
//! What the last picture does not know:
//! - a job that was started after the last heartbeat is lost;
//! - a job that ended after the last heartbeat is run a second time. `seen = 2` leaves out jobs that only one heartbeat has shown.
//!
//! An orderly end must not be taken for a death. Sidekiq then pushes its jobs back itself, removes itself from `processes`
//! and deletes the picture, but leaves `ID` to expire. `ProcessSet#cleanup` of other processes also removes from
//! `processes`, but only after `ID` is gone. So:
//! - `ID` is there, the process is not in `processes`, and there is no picture: it ended in order, and its copy is removed. (If there is
//!   a picture, `cleanup` met the first heartbeat after an outage, or the end is not complete: the copy stays.)
//! - `ID` is gone, and somebody looked in the last 40 s: it is dead, whether it is in `processes` or not, because `ID` outlives an
//!   orderly end by 50 s at least and one of the looks would have seen it.
//! - `ID` is gone, nobody looked, and it is in `processes`: it is dead, but may have beaten after the copy. The receipt says so.
//! - `ID` is gone, nobody looked, and it is not in `processes`: nobody can tell. Its copy is removed, and a warning names it.
//!
//! A process that is killed after it has pushed its jobs back and before it has removed itself is taken for dead. Its jobs
//! are found on their queues, unless they have ended by then.
//!
//! Jobs on working lists (`reliable-fetch`, `lapsed_fetch`) are known exactly, and of such a process no picture is copied. Sidekiq
//! Pro's `super_fetch` recovers by itself and is refused. Payloads of Sidekiq 6.0 and older are refused, because they are
//! stored decoded and encoding them again would change them.

mod copies;
mod drift;
mod entry;
mod keys;
mod scene;
mod search;
mod whereabouts;
mod working;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::sweep::PassMode;
use lapsed_core::{Error, Name, Result};

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    BehindPrefix, DriftPage, DriftRequest, FoundJob, HeldJob, LookRequest, Profile, ProfileFacts,
    Seen,
};
use super::reader::Reader;
use crate::script::{Script, rescue_script};
use copies::{CopiedJob, Copies, Mark};
use entry::{class_of, class_of_entry};
use keys::Keys;
use scene::{Scene, as_identity, read_queues};
use search::Search;
use working::WorkingLists;

static PUT_BACK: Script = rescue_script!("rescue_sidekiq", "put_back.lua");

/// Which of a job's keys is its queue.
const QUEUE_KEY: usize = 5;

/// Which of them is lapsed's copy of what the process ran.
const COPY_KEY: usize = 3;

/// Which of them is the set of queues.
const QUEUES_KEY: usize = 6;

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`dead` of Sidekiq",
    retried_by: None,
    deleted_by: Some("`Sidekiq::DeadSet#find_job(JID).delete`, or Sidekiq's web page"),
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_sidekiq_letters", "letters.lua");

/// Sidekiq's own limit, by which its `ProcessSet#cleanup` and its Web UI judge, too. A living process writes its sign of life
/// again with its next heartbeat.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "sidekiq",
    title: "Sidekiq",
    limit: SIGN_OF_LIFE,
    grace: SIGN_OF_LIFE,
    script: &PUT_BACK,
    keys: 10,
    words: 6,
    shows_workers: true,
    own_recovery: "Sidekiq itself never puts them back: they are lost",
    must_watch: true,
    no_delay: None,
    no_class: None,
};

/// How long `ID` lives after a heartbeat.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// A job that was found nowhere is not looked for again for so long.
const SEARCH_EVERY_MS: u64 = 30_000;

const LOCK: &str = "no holder of this lock panics";

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    Box::new(Sidekiq {
        keys: Keys::new(layout.prefix.as_deref().unwrap_or_default()),
        is_configured: layout.prefix.is_some(),
        queues: layout.queues.clone(),
        shown_min: layout.seen.unwrap_or(1),
        ..Sidekiq::default()
    })
}

#[derive(Default)]
struct Sidekiq {
    keys: Keys,
    /// Whether the prefix is in the configuration. One that was only found may be that of something else.
    is_configured: bool,
    /// Only these queues; empty: all.
    queues: BTreeSet<Name>,
    /// How many heartbeats must have shown a job.
    shown_min: u8,
    working: Mutex<HashMap<String, Arc<WorkingLists>>>,
    /// Entries of copies that were found nowhere else, and when.
    searched: Mutex<HashMap<String, u64>>,
}

#[async_trait]
impl Profile for Sidekiq {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn can_move_jobs(&self) -> bool {
        true
    }

    /// Its keys begin as those of the job's own queue do.
    fn other_queue(&self, job: &HeldJob, queue: &Name) -> Option<String> {
        Some(format!("{}{queue}", job.keys[QUEUE_KEY].strip_suffix(job.queue.as_str())?))
    }

    fn read_whole<'a>(&self, job: &'a HeldJob) -> Option<(&'a str, Option<&'a str>)> {
        let is_copied = job.words[0] != "list";
        is_copied.then(|| (job.keys[COPY_KEY].as_str(), Some(job.words[2].as_str())))
    }

    fn may_be_key(&self, key: &[u8]) -> bool {
        key.ends_with(b":processes")
    }

    fn learn(&self, keys: &[Vec<u8>]) -> Vec<BehindPrefix> {
        let namespace = |key: &Vec<u8>| {
            Some(std::str::from_utf8(key).ok()?.strip_suffix(":processes")?.to_owned())
        };
        let found: BTreeSet<String> = keys.iter().filter_map(namespace).collect();
        let behind = |namespace: String| {
            let found = Sidekiq { keys: Keys::new(&namespace), shown_min: 1, ..Sidekiq::default() };
            (namespace, Box::new(found) as Box<dyn Profile>)
        };
        found.into_iter().filter(|namespace| !namespace.is_empty()).map(behind).collect()
    }

    fn delayed_keys(&self, job: &HeldJob, _: &Name) -> Vec<String> {
        let queues = &job.keys[QUEUES_KEY];
        let prefix = queues.strip_suffix("queues").unwrap_or_default();
        vec![format!("{prefix}schedule")]
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, reader: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        let asked: Vec<Vec<Vec<u8>>> = jobs
            .iter()
            .map(|job| {
                vec![job.keys[COPY_KEY].clone().into_bytes(), job.words[2].clone().into_bytes()]
            })
            .collect();
        let entries: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
        let class = |(job, entry): (&&HeldJob, Option<Option<String>>)| match job.words[0].as_str()
        {
            "list" => class_of(&job.words[3]),
            _ => class_of_entry(&entry.flatten()?),
        };
        Ok(jobs.iter().zip(entries).map(class).collect())
    }

    fn drift_subject(&self) -> &'static str {
        "the set of processes"
    }

    async fn find(&self, reader: &Reader<'_>, id: &str) -> Result<Option<FoundJob>> {
        whereabouts::find(reader, &self.keys, id).await
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let mut seen = Seen::default();
        let is_there = self.look_at(reader, &self.keys, request, &mut seen).await?;
        Ok(is_there.then_some(seen))
    }
}

impl Sidekiq {
    /// Whether the keys behind a prefix are Sidekiq's.
    async fn look_at(
        &self,
        reader: &Reader<'_>,
        keys: &Keys,
        request: LookRequest<'_>,
        seen: &mut Seen,
    ) -> Result<bool> {
        let kinds = [keys.key("processes"), keys.key("queues")].map(String::into_bytes);
        let (processes, queues) = (reader.kind(&kinds[0]).await?, reader.kind(&kinds[1]).await?);
        let mut ids = BTreeSet::new();
        if processes == "set" {
            ids.extend(reader.set(&kinds[0]).await?.into_iter().filter_map(as_identity));
        }
        let lengths =
            if queues == "set" { read_queues(reader, keys).await? } else { BTreeMap::new() };
        let has_lists = lengths.values().any(|length| length.is_some());
        let is_ours = match keys.prefix.is_empty() || self.is_configured {
            true => !ids.is_empty() || has_lists,
            false => !ids.is_empty() && queues == "set",
        };
        let copies = request.own.map(|own| Copies::new(own, keys));
        let marks = match &copies {
            Some(copies) => copies.marks(reader).await?,
            None => BTreeMap::new(),
        };
        if !is_ours && marks.is_empty() && !self.is_there_without_sets(reader, keys).await? {
            return Ok(false);
        }
        for (name, length) in lengths {
            seen.queues.insert(name, length.unwrap_or(0));
        }
        ids.extend(marks.keys().cloned());
        let scene = self.set_scene(reader, keys, request, &ids).await?;
        self.refuse_pro(&scene).await?;
        scene.read_living(seen).await?;
        if let Some(copies) = &copies {
            self.read_copies(&scene, copies, &ids, seen).await?;
        }
        self.read_lists(&scene, seen).await?;
        let mut keys_met = HashSet::new();
        seen.jobs.retain(|job| keys_met.insert(job.key.clone()));
        if request.own.is_none() {
            scene.advise(seen);
        }
        Ok(true)
    }

    /// A Sidekiq whose queues are empty and whose processes have ended.
    async fn is_there_without_sets(&self, reader: &Reader<'_>, keys: &Keys) -> Result<bool> {
        let (stats, queues) = (keys.key("stat:processed"), keys.key("queues"));
        Ok(reader.kind(stats.as_bytes()).await? == "string"
            && reader.kind(queues.as_bytes()).await? == "set")
    }

    async fn set_scene<'a>(
        &self,
        reader: &'a Reader<'a>,
        keys: &'a Keys,
        request: LookRequest<'a>,
        ids: &BTreeSet<String>,
    ) -> Result<Scene<'a>> {
        let now_ms = reader.now_ms().await?;
        let commands = |key: &dyn Fn(&str) -> String| -> Vec<Vec<Vec<u8>>> {
            ids.iter().map(|id| vec![key(id).into_bytes()]).collect()
        };
        let left: Vec<Option<i64>> = reader.each("PTTL", &commands(&|id| keys.key(id))).await?;
        let left = left.into_iter().map(|left| match left {
            Some(-2) | None => None,
            Some(-1) => Some(SIGN_OF_LIFE.as_millis() as u64),
            Some(left) => Some(left.max(0) as u64),
        });
        let processes: BTreeMap<String, Option<u64>> = ids.iter().cloned().zip(left).collect();
        let beats: Vec<Option<u64>> =
            reader.each("EXISTS", &commands(&|id| keys.heartbeat(id))).await?;
        let lock = keys.key("reliable-fetcher-cleanup-lock");
        let is_locked: u64 = reader.one("EXISTS", &[lock.as_bytes()]).await?;
        let in_use = is_locked > 0 || beats.iter().flatten().any(|there| *there > 0);
        let lives = processes.iter().map(|(id, left)| (id.clone(), left.is_some())).collect();
        let working = self.working_lists(keys);
        let known = working.known(reader, keys, lives, in_use, now_ms).await?;
        Ok(Scene { reader, keys, request, now_ms, processes, known })
    }

    fn working_lists(&self, keys: &Keys) -> Arc<WorkingLists> {
        self.working.lock().expect(LOCK).entry(keys.prefix.clone()).or_default().clone()
    }

    async fn refuse_pro(&self, scene: &Scene<'_>) -> Result<()> {
        let super_processes = scene.keys.key("super_processes");
        let there: u64 = scene.reader.one("EXISTS", &[super_processes.as_bytes()]).await?;
        if there == 0 && !scene.known.has_super_fetch {
            return Ok(());
        }
        Err(Error::Unsupported {
            operation: "rescuing jobs of Sidekiq Pro with super_fetch: it puts them back itself"
                .to_owned(),
            store: scene.reader.connection.place.to_string(),
        })
    }

    /// Renews the copies, and reads those of the dead.
    async fn read_copies(
        &self,
        scene: &Scene<'_>,
        copies: &Copies<'_>,
        ids: &BTreeSet<String>,
        seen: &mut Seen,
    ) -> Result<()> {
        let (reader, known) = (scene.reader, &scene.known);
        if scene.request.act == PassMode::Reclaim {
            let notes = copies.take(reader, ids, |id| known.is_exact(id), scene.now_ms).await?;
            seen.notes.extend(notes);
        }
        let mut held: Vec<(String, Mark, CopiedJob)> = Vec::new();
        for (id, mark) in copies.marks(reader).await? {
            if scene.processes.get(&id).is_some_and(Option::is_some) || known.is_exact(&id) {
                continue;
            }
            let (jobs, unreadable) = copies.read(reader, &id).await?;
            if unreadable > 0 {
                seen.notes.push(format!("{unreadable} jobs of `{id}` cannot be read"));
            }
            held.extend(jobs.into_iter().map(|job| (id.clone(), mark, job)));
        }
        // Of two entries with the same jid the other one waits for a later look, which finds the first on its queue.
        let mut keys = HashSet::new();
        held.retain(|(_, _, copied)| keys.insert(copied.job.key.clone()));
        if held.is_empty() {
            return Ok(());
        }
        let elsewhere = self.search(scene, &held, seen).await?;
        let (kept, left): (Vec<_>, Vec<_>) = held.into_iter().partition(|(_, _, copied)| {
            copied.shown >= self.shown_min
                && (self.queues.is_empty() || self.queues.contains(&copied.job.queue))
                && !copied.job.jid.as_ref().is_some_and(|jid| elsewhere.contains(jid))
        });
        for (id, mark, copied) in kept {
            scene.add_copied(copies, &id, mark, copied, seen);
        }
        if scene.request.act == PassMode::Reclaim {
            self.forget(scene, copies, left).await?;
        }
        Ok(())
    }

    async fn forget(
        &self,
        scene: &Scene<'_>,
        copies: &Copies<'_>,
        left: Vec<(String, Mark, CopiedJob)>,
    ) -> Result<()> {
        let mut by_process: BTreeMap<String, Vec<CopiedJob>> = BTreeMap::new();
        for (id, _, copied) in left {
            tracing::info!(process = id, job = %copied.job.key, shown = copied.shown,
                "a job of a dead Sidekiq process is not put back: it is elsewhere, or not wanted");
            by_process.entry(id).or_default().push(copied);
        }
        for (id, jobs) in by_process {
            copies.forget(scene.reader, &id, &jobs).await?;
        }
        Ok(())
    }

    /// Which of these jobs are somewhere else.
    async fn search(
        &self,
        scene: &Scene<'_>,
        held: &[(String, Mark, CopiedJob)],
        seen: &mut Seen,
    ) -> Result<HashSet<String>> {
        let jids: HashSet<String> = held.iter().filter_map(|(_, _, c)| c.job.jid.clone()).collect();
        let is_recent = |at: &u64| scene.now_ms < at + SEARCH_EVERY_MS;
        {
            let mut searched = self.searched.lock().expect(LOCK);
            searched.retain(|_, at| is_recent(at));
            if held.iter().all(|(id, _, copied)| searched.contains_key(&copied.place(id))) {
                return Ok(HashSet::new());
            }
        }
        let queues = held.iter().flat_map(|(_, _, copied)| {
            [Some(copied.job.queue.to_string()), copied.job.retry_queue.clone()]
        });
        let living = scene.processes.iter().filter(|(_, left)| left.is_some());
        let search = Search {
            jids,
            queues: queues.flatten().collect(),
            working_lists: scene.known.lists.iter().map(|list| scene.keys.working(list)).collect(),
            living: living.map(|(id, _)| id.clone()).collect(),
        };
        let found = search.run(scene.reader, scene.keys).await?;
        seen.examined += found.examined;
        for key in &found.cut {
            tracing::warn!(
                key,
                "too long to look for a job in all of it; the job is put back even if it is there"
            );
            seen.notes.push(format!("`{key}` is too long to look for a job in all of it"));
        }
        let mut searched = self.searched.lock().expect(LOCK);
        let is_found =
            |jid: &Option<String>| jid.as_ref().is_some_and(|jid| found.jids.contains(jid));
        let missing = held.iter().filter(|(_, _, copied)| !is_found(&copied.job.jid));
        searched.extend(missing.map(|(id, _, copied)| (copied.place(id), scene.now_ms)));
        Ok(found.jids)
    }

    /// Jobs on the working lists of the dead.
    async fn read_lists(&self, scene: &Scene<'_>, seen: &mut Seen) -> Result<()> {
        let working = self.working_lists(scene.keys);
        for list in working.dead(scene.reader, scene.keys, &scene.known).await? {
            for listed in working.jobs(scene.reader, scene.keys, &list).await? {
                scene.add_listed(&list, listed, seen);
            }
        }
        Ok(())
    }
}
