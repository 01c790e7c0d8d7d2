//! Finding who can take work, among 300 providers and 100,000 sessions: ours from the mirror, beside the JOIN
//! on PostgreSQL with the indexes that it wants, prepared, its tables in memory; and, to compare, without
//! them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use lapsed_availability::{PAGE_MAX, Source};
use lapsed_core::sweep::Cursor;

use super::NAME;
use super::postgres_only::PostgresOnly;
use super::servers::{AvailabilityServers, BenchDaemon, Database, Filling};
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable, FigureTarget};

const PROVIDERS: usize = 300;
const CALLERS: usize = 64;
/// The other side's connections, shared by its callers: more do not make two cores faster.
const CONNECTIONS: usize = 8;
/// Calls one after the other, a round.
const ALONE: usize = 100;

/// Both sides at one thing: how long it took, or how many a second.
#[derive(Default)]
struct Pair {
    ours: Vec<f64>,
    before: Vec<f64>,
}

pub async fn compare(
    bench: &Bench,
    site: &AvailabilityServers,
    table: &mut FigureTable,
) -> Result<()> {
    let sessions = bench.sizes.chat_sessions;
    progress(format!("finding who is available: {PROVIDERS} providers, {sessions} sessions"));
    let filling = Filling { providers: PROVIDERS, sessions, is_counted: false };
    let database = site.database(filling).await?;
    let daemon = Arc::new(site.daemon(&database, Duration::from_secs(10)).await?);
    let joins = try_join_all((0..CONNECTIONS).map(|_| PostgresOnly::connect(&database))).await?;
    let joins: Vec<Arc<PostgresOnly>> = joins.into_iter().map(Arc::new).collect();
    agree(&daemon, &joins[0]).await?;
    let (mut alone, mut together) = (Pair::default(), Pair::default());
    let mut pings = Vec::new();
    for _ in 0..=bench.sizes.rounds {
        alone
            .before
            .push(time(|| async { joins[0].available().await.map(|all| all.len()) }).await?);
        alone.ours.push(time(|| find(&daemon)).await?);
        pings.push(time(|| ping(site)).await?);
        let count = bench.sizes.finds;
        together.before.push(
            rate(count, |nth| {
                let join = joins[nth % joins.len()].clone();
                async move { join.available().await.map(|all| all.len()) }
            })
            .await?,
        );
        together.ours.push(
            rate(count, |_| {
                let daemon = daemon.clone();
                async move { find(&daemon).await }
            })
            .await?,
        );
    }
    let target = Some(FigureTarget::AtLeast(20.0));
    let (ours, before, ratio) = alone.figures();
    let what = format!("finding who of {PROVIDERS} is available, one caller");
    let other = ("the JOIN, prepared, one connection", Figure::us(before));
    table.compare(NAME, what, Figure::us(ours), other, 1.0 / ratio, target);
    bound(table, &alone, pings.split_off(1));
    let (ours, before, ratio) = together.figures();
    let what = format!("the same by {CALLERS} callers");
    let other = format!("the JOIN, {CONNECTIONS} connections");
    let other = (other.as_str(), Figure::per_second(before));
    table.compare(NAME, what, Figure::per_second(ours), other, ratio, target);
    bare_tables(bench, site, (&database, &daemon), table).await?;
    server_side(site, &daemon, table).await
}

/// Whatever asks Redis anything waits for a round trip: the most that one caller can gain here.
fn bound(table: &mut FigureTable, alone: &Pair, pings: Vec<f64>) {
    let (_, before, _) = alone.figures();
    let ping = median(pings);
    let other = ("the JOIN, prepared, one connection", Figure::us(before));
    let what = "a bare PING by the same library, one caller";
    table.compare(NAME, what, Figure::us(ping), other, before / ping, None);
}

/// The same without the index for the JOIN and without lapsed's own: tables with primary keys only.
async fn bare_tables(
    bench: &Bench,
    site: &AvailabilityServers,
    (database, daemon): (&Database, &BenchDaemon),
    table: &mut FigureTable,
) -> Result<()> {
    let drop = "DROP INDEX chat_sessions_of_mitra, lapsed_sessions_of_provider";
    site.sql(&database.name, drop)?;
    let join = PostgresOnly::connect(database).await?;
    let mut alone = Pair::default();
    for _ in 0..=bench.sizes.rounds {
        alone.before.push(time(|| async { join.available().await.map(|all| all.len()) }).await?);
        alone.ours.push(time(|| find(daemon)).await?);
    }
    let (ours, before, ratio) = alone.figures();
    let what = "the same, one caller, beside primary keys alone";
    let other = ("the JOIN without its index", Figure::us(before));
    table.compare(NAME, what, Figure::us(ours), other, 1.0 / ratio, None);
    Ok(())
}

/// What the server itself works for one such look.
async fn server_side(
    site: &AvailabilityServers,
    daemon: &BenchDaemon,
    table: &mut FigureTable,
) -> Result<()> {
    let (before, requests) = (site.cache.worked().await?, daemon.redis.requests());
    for _ in 0..ALONE {
        find(daemon).await?;
    }
    let worked = (site.cache.worked().await? - before) * 1e3 / ALONE as f64;
    let trips = (daemon.redis.requests() - requests) as f64 / ALONE as f64;
    table.measure(NAME, "what Redis itself works for one look", Figure::us(worked));
    table.measure(NAME, "round trips of it", Figure::count(trips));
    Ok(())
}

/// Both sides find the same.
async fn agree(daemon: &BenchDaemon, join: &PostgresOnly) -> Result<()> {
    let found = daemon.it.available(&Cursor::default(), PAGE_MAX).await?;
    ensure!(found.source == Source::Mirror, "the mirror does not answer");
    let ours = found.answer.available.iter();
    let mut ours: Vec<(String, i64)> =
        ours.map(|one| (one.id.to_string(), one.active_session_count as i64)).collect();
    let mut theirs = join.available().await?;
    ours.sort();
    theirs.sort();
    ensure!(ours == theirs && !ours.is_empty(), "both sides find different providers");
    Ok(())
}

async fn find(daemon: &BenchDaemon) -> Result<usize> {
    let found = daemon.it.available(&Cursor::default(), PAGE_MAX).await?;
    ensure!(found.source == Source::Mirror && found.answer.next.is_none(), "not from the mirror");
    Ok(found.answer.available.len())
}

/// One round trip that does nothing.
async fn ping(site: &AvailabilityServers) -> Result<usize> {
    let answer: String = site.cache.ask(&redis::cmd("PING")).await?;
    Ok(answer.len())
}

/// The median duration of `ALONE` calls, in microseconds.
async fn time<F: Future<Output = Result<usize>>>(mut call: impl FnMut() -> F) -> Result<f64> {
    let mut times = Vec::with_capacity(ALONE);
    for _ in 0..ALONE {
        let began = Instant::now();
        ensure!(call().await? > 0, "nobody was found");
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Calls a second by as many callers.
async fn rate<F>(count: usize, call: impl Fn(usize) -> F) -> Result<f64>
where
    F: Future<Output = Result<usize>> + Send + 'static,
{
    let each = count / CALLERS;
    let began = Instant::now();
    let calling = (0..CALLERS).map(|nth| {
        // Made before the task: a call is a future that needs nothing of ours.
        let calls: Vec<F> = (0..each).map(|_| call(nth)).collect();
        tokio::spawn(async move {
            for call in calls {
                ensure!(call.await? > 0, "nobody was found");
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    try_join_all(calling).await?.into_iter().collect::<Result<()>>()?;
    Ok((each * CALLERS) as f64 / began.elapsed().as_secs_f64())
}

impl Pair {
    /// The middle of ours and of the other side, and of their ratios; the first round is not counted.
    fn figures(&self) -> (f64, f64, f64) {
        let (ours, before) = (&self.ours[1..], &self.before[1..]);
        let ratios = ours.iter().zip(before).map(|(ours, before)| ours / before);
        (median(ours.to_vec()), median(before.to_vec()), median(ratios.collect()))
    }
}
