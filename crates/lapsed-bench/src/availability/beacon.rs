//! The beacon: 5,000 customers ask four daemons twelve times a minute. Lapsed has one shared
//! snapshot, which one daemon at a time computes. The other side is the shared cache of the
//! original: every caller that finds nothing computes the value, also while others are computing
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::{try_join, try_join_all};
use lapsed_availability::{Snapshot, Source};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::NAME;
use super::servers::{AvailabilityServers, BenchDaemon, Database, Filling, SESSIONS_MAX};
use crate::bench::{Bench, progress};
use crate::redis::probe::p99;
use crate::table::{Figure, FigureTable, FigureTarget};

const DAEMONS: usize = 4;
const CUSTOMERS: u64 = 5_000;
const ASKED_A_MINUTE: u64 = 12;
/// The requests of one tick are sent together.
const TICK: Duration = Duration::from_millis(5);

pub async fn compare(
    bench: &Bench,
    site: &AvailabilityServers,
    table: &mut FigureTable,
) -> Result<()> {
    let (ttl, lifetimes) = (bench.sizes.snapshot_ttl, bench.sizes.snapshot_lifetimes);
    let rate = CUSTOMERS * ASKED_A_MINUTE / 60;
    progress(format!(
        "the beacon: {rate} a second at {DAEMONS} daemons, for {lifetimes} lifetimes of {ttl:?}"
    ));
    let filling = Filling { providers: 300, sessions: 1_000, is_counted: true };
    let database = site.database(filling).await?;
    let daemons = try_join_all((0..DAEMONS).map(|_| site.daemon(&database, ttl))).await?;
    // Each has read the settings once.
    for daemon in &daemons {
        daemon.it.count_available().await?;
    }
    let ours = Arc::new(daemons);
    let naive = Arc::new(Naive::new(site, &database, ttl));
    let before = site.statements(&database).len();
    let run = ttl * lifetimes;
    let asking = asked(run, rate, |nth| {
        let ours = ours.clone();
        async move {
            let answer = ours[nth % DAEMONS].it.beacon().await?;
            ensure!(answer.source == Source::Mirror, "not from the mirror");
            Ok(answer.answer)
        }
    });
    let asking_naive = asked(run, rate, |_| {
        let naive = naive.clone();
        async move { naive.ask().await }
    });
    let (waits, _) = try_join(asking, asking_naive).await?;
    let sent = site.statements(&database).split_off(before);
    let made: u64 =
        ours.iter().map(|daemon| daemon.it.counters().snapshots.load(Ordering::Relaxed)).sum();
    tell(table, made, naive.made.load(Ordering::Relaxed), lifetimes);
    let what = format!("p99 of {} answers", waits.len());
    table.measure(NAME, what, Figure::ms(p99(waits)));
    settings_apart(&ours, &sent, run, table)
}

/// A snapshot is made when the first customer asks, and whenever one is over.
fn tell(table: &mut FigureTable, made: u64, naive: u64, lifetimes: u32) {
    let limit = f64::from(lifetimes + 1);
    let what = format!("snapshots computed in {lifetimes} lifetimes by {DAEMONS} daemons");
    let other = ("one when it begins, one a lifetime", Figure::count(limit));
    let (made, naive) = (made as f64, naive as f64);
    let target = Some(FigureTarget::AtMost(1.0));
    table.compare(NAME, what, Figure::count(made), other, made / limit, target);
    let what = "the same, beside a shared cache without turns";
    let other = ("GET, else SDIFF + GETs, SET EX", Figure::count(naive));
    table.compare(NAME, what, Figure::count(made), other, made / naive, None);
}

/// For the beacon itself PostgreSQL is asked nothing; every daemon reads the settings once a minute.
fn settings_apart(
    daemons: &[BenchDaemon],
    sent: &[String],
    run: Duration,
    table: &mut FigureTable,
) -> Result<()> {
    let others: Vec<&String> = sent.iter().filter(|text| !text.contains("app_config")).collect();
    ensure!(others.is_empty(), "PostgreSQL was asked {others:?}");
    let minutes = run.as_secs_f64() / 60.0;
    let allowed = daemons.len() as f64 * minutes.ceil();
    let read = (sent.len() - others.len()) as f64;
    ensure!(read <= allowed, "the settings were read {read} times in {run:?}");
    let what = "statements to PostgreSQL meanwhile, but for settings";
    table.measure(NAME, what, Figure::count(others.len() as f64));
    Ok(())
}

/// Sends `rate` requests per second without waiting for answers; returns how long each waited, in
/// milliseconds.
async fn asked<F>(run: Duration, rate: u64, ask: impl Fn(usize) -> F) -> Result<Vec<f64>>
where
    F: Future<Output = Result<Snapshot>> + Send + 'static,
{
    let began = Instant::now();
    let (mut waits, mut nth, mut asking) = (Vec::new(), 0, JoinSet::new());
    for tick in 0.. {
        let due = began + TICK * tick;
        if due >= began + run {
            break;
        }
        tokio::time::sleep_until(due.into()).await;
        let until = (u128::from(rate) * (TICK * (tick + 1)).as_micros() / 1_000_000) as usize;
        for nth in nth..until {
            let asked = ask(nth);
            asking.spawn(async move {
                ensure!(asked.await?.available, "nobody is available");
                Ok(due.elapsed().as_secs_f64() * 1e3)
            });
        }
        nth = until;
        while let Some(answer) = asking.try_join_next() {
            waits.push(answer??);
        }
    }
    while let Some(answer) = asking.join_next().await {
        waits.push(answer??);
    }
    Ok(waits)
}

/// The original's cache, on the very keys of the mirror but for the snapshot.
struct Naive {
    plain: MultiplexedConnection,
    prefix: String,
    ttl: Duration,
    made: AtomicU64,
}

impl Naive {
    fn new(site: &AvailabilityServers, database: &Database, ttl: Duration) -> Naive {
        let (plain, prefix) = (site.cache.plain.clone(), database.prefix());
        Naive { plain, prefix, ttl, made: AtomicU64::new(0) }
    }

    async fn ask(&self) -> Result<Snapshot> {
        let mut plain = self.plain.clone();
        let key = format!("naive:{}availability:snapshot", self.prefix);
        let cached: Option<String> = redis::cmd("GET").arg(&key).query_async(&mut plain).await?;
        if let Some(text) = cached {
            return Ok(serde_json::from_str(&text)?);
        }
        let snapshot = self.compute(&mut plain).await?;
        self.made.fetch_add(1, Ordering::Relaxed);
        let mut set = redis::cmd("SET");
        let text = serde_json::to_string(&snapshot)?;
        set.arg(&key).arg(text).arg("PX").arg(self.ttl.as_millis() as u64);
        let _: () = set.query_async(&mut plain).await?;
        Ok(snapshot)
    }

    /// Reads all online, active providers, then sessions and heartbeat of each in one pipeline.
    async fn compute(&self, plain: &mut MultiplexedConnection) -> Result<Snapshot> {
        let key = |what: &str| format!("{}{what}", self.prefix);
        let mut diff = redis::cmd("SDIFF");
        diff.arg(key("mitras:online")).arg(key("mitras:deactivated"));
        let ids: Vec<String> = diff.query_async(plain).await?;
        let mut pipeline = redis::pipe();
        for id in &ids {
            pipeline.cmd("GET").arg(key(&format!("mitra:capacity:{id}")));
            pipeline.cmd("GET").arg(key(&format!("mitra:heartbeat:{id}")));
        }
        let answers: Vec<Option<String>> = match ids.is_empty() {
            true => Vec::new(),
            false => pipeline.query_async(plain).await?,
        };
        // The age of the heartbeat is not checked, in favour of this side: no provider is silent
        // here.
        let fits = |pair: &&[Option<String>]| {
            let sessions = pair[0].as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
            sessions < SESSIONS_MAX && pair[1].is_some()
        };
        let count = answers.chunks(2).filter(fits).count() as u64;
        Ok(Snapshot { available: count > 0, count })
    }
}
