//! What one look met behind one prefix: processes and queues, and the jobs of the dead as the decisive step wants them.

use std::collections::BTreeMap;

use lapsed_core::{Name, Result};

use super::SIGN_OF_LIFE;
use super::copies::{CopiedJob, Copies, Mark};
use super::keys::{Keys, WorkingList};
use super::working::{Known, ListedJob};
use crate::rescue::profile::{HeldJob, LookRequest, Seen, SeenWorker};
use crate::rescue::reader::Reader;

/// What the keys behind one prefix show.
pub(super) struct Scene<'a> {
    pub reader: &'a Reader<'a>,
    pub keys: &'a Keys,
    pub request: LookRequest<'a>,
    pub now_ms: u64,
    /// Processes with how long their sign of life still lasts, in milliseconds; `None`: it is gone.
    pub processes: BTreeMap<String, Option<u64>>,
    pub known: Known,
}

impl Scene<'_> {
    /// The living, how many jobs they run, and which version they are of.
    pub async fn read_living(&self, seen: &mut Seen) -> Result<()> {
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

    pub fn add_copied(
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
        let own = [copies.marks_key(), copies.copy_key(id), copies.before_key(id)];
        let words = ["copy", id, &copied.thread, &copied.sha1];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend([due_ms.to_string(), sure.to_string()]);
        let (key, queue) = (copied.job.key, copied.job.queue);
        self.add(key, queue, &list, own, words, due_ms, seen);
    }

    pub fn add_listed(&self, list: &WorkingList, listed: ListedJob, seen: &mut Seen) {
        let own = match self.request.own {
            Some(own) => {
                let copies = Copies::new(own, self.keys);
                [copies.marks_key(), copies.copy_key(&list.id), copies.before_key(&list.id)]
            }
            None => [String::new(), String::new(), String::new()],
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
        own: [String; 3],
        words: Vec<String>,
        due_ms: u64,
        seen: &mut Seen,
    ) {
        let Ok(worker) = Name::new(&list.id) else { return };
        let [marks, copy, before] = own;
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
            before,
        ];
        seen.in_flight += 1;
        let one = seen.workers.entry(worker.clone()).or_default();
        (one.due_ms, one.is_silent) = (due_ms, true);
        one.held += 1;
        seen.jobs.push(HeldJob { key, worker, queue, keys, words });
    }

    /// What `detect` says to somebody who does not use lapsed yet.
    pub fn advise(&self, seen: &mut Seen) {
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
pub(super) fn as_identity(member: Vec<u8>) -> Option<String> {
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
pub(super) async fn read_queues(
    reader: &Reader<'_>,
    keys: &Keys,
) -> Result<BTreeMap<Name, Option<u64>>> {
    let names = reader.set(keys.key("queues").as_bytes()).await?;
    let names: Vec<Name> = names.iter().filter_map(|name| Name::from_bytes(name).ok()).collect();
    let command = |name: &Name| vec![keys.queue(name.as_str()).into_bytes()];
    let commands: Vec<Vec<Vec<u8>>> = names.iter().map(command).collect();
    let lengths: Vec<Option<u64>> = reader.each("LLEN", &commands).await?;
    let lengths = lengths.into_iter().map(|length| length.filter(|length| *length > 0));
    Ok(names.into_iter().zip(lengths).collect())
}
