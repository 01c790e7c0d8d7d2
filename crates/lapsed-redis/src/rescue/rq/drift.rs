//! Drift in the keys of RQ: jobs on no list, and registry entries that point to nothing.
//!
//! A worker of several queues takes a job by BLPOP and registers it by the next command. If it is killed in between, the job's
//! hash stays with status `queued`, and no key of RQ leads to it any more. Only a walk through `rq:job:*` finds it.

use std::collections::{BTreeMap, HashSet};

use lapsed_core::reconcile::Healed;
use lapsed_core::{Name, Result};

use super::{Rq, split_member, text};
use crate::rescue::drift::{SEARCH_MAX, TOO_LONG, drift_script};
use crate::rescue::profile::{DriftPage, DriftRequest, Finding, Seen};
use crate::rescue::reader::Reader;
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_rq_drift", "iso.lua", "drift.lua");

/// With how many running jobs a queue is searched at most, as `drift.lua` has it.
const WIP_MAX: u64 = 500;

/// Registries that a job without a list may be in.
const REGISTRIES: [&str; 5] = ["scheduled", "deferred", "failed", "finished", "canceled"];

impl Rq {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        if request.after.is_none() {
            // Refuses a layout that is not known.
            self.registered_workers(reader, &mut Seen::default()).await?;
        }
        let cursor = request.after.unwrap_or("0");
        let (next, keys) = reader.page("SCAN", &[b"rq:*"], cursor, request.limit).await?;
        page.next = next;
        page.examined = keys.len() as u64;
        let mut jobs = Vec::new();
        for key in keys.iter().filter_map(|key| text(key)) {
            if let Some(id) = key.strip_prefix("rq:job:") {
                jobs.push(id);
            } else if let Some(queue) = key.strip_prefix("rq:wip:") {
                find_in_wip(reader, queue, &mut page).await?;
            } else if let Some(queue) = intermediate_of(key) {
                find_in_intermediate(reader, queue, &mut page).await?;
            } else if key == "rq:workers" || key.starts_with("rq:workers:") {
                find_workers(reader, key, &mut page).await?;
            }
        }
        find_jobs(reader, &jobs, &mut page).await?;
        Ok(page)
    }
}

fn intermediate_of(key: &str) -> Option<&str> {
    key.strip_prefix("rq:queue:")?.strip_suffix(":intermediate")
}

fn id_of(member: &str) -> &str {
    split_member(member).map_or(member, |(_, id, _)| id)
}

/// Which of these keys do not exist.
async fn missing(reader: &Reader<'_>, keys: &[String]) -> Result<Vec<bool>> {
    let asked: Vec<Vec<Vec<u8>>> = keys.iter().map(|key| vec![key.clone().into_bytes()]).collect();
    let found: Vec<Option<u64>> = reader.each("EXISTS", &asked).await?;
    Ok(found.into_iter().map(|found| found == Some(0)).collect())
}

/// Jobs with status `queued` or `started` that are on no list.
async fn find_jobs(reader: &Reader<'_>, ids: &[&str], page: &mut DriftPage) -> Result<()> {
    let asked: Vec<Vec<Vec<u8>>> = ids
        .iter()
        .map(|id| {
            [format!("rq:job:{id}").as_str(), "status", "origin"]
                .map(|word| word.as_bytes().to_vec())
                .to_vec()
        })
        .collect();
    // Sets of dependents have similar names; HMGET is refused for them.
    let jobs: Vec<Option<(Option<String>, Option<String>)>> = reader.each("HMGET", &asked).await?;
    let mut by_queue: BTreeMap<Name, Vec<(&str, String)>> = BTreeMap::new();
    for (id, job) in ids.iter().zip(jobs) {
        let (Some(status), Some(origin)) = job.unwrap_or_default() else { continue };
        if let ("queued" | "started", Ok(queue)) = (status.as_str(), Name::new(&origin)) {
            by_queue.entry(queue).or_default().push((id, status));
        }
    }
    for (queue, jobs) in by_queue {
        let Some(listed) = read_lists(reader, &queue).await? else {
            page.leave(TOO_LONG, jobs.len() as u64);
            continue;
        };
        let lost = jobs.into_iter().filter(|(id, _)| !listed.contains(*id));
        page.findings.extend(lost.map(|(id, status)| lost_job(&queue, id, &status)));
    }
    Ok(())
}

/// The ids on the lists of a queue and in its registry of running jobs; `None`: there are too many.
async fn read_lists(reader: &Reader<'_>, queue: &Name) -> Result<Option<HashSet<String>>> {
    let (list, wip) = (format!("rq:queue:{queue}"), format!("rq:wip:{queue}"));
    let lengths: (u64, u64) = (
        reader.one("LLEN", &[list.as_bytes()]).await?,
        reader.one("ZCARD", &[wip.as_bytes()]).await?,
    );
    if lengths.0 > SEARCH_MAX || lengths.1 > WIP_MAX {
        return Ok(None);
    }
    let mut listed = reader.list_from_end(list.as_bytes()).await?;
    listed.extend(reader.list_from_end(format!("{list}:intermediate").as_bytes()).await?);
    let mut ids: HashSet<String> =
        listed.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect();
    let members = reader.scores(wip.as_bytes(), "-inf", "+inf").await?;
    ids.extend(members.iter().filter_map(|(member, _)| Some(id_of(text(member)?).to_owned())));
    Ok(Some(ids))
}

fn lost_job(queue: &Name, id: &str, status: &str) -> Finding {
    let list = format!("rq:queue:{queue}");
    let mut keys = vec![
        format!("rq:job:{id}"),
        list.clone(),
        format!("{list}:intermediate"),
        format!("rq:wip:{queue}"),
        "rq:queues".to_owned(),
    ];
    keys.extend(REGISTRIES.map(|registry| format!("rq:{registry}:{queue}")));
    Finding {
        kind: "job",
        key: keys[0].clone(),
        member: id.to_owned(),
        queue: Some(queue.clone()),
        what: format!(
            "job `{id}` is {status}, but it is on no list and no worker has it: it goes to the end of queue `{queue}`"
        ),
        heal: Healed::Added,
        keys,
        words: vec![id.to_owned(), queue.to_string()],
    }
}

/// Entries whose deadline has passed and whose job is gone.
async fn find_in_wip(reader: &Reader<'_>, queue: &str, page: &mut DriftPage) -> Result<()> {
    let wip = format!("rq:wip:{queue}");
    if reader.kind(wip.as_bytes()).await? != "zset" {
        return Ok(());
    }
    let now_s = (reader.now_ms().await? / 1_000).to_string();
    let members = reader.scores(wip.as_bytes(), "-inf", &now_s).await?;
    let members: Vec<&str> = members.iter().filter_map(|(member, _)| text(member)).collect();
    page.examined += members.len() as u64;
    // What is no execution is of RQ 1, or of nobody.
    let members: Vec<&str> =
        members.into_iter().filter(|one| split_member(one).is_some()).collect();
    let jobs: Vec<String> = members.iter().map(|one| format!("rq:job:{}", id_of(one))).collect();
    let gone = missing(reader, &jobs).await?;
    for ((member, job), _) in members.into_iter().zip(jobs).zip(gone).filter(|(_, gone)| *gone) {
        let (id, execution) = member.rsplit_once(':').unwrap_or((member, ""));
        page.findings.push(Finding {
            kind: "wip",
            key: wip.clone(),
            member: member.to_owned(),
            queue: Name::new(queue).ok(),
            what: format!(
                "`{member}` is a running job, but job `{id}` does not exist: the entry is removed"
            ),
            heal: Healed::Removed,
            keys: vec![
                wip.clone(),
                job,
                format!("rq:execution:{member}"),
                format!("rq:executions:{id}"),
            ],
            words: vec![member.to_owned(), execution.to_owned()],
        });
    }
    Ok(())
}

async fn find_in_intermediate(
    reader: &Reader<'_>,
    queue: &str,
    page: &mut DriftPage,
) -> Result<()> {
    let list = format!("rq:queue:{queue}:intermediate");
    if reader.kind(list.as_bytes()).await? != "list" {
        return Ok(());
    }
    let ids = reader.list_from_end(list.as_bytes()).await?;
    let ids: Vec<&str> = ids.iter().filter_map(|id| text(id)).collect();
    page.examined += ids.len() as u64;
    let jobs: Vec<String> = ids.iter().map(|id| format!("rq:job:{id}")).collect();
    let gone = missing(reader, &jobs).await?;
    for ((id, job), _) in ids.into_iter().zip(jobs).zip(gone).filter(|(_, gone)| *gone) {
        page.findings.push(Finding {
            kind: "taken",
            key: list.clone(),
            member: id.to_owned(),
            queue: Name::new(queue).ok(),
            what: format!(
                "`{id}` was taken from its queue, but job `{id}` does not exist: the id is removed"
            ),
            heal: Healed::Removed,
            keys: vec![list.clone(), job],
            words: vec![id.to_owned()],
        });
    }
    Ok(())
}

async fn find_workers(reader: &Reader<'_>, set: &str, page: &mut DriftPage) -> Result<()> {
    if reader.kind(set.as_bytes()).await? != "set" {
        return Ok(());
    }
    let members = reader.set(set.as_bytes()).await?;
    let members: Vec<String> =
        members.into_iter().filter_map(|member| String::from_utf8(member).ok()).collect();
    page.examined += members.len() as u64;
    let gone = missing(reader, &members).await?;
    for (member, _) in members.into_iter().zip(gone).filter(|(_, gone)| *gone) {
        let Some(name) = member.strip_prefix("rq:worker:") else { continue };
        page.findings.push(Finding {
            kind: "worker",
            key: set.to_owned(),
            member: member.clone(),
            queue: None,
            what: format!("worker `{name}` is registered, but its record has expired and it is not connected: the name is removed"),
            heal: Healed::Removed,
            keys: vec![set.to_owned(), member.clone()],
            words: vec![member.clone(), name.to_owned()],
        });
    }
    Ok(())
}
