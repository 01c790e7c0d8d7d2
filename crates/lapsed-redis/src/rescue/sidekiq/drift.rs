//! Drift in the keys of Sidekiq: processes that are listed and have no record. Sidekiq's own `ProcessSet#cleanup` removes them
//! while another process lives or somebody opens its Web UI.

use lapsed_core::Result;
use lapsed_core::reconcile::Healed;

use super::Sidekiq;
use super::copies::Copies;
use super::scene::as_identity;
use crate::rescue::drift::drift_script;
use crate::rescue::profile::{DriftPage, DriftRequest, Finding};
use crate::rescue::reader::Reader;
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_sidekiq_drift", "drift.lua");

impl Sidekiq {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        let (keys, cursor) = (&self.keys, request.after.unwrap_or("0"));
        let processes = keys.key("processes");
        if reader.kind(processes.as_bytes()).await? != "set" {
            return Ok(page);
        }
        let (next, members) =
            reader.page("SSCAN", &[processes.as_bytes()], cursor, request.limit).await?;
        page.next = next;
        let ids: Vec<String> = members.into_iter().filter_map(as_identity).collect();
        page.examined = ids.len() as u64;
        let asked: Vec<Vec<Vec<u8>>> =
            ids.iter().map(|id| vec![keys.key(id).into_bytes()]).collect();
        let found: Vec<Option<u64>> = reader.each("EXISTS", &asked).await?;
        let marks = Copies::new(request.own, keys).marks_key();
        for (id, _) in ids.into_iter().zip(found).filter(|(_, found)| *found == Some(0)) {
            page.findings.push(Finding {
                kind: "process",
                key: processes.clone(),
                member: id.clone(),
                queue: None,
                what: format!(
                    "process `{id}` is listed, but its record has expired: the name is removed"
                ),
                heal: Healed::Removed,
                keys: vec![processes.clone(), keys.key(&id), marks.clone()],
                words: vec![id],
            });
        }
        Ok(page)
    }
}
