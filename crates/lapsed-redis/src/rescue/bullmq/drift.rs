//! Drift in the keys of BullMQ: ids in `active` or `stalled` that point to nothing, and locks that lock nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use lapsed_core::reconcile::Healed;
use lapsed_core::{Error, Result};

use super::{BullMq, Queue};
use crate::rescue::drift::{SEARCH_MAX, TOO_LONG, drift_script};
use crate::rescue::profile::{DriftPage, DriftRequest, Finding, Seen};
use crate::rescue::reader::{Reader, escaped};
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_bullmq_drift", "drift.lua");

impl BullMq {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        let bases = self.bases(reader).await?;
        if request.after.is_none() {
            // Refuses a layout that is not known.
            self.queues(reader, bases.clone(), &mut Seen::default()).await?;
        }
        let pattern =
            self.prefix.as_deref().map_or("*".to_owned(), |own| format!("{}:*", escaped(own)));
        let cursor = request.after.unwrap_or("0");
        let (next, keys) =
            reader.page("SCAN", &[pattern.as_bytes()], cursor, request.limit).await?;
        page.next = next;
        page.examined = keys.len() as u64;
        let (mut lists, mut locks) = (BTreeSet::new(), BTreeMap::<&str, Vec<&str>>::new());
        for key in keys.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
            match key.rsplit_once(':') {
                Some((base, what @ ("active" | "stalled"))) if bases.contains(base) => {
                    lists.insert((base, what));
                }
                Some((rest, "lock")) => {
                    let owner = bases.iter().filter(|base| is_below(key, base));
                    if let Some(owner) = owner.max_by_key(|base| base.len()) {
                        locks.entry(owner).or_default().push(&rest[owner.len() + 1..]);
                    }
                }
                _ => {}
            }
        }
        let met = lists.iter().map(|(base, _)| *base).chain(locks.keys().copied());
        let queues = self.known(reader, met.map(str::to_owned).collect()).await?;
        for (base, what) in lists {
            match (queues.get(base), what) {
                (Some(queue), "active") => find_active(reader, queue, &mut page).await?,
                (Some(queue), _) => find_stalled(reader, queue, &mut page).await?,
                (None, _) => {}
            }
        }
        for (base, ids) in locks {
            if let Some(queue) = queues.get(base) {
                find_locks(reader, queue, &ids, &mut page).await?;
            }
        }
        Ok(page)
    }

    /// Those queues whose version is known, by the beginning of their keys.
    async fn known(
        &self,
        reader: &Reader<'_>,
        bases: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Queue>> {
        let queues = match self.queues(reader, bases, &mut Seen::default()).await {
            Err(Error::Unsupported { .. }) => Vec::new(),
            queues => queues?,
        };
        Ok(queues.into_iter().map(|queue| (queue.base.clone(), queue)).collect())
    }
}

/// Whether a lock is `BASE:ID:lock` with an id.
fn is_below(key: &str, base: &str) -> bool {
    let rest = key.strip_prefix(base).and_then(|rest| rest.strip_prefix(':'));
    rest.and_then(|rest| rest.strip_suffix(":lock")).is_some_and(|id| !id.is_empty())
}

fn finding(queue: &Queue, kind: &'static str, of: &str, id: &str, what: String) -> Finding {
    let key = |name: &str| format!("{}:{name}", queue.base);
    let lock = format!("{id}:lock");
    let keys = match kind {
        "active" => vec![key("active"), key(id), key(&lock), key("stalled")],
        "stalled" => vec![key("stalled"), key("active")],
        _ => vec![key(&lock), key(id), key("active")],
    };
    Finding {
        kind,
        key: key(of),
        member: id.to_owned(),
        queue: Some(queue.name.clone()),
        what,
        heal: Healed::Removed,
        keys,
        words: vec![id.to_owned()],
    }
}

/// The ids in `active`; `None`: there are too many.
async fn read_active(reader: &Reader<'_>, queue: &Queue) -> Result<Option<HashSet<String>>> {
    let key = format!("{}:active", queue.base);
    match reader.kind(key.as_bytes()).await?.as_str() {
        "list" => {}
        _ => return Ok(Some(HashSet::new())),
    }
    let length: u64 = reader.one("LLEN", &[key.as_bytes()]).await?;
    if length > SEARCH_MAX {
        return Ok(None);
    }
    let ids = reader.list_from_end(key.as_bytes()).await?;
    Ok(Some(ids.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect()))
}

async fn missing(reader: &Reader<'_>, queue: &Queue, ids: &[&str]) -> Result<Vec<bool>> {
    let asked: Vec<Vec<Vec<u8>>> =
        ids.iter().map(|id| vec![format!("{}:{id}", queue.base).into_bytes()]).collect();
    let found: Vec<Option<u64>> = reader.each("EXISTS", &asked).await?;
    Ok(found.into_iter().map(|found| found == Some(0)).collect())
}

async fn find_active(reader: &Reader<'_>, queue: &Queue, page: &mut DriftPage) -> Result<()> {
    let Some(ids) = read_active(reader, queue).await? else {
        page.leave(TOO_LONG, 1);
        return Ok(());
    };
    page.examined += ids.len() as u64;
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let gone = missing(reader, queue, &ids).await?;
    for (id, _) in ids.into_iter().zip(gone).filter(|(_, gone)| *gone) {
        let what = format!("`{id}` is active, but job `{id}` does not exist: the id is removed");
        page.findings.push(finding(queue, "active", "active", id, what));
    }
    Ok(())
}

async fn find_stalled(reader: &Reader<'_>, queue: &Queue, page: &mut DriftPage) -> Result<()> {
    let key = format!("{}:stalled", queue.base);
    if reader.kind(key.as_bytes()).await? != "set" {
        return Ok(());
    }
    let Some(active) = read_active(reader, queue).await? else {
        page.leave(TOO_LONG, 1);
        return Ok(());
    };
    let ids = reader.set(key.as_bytes()).await?;
    page.examined += ids.len() as u64;
    for id in ids.into_iter().filter_map(|id| String::from_utf8(id).ok()) {
        if !active.contains(&id) {
            let what = format!("`{id}` counts as stalled, but is not active: the id is removed");
            page.findings.push(finding(queue, "stalled", "stalled", &id, what));
        }
    }
    Ok(())
}

async fn find_locks(
    reader: &Reader<'_>,
    queue: &Queue,
    ids: &[&str],
    page: &mut DriftPage,
) -> Result<()> {
    let Some(active) = read_active(reader, queue).await? else {
        page.leave(TOO_LONG, ids.len() as u64);
        return Ok(());
    };
    let gone = missing(reader, queue, ids).await?;
    for (id, gone) in ids.iter().zip(gone) {
        let why = match (gone, active.contains(*id)) {
            (true, _) => "does not exist",
            (false, false) => "is not active",
            (false, true) => continue,
        };
        let what = format!("job `{id}` is locked, but {why}: the lock is removed");
        page.findings.push(finding(queue, "lock", &format!("{id}:lock"), id, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_belongs_to_a_queue_only_if_it_has_an_id() {
        assert!(is_below("bull:mails:7:lock", "bull:mails"));
        assert!(is_below("bull:mails:a:b:lock", "bull:mails"));
        assert!(!is_below("bull:mails:lock", "bull:mails"));
        assert!(!is_below("bull:mails2:7:lock", "bull:mails"));
    }
}
