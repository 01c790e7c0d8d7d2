//! Where a job of RQ is that is not an orphan.

use lapsed_core::Result;

use crate::rescue::profile::FoundJob;
use crate::rescue::reader::Reader;

/// By `QUEUE/ID`, as receipts have it, or by the id alone.
pub(super) async fn find(reader: &Reader<'_>, id: &str) -> Result<Option<FoundJob>> {
    let ids = std::iter::once(id).chain(id.split_once('/').map(|(_, id)| id));
    for id in ids {
        let key = format!("rq:job:{id}");
        let words = [key.as_str(), "status", "origin", "worker_name", "started_at"];
        let words: Vec<Vec<u8>> = words.map(|word| word.as_bytes().to_vec()).to_vec();
        let fields: Vec<Option<[Option<String>; 4]>> = reader.each("HMGET", &[words]).await?;
        if let Some([Some(status), origin, worker, started]) = fields.into_iter().next().flatten() {
            let queue = origin.unwrap_or_default();
            let worker = worker.filter(|name| status == "started" && !name.is_empty());
            return describe(reader, id, &status, &queue, worker, started).await.map(Some);
        }
    }
    Ok(None)
}

async fn describe(
    reader: &Reader<'_>,
    id: &str,
    status: &str,
    queue: &str,
    worker: Option<String>,
    started: Option<String>,
) -> Result<FoundJob> {
    let mut because = vec![format!("job `{id}` of queue `{queue}` has the status `{status}`")];
    let Some(worker) = worker else {
        return Ok(FoundJob { state: status.to_owned(), because });
    };
    let started = started.unwrap_or_default();
    because.push(format!("worker `{worker}` has it since {started}"));
    let channel = format!("rq:pubsub:{worker}");
    let asked = [vec![b"NUMSUB".to_vec(), channel.clone().into_bytes()]];
    let answers: Vec<Option<(Vec<u8>, u64)>> = reader.each("PUBSUB", &asked).await?;
    let state = match answers.into_iter().next().flatten() {
        Some((_, 0)) => {
            because.push(format!("nobody is subscribed to `{channel}` at this moment: the worker is dead, or is connecting again"));
            "silent"
        }
        Some(_) => {
            because.push(format!(
                "that worker lives: a connection of it, or of its work horse, is subscribed to `{channel}`"
            ));
            "live"
        }
        None => {
            because.push("this user may not call PUBSUB: the worker counts as alive until the deadline of its job has passed".to_owned());
            "live"
        }
    };
    Ok(FoundJob { state: state.to_owned(), because })
}
