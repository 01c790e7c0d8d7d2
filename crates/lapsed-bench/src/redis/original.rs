//! The algorithms of the originals, as they are written down, on the same client library.

use std::collections::{BTreeMap, HashMap};

use ::redis::aio::MultiplexedConnection;
use anyhow::Result;

/// The janitor: HGETALL, one EXISTS an instance, then HGET and HDEL for each entry of the dead.
pub async fn janitor(
    connection: &mut MultiplexedConnection,
    hash: &str,
    beat: &str,
) -> Result<u64> {
    let entries: HashMap<String, String> =
        ::redis::cmd("HGETALL").arg(hash).query_async(connection).await?;
    let mut by_owner: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (imei, owner) in &entries {
        by_owner.entry(owner).or_default().push(imei);
    }
    let mut evicted = 0;
    for (owner, imeis) in by_owner {
        let alive: bool =
            ::redis::cmd("EXISTS").arg(format!("{beat}{owner}")).query_async(connection).await?;
        if alive {
            continue;
        }
        for imei in imeis {
            let current: Option<String> =
                ::redis::cmd("HGET").arg(hash).arg(imei).query_async(connection).await?;
            if current.as_deref() == Some(owner) {
                let gone: u64 =
                    ::redis::cmd("HDEL").arg(hash).arg(imei).query_async(connection).await?;
                evicted += gone;
            }
        }
    }
    Ok(evicted)
}

/// The listing of orphans by SCAN, a hundred keys at a time. The original asks for each key's
/// `last_disconnect` by itself; here those of one page go in one pipeline, which is kinder to it.
pub async fn orphans_by_scan(
    connection: &mut MultiplexedConnection,
    prefix: &str,
    cutoff_s: u64,
) -> Result<Vec<String>> {
    let mut orphans = Vec::new();
    let mut cursor = 0u64;
    loop {
        let mut cmd = ::redis::cmd("SCAN");
        cmd.arg(cursor).arg("MATCH").arg(format!("{prefix}*")).arg("COUNT").arg(100);
        let (next, keys): (u64, Vec<String>) = cmd.query_async(connection).await?;
        let mut pipeline = ::redis::pipe();
        for key in &keys {
            pipeline.cmd("HGET").arg(key).arg("last_disconnect");
        }
        let times: Vec<Option<u64>> = match keys.is_empty() {
            true => Vec::new(),
            false => pipeline.query_async(connection).await?,
        };
        for (key, at) in keys.into_iter().zip(times) {
            if at.is_some_and(|at| at > 0 && at <= cutoff_s) {
                orphans.push(key);
            }
        }
        cursor = next;
        if cursor == 0 {
            return Ok(orphans);
        }
    }
}

/// The deletion of one orphan: the count is looked at, then the pipeline.
pub async fn delete_orphan(
    connection: &mut MultiplexedConnection,
    prefix: &str,
    id: &str,
) -> Result<()> {
    let count: Option<i64> =
        ::redis::cmd("GET").arg(format!("{prefix}ref_count:{id}")).query_async(connection).await?;
    if count.unwrap_or(0) > 0 {
        return Ok(());
    }
    let session = format!("{prefix}session:{id}");
    let broadcaster: Option<String> = ::redis::cmd("HGET")
        .arg(&session)
        .arg("broadcaster_user_id")
        .query_async(connection)
        .await?;
    let mut pipeline = ::redis::pipe();
    pipeline.cmd("DEL").arg(&session).ignore();
    pipeline.cmd("DEL").arg(format!("{prefix}ref_count:{id}")).ignore();
    if let Some(broadcaster) = broadcaster {
        pipeline.cmd("DEL").arg(format!("{prefix}broadcaster:{broadcaster}")).ignore();
    }
    pipeline.cmd("ZREM").arg(format!("{prefix}disconnected_sessions")).arg(id).ignore();
    let _: () = pipeline.query_async(connection).await?;
    Ok(())
}
