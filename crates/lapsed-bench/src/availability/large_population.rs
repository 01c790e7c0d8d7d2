//! Lists all available providers among 100,000 online, page by page and repeatedly. Measures the
//! largest answer, how long one call blocks Redis, and the latency of an unrelated client
//! meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lapsed_availability::{PAGE_MAX, Source};
use lapsed_core::sweep::Cursor;

use super::NAME;
use super::servers::{AvailabilityServers, BenchDaemon, Filling};
use crate::bench::{Bench, progress};
use crate::redis::BenchRedis;
use crate::redis::probe::{Probe, p99};
use crate::table::{Figure, FigureTable, FigureTarget};

/// The pause between two GETs of the unrelated client: long enough to leave the processor to both
/// sides.
const PROBED: Duration = Duration::from_millis(1);
const REPLY_MAX: f64 = 1e6;
const CALL_MAX_US: f64 = 2_000.0;

pub async fn measure(
    bench: &Bench,
    site: &AvailabilityServers,
    table: &mut FigureTable,
) -> Result<()> {
    let providers = bench.sizes.crowd;
    progress(format!("seeding a mirror with {providers} providers online"));
    let filling = Filling { providers, sessions: providers, is_counted: false };
    let database = site.database(filling).await?;
    let began = Instant::now();
    let daemon = site.daemon(&database, Duration::from_secs(10)).await?;
    table.measure(NAME, format!("seeding {providers}"), Figure::ms(ms(began)));
    replies(site, &daemon, table, providers).await?;
    progress("paging through all of them while somebody else uses the server");
    let cache = &site.cache;
    let (mut idle, mut during, mut pages, mut took) = (Vec::new(), Vec::new(), 0, 0.0);
    cache.watch_longest().await?;
    // Idle and busy rounds alternate, so that other load of the machine affects both.
    for _ in 0..bench.sizes.rounds {
        let probe = Probe::every(cache.server.port(), PROBED)?;
        tokio::time::sleep(bench.sizes.watched).await;
        idle.extend(probe.stop()?);
        let (probe, began) = (Probe::every(cache.server.port(), PROBED)?, Instant::now());
        while began.elapsed() < bench.sizes.watched {
            let (one, all) = (Instant::now(), page_through(&daemon).await?);
            (pages, took) = (all, ms(one));
        }
        during.extend(probe.stop()?);
    }
    table.measure(NAME, format!("all of {providers}, in {pages} pages"), Figure::ms(took));
    let (idle, during) = (p99(idle), p99(during));
    let what = "somebody else's p99 meanwhile";
    let target = Some(FigureTarget::AtMost(2.0));
    table.compare(
        NAME,
        what,
        Figure::ms(during),
        ("idle", Figure::ms(idle)),
        during / idle,
        target,
    );
    held(cache, table).await
}

/// The calls of ours meanwhile: transactions and the names for them, or a script in their place.
async fn held(cache: &BenchRedis, table: &mut FigureTable) -> Result<()> {
    let target = Some(FigureTarget::AtMost(1.0));
    let limit = ("the limit", Figure::us(CALL_MAX_US));
    let calls = cache.calls(&["exec", "sscan", "evalsha", "eval"]).await?;
    let longest = calls.iter().map(|call| call.longest_us).fold(0.0, f64::max);
    let what = "longest call of ours";
    table.compare(NAME, what, Figure::us(longest), limit, longest / CALL_MAX_US, target);
    for call in calls.iter().filter(|call| call.count > 0.0) {
        let what = format!("mean of {:.0} {}", call.count, call.verb);
        table.measure(NAME, what, Figure::us(call.mean_us));
    }
    Ok(())
}

/// The largest answer of Redis, by what the server says that it sent; and of ours, as JSON.
async fn replies(
    site: &AvailabilityServers,
    daemon: &BenchDaemon,
    table: &mut FigureTable,
    providers: usize,
) -> Result<()> {
    let cache = &site.cache;
    let own = -sent(cache).await? + sent(cache).await?;
    let (mut after, mut found, mut largest, mut json) = (Cursor::default(), 0, 0.0f64, 0);
    loop {
        let before = sent(cache).await?;
        let page = daemon.it.available(&after, PAGE_MAX).await?.answer;
        largest = largest.max(sent(cache).await? - before - own);
        json = json.max(serde_json::to_vec(&page.available)?.len());
        found += page.available.len();
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    ensure!(found == providers, "{found} of {providers} were found");
    let target = Some(FigureTarget::AtMost(1.0));
    let limit = ("the limit", Figure::bytes(REPLY_MAX));
    let what = format!("largest answers of Redis to one page of {PAGE_MAX}");
    table.compare(NAME, what, Figure::bytes(largest), limit, largest / REPLY_MAX, target);
    let what = "largest page of ours, as JSON";
    table.compare(NAME, what, Figure::bytes(json as f64), limit, json as f64 / REPLY_MAX, target);
    Ok(())
}

/// How many pages it was.
async fn page_through(daemon: &BenchDaemon) -> Result<usize> {
    let (mut after, mut pages) = (Cursor::default(), 0);
    loop {
        let page = daemon.it.available(&after, PAGE_MAX).await?;
        ensure!(page.source == Source::Mirror, "not from the mirror");
        pages += 1;
        match page.answer.next {
            Some(next) => after = next,
            None => return Ok(pages),
        }
    }
}

/// How many bytes Redis has sent so far.
async fn sent(cache: &BenchRedis) -> Result<f64> {
    let info: String = cache.ask(redis::cmd("INFO").arg("stats")).await?;
    let line = info.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    Ok(line.context("INFO has total_net_output_bytes")?.trim().parse()?)
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
