//! Who works on the queues of BullMQ, as far as the names of connections tell: `PREFIX:BASE64` and `PREFIX:BASE64:w:NAME`, with the name of
//! the queue in Base64. A connection loses its name with its process.

use std::collections::BTreeSet;

use lapsed_core::{Name, Result};

use super::Queue;
use crate::rescue::profile::{Seen, SeenWorker};
use crate::rescue::reader::Reader;

/// The names of all connections, each with its address; `None`: this user may not see them.
async fn clients(reader: &Reader<'_>) -> Option<Vec<(String, String)>> {
    let list: String = reader.one("CLIENT", &[b"LIST", b"TYPE", b"normal"]).await.ok()?;
    let of = |line: &str, field: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(field)).map(str::to_owned)
    };
    let named = list.lines().filter_map(|line| Some((of(line, "name=")?, of(line, "addr=")?)));
    Some(named.filter(|(name, _)| !name.is_empty()).collect())
}

/// How the names of a queue's connections begin.
fn start_of(queue: &Queue) -> String {
    let (prefix, name) = queue.base.rsplit_once(':').unwrap_or(("", &queue.base));
    format!("{prefix}:{}", base64(name.as_bytes()))
}

fn is_of(client: &str, start: &str) -> bool {
    client.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(":w:"))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for some in bytes.chunks(3) {
        let word = some.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - some.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= some.len() { digit as char } else { '=' });
        }
    }
    text
}

/// Adds the connected workers, for `detect`: a look that acts does without them.
pub(super) async fn add_connected(
    reader: &Reader<'_>,
    queues: &[Queue],
    seen: &mut Seen,
) -> Result<()> {
    let Some(clients) = clients(reader).await else {
        seen.notes.push(
            "living workers are not counted, because this user may not call CLIENT LIST".to_owned(),
        );
        return Ok(());
    };
    let starts: BTreeSet<String> = queues.iter().map(start_of).collect();
    for (client, address) in clients {
        if starts.iter().any(|start| is_of(&client, start)) {
            let name = Name::new(&format!("{client} at {address}"))?;
            seen.workers.insert(name, SeenWorker::default());
        }
    }
    Ok(())
}

/// Whether a worker checks for stalled jobs now: `stalled-check` is there for as long as one does.
pub(super) async fn is_checked(reader: &Reader<'_>, queue: &Queue) -> Result<bool> {
    let check = format!("{}:stalled-check", queue.base);
    let checked: u64 = reader.one("EXISTS", &[check.as_bytes()]).await?;
    Ok(checked == 1)
}

/// Why jobs without a lock are left alone on a queue that nobody was seen to check: somebody works on it. A job that was taken by
/// hand with the token `0` has no lock from the beginning, and an application that does so turns that check off. Where a worker was
/// seen to check, none checks now because all of them are dead, stopped or blocked.
pub(super) async fn unchecked(reader: &Reader<'_>, queue: &Queue) -> Result<Option<String>> {
    let start = start_of(queue);
    Ok(match clients(reader).await {
        None => Some(format!(
            "queue `{}`: nobody checks for stalled jobs, and this user may not call CLIENT LIST to see whether a worker lives: jobs without a lock are left alone",
            queue.name
        )),
        Some(clients) if clients.iter().any(|(client, _)| is_of(client, &start)) => Some(format!(
            "queue `{}`: its workers do not check for stalled jobs (`skipStalledCheck`, or jobs are taken by hand): jobs without a lock are left alone",
            queue.name
        )),
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_named_after_their_queue() {
        assert_eq!(base64(b"jobs"), "am9icw==");
        assert_eq!(base64(b"mails!"), "bWFpbHMh");
        assert!(
            is_of("bull:am9icw==", "bull:am9icw==") && is_of("bull:am9icw==:w:a", "bull:am9icw==")
        );
        assert!(!is_of("bull:am9icw==2", "bull:am9icw=="));
        assert!(!is_of("bull:am9icw==:qe", "bull:am9icw=="), "it only listens for events");
    }
}
