//! Where a job of Sidekiq is that is not an orphan.

use lapsed_core::Result;

use super::entry::jid_of_entry;
use super::keys::Keys;
use super::scene::as_identity;
use crate::rescue::profile::FoundJob;
use crate::rescue::reader::Reader;

/// By the `jid`, among what the last heartbeat of each living process shows.
pub(super) async fn find(reader: &Reader<'_>, keys: &Keys, id: &str) -> Result<Option<FoundJob>> {
    let processes = keys.key("processes");
    if reader.kind(processes.as_bytes()).await? != "set" {
        return Ok(None);
    }
    for process in reader.set(processes.as_bytes()).await?.into_iter().filter_map(as_identity) {
        for suffix in [":work", ":workers"] {
            let picture = keys.key(&format!("{process}{suffix}"));
            let mut is_there = false;
            reader
                .hash(picture.as_bytes(), |_, entry| {
                    is_there |= jid_of_entry(entry, |jid| jid == id).is_some();
                })
                .await?;
            if is_there {
                return describe(reader, keys, &process, id).await.map(Some);
            }
        }
    }
    Ok(None)
}

async fn describe(reader: &Reader<'_>, keys: &Keys, process: &str, jid: &str) -> Result<FoundJob> {
    let left: i64 = reader.one("PTTL", &[keys.key(process).as_bytes()]).await?;
    let mut because = vec![format!("the last heartbeat of process `{process}` shows job `{jid}`")];
    because.push(match left {
        0.. => format!(
            "that process lives: its key expires in {:.1} s, and each heartbeat renews it for 60 s",
            left as f64 / 1_000.0
        ),
        _ => "the key of that process has expired: it is dead".to_owned(),
    });
    let state = if left >= 0 { "live" } else { "silent" };
    Ok(FoundJob { state: state.to_owned(), because })
}
