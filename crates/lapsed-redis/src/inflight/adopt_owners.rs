//! Processes, as the ids in the index name them. There is no list of them that could be trusted (E3):
//! each answer is one look at the index, in bounded pages.

use std::collections::{BTreeMap, BTreeSet};

use lapsed_core::owner::{Incarnation, OwnerInfo};
use lapsed_core::{Name, Result};

use super::adopt::{AdoptedInflight, owner_of};
use super::adopt_reads::from_score;
use crate::names::Template;

/// How many entries one ZSCAN asks for.
const PAGE: usize = 500;

/// The most entries that one scan of the index reads.
const ROWS_MAX: usize = 1_000_000;

impl AdoptedInflight {
    /// Scans the index for entries that match `pattern`; `None`: all entries.
    async fn each_entry(
        &self,
        pattern: Option<&str>,
        mut visit: impl FnMut(Name, u64),
    ) -> Result<()> {
        let (mut cursor, mut rows) = ("0".to_owned(), 0);
        loop {
            let mut cmd = redis::cmd("ZSCAN");
            cmd.arg(&self.layout.index_key).arg(&cursor);
            if let Some(pattern) = pattern {
                cmd.arg("MATCH").arg(pattern);
            }
            cmd.arg("COUNT").arg(PAGE);
            let (next, page): (String, Vec<(Vec<u8>, f64)>) =
                self.context().connection.query("ZSCAN", &cmd).await?;
            for (id, score) in page {
                if let Ok(id) = Name::from_bytes(&id) {
                    visit(id, from_score(score));
                }
            }
            rows += PAGE;
            if next == "0" || rows >= ROWS_MAX {
                return Ok(());
            }
            cursor = next;
        }
    }

    pub(super) async fn processes(&self, limit: usize) -> Result<Vec<OwnerInfo>> {
        // An entry may come twice while the index changes: what counts is which there are.
        let mut found: BTreeMap<Name, (BTreeSet<Name>, u64)> = BTreeMap::new();
        self.each_entry(None, |id, beat_ms| {
            let (ids, newest_ms) = found.entry(owner_of(&id)).or_default();
            ids.insert(id);
            *newest_ms = beat_ms.max(*newest_ms);
        })
        .await?;
        let infos = found.into_iter().take(limit);
        Ok(infos
            .map(|(owner, (ids, beat_ms))| self.info(owner, ids.len() as u64, beat_ms))
            .collect())
    }

    pub(super) async fn one_process(&self, owner: &Name) -> Result<Option<OwnerInfo>> {
        let (mut ids, mut newest_ms) = (BTreeSet::new(), 0);
        self.each_entry(Some(&pattern(owner)), |id, beat_ms| {
            if owner_of(&id) == *owner {
                ids.insert(id);
                newest_ms = beat_ms.max(newest_ms);
            }
        })
        .await?;
        let held = ids.len() as u64;
        Ok((held > 0).then(|| self.info(owner.clone(), held, newest_ms)))
    }

    pub(super) async fn held_by_process(
        &self,
        owner: &Name,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let mut ids = BTreeSet::new();
        self.each_entry(Some(&pattern(owner)), |id, _| {
            if owner_of(&id) == *owner && after.is_none_or(|after| id > *after) {
                ids.insert(id);
                if ids.len() > limit {
                    ids.pop_last();
                }
            }
        })
        .await?;
        Ok(ids.into_iter().collect())
    }

    fn info(&self, owner: Name, held: u64, beat_ms: u64) -> OwnerInfo {
        OwnerInfo {
            owner,
            incarnation: Incarnation(0),
            ttl_ms: self.context().threshold_ms(),
            started_ms: 0,
            due_ms: beat_ms + self.context().threshold_ms(),
            held,
            ended: None,
        }
    }
}

/// The pattern for ids that begin with the owner's name. It may also match ids of other owners.
fn pattern(owner: &Name) -> String {
    let template = Template::new("{owner}", "owner").expect("the place is in the text");
    template.prefixed(owner.as_str()).pattern()
}
