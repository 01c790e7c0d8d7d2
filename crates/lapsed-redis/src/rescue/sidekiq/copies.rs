//! Copies of what heartbeats showed, kept in lapsed's own keys, so that several daemons and single commands share them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use lapsed_core::Result;

use super::entry::{SeenJob, read_entry, sha1};
use super::keys::Keys;
use crate::names::Prefix;
use crate::prelude::begin;
use crate::rescue::reader::Reader;
use crate::script::{PRELUDE, Script};

macro_rules! own_script {
    ($name:literal, $file:literal) => {
        Script {
            name: $name,
            body: include_str!($file),
            inner: LazyLock::new(|| {
                let text = begin(&[PRELUDE], include_str!($file));
                let sha = sha1(&text);
                (text, sha)
            }),
        }
    };
}

static COPY: Script = own_script!("rescue_sidekiq_copy", "copy.lua");
static FORGET: Script = own_script!("rescue_sidekiq_forget", "forget.lua");

/// A process with more is not copied. A process runs 5 to 50 jobs at a time.
const JOBS_MAX: usize = 1_000;
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// How many processes one call copies.
const PROCESSES: usize = 5;

/// After a longer pause between two looks, an orderly end may have been missed: the last heartbeat before it keeps ID for 60 s, and
/// was at most 10 s old. The rest is for a busy host.
const WATCH_GAP_MS: u64 = 40_000;

/// Reads and writes the copies, which are keys of lapsed's own.
pub(super) struct Copies<'a> {
    own: &'a Prefix,
    keys: &'a Keys,
}

/// When the sign of life of a process expires, and whether the copy may be older than its last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub until_ms: u64,
    pub is_stale: bool,
}

/// A job in the copy of a dead process.
#[derive(Clone, Debug)]
pub(super) struct CopiedJob {
    pub thread: String,
    pub sha1: String,
    /// How many heartbeats showed it: 1, or 2 for two or more.
    pub shown: u8,
    pub job: SeenJob,
}

impl CopiedJob {
    /// What distinguishes it from every other entry of every copy.
    pub fn place(&self, id: &str) -> String {
        format!("{id} {} {}", self.thread, self.sha1)
    }
}

impl<'a> Copies<'a> {
    pub fn new(own: &'a Prefix, keys: &'a Keys) -> Copies<'a> {
        Copies { own, keys }
    }

    /// Of every namespace there may be copies.
    fn key(&self, what: &str) -> String {
        self.own.key(&format!("{}{what}", self.keys.prefix))
    }

    pub fn marks_key(&self) -> String {
        self.key("copies")
    }

    pub fn copy_key(&self, id: &str) -> String {
        self.key(&format!("copy:{id}"))
    }

    /// Of the heartbeat before.
    pub fn before_key(&self, id: &str) -> String {
        self.key(&format!("copy_before:{id}"))
    }

    /// The processes that there are copies of.
    pub async fn marks(&self, reader: &Reader<'_>) -> Result<BTreeMap<String, Mark>> {
        let all: Vec<(String, String)> =
            reader.one("HGETALL", &[self.marks_key().as_bytes()]).await?;
        let read = |(id, text): (String, String)| {
            let mut parts = text.rsplitn(3, ':');
            let (stale, until) = (parts.next()?, parts.next()?);
            Some((id, Mark { until_ms: until.parse().ok()?, is_stale: stale == "s" }))
        };
        Ok(all.into_iter().filter_map(read).collect())
    }

    /// Copies the pictures of all processes that have beaten since, and removes copies of those that ended in order. Returns
    /// what an operator should know.
    pub async fn take(
        &self,
        reader: &Reader<'_>,
        ids: &BTreeSet<String>,
        is_exact: impl Fn(&str) -> bool,
        now_ms: u64,
    ) -> Result<Vec<String>> {
        let watched_key = self.key("watched");
        let last: Option<u64> = reader.one("GET", &[watched_key.as_bytes()]).await?;
        let is_watched = last.is_some_and(|last| now_ms.saturating_sub(last) < WATCH_GAP_MS);
        let mut notes = Vec::new();
        let all: Vec<&String> = ids.iter().collect();
        for some in all.chunks(PROCESSES) {
            let answer = self.take_some(reader, some, &is_exact, is_watched).await?;
            notes.extend(
                some.iter().zip(answer).filter_map(|(id, (what, jobs))| note(id, &what, jobs)),
            );
        }
        let now = now_ms.to_string();
        let _: () = reader.one("SET", &[watched_key.as_bytes(), now.as_bytes()]).await?;
        Ok(notes)
    }

    async fn take_some(
        &self,
        reader: &Reader<'_>,
        ids: &[&String],
        is_exact: &impl Fn(&str) -> bool,
        is_watched: bool,
    ) -> Result<Vec<(String, u64)>> {
        let mut keys = vec![self.marks_key(), self.keys.key("processes")];
        let watched = if is_watched { "watched" } else { "unwatched" };
        let mut args = vec![JOBS_MAX.to_string(), BYTES_MAX.to_string(), watched.to_owned()];
        for id in ids {
            let of = |what: &str| self.keys.key(&format!("{id}{what}"));
            keys.extend([of(""), of(":workers"), of(":work"), self.copy_key(id)]);
            keys.extend([self.before_key(id), self.keys.heartbeat(id)]);
            let exact = if is_exact(id) { "exact" } else { "" };
            args.extend([(*id).clone(), exact.to_owned()]);
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        reader.connection.run(&COPY, &keys, &args).await
    }

    /// The jobs in the copy of a dead process, and how many fields cannot be understood.
    pub async fn read(&self, reader: &Reader<'_>, id: &str) -> Result<(Vec<CopiedJob>, usize)> {
        let fields = self.fields(reader, &self.copy_key(id)).await?;
        let before = self.fields(reader, &self.before_key(id)).await?;
        let count = fields.len();
        let read = |(thread, entry): (Vec<u8>, Vec<u8>)| {
            let shown = if before.get(&thread) == Some(&entry) { 2 } else { 1 };
            read_field(thread, entry, shown)
        };
        let jobs: Vec<CopiedJob> = fields.into_iter().filter_map(read).collect();
        let unreadable = count - jobs.len();
        Ok((jobs, unreadable))
    }

    async fn fields(&self, reader: &Reader<'_>, key: &str) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        reader.one("HGETALL", &[key.as_bytes()]).await
    }

    /// Removes jobs from the copy of a dead process.
    pub async fn forget(&self, reader: &Reader<'_>, id: &str, jobs: &[CopiedJob]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let keys = [self.keys.key(id), self.marks_key(), self.copy_key(id), self.before_key(id)];
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut args: Vec<&[u8]> = vec![id.as_bytes()];
        args.extend(jobs.iter().flat_map(|job| [job.thread.as_bytes(), job.sha1.as_bytes()]));
        let _: u64 = reader.connection.run(&FORGET, &keys, &args).await?;
        Ok(())
    }
}

fn read_field(thread: Vec<u8>, entry: Vec<u8>, shown: u8) -> Option<CopiedJob> {
    let (thread, entry) = (String::from_utf8(thread).ok()?, String::from_utf8(entry).ok()?);
    Some(CopiedJob { thread, sha1: sha1(&entry), shown, job: read_entry(&entry)? })
}

fn note(id: &str, what: &str, jobs: u64) -> Option<String> {
    match (what, jobs) {
        ("u", 1..) => {
            tracing::warn!(
                process = id,
                jobs,
                "a Sidekiq process ended while lapsed was not watching; what it held is not put back"
            );
            Some(format!(
                "`{id}` ended while lapsed was not watching, in order or not: {jobs} of its jobs were not put back"
            ))
        }
        ("a", 1..) => {
            tracing::warn!(
                process = id,
                jobs,
                "the jobs of a Sidekiq process are too many or too large to be copied"
            );
            Some(format!("{jobs} jobs of `{id}` are too many or too large to be copied"))
        }
        ("w", _) => Some(format!("a key of `{id}` has another type and was left alone")),
        _ => None,
    }
}
