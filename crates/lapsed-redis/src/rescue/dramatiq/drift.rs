//! Drift in the keys of Dramatiq: ids without a message, and messages that no list and no worker has.
//!
//! Each step of Dramatiq is one script, so that drift comes from outside: an eviction, a deletion by hand, a script that
//! the server refused in its middle. A worker that fetches an id without a message keeps it in its set for ever.

use std::collections::HashSet;

use lapsed_core::reconcile::Healed;
use lapsed_core::{Name, Result};

use super::{Dramatiq, WORKER_CHARS, split_set};
use crate::rescue::drift::{SEARCH_MAX, TOO_LONG, drift_script};
use crate::rescue::profile::{DriftPage, DriftRequest, Finding};
use crate::rescue::reader::{Reader, escaped};
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_dramatiq_drift", "drift.lua");

/// With more workers and producers than these, messages that nobody has are not looked for.
const WORKERS_MAX: usize = 1_000;

const TOO_MANY: &str = "there are too many workers to ask each";

impl Dramatiq {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        let namespace = &self.namespace;
        let heartbeats = format!("{namespace}:__heartbeats__");
        if reader.kind(heartbeats.as_bytes()).await? != "zset" {
            return Ok(page);
        }
        let pattern = format!("{}:*", escaped(namespace));
        let cursor = request.after.unwrap_or("0");
        let (next, keys) =
            reader.page("SCAN", &[pattern.as_bytes()], cursor, request.limit).await?;
        page.next = next;
        page.examined = keys.len() as u64;
        for key in keys.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
            let Some(name) =
                key.strip_prefix(namespace.as_str()).and_then(|key| key.strip_prefix(':'))
            else {
                continue;
            };
            let search = Search { reader, namespace };
            if let Some((worker, queue)) = name.strip_prefix("__acks__.").and_then(split_set) {
                search.find_held(worker, queue, &mut page).await?;
            } else if let Some(queue) = name.strip_suffix(".msgs") {
                search.find_messages(queue, &mut page).await?;
            } else if !name.starts_with("__") {
                search.find_queued(name, &mut page).await?;
            }
        }
        Ok(page)
    }
}

struct Search<'a> {
    reader: &'a Reader<'a>,
    namespace: &'a str,
}

/// Ids are UUIDs; a list of something else is not a queue.
fn ids(all: Vec<Vec<u8>>) -> Vec<String> {
    let all = all.into_iter().filter_map(|id| String::from_utf8(id).ok());
    all.filter(|id| id.len() == WORKER_CHARS).collect()
}

impl Search<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.namespace)
    }

    /// Those of `ids` that have no message.
    async fn without_message(&self, queue: &str, ids: Vec<String>) -> Result<Vec<String>> {
        let messages = self.key(&format!("{queue}.msgs"));
        let asked: Vec<Vec<Vec<u8>>> = ids
            .iter()
            .map(|id| vec![messages.clone().into_bytes(), id.clone().into_bytes()])
            .collect();
        let found: Vec<Option<u64>> = self.reader.each("HEXISTS", &asked).await?;
        let all = ids.into_iter().zip(found);
        Ok(all.filter(|(_, found)| *found == Some(0)).map(|(id, _)| id).collect())
    }

    fn pointer(
        &self,
        kind: &'static str,
        key: &str,
        queue: &str,
        id: String,
        what: String,
    ) -> Finding {
        Finding {
            kind,
            key: key.to_owned(),
            member: id.clone(),
            queue: Name::new(queue).ok(),
            what,
            heal: Healed::Removed,
            keys: vec![key.to_owned(), self.key(&format!("{queue}.msgs"))],
            words: vec![id],
        }
    }

    async fn find_queued(&self, queue: &str, page: &mut DriftPage) -> Result<()> {
        let key = self.key(queue);
        if self.reader.kind(key.as_bytes()).await? != "list" {
            return Ok(());
        }
        let length: u64 = self.reader.one("LLEN", &[key.as_bytes()]).await?;
        if length > SEARCH_MAX {
            page.leave(TOO_LONG, length);
            return Ok(());
        }
        let ids = ids(self.reader.list_from_end(key.as_bytes()).await?);
        page.examined += ids.len() as u64;
        for id in self.without_message(queue, ids).await? {
            let what =
                format!("`{id}` is on queue `{queue}`, but has no message: the id is removed");
            page.findings.push(self.pointer("queued", &key, queue, id, what));
        }
        Ok(())
    }

    async fn find_held(&self, worker: &str, queue: &str, page: &mut DriftPage) -> Result<()> {
        let key = self.key(&format!("__acks__.{worker}.{queue}"));
        if self.reader.kind(key.as_bytes()).await? != "set" {
            return Ok(());
        }
        let ids = ids(self.reader.set(key.as_bytes()).await?);
        page.examined += ids.len() as u64;
        for id in self.without_message(queue, ids).await? {
            let what = format!(
                "worker `{worker}` has fetched `{id}` from queue `{queue}`, but it has no message: the id is removed"
            );
            page.findings.push(self.pointer("held", &key, queue, id, what));
        }
        Ok(())
    }

    /// Messages that are on no list and in the set of no worker. Dead letters have a list of another type.
    async fn find_messages(&self, queue: &str, page: &mut DriftPage) -> Result<()> {
        let (key, list) = (self.key(&format!("{queue}.msgs")), self.key(queue));
        let kinds =
            (self.reader.kind(key.as_bytes()).await?, self.reader.kind(list.as_bytes()).await?);
        if queue.ends_with(".XQ")
            || kinds.0 != "hash"
            || !["list", "none"].contains(&kinds.1.as_str())
        {
            return Ok(());
        }
        let length: u64 = self.reader.one("LLEN", &[list.as_bytes()]).await?;
        if length > SEARCH_MAX {
            page.leave(TOO_LONG, length);
            return Ok(());
        }
        let mut messages = Vec::new();
        self.reader.hash(key.as_bytes(), |id, _| messages.push(id.to_vec())).await?;
        let messages = ids(messages);
        page.examined += messages.len() as u64;
        let mut known: HashSet<String> =
            ids(self.reader.list_from_end(list.as_bytes()).await?).into_iter().collect();
        if messages.iter().all(|id| known.contains(id)) {
            return Ok(());
        }
        let Some(held) = self.held(queue).await? else {
            page.leave(TOO_MANY, messages.len() as u64);
            return Ok(());
        };
        known.extend(held);
        let lost = messages.into_iter().filter(|id| !known.contains(id));
        page.findings.extend(lost.map(|id| self.lost(&key, &list, queue, id)));
        Ok(())
    }

    /// What workers have fetched from a queue; `None`: there are too many workers.
    async fn held(&self, queue: &str) -> Result<Option<Vec<String>>> {
        let heartbeats = self.key("__heartbeats__");
        let workers = self.reader.scores(heartbeats.as_bytes(), "-inf", "+inf").await?;
        if workers.len() > WORKERS_MAX {
            return Ok(None);
        }
        let mut held = Vec::new();
        let sets = workers.iter().filter_map(|(worker, _)| std::str::from_utf8(worker).ok());
        let sets: Vec<Vec<Vec<u8>>> = sets
            .map(|worker| vec![self.key(&format!("__acks__.{worker}.{queue}")).into_bytes()])
            .collect();
        let sizes: Vec<Option<u64>> = self.reader.each("SCARD", &sets).await?;
        for (set, size) in sets.iter().zip(sizes) {
            if size.unwrap_or(0) > 0 {
                held.extend(ids(self.reader.set(&set[0]).await?));
            }
        }
        Ok(Some(held))
    }

    fn lost(&self, key: &str, list: &str, queue: &str, id: String) -> Finding {
        Finding {
            kind: "message",
            key: key.to_owned(),
            member: id.clone(),
            queue: Name::new(queue).ok(),
            what: format!(
                "message `{id}` is on no queue and no worker has it: it goes to the end of queue `{queue}`"
            ),
            heal: Healed::Added,
            keys: vec![key.to_owned(), list.to_owned(), self.key("__heartbeats__")],
            words: vec![id, self.key("__acks__."), queue.to_owned()],
        }
    }
}
