//! Working lists: where `reliable-fetch` and `lapsed_fetch` keep the jobs that a process runs.
//!
//! Their names cannot be told from Sidekiq's other keys, because `reliable-fetch` draws an identity of its own. So the keyspace is gone
//! through: at the first look, when a process comes or goes while such a fetcher is in use, and every ten minutes.

use std::collections::BTreeSet;
use std::sync::Mutex;

use lapsed_core::{Name, Result};

use super::LOCK;
use super::entry::{SeenJob, read_job};
use super::keys::{Keys, WorkingList, host_and_pid};
use crate::rescue::reader::Reader;

const SCAN_EVERY_MS: u64 = 600_000;

/// The names begin with `working:queue:`, `reliable-fetcher-` or `queue:`: one pattern for all of them.
const PATTERN: &str = "[wrq][oeu][rle]*";

/// Longer lists are read in several looks.
const LIST_MAX: &str = "999";

/// What is known about working lists behind one prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub lists: BTreeSet<WorkingList>,
    /// `HOST:PID` of processes with a reliable fetcher.
    hosts: BTreeSet<String>,
    /// Whether lists of Sidekiq Pro's `super_fetch` were met.
    pub has_super_fetch: bool,
    scanned_ms: u64,
    /// The processes that there were at that time, and which of them lived.
    processes: Vec<(String, bool)>,
}

/// Remembers what a walk through the keyspace found.
#[derive(Default)]
pub(super) struct WorkingLists(Mutex<Known>);

/// A job on the working list of a dead process.
pub(super) struct ListedJob {
    pub job: SeenJob,
    pub payload: String,
}

impl Known {
    /// Whether the jobs of a process are on working lists.
    pub fn is_exact(&self, id: &str) -> bool {
        self.hosts.contains(host_and_pid(id))
    }

    fn meet(&mut self, keys: &Keys, key: &str) {
        if let Some(list) = keys.read_working(key) {
            self.hosts.insert(host_and_pid(&list.id).to_owned());
            self.lists.insert(list);
        }
        let Some(rest) = key.strip_prefix(&keys.prefix) else { return };
        self.has_super_fetch |= rest.starts_with("queue:sq|");
        if let Some(id) = rest.strip_prefix("reliable-fetcher-heartbeat-") {
            // `HOST-PID-HEX`, and a host may contain dashes: the last two parts are the others.
            let parts: Vec<&str> = id.rsplitn(3, '-').collect();
            if let [_, pid, host] = parts[..] {
                self.hosts.insert(format!("{host}:{pid}"));
            }
        }
    }
}

impl WorkingLists {
    /// What is known, after a walk through the keyspace if one is due. `processes`: with whether each lives; `in_use`: whether
    /// one of them has a reliable fetcher.
    pub async fn known(
        &self,
        reader: &Reader<'_>,
        keys: &Keys,
        processes: Vec<(String, bool)>,
        in_use: bool,
        now_ms: u64,
    ) -> Result<Known> {
        let known = self.0.lock().expect(LOCK).clone();
        let in_use = in_use || !known.hosts.is_empty();
        let is_due = known.scanned_ms == 0
            || now_ms > known.scanned_ms + SCAN_EVERY_MS
            || (in_use && known.processes != processes);
        if !is_due {
            return Ok(known);
        }
        let mut fresh = Known { hosts: known.hosts, ..Known::default() };
        let pattern = format!("{}{PATTERN}", escaped(&keys.prefix));
        reader
            .scan(Some(pattern.as_bytes()), u64::MAX, |key| {
                if let Ok(key) = std::str::from_utf8(key) {
                    fresh.meet(keys, key);
                }
            })
            .await?;
        (fresh.scanned_ms, fresh.processes) = (now_ms, processes);
        *self.0.lock().expect(LOCK) = fresh.clone();
        Ok(fresh)
    }

    /// The lists among these whose process is dead: neither its own sign of life nor that of its fetcher is there.
    pub async fn dead(
        &self,
        reader: &Reader<'_>,
        keys: &Keys,
        known: &Known,
    ) -> Result<Vec<WorkingList>> {
        let signs = |list: &WorkingList| {
            vec![keys.key(&list.id).into_bytes(), keys.heartbeat(&list.id).into_bytes()]
        };
        let commands: Vec<Vec<Vec<u8>>> = known.lists.iter().map(signs).collect();
        let alive: Vec<Option<u64>> = reader.each("EXISTS", &commands).await?;
        let dead = known.lists.iter().zip(alive).filter(|(_, signs)| *signs == Some(0));
        Ok(dead.map(|(list, _)| list.clone()).collect())
    }

    /// The jobs of a dead process on one of its lists.
    pub async fn jobs(
        &self,
        reader: &Reader<'_>,
        keys: &Keys,
        list: &WorkingList,
    ) -> Result<Vec<ListedJob>> {
        let key = keys.working(list);
        if reader.kind(key.as_bytes()).await? != "list" || Name::new(&list.id).is_err() {
            return Ok(Vec::new());
        }
        let payloads: Vec<Vec<u8>> =
            reader.one("LRANGE", &[key.as_bytes(), b"0", LIST_MAX.as_bytes()]).await?;
        let read = |payload: Vec<u8>| {
            let payload = String::from_utf8(payload).ok()?;
            Some(ListedJob { job: read_job(&payload, &list.queue)?, payload })
        };
        Ok(payloads.into_iter().filter_map(read).collect())
    }
}

/// A text that stands for itself in a pattern of SCAN.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| if "*?[]\\^".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
}
