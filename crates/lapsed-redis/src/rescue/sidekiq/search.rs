//! Looks for jobs of dead processes in the places where Sidekiq may have put them since the last heartbeat.
//!
//! The search is outside of the decisive step, because it reads whole queues in pages. That is sound since it begins after the
//! death is known: the dead process moves nothing any more. What others do with such a job goes in one direction: from `retry` or
//! `schedule` to a queue, from a queue to a process. The search goes in that direction, too, so that a job
//! which moves meanwhile is met in the next place. Two gaps remain, and a job in one of them is run a second time: between
//! a poller's removal from `retry` and its push, and between a worker's pop and that worker's next heartbeat.
//!
//! Positions in a queue are counted from the side where jobs are added. So what is pushed or popped meanwhile hides nothing.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use lapsed_core::Result;

use super::entry::{jid_of, jid_of_entry};
use super::keys::Keys;
use crate::rescue::reader::Reader;

const PAGE: usize = 500;

/// How many jobs of one key are read at most: of a longer queue so many at each end, where new jobs and returned ones are.
const JOBS_MAX: usize = 100_000;

/// Between two pages other clients are served.
const PAUSE: Duration = Duration::from_micros(300);

/// What is looked for, and where.
#[derive(Default)]
pub(super) struct Search {
    pub jids: HashSet<String>,
    pub queues: BTreeSet<String>,
    pub working_lists: Vec<String>,
    pub living: Vec<String>,
}

/// What a search met.
#[derive(Default)]
pub(super) struct Found {
    pub jids: HashSet<String>,
    /// Keys that were too long to be read whole.
    pub cut: Vec<String>,
    pub examined: u64,
}

impl Search {
    pub async fn run(&self, reader: &Reader<'_>, keys: &Keys) -> Result<Found> {
        let mut found = Found::default();
        for set in ["retry", "schedule", "dead"] {
            self.sorted_set(reader, &keys.key(set), &mut found).await?;
        }
        for queue in &self.queues {
            self.list(reader, &keys.queue(queue), &mut found).await?;
        }
        for list in &self.working_lists {
            self.list(reader, list, &mut found).await?;
        }
        self.processes(reader, keys, &mut found).await?;
        Ok(found)
    }

    fn meet(&self, job: &[u8], found: &mut Found) {
        found.examined += 1;
        found.jids.extend(jid_of(job, |jid| self.jids.contains(jid)));
    }

    async fn sorted_set(&self, reader: &Reader<'_>, key: &str, found: &mut Found) -> Result<()> {
        if reader.kind(key.as_bytes()).await? != "zset" {
            return Ok(());
        }
        let (mut cursor, mut read) = (b"0".to_vec(), 0);
        loop {
            let count = PAGE.to_string();
            let (next, page): (Vec<u8>, Vec<(Vec<u8>, String)>) =
                reader.one("ZSCAN", &[key.as_bytes(), &cursor, b"COUNT", count.as_bytes()]).await?;
            page.iter().for_each(|(job, _)| self.meet(job, found));
            read += page.len();
            if next == b"0" {
                return Ok(());
            }
            if read >= 2 * JOBS_MAX {
                found.cut.push(key.to_owned());
                return Ok(());
            }
            reader.clock.sleep(PAUSE).await;
            cursor = next;
        }
    }

    async fn list(&self, reader: &Reader<'_>, key: &str, found: &mut Found) -> Result<()> {
        if reader.kind(key.as_bytes()).await? != "list" {
            return Ok(());
        }
        let length: usize = reader.one("LLEN", &[key.as_bytes()]).await?;
        if length <= 2 * JOBS_MAX {
            return self.part(reader, key, 0, usize::MAX, found).await;
        }
        found.cut.push(key.to_owned());
        self.part(reader, key, 0, JOBS_MAX, found).await?;
        self.part(reader, key, length - JOBS_MAX, usize::MAX, found).await
    }

    async fn part(
        &self,
        reader: &Reader<'_>,
        key: &str,
        mut from: usize,
        most: usize,
        found: &mut Found,
    ) -> Result<()> {
        let mut read = 0;
        loop {
            let (first, last) = (from.to_string(), (from + PAGE - 1).to_string());
            let page: Vec<Vec<u8>> =
                reader.one("LRANGE", &[key.as_bytes(), first.as_bytes(), last.as_bytes()]).await?;
            page.iter().for_each(|job| self.meet(job, found));
            read += page.len();
            // A queue that grows while it is read has an end all the same.
            if page.len() < PAGE || read >= most.min(4 * JOBS_MAX) {
                return Ok(());
            }
            from += PAGE;
            reader.clock.sleep(PAUSE).await;
        }
    }

    /// What the living say that they run.
    async fn processes(&self, reader: &Reader<'_>, keys: &Keys, found: &mut Found) -> Result<()> {
        for suffix in [":workers", ":work"] {
            let commands: Vec<Vec<Vec<u8>>> = self
                .living
                .iter()
                .map(|id| vec![keys.key(&format!("{id}{suffix}")).into_bytes()])
                .collect();
            let answers: Vec<Option<Vec<Vec<u8>>>> = reader.each("HVALS", &commands).await?;
            for entry in answers.into_iter().flatten().flatten() {
                found.examined += 1;
                found.jids.extend(jid_of_entry(&entry, |jid| self.jids.contains(jid)));
            }
        }
        Ok(())
    }
}
