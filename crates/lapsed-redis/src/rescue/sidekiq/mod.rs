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
mod entry;
mod keys;
mod search;
mod working;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::sweep::PassMode;
use lapsed_core::{Error, Name, Result};

use super::RescueLayout;
use super::profile::{HeldJob, LookRequest, Profile, ProfileFacts, Seen, SeenWorker};
use super::reader::Reader;
use crate::script::{Script, rescue_script};
use copies::{CopiedJob, Copies, Mark};
use keys::{Keys, WorkingList};
use search::Search;
use working::{Known, WorkingLists};

static PUT_BACK: Script = rescue_script!("rescue_sidekiq", "put_back.lua");

/// Sidekiq's own limit, by which its `ProcessSet#cleanup` and its Web UI judge, too. A living process writes its sign of life
/// again with its next heartbeat.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "sidekiq",
    title: "Sidekiq",
    limit: SIGN_OF_LIFE,
    grace: SIGN_OF_LIFE,
    script: &PUT_BACK,
    keys: 9,
    words: 6,
    shows_workers: true,
    own_recovery: "Sidekiq itself never puts them back: they are lost",
};

/// How long `ID` lives after a heartbeat.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// A job that was found nowhere is not looked for again for so long.
const SEARCH_EVERY_MS: u64 = 30_000;

const LOCK: &str = "no holder of this lock panics";

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    Box::new(Sidekiq {
        configured: layout.prefix.as_deref().map(Keys::new),
        queues: layout.queues.clone(),
        shown_min: layout.seen.unwrap_or(1),
        ..Sidekiq::default()
    })
}

#[derive(Default)]
struct Sidekiq {
    configured: Option<Keys>,
    /// Only these queues; empty: all.
    queues: BTreeSet<Name>,
    /// How many heartbeats must have shown a job.
    shown_min: u8,
    /// Namespaces that were found in the keyspace.
    found: Mutex<BTreeSet<Keys>>,
    working: Mutex<HashMap<String, std::sync::Arc<WorkingLists>>>,
    /// Jobs that were found nowhere, and when.
    searched: Mutex<HashMap<String, u64>>,
}

/// What the keys behind one prefix show.
struct Scene<'a> {
    reader: &'a Reader<'a>,
    keys: &'a Keys,
    request: LookRequest<'a>,
    now_ms: u64,
    /// Processes with how long their sign of life still lasts, in milliseconds; `None`: it is gone.
    processes: BTreeMap<String, Option<u64>>,
    known: Known,
}

#[async_trait]
impl Profile for Sidekiq {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn may_be_key(&self, key: &[u8]) -> bool {
        key.ends_with(b":processes")
    }

    fn learn(&self, keys: &[Vec<u8>]) {
        let namespace = |key: &Vec<u8>| {
            Some(Keys::new(std::str::from_utf8(key).ok()?.strip_suffix("processes")?))
        };
        *self.found.lock().expect(LOCK) = keys.iter().filter_map(namespace).collect();
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let mut seen = Seen::default();
        let mut is_there = false;
        for keys in self.namespaces() {
            is_there |= self.look_at(reader, &keys, request, &mut seen).await?;
        }
        Ok(is_there.then_some(seen))
    }
}

impl Sidekiq {
    fn namespaces(&self) -> BTreeSet<Keys> {
        match &self.configured {
            Some(one) => BTreeSet::from([one.clone()]),
            None => {
                let mut all = self.found.lock().expect(LOCK).clone();
                all.insert(Keys::new(""));
                all
            }
        }
    }

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
        let is_ours = match keys.prefix.is_empty() || self.configured.is_some() {
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

    fn working_lists(&self, keys: &Keys) -> std::sync::Arc<WorkingLists> {
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
            if jids.iter().all(|jid| searched.contains_key(jid)) {
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
        let missing = search.jids.iter().filter(|jid| !found.jids.contains(*jid));
        searched.extend(missing.map(|jid| (jid.clone(), scene.now_ms)));
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

impl Scene<'_> {
    /// The living, how many jobs they run, and which version they are of.
    async fn read_living(&self, seen: &mut Seen) -> Result<()> {
        let living: Vec<&String> =
            self.processes.iter().filter(|(_, left)| left.is_some()).map(|(id, _)| id).collect();
        let mut held = vec![0; living.len()];
        for (suffix, version) in [(":workers", "6.4 or older"), (":work", "6.5 or later")] {
            let command = |id: &&String| vec![self.keys.key(&format!("{id}{suffix}")).into_bytes()];
            let commands: Vec<Vec<Vec<u8>>> = living.iter().map(command).collect();
            let lengths: Vec<Option<u64>> = self.reader.each("HLEN", &commands).await?;
            for (sum, length) in held.iter_mut().zip(lengths) {
                *sum += length.unwrap_or(0);
                if length.unwrap_or(0) > 0 {
                    seen.version = version.to_owned();
                }
            }
        }
        if let Some(id) = living.first() {
            let info: Vec<Option<Option<String>>> = self
                .reader
                .each("HGET", &[vec![self.keys.key(id).into_bytes(), b"info".to_vec()]])
                .await?;
            let info = info.into_iter().flatten().flatten().next().unwrap_or_default();
            let info: serde_json::Value = serde_json::from_str(&info).unwrap_or_default();
            if let Some(version) = info.get("version").and_then(serde_json::Value::as_str) {
                seen.version = version.to_owned();
            }
        }
        seen.examined += self.processes.len() as u64;
        for (id, held) in living.into_iter().zip(held) {
            let due_ms = self.now_ms + self.processes[id].unwrap_or(0);
            seen.in_flight += held;
            if let Ok(name) = Name::new(id) {
                seen.workers.insert(name, SeenWorker { due_ms, held, ..SeenWorker::default() });
            }
        }
        Ok(())
    }

    fn add_copied(
        &self,
        copies: &Copies<'_>,
        id: &str,
        mark: Mark,
        copied: CopiedJob,
        seen: &mut Seen,
    ) {
        // A limit above Sidekiq's own makes lapsed wait longer. It cannot be shorter.
        let more_ms = self.request.limit.saturating_sub(SIGN_OF_LIFE).as_millis() as u64;
        let due_ms = mark.until_ms.min(self.now_ms) + more_ms;
        let sure = if mark.is_stale { 0 } else { copied.shown };
        let list = WorkingList { queue: copied.job.queue.to_string(), id: id.to_owned() };
        let own = [copies.marks_key(), copies.copy_key(id)];
        let words = ["copy", id, &copied.thread, &copied.sha1];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend([due_ms.to_string(), sure.to_string()]);
        let (key, queue) = (copied.job.key, copied.job.queue);
        self.add(key, queue, &list, own, words, due_ms, seen);
    }

    fn add_listed(&self, list: &WorkingList, listed: working::ListedJob, seen: &mut Seen) {
        let own = match self.request.own {
            Some(own) => {
                let copies = Copies::new(own, self.keys);
                [copies.marks_key(), copies.copy_key(&list.id)]
            }
            None => [String::new(), String::new()],
        };
        let words = ["list", &list.id, "", &listed.payload, &self.now_ms.to_string(), ""];
        let words = words.map(str::to_owned).to_vec();
        self.add(listed.job.key, listed.job.queue, list, own, words, self.now_ms, seen);
    }

    #[allow(clippy::too_many_arguments)]
    fn add(
        &self,
        key: Name,
        queue: Name,
        list: &WorkingList,
        own: [String; 2],
        words: Vec<String>,
        due_ms: u64,
        seen: &mut Seen,
    ) {
        let Ok(worker) = Name::new(&list.id) else { return };
        // Of two entries with the same jid the other one comes up in a later look.
        if seen.jobs.iter().any(|job| job.key == key) {
            return;
        }
        let [marks, copy] = own;
        let keys = vec![
            self.keys.key(&list.id),
            self.keys.heartbeat(&list.id),
            marks,
            copy,
            self.keys.working(list),
            self.keys.queue(queue.as_str()),
            self.keys.key("queues"),
            self.keys.key("dead"),
            self.keys.key("processes"),
        ];
        seen.in_flight += 1;
        let one = seen.workers.entry(worker.clone()).or_default();
        (one.due_ms, one.is_silent) = (due_ms, true);
        one.held += 1;
        seen.jobs.push(HeldJob { key, worker, queue, keys, words });
    }

    /// What `detect` says to somebody who does not use lapsed yet.
    fn advise(&self, seen: &mut Seen) {
        let dead = self.processes.values().filter(|left| left.is_none()).count();
        if dead > 0 {
            seen.notes.push(format!(
                "{dead} processes died: what they ran is lost, because nobody copied it while they lived"
            ));
        }
        let at_risk =
            self.processes.iter().any(|(id, left)| left.is_some() && !self.known.is_exact(id));
        if at_risk {
            seen.notes.push(
                "a job whose process is killed is lost by Sidekiq. lapsed must be running before that: it copies what runs while the process lives"
                    .to_owned(),
            );
        }
    }
}

/// `HOST:PID:HEX`; what else may be in a set called `processes` is not Sidekiq's.
fn as_identity(member: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(member).ok()?;
    let mut parts = text.rsplitn(3, ':');
    let (hex, pid) = (parts.next()?, parts.next()?);
    let is_ours = parts.next().is_some_and(|host| !host.is_empty())
        && !hex.is_empty()
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
        && !pid.is_empty()
        && pid.bytes().all(|b| b.is_ascii_digit());
    (is_ours && Name::new(&text).is_ok()).then_some(text)
}

/// The queues with how many jobs wait; `None` for one that has no list at this moment.
async fn read_queues(reader: &Reader<'_>, keys: &Keys) -> Result<BTreeMap<Name, Option<u64>>> {
    let names = reader.set(keys.key("queues").as_bytes()).await?;
    let names: Vec<Name> = names.iter().filter_map(|name| Name::from_bytes(name).ok()).collect();
    let command = |name: &Name| vec![keys.queue(name.as_str()).into_bytes()];
    let commands: Vec<Vec<Vec<u8>>> = names.iter().map(command).collect();
    let lengths: Vec<Option<u64>> = reader.each("LLEN", &commands).await?;
    let lengths = lengths.into_iter().map(|length| length.filter(|length| *length > 0));
    Ok(names.into_iter().zip(lengths).collect())
}
