//! Jobs whose worker is gone: how long the systems in use today take to put them back on their queue,
//! each with its own recovery as it ships, and what somebody else who uses that server waits meanwhile.
//!
//! Beside it: what taking a job and being done with it costs with bare commands.

mod bare;
mod peers;

use anyhow::Result;

use super::Place;
use crate::bench::{Bench, say};
use crate::rounds::median;
use crate::table::{Figure, Table};

use bare::Load;
use peers::{PEERS, Recovery};

pub const NAME: &str = "redis-inflight";

/// Callers at a time, and how many commands each sends before it looks at the answers.
const CALLERS: usize = 32;
const DEPTH: usize = 16;

pub fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut Table) -> Result<()> {
    let place = Place::new().await?;
    say(format!("taking and completing {} jobs with bare commands", bench.sizes.takes));
    let load = Load { callers: CALLERS, depth: DEPTH, jobs: bench.sizes.takes };
    let mut rates = Vec::new();
    for _ in 0..bench.sizes.rounds {
        rates.push(bare::take_and_complete(&place, load).await?);
    }
    let what = format!("bare LMOVE + RPOP, {CALLERS} callers, {DEPTH} in a pipeline");
    table.measure(NAME, what, Figure::per_second(median(rates)));
    for (nth, peer) in PEERS.iter().enumerate() {
        let orphans = bench.sizes.orphans;
        say(format!("{}: preparing {orphans} orphans", peer.name));
        // A database of its own, and the first is ours.
        let recovery = peers::recover(&place, peer, nth + 1, orphans).await?;
        eprintln!("{}", serde_json::to_string(&recovery)?);
        tell(table, &recovery);
    }
    Ok(())
}

fn tell(table: &mut Table, recovery: &Recovery) {
    let Recovery { peer, version, call, orphans, .. } = recovery;
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
