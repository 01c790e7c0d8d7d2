//! Drift in streams with consumer groups: pending entries that are no longer in their stream, and consumers that nobody has been for ages.
//!
//! A stream that is trimmed (`MAXLEN`) or an entry that is deleted leaves its id among the pending ones. A consumer whose program takes
//! another name at each start stays in its group for ever.
//!
//! The place of a page is `NUMBER ID`: the number of the group, over all streams, and the pending entry that was read last.

use lapsed_core::reconcile::Healed;
use lapsed_core::{Name, Result};

use super::{Group, Streams, word};
use crate::rescue::drift::drift_script;
use crate::rescue::profile::{DriftPage, DriftRequest, Finding};
use crate::rescue::reader::Reader;
use crate::script::Script;

pub(super) static DRIFT: Script = drift_script!("rescue_streams_drift", "drift.lua");

/// A consumer without entries is superfluous after it has been idle for so many limits: a week with the usual limit.
const IDLE_LIMITS: u64 = 1_008;

impl Streams {
    pub(super) async fn look_for_drift(
        &self,
        reader: &Reader<'_>,
        request: DriftRequest<'_>,
    ) -> Result<DriftPage> {
        let mut groups = Vec::new();
        for stream in &self.named {
            if reader.kind(stream.as_str().as_bytes()).await? == "stream" {
                let of_stream = self.groups(reader, stream).await?.into_iter();
                groups.extend(of_stream.map(|group| (stream, group)));
            }
        }
        let (number, after) = request
            .after
            .and_then(|after| after.split_once(' '))
            .map_or((0, ""), |(number, after)| (number.parse().unwrap_or(0), after));
        let mut page = DriftPage::default();
        let Some((stream, group)) = groups.get(number) else { return Ok(page) };
        if after.is_empty() {
            self.find_consumers(reader, stream, group, &mut page).await?;
        }
        let last = find_entries(reader, stream, group, after, request.limit, &mut page).await?;
        page.next = match last {
            Some(id) => Some(format!("{number} {id}")),
            None if number + 1 < groups.len() => Some(format!("{} ", number + 1)),
            None => None,
        };
        Ok(page)
    }

    async fn find_consumers(
        &self,
        reader: &Reader<'_>,
        stream: &Name,
        group: &Group,
        page: &mut DriftPage,
    ) -> Result<()> {
        let idle_ms = IDLE_LIMITS * self.limit_ms;
        let consumers = self.consumers(reader, stream, group).await?;
        page.examined += consumers.len() as u64;
        for one in consumers.into_iter().filter(|one| one.pending == 0 && one.idle_ms >= idle_ms) {
            let (consumer, group) = (one.name, &group.name);
            page.findings.push(Finding {
                kind: "consumer",
                key: stream.to_string(),
                member: format!("{group}/{consumer}"),
                queue: Some(stream.clone()),
                what: format!("consumer `{consumer}` of group `{group}` has no entries and has not asked for any for {} hours: the name is removed", one.idle_ms / 3_600_000),
                heal: Healed::Removed,
                keys: vec![stream.to_string()],
                words: vec![group.clone(), consumer, idle_ms.to_string()],
            });
        }
        Ok(())
    }
}

/// Looks at one page of pending entries. Returns the last one, if there may be more.
async fn find_entries(
    reader: &Reader<'_>,
    stream: &Name,
    group: &Group,
    after: &str,
    limit: usize,
    page: &mut DriftPage,
) -> Result<Option<String>> {
    let key = stream.as_str().as_bytes();
    let from = if after.is_empty() { "-".to_owned() } else { format!("({after}") };
    let count = limit.clamp(1, 500);
    let count_text = count.to_string();
    let args: [&[u8]; 5] =
        [key, group.name.as_bytes(), from.as_bytes(), b"+", count_text.as_bytes()];
    let pending: Vec<(String, String, u64, u64)> = reader.one("XPENDING", &args).await?;
    page.examined += pending.len() as u64;
    let asked: Vec<Vec<Vec<u8>>> = pending
        .iter()
        .map(|(id, ..)| vec![key.to_vec(), word(id), word(id), word("COUNT"), word("1")])
        .collect();
    let entries: Vec<Option<Vec<redis::Value>>> = reader.each("XRANGE", &asked).await?;
    for ((id, consumer, ..), entry) in pending.iter().zip(entries) {
        if entry.is_none_or(|entry| !entry.is_empty()) {
            continue;
        }
        let group = &group.name;
        page.findings.push(Finding {
            kind: "entry",
            key: stream.to_string(),
            member: format!("{group}/{id}"),
            queue: Some(stream.clone()),
            what: format!("entry `{id}` of group `{group}` is pending for consumer `{consumer}`, but it is no longer in the stream: it is acknowledged"),
            heal: Healed::Removed,
            keys: vec![stream.to_string()],
            words: vec![id.clone(), group.clone(), consumer.clone()],
        });
    }
    let is_full = pending.len() == count;
    Ok(pending.into_iter().last().map(|(id, ..)| id).filter(|_| is_full))
}
