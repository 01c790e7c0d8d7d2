//! Drift between `unacked` and `unacked_index`, which kombu keeps by one transaction each.
//!
//! A message that is not in the index is delivered again by nobody when its worker dies: both kombu and a person who looks at
//! the index pass it over. It gets a score of this moment, and stays where it is.

use lapsed_core::Result;
use lapsed_core::reconcile::Healed;
use lapsed_core::sweep::PassMode;

use super::look::Look;
use super::{Celery, FACTS};
use crate::rescue::drift::drift_script;
use crate::rescue::profile::{DriftPage, DriftRequest, Finding, LookRequest};
use crate::rescue::reader::Reader;
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_celery_drift", "drift.lua");

impl Celery {
    /// `NUMBER:PART:CURSOR`: which application, which of its two keys, and where in it.
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut page = DriftPage::default();
        let mut place = request.after.unwrap_or("0:hash:0").splitn(3, ':');
        let number: usize = place.next().and_then(|text| text.parse().ok()).unwrap_or(0);
        let part = place.next().unwrap_or("hash");
        let cursor = place.next().unwrap_or("0");
        let prefixes = self.prefixes(&self.bindings(reader).await?);
        let Some(prefix) = prefixes.iter().nth(number) else { return Ok(page) };
        let looking = LookRequest { limit: FACTS.limit, act: PassMode::DryRun, own: None };
        let look =
            Look { reader, request: looking, prefix, steps: &self.steps, places: &self.places };
        let following = (number + 1 < prefixes.len()).then(|| format!("{}:hash:0", number + 1));
        if !look.is_celery().await? {
            page.next = following;
            return Ok(page);
        }
        let (unacked, index) = (format!("{prefix}unacked"), format!("{prefix}unacked_index"));
        let from_hash = part == "hash";
        let (scan, key) = if from_hash { ("HSCAN", &unacked) } else { ("ZSCAN", &index) };
        let (next, rows) = reader.page(scan, &[key.as_bytes()], cursor, request.limit).await?;
        page.next = match next {
            Some(next) => Some(format!("{number}:{part}:{next}")),
            None if from_hash => Some(format!("{number}:index:0")),
            None => following,
        };
        let tags: Vec<String> =
            rows.chunks_exact(2).filter_map(|row| String::from_utf8(row[0].clone()).ok()).collect();
        page.examined = tags.len() as u64;
        let other = if from_hash { &index } else { &unacked };
        let asked: Vec<Vec<Vec<u8>>> = tags
            .iter()
            .map(|tag| vec![other.clone().into_bytes(), tag.clone().into_bytes()])
            .collect();
        let verb = if from_hash { "ZSCORE" } else { "HSTRLEN" };
        let found: Vec<Option<Option<f64>>> = reader.each(verb, &asked).await?;
        for (tag, found) in tags.into_iter().zip(found) {
            if found.flatten().is_none_or(|found| !from_hash && found == 0.0) {
                page.findings.push(finding(&unacked, &index, from_hash, tag));
            }
        }
        Ok(page)
    }
}

fn finding(unacked: &str, index: &str, is_message: bool, tag: String) -> Finding {
    let (kind, key, heal, what) = match is_message {
        true => (
            "message",
            unacked,
            Healed::Added,
            format!(
                "the message with delivery tag `{tag}` is not in `{index}`, so that Celery never delivers it again: it is entered there"
            ),
        ),
        false => (
            "index",
            index,
            Healed::Removed,
            format!("delivery tag `{tag}` has no message in `{unacked}`: it is removed"),
        ),
    };
    Finding {
        kind,
        key: key.to_owned(),
        member: tag.clone(),
        queue: None,
        what,
        heal,
        keys: vec![index.to_owned(), unacked.to_owned()],
        words: vec![tag],
    }
}
