//! Jobs whose worker is gone: how long the systems in use today take to put them back on their queue,
//! each with its own recovery as it ships, and what somebody else who uses that server waits meanwhile;
//! and ours, with a million more jobs in flight beside them.
//!
//! Beside it: what taking a job and being done with it costs with bare commands and with ours.

mod bare;
pub mod lapsed;
pub mod peers;

use std::time::Duration;

use anyhow::Result;

use super::BenchRedis;
use super::server_time::tell_longest;
use crate::bench::{Bench, progress};
use crate::rounds::median;
use crate::table::{Figure, FigureTable, FigureTarget};

use bare::BareLoad;
use lapsed::{BenchJobs, RecoveryTime};
use peers::{PEERS, PeerRecovery};

pub const NAME: &str = "redis-inflight";

/// Callers at a time, and how many commands each sends before it looks at the answers.
const CALLERS: usize = 32;
const DEPTH: usize = 16;

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

/// The promise that is measured: dead after so long a silence, a pass so often, and how soon after the
/// last beat the last job is to be back.
const THRESHOLD: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(1);
const BACK_WITHIN_S: f64 = 6.5;

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let place = BenchRedis::new().await?;
    taking(bench, &place, table).await?;
    let ours = recovering(bench, &place, table).await?;
    detecting(&place, table).await?;
    for (nth, peer) in PEERS.iter().enumerate() {
        let orphans = bench.sizes.orphans;
        progress(format!("{}: preparing {orphans} orphans", peer.name));
        // A database of its own, and the first is ours.
        let recovery = peers::recover(&place, peer, nth + 1, orphans).await?;
        eprintln!("{}", serde_json::to_string(&recovery)?);
        tell(table, &recovery);
        beside(table, &ours, &recovery);
    }
    Ok(())
}

/// Taking and completing: bare commands and ours take turns.
async fn taking(bench: &Bench, place: &BenchRedis, table: &mut FigureTable) -> Result<()> {
    let load = BareLoad { callers: CALLERS, depth: DEPTH, jobs: bench.sizes.takes };
    progress(format!("taking and completing {} jobs, with bare commands and with ours", load.jobs));
    let jobs = BenchJobs::open(place, "taken").await?;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..bench.sizes.rounds {
        bare.push(bare::take_and_complete(place, load).await?);
        ours.push(jobs.take_and_complete(round, load).await?);
    }
    let ratio = median(ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect());
    let what = format!("take + complete, {CALLERS} callers, {DEPTH} at a time");
    let other = ("bare LMOVE + RPOP, pipelined", Figure::per_second(median(bare)));
    let figure = Figure::per_second(median(ours));
    table.compare(NAME, what, figure, other, ratio, Some(FigureTarget::AtLeast(0.5)));
    Ok(())
}

/// One worker of many dies.
async fn recovering(
    bench: &Bench,
    place: &BenchRedis,
    table: &mut FigureTable,
) -> Result<RecoveryTime> {
    let (all, orphans) = (bench.sizes.owners * bench.sizes.each, bench.sizes.orphans);
    let few = BenchJobs::open(place, "few").await?;
    let many = BenchJobs::open(place, "many").await?;
    progress(format!("ours: {all} jobs in flight"));
    few.create(1_000).await?;
    many.create(all).await?;
    let (one, other) = (many.idle_commands(place).await?, few.idle_commands(place).await?);
    let what = format!("commands of a pass with no dead worker, {all} jobs in flight");
    let target = Some(FigureTarget::AtMost(1.0));
    let beside = ("1000 in flight", Figure::count(other));
    table.compare(NAME, what, Figure::count(one), beside, one / other, target);
    progress(format!("ours: {orphans} orphans"));
    let mut rounds = Vec::new();
    for round in 0..3 {
        rounds.push(many.recover(place, round, orphans).await?);
    }
    let middle = |of: fn(&RecoveryTime) -> f64| median(rounds.iter().map(of).collect());
    let recovered = RecoveryTime {
        took_ms: middle(|one| one.took_ms),
        p99_ms: middle(|one| one.p99_ms),
        longest_us: middle(|one| one.longest_us),
        over: rounds.iter().map(|one| one.over).sum(),
        batches: rounds.iter().flat_map(|one| one.batches.clone()).collect(),
    };
    let what = format!("ours: {orphans} orphans among {all} back, receipts included");
    table.measure(NAME, what, Figure::ms(recovered.took_ms));
    table.measure(NAME, "somebody else's p99 during ours", Figure::ms(recovered.p99_ms));
    let what = format!("longest call of ours, wall time ({} over 2 ms)", recovered.over);
    table.measure(NAME, what, Figure::us(recovered.longest_us));
    tell_longest(table, NAME, &recovered.batches);
    Ok(recovered)
}

/// How soon a death is noticed.
async fn detecting(place: &BenchRedis, table: &mut FigureTable) -> Result<()> {
    progress("a worker is killed: until its last job is back");
    let back_s = BenchJobs::open(place, "watched").await?.detect(THRESHOLD, EVERY, 1_000).await?;
    let what = format!(
        "killed, threshold {} s, a pass every {} s: all back after",
        THRESHOLD.as_secs(),
        EVERY.as_secs()
    );
    let limit = ("the limit", Figure::seconds(BACK_WITHIN_S));
    let target = Some(FigureTarget::AtMost(1.0));
    table.compare(NAME, what, Figure::seconds(back_s), limit, back_s / BACK_WITHIN_S, target);
    Ok(())
}

/// Compares our recovery with that of one peer.
fn beside(table: &mut FigureTable, ours: &RecoveryTime, peer: &PeerRecovery) {
    let is_bull = peer.peer == "BullMQ";
    let what = format!("ours beside {}: {} orphans back", peer.peer, peer.orphans);
    let other = (peer.peer, Figure::ms(peer.took_ms));
    let target = Some(FigureTarget::AtLeast(if is_bull { 25.0 } else { 10.0 }));
    table.compare(NAME, what, Figure::ms(ours.took_ms), other, peer.took_ms / ours.took_ms, target);
    let what = format!("somebody else's p99: ours beside {}", peer.peer);
    let other = (peer.peer, Figure::ms(peer.p99_ms));
    let target = is_bull.then_some(FigureTarget::AtLeast(50.0));
    table.compare(NAME, what, Figure::ms(ours.p99_ms), other, peer.p99_ms / ours.p99_ms, target);
}

fn tell(table: &mut FigureTable, recovery: &PeerRecovery) {
    let PeerRecovery { peer, version, call, orphans, .. } = recovery;
    let (bound, part) = match recovery.is_cut_off {
        true => (", at least", ", until it was cut off"),
        false => ("", ""),
    };
    let what = format!("{peer} {version}, {call}: {orphans} orphans back{bound}");
    table.measure(NAME, what, Figure::ms(recovery.took_ms));
    let what = format!("somebody else's p99 during {peer}'s{part}");
    table.measure(NAME, what, Figure::ms(recovery.p99_ms));
    let what = format!("longest that one call of {peer}'s held the server{bound}");
    table.measure(NAME, what, Figure::ms(recovery.longest_hold_ms));
}
