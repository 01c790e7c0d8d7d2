//! Drift in the keys of Resque: workers that are listed and have left no other trace, and jobs of workers that are not listed.
//!
//! Resque looks after dead workers only by `workers`: it never finds the job of one that is not there. An empty queue in `queues`
//! is no contradiction: a list without elements does not exist.

use lapsed_core::Result;
use lapsed_core::reconcile::Healed;

use super::{Resque, node_name};
use crate::rescue::drift::drift_script;
use crate::rescue::profile::{DriftPage, DriftRequest, Finding};
use crate::rescue::reader::{Reader, escaped};
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_resque_drift", "drift.lua");

impl Resque {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        let key = |what: &str| format!("{}:{what}", self.namespace);
        if request.after.is_none() && reader.kind(key("workers").as_bytes()).await? == "set" {
            self.find_workers(reader, &mut page).await?;
        }
        let cursor = request.after.unwrap_or("0");
        let pattern = format!("{}:worker:*", escaped(&self.namespace));
        let (next, keys) =
            reader.page("SCAN", &[pattern.as_bytes()], cursor, request.limit).await?;
        page.next = next;
        page.examined += keys.len() as u64;
        let own = key("worker:");
        let ids: Vec<String> = keys
            .into_iter()
            .filter_map(|name| Some(String::from_utf8(name).ok()?.strip_prefix(&own)?.to_owned()))
            .filter(|id| !id.starts_with("ping:") && !id.ends_with(":started"))
            .collect();
        let workers = key("workers");
        let asked: Vec<Vec<Vec<u8>>> =
            ids.iter().map(|id| vec![workers.clone().into(), id.clone().into()]).collect();
        let listed: Vec<Option<u64>> = reader.each("SISMEMBER", &asked).await?;
        for (id, _) in ids.into_iter().zip(listed).filter(|(_, listed)| *listed == Some(0)) {
            let record = key(&format!("worker:{id}"));
            page.findings.push(Finding {
                kind: "record",
                key: record.clone(),
                member: id.clone(),
                queue: None,
                what: format!("worker `{id}` has a job, but is not in `{workers}`"),
                heal: Healed::Removed,
                keys: vec![workers.clone(), record],
                words: vec![id],
            });
        }
        Ok(page)
    }

    async fn find_workers(&self, reader: &Reader<'_>, page: &mut DriftPage) -> Result<()> {
        let key = |what: &str| format!("{}:{what}", self.namespace);
        let workers = self.workers(reader, &self.namespace).await?;
        page.examined += workers.len() as u64;
        let has_no_trace = |one: &&super::Worker| {
            one.kind.is_empty() && one.record.is_none() && one.started.is_empty()
        };
        for id in workers.iter().filter(has_no_trace).map(|one| one.id.clone()) {
            page.findings.push(Finding {
                kind: "worker",
                key: key("workers"),
                member: id.clone(),
                queue: None,
                what: format!("worker `{id}` is listed, but has no start, no heartbeat and no job: the name is removed"),
                heal: Healed::Removed,
                keys: vec![
                    key("workers"),
                    key(&format!("worker:{id}")),
                    key(&format!("worker:{id}:started")),
                    key(&format!("worker:ping:{}", node_name(&id, None))),
                    key("workers:heartbeat"),
                ],
                words: vec![id],
            });
        }
        Ok(())
    }
}
