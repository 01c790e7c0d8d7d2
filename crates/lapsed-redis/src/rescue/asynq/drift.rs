//! Drift in the keys of asynq: ids without a task, tasks that are in no list and no set, and leases of tasks that are not active.
//!
//! asynq finds none of these: a worker that meets an id without a task forgets it, and a task that is in no list is never met.

use std::collections::{BTreeMap, HashSet};

use lapsed_core::reconcile::Healed;
use lapsed_core::{Name, Result};

use super::{Asynq, word};
use crate::rescue::drift::{SEARCH_MAX, TOO_LONG, drift_script};
use crate::rescue::profile::{DriftPage, DriftRequest, Finding, Seen};
use crate::rescue::reader::Reader;
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_asynq_drift", "drift.lua");

/// The sorted sets that a task may be in.
const SETS: [&str; 4] = ["scheduled", "retry", "archived", "completed"];

/// The states of a task that is in a list or a set of its queue. One that is `aggregating` is in the set of its group.
const STATES: [&str; 6] = ["pending", "active", "scheduled", "retry", "archived", "completed"];

fn key_of(queue: &Name, what: &str) -> String {
    format!("asynq:{{{queue}}}:{what}")
}

/// The queue that a key belongs to, and the rest of it: `asynq:{QUEUE}:REST`.
fn parts(key: &str) -> Option<(Name, &str)> {
    let (queue, rest) = key.strip_prefix("asynq:{")?.rsplit_once("}:")?;
    Some((Name::new(queue).ok()?, rest))
}

impl Asynq {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        if request.after.is_none() {
            if reader.kind(b"asynq:queues").await? != "set" {
                return Ok(page);
            }
            // Refuses a layout that is not known.
            self.queues(reader, &mut Seen::default()).await?;
        }
        let cursor = request.after.unwrap_or("0");
        let (next, keys) = reader.page("SCAN", &[b"asynq:{*"], cursor, request.limit).await?;
        page.next = next;
        page.examined = keys.len() as u64;
        let mut tasks: BTreeMap<Name, Vec<String>> = BTreeMap::new();
        for (queue, rest) in keys.iter().filter_map(|key| parts(std::str::from_utf8(key).ok()?)) {
            if let Some(id) = rest.strip_prefix("t:") {
                tasks.entry(queue).or_default().push(id.to_owned());
            } else if rest == "pending" || rest == "active" {
                find_in_list(reader, &queue, rest, &mut page).await?;
            } else if rest == "lease" {
                find_leases(reader, &queue, &mut page).await?;
            } else if SETS.contains(&rest) {
                find_in_set(reader, &queue, rest, &mut page).await?;
            }
        }
        for (queue, ids) in tasks {
            find_lost(reader, &queue, ids, &mut page).await?;
        }
        Ok(page)
    }
}

/// Which of these tasks of a queue do not exist.
async fn gone(reader: &Reader<'_>, queue: &Name, ids: &[String]) -> Result<Vec<String>> {
    let asked: Vec<Vec<Vec<u8>>> =
        ids.iter().map(|id| vec![word(&key_of(queue, &format!("t:{id}")))]).collect();
    let found: Vec<Option<u64>> = reader.each("EXISTS", &asked).await?;
    let gone = ids.iter().zip(found).filter(|(_, found)| *found == Some(0));
    Ok(gone.map(|(id, _)| id.clone()).collect())
}

fn texts(ids: Vec<Vec<u8>>) -> Vec<String> {
    ids.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect()
}

fn ghost(queue: &Name, place: &str, id: String) -> Finding {
    let key = key_of(queue, place);
    let is_list = matches!(place, "pending" | "active");
    Finding {
        kind: if is_list { "ghost_in_list" } else { "ghost_in_set" },
        key: key.clone(),
        member: id.clone(),
        queue: Some(queue.clone()),
        what: format!("`{id}` is {place}, but there is no such task: the id is removed"),
        heal: Healed::Removed,
        keys: vec![key, key_of(queue, &format!("t:{id}"))],
        words: vec![id],
    }
}

/// The ids of a list; `None`: there are too many.
async fn read_list(reader: &Reader<'_>, key: &str) -> Result<Option<Vec<String>>> {
    match reader.kind(key.as_bytes()).await?.as_str() {
        "list" if reader.one::<u64>("LLEN", &[key.as_bytes()]).await? > SEARCH_MAX => Ok(None),
        "list" => Ok(Some(texts(reader.list_from_end(key.as_bytes()).await?))),
        _ => Ok(Some(Vec::new())),
    }
}

async fn find_in_list(
    reader: &Reader<'_>,
    queue: &Name,
    place: &str,
    page: &mut DriftPage,
) -> Result<()> {
    let Some(ids) = read_list(reader, &key_of(queue, place)).await? else {
        let count = reader.one("LLEN", &[key_of(queue, place).as_bytes()]).await?;
        page.leave(TOO_LONG, count);
        return Ok(());
    };
    page.examined += ids.len() as u64;
    let gone = gone(reader, queue, &ids).await?;
    page.findings.extend(gone.into_iter().map(|id| ghost(queue, place, id)));
    Ok(())
}

async fn members(reader: &Reader<'_>, key: &str, page: &mut DriftPage) -> Result<Vec<String>> {
    if reader.kind(key.as_bytes()).await? != "zset" {
        return Ok(Vec::new());
    }
    let members = reader.scores(key.as_bytes(), "-inf", "+inf").await?;
    page.examined += members.len() as u64;
    Ok(texts(members.into_iter().map(|(id, _)| id).collect()))
}

async fn find_in_set(
    reader: &Reader<'_>,
    queue: &Name,
    place: &str,
    page: &mut DriftPage,
) -> Result<()> {
    let ids = members(reader, &key_of(queue, place), page).await?;
    let gone = gone(reader, queue, &ids).await?;
    page.findings.extend(gone.into_iter().map(|id| ghost(queue, place, id)));
    Ok(())
}

async fn find_leases(reader: &Reader<'_>, queue: &Name, page: &mut DriftPage) -> Result<()> {
    let (lease, active) = (key_of(queue, "lease"), key_of(queue, "active"));
    let ids = members(reader, &lease, page).await?;
    let Some(listed) = read_list(reader, &active).await? else {
        page.leave(TOO_LONG, ids.len() as u64);
        return Ok(());
    };
    let listed: HashSet<String> = listed.into_iter().collect();
    for id in ids.into_iter().filter(|id| !listed.contains(id)) {
        page.findings.push(Finding {
            kind: "lease",
            key: lease.clone(),
            member: id.clone(),
            queue: Some(queue.clone()),
            what: format!("task `{id}` has a lease, but is not active: the lease is removed"),
            heal: Healed::Removed,
            keys: vec![lease.clone(), active.clone()],
            words: vec![id],
        });
    }
    Ok(())
}

/// Tasks whose state names a list or a set that does not have them.
async fn find_lost(
    reader: &Reader<'_>,
    queue: &Name,
    ids: Vec<String>,
    page: &mut DriftPage,
) -> Result<()> {
    let asked: Vec<Vec<Vec<u8>>> = ids
        .iter()
        .map(|id| vec![word(&key_of(queue, &format!("t:{id}"))), word("state")])
        .collect();
    let states: Vec<Option<Option<String>>> = reader.each("HGET", &asked).await?;
    let with_state = ids.into_iter().zip(states.into_iter().map(Option::flatten));
    let known: Vec<(String, String)> = with_state
        .filter_map(|(id, state)| Some((id, state.filter(|one| STATES.contains(&one.as_str()))?)))
        .collect();
    let mut elsewhere = HashSet::new();
    for set in SETS {
        let key = key_of(queue, set);
        let asked: Vec<Vec<Vec<u8>>> =
            known.iter().map(|(id, _)| vec![word(&key), word(id)]).collect();
        let scores: Vec<Option<Option<f64>>> = reader.each("ZSCORE", &asked).await?;
        let found = known.iter().zip(scores).filter(|(_, score)| score.flatten().is_some());
        elsewhere.extend(found.map(|((id, _), _)| id.clone()));
    }
    let open: Vec<&(String, String)> =
        known.iter().filter(|(id, _)| !elsewhere.contains(id)).collect();
    if open.is_empty() {
        return Ok(());
    }
    for place in ["pending", "active"] {
        let Some(listed) = read_list(reader, &key_of(queue, place)).await? else {
            page.leave(TOO_LONG, open.len() as u64);
            return Ok(());
        };
        elsewhere.extend(listed);
    }
    let lost = open.into_iter().filter(|(id, _)| !elsewhere.contains(id));
    page.findings.extend(lost.map(|(id, state)| lost_task(queue, id, state)));
    Ok(())
}

fn lost_task(queue: &Name, id: &str, state: &str) -> Finding {
    let mut keys = vec![key_of(queue, &format!("t:{id}")), key_of(queue, "pending")];
    keys.push(key_of(queue, "active"));
    keys.extend(SETS.map(|set| key_of(queue, set)));
    let is_over = matches!(state, "archived" | "completed");
    let heal = if is_over { "" } else { ": it goes to the end of its queue" };
    Finding {
        kind: "lost",
        key: keys[0].clone(),
        member: id.to_owned(),
        queue: Some(queue.clone()),
        what: format!("task `{id}` is {state}, but it is in no list and no set{heal}"),
        heal: Healed::Added,
        keys,
        words: vec![id.to_owned()],
    }
}
