//! Leases on the embedded store beside etcd and ZooKeeper, all durable, on one disk.
//!
//! A cycle is an acquire and a release with us, and with etcd what stands for them: a lease is granted,
//! a key is put that lives by it, the lease is revoked. The same number of clients at a time on
//! both sides.
//!
//! A mass expiry is many leases that are over at one instant. With us, that all are cleared, each with its
//! receipt. With etcd, that the keys of as many leases are gone; with ZooKeeper, that the ephemeral nodes
//! of many sessions are, which were cut off at one instant. Seen from outside, from the first that goes
//! to the last, so that noticing it counts for nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::etcd::Etcd;
use super::lapsed::{Expired, LapsedLeases};
use super::timed_sweep::PassTimes;
use super::zookeeper::ZooKeeper;
use crate::bench::{Bench, progress};
use crate::rounds::{Side, median, take_turns};
use crate::table::{Figure, FigureTable, FigureTarget};

pub const NAME: &str = "leases-embedded";
/// Callers at a time, of both. More make etcd slower.
const CLIENTS: usize = 256;
/// Ephemeral nodes of a session.
const EACH: usize = 20;
const EXPIRIES: usize = 3;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let ours = Arc::new(LapsedLeases::open(&bench.path("leases"))?);
    let etcd = Arc::new(bench.runtime.block_on(Etcd::start(&bench.path("leases-etcd")))?);
    cycles(bench, table, &ours, &etcd)?;
    bench.runtime.block_on(async {
        let expired = expiry(bench, table, &ours).await?;
        beside_etcd(bench, table, &expired, &etcd).await?;
        drop(etcd);
        beside_zookeeper(bench, table, &expired).await
    })?;
    match Arc::try_unwrap(ours) {
        Ok(ours) => ours.close(),
        Err(_) => Ok(()),
    }
}

fn cycles(
    bench: &Bench,
    table: &mut FigureTable,
    ours: &Arc<LapsedLeases>,
    etcd: &Arc<Etcd>,
) -> Result<()> {
    let (few, many) = (bench.sizes.lease_cycles, bench.sizes.lease_cycles * 5);
    progress(format!("acquiring and releasing with {CLIENTS} clients"));
    let mut sides: Vec<Side<'_>> = vec![
        Box::new(|| bench.runtime.block_on(ours.cycles(many, CLIENTS))),
        Box::new(|| bench.runtime.block_on(etcd.cycles(few, CLIENTS))),
    ];
    let figures = take_turns(bench.sizes.rounds.min(5), &mut sides)?;
    drop(sides);
    let version = etcd.version()?;
    let other_is = format!("etcd {version}: grant + put + revoke");
    let other = (other_is.as_str(), Figure::per_second(figures.of(1)));
    let what = format!("acquire + release, {CLIENTS} at a time");
    let ours = Figure::per_second(figures.of(0));
    table.compare(NAME, what, ours, other, figures.ratio(0, 1), None);
    Ok(())
}

/// Expires our leases several times; returns the median, with the latency of an unrelated client.
async fn expiry(
    bench: &Bench,
    table: &mut FigureTable,
    ours: &Arc<LapsedLeases>,
) -> Result<Expired> {
    let leases = bench.sizes.leases;
    let mut rounds = Vec::new();
    for _ in 0..EXPIRIES {
        progress(format!("ours: {leases} leases expire"));
        let expired = ours.expire(leases).await?;
        progress(format!("{expired:?}"));
        rounds.push(expired);
    }
    let middle = |of: fn(&Expired) -> f64| median(rounds.iter().map(of).collect());
    let ratio = middle(|round| round.p99_ms / round.idle_p99_ms);
    let spent = rounds.last().map(|round| round.spent).unwrap_or_default();
    let expired = Expired {
        seconds: middle(|round| round.seconds),
        spent,
        idle_p99_ms: middle(|round| round.idle_p99_ms),
        p99_ms: middle(|round| round.p99_ms),
    };
    let what = format!("p99 of an unrelated acquire while {leases} expire");
    let other = ("idle", Figure::ms(expired.idle_p99_ms));
    let target = Some(FigureTarget::AtMost(3.0));
    table.compare(NAME, what, Figure::ms(expired.p99_ms), other, ratio, target);
    tell(table, &spent);
    Ok(expired)
}

/// Where the time of our last pass went.
fn tell(table: &mut FigureTable, spent: &PassTimes) {
    let ms = |time: Duration| Figure::ms(time.as_secs_f64() * 1e3);
    table.measure(NAME, "our last pass: batches", Figure::count(f64::from(spent.batches)));
    table.measure(NAME, "reading who is over", ms(spent.listing));
    table.measure(NAME, "working in the transaction", ms(spent.held));
    table.measure(NAME, "waiting for a turn and for the disk", ms(spent.committing));
}

async fn beside_etcd(
    bench: &Bench,
    table: &mut FigureTable,
    ours: &Expired,
    etcd: &Arc<Etcd>,
) -> Result<()> {
    let leases = bench.sizes.leases;
    progress(format!("etcd: {leases} leases expire; it clears about a thousand a second"));
    let fell = etcd.expire(leases).await?;
    let what = format!("{leases} leases expire at one instant: all cleared");
    let other_is = format!("etcd {}", etcd.version()?);
    let other = (other_is.as_str(), Figure::seconds(fell.seconds));
    let target = Some(FigureTarget::AtLeast(20.0));
    let ratio = fell.seconds / ours.seconds;
    table.compare(NAME, what, Figure::seconds(ours.seconds), other, ratio, target);
    Ok(())
}

async fn beside_zookeeper(bench: &Bench, table: &mut FigureTable, ours: &Expired) -> Result<()> {
    let (leases, sessions) = (bench.sizes.leases, bench.sizes.leases / EACH);
    let zookeeper = ZooKeeper::start(&bench.path("leases-zookeeper")).await?;
    let mut rates = Vec::new();
    for _ in 0..EXPIRIES {
        progress(format!("ZooKeeper: {sessions} sessions with {EACH} nodes each are cut off"));
        let fell = zookeeper.expire(sessions, EACH).await?;
        progress(format!("{fell:?}"));
        rates.push(fell.per_second());
    }
    let (rate, best) = (leases as f64 / ours.seconds, rates.iter().copied().fold(0.0, f64::max));
    let version = zookeeper.version()?;
    let what = format!("cleared, of {leases}");
    let other_is = format!("ZooKeeper {version}: {sessions} sessions");
    let other = median(rates);
    let target = Some(FigureTarget::AtLeast(1.0));
    let figures = (other_is.as_str(), Figure::per_second(other));
    table.compare(NAME, what, Figure::per_second(rate), figures, rate / other, target);
    table.measure(NAME, "ZooKeeper at its best", Figure::per_second(best));
    Ok(())
}
