//! Heartbeats: lapsed checks that the provider is active and online. The other side is the bare
//! `SET` that the original sends after the same check, by as many callers on one connection of the
//! same client library, with its text prepared in advance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use lapsed_availability::ProviderBeat;
use lapsed_core::Name;
use redis::aio::MultiplexedConnection;

use super::NAME;
use super::servers::{AvailabilityServers, BenchDaemon, Filling};
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable, FigureTarget};

/// Callers at a time: some, and as many as a busy daemon has.
const CALLERS: [usize; 2] = [32, 256];
/// Beats one after the other, for counting.
const ALONE: u64 = 500;

pub async fn compare(
    bench: &Bench,
    site: &AvailabilityServers,
    table: &mut FigureTable,
) -> Result<()> {
    let filling = Filling { providers: 300, sessions: 1_000, is_counted: true };
    let database = site.database(filling).await?;
    let daemon = site.daemon(&database, Duration::from_secs(10)).await?;
    let ids = &database.providers;
    let before = site.statements(&database).len();
    round_trips(&daemon, ids, table).await?;
    let daemon = Arc::new(daemon);
    let mut beats = ALONE as usize;
    for callers in CALLERS {
        let count = bench.sizes.heartbeats;
        progress(format!("{count} heartbeats by {callers} callers, ours and bare"));
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        let calls = daemon.redis.requests();
        // One round more that is not counted.
        for _ in 0..=bench.sizes.rounds {
            bare.push(set(&site.cache.plain, ids, callers, count).await?);
            ours.push(beat(&daemon, ids, callers, count).await?);
            beats += count;
        }
        let ratios = ours[1..].iter().zip(&bare[1..]).map(|(ours, bare)| ours / bare);
        let ratio = median(ratios.collect());
        let what = format!("heartbeats, {callers} callers");
        let figure = Figure::per_second(median(ours.split_off(1)));
        let other = ("bare SET, pipelined", Figure::per_second(median(bare.split_off(1))));
        table.compare(NAME, what, figure, other, ratio, Some(FigureTarget::AtLeast(0.8)));
        let calls = (daemon.redis.requests() - calls) as f64;
        let each = ((bench.sizes.rounds + 1) * count) as f64 / calls;
        table.measure(NAME, "heartbeats in one call then", Figure::count(each));
    }
    // Settings are read once a minute, independent of the heartbeats.
    let sent = site.statements(&database).split_off(before);
    ensure!(sent.is_empty(), "PostgreSQL was asked {sent:?}");
    let what = format!("statements to PostgreSQL for {beats} heartbeats");
    table.measure(NAME, what, Figure::count(sent.len() as f64));
    Ok(())
}

async fn round_trips(daemon: &BenchDaemon, ids: &[Name], table: &mut FigureTable) -> Result<()> {
    // The first one finds that the server does not know the script yet.
    daemon.it.heartbeat(&ids[..1]).await?;
    let before = daemon.redis.requests();
    for i in 0..ALONE as usize {
        let id = &ids[i % ids.len()];
        let answer = daemon.it.heartbeat(std::slice::from_ref(id)).await?.answer;
        ensure!(answer == [ProviderBeat::Noted], "{id}: {answer:?}");
    }
    let each = (daemon.redis.requests() - before) as f64 / ALONE as f64;
    let limit = ("the limit", Figure::count(1.0));
    let what = "round trips of a heartbeat alone";
    table.compare(NAME, what, Figure::count(each), limit, each, Some(FigureTarget::AtMost(1.0)));
    Ok(())
}

async fn beat(
    daemon: &Arc<BenchDaemon>,
    ids: &Arc<Vec<Name>>,
    callers: usize,
    count: usize,
) -> Result<f64> {
    let each = count / callers;
    let began = Instant::now();
    let calling = (0..callers).map(|nth| {
        let (daemon, ids) = (daemon.clone(), ids.clone());
        tokio::spawn(async move {
            for i in 0..each {
                let id = &ids[(nth * each + i) % ids.len()];
                let answer = daemon.it.heartbeat(std::slice::from_ref(id)).await?.answer;
                ensure!(answer == [ProviderBeat::Noted], "{id}: {answer:?}");
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    try_join_all(calling).await?.into_iter().collect::<Result<()>>()?;
    Ok((each * callers) as f64 / began.elapsed().as_secs_f64())
}

async fn set(
    plain: &MultiplexedConnection,
    ids: &Arc<Vec<Name>>,
    callers: usize,
    count: usize,
) -> Result<f64> {
    let each = count / callers;
    let began = Instant::now();
    let calling = (0..callers).map(|nth| {
        let (mut plain, ids) = (plain.clone(), ids.clone());
        tokio::spawn(async move {
            for i in 0..each {
                let id = &ids[(nth * each + i) % ids.len()];
                let mut cmd = redis::cmd("SET");
                cmd.arg(format!("bare:mitra:heartbeat:{id}")).arg("2026-05-25T10:00:00.123Z");
                let _: () = cmd.query_async(&mut plain).await?;
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    try_join_all(calling).await?.into_iter().collect::<Result<()>>()?;
    Ok((each * callers) as f64 / began.elapsed().as_secs_f64())
}
