//! Leases on an object store (SeaweedFS), where what counts is how many requests are sent.
//!
//! They are counted where they are sent, by kind. The naive way is what one writes without an index:
//! list all records, read each, clear those that are over; it is carried out in full on the same
//! objects, by the same client.

mod contention;
mod object_server;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapsed_object::{RequestCounts, RequestKind};

use crate::bench::{Bench, progress};
use crate::table::{Figure, FigureTable, FigureTarget};

use contention::Contention;
pub use contention::contend;
use object_server::{BenchObjectServer, lease_key};

pub const NAME: &str = "leases-object";
const PROCESSES: usize = 8;
const CYCLES: usize = 50;
/// The most that each of them may cost.
const PER_CYCLE: f64 = 4.0;
const PER_EXPIRED: f64 = 4.0;
const INDEX_PAGE: usize = 1_000;
const SHORT: Duration = Duration::from_secs(1);
/// The accuracy with which a new client knows the store's clock.
const CLOCK_KNOWN: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(24 * 3_600);

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    progress("starting SeaweedFS");
    let site = BenchObjectServer::start()?;
    cycles(table, &site).await?;
    clearing(table, &site).await?;
    contending(bench, table, &site).await?;
    sweeping(bench, table, &site).await
}

/// Acquires and releases without competition.
async fn cycles(table: &mut FigureTable, site: &BenchObjectServer) -> Result<()> {
    let place = site.open("cycles")?;
    let limit = || ("the limit", Figure::count(PER_CYCLE));
    let target = Some(FigureTarget::AtMost(1.0));
    for what in ["acquire + release of a new key: requests", "the same again: requests"] {
        let before = place.store.requests().total();
        let began = Instant::now();
        for number in 0..CYCLES {
            let ticket = place.acquire(&lease_key("ns", number)?, LONG).await?;
            place.release(&ticket).await?;
        }
        let each = (place.store.requests().total() - before) as f64 / CYCLES as f64;
        let took = began.elapsed().as_secs_f64() * 1e3 / CYCLES as f64;
        table.compare(NAME, what, Figure::count(each), limit(), each / PER_CYCLE, target);
        table.measure(NAME, what.replace("requests", "time"), Figure::ms(took));
    }
    Ok(())
}

/// How many requests an operation adds when it meets an expired lease; each time by a new client.
async fn clearing(table: &mut FigureTable, site: &BenchObjectServer) -> Result<()> {
    let [over, free, seen] = [lease_key("ns", 0)?, lease_key("ns", 1)?, lease_key("ns", 2)?];
    let place = site.open("clearing")?;
    place.acquire(&over, SHORT).await?;
    place.acquire(&seen, SHORT).await?;
    // In the same bucket as the others, or its entry of the index would make the difference.
    let ticket = place.acquire(&free, SHORT).await?;
    place.release(&ticket).await?;
    // Somebody new knows the store's clock to a second only, and calls nothing over before it is for sure.
    place.until_later(SHORT + CLOCK_KNOWN).await?;
    let other = site.open("clearing")?;
    let acquire_free = other.cost(other.acquire(&free, LONG)).await?;
    let acquire_over = other.cost(other.acquire(&over, LONG)).await?;
    let describe_over = other.cost(other.describe(&seen)).await?;
    let describe_free = other.cost(other.describe(&seen)).await?;
    let mut tell = |what: &str, more: f64| {
        let limit = ("the limit", Figure::count(1.0));
        let target = Some(FigureTarget::AtMost(1.0));
        table.compare(NAME, what, Figure::count(more), limit, more, target);
    };
    tell("requests that clearing adds to an acquire", acquire_over - acquire_free);
    tell("requests that clearing adds to a look", describe_over - describe_free);
    Ok(())
}

/// Several processes want one key.
async fn contending(
    bench: &Bench,
    table: &mut FigureTable,
    site: &BenchObjectServer,
) -> Result<()> {
    let each = bench.sizes.contended;
    progress(format!("{PROCESSES} processes acquire one key {each} times each"));
    let contest = Contention::new(site, PROCESSES, each)?;
    let (requests, acquired) = contest.run()?;
    let what = format!("{PROCESSES} processes, one key: requests per acquire + release");
    table.measure(NAME, what, Figure::count(requests as f64 / acquired as f64));
    Ok(())
}

/// Few of many are over.
async fn sweeping(bench: &Bench, table: &mut FigureTable, site: &BenchObjectServer) -> Result<()> {
    let (keys, expired) = (bench.sizes.leases, bench.sizes.expired_objects);
    let place = site.open("sweep")?;
    progress(format!("acquiring {keys} keys of which {expired} expire"));
    place.fill(keys - expired, LONG, 0).await?;
    place.fill(expired, SHORT, keys - expired).await?;
    place.until_bucket_is_over(SHORT).await?;
    progress("the naive way: all records are listed, and each is read");
    let (naive, found) = place.naive(keys).await?;
    ensure!(found == expired, "the naive way finds {found} of {expired}");
    let began = Instant::now();
    let swept = place.sweep(expired).await?;
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    tell_kinds(&swept);
    let ours = swept.total() as f64;
    let limit = PER_EXPIRED * expired as f64 + expired.div_ceil(INDEX_PAGE) as f64;
    let what = format!("one sweep, {expired} of {keys} are over: requests");
    let figure = Figure::count(ours);
    let beside = ("the limit", Figure::count(limit));
    let target = Some(FigureTarget::AtMost(1.0));
    table.compare(NAME, what.clone(), figure, beside, ours / limit, target);
    let all = naive.total() as f64;
    let beside = ("all listed, each read", Figure::count(all));
    table.compare(NAME, what, figure, beside, all / ours, Some(FigureTarget::AtLeast(200.0)));
    table.measure(NAME, "time of that sweep, without rests", Figure::ms(took_ms));
    Ok(())
}

fn tell_kinds(counts: &RequestCounts) {
    let kinds = RequestKind::ALL.map(|kind| format!("{} {}", counts.of(kind), kind.as_str()));
    progress(format!("the sweep sent {}", kinds.join(", ")));
}
