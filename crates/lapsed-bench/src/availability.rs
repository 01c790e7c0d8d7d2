//! Who can take work now: ours beside the way of seed 002, before it had a mirror and after.
//!
//! A real Redis and a real PostgreSQL, started for the purpose. What PostgreSQL is asked is counted by the
//! server itself, from its log of all statements.

mod beacon;
mod beats;
mod daemons;
mod find_available;
mod large_population;
mod postgres_only;
mod servers;
mod statements;

use anyhow::Result;
use clap::ValueEnum;

use crate::bench::Bench;
use crate::table::FigureTable;

pub const NAME: &str = "availability";

/// The parts that can be run alone with `--part`; all together take a quarter of an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Heartbeats,
    Finding,
    Beacon,
    Crowd,
    Statements,
}

pub fn run(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut FigureTable) -> Result<()> {
    let site = servers::AvailabilityServers::new().await?;
    for part in Part::value_variants() {
        if bench.parts.is_empty() || bench.parts.contains(part) {
            part.run(bench, &site, table).await?;
        }
    }
    Ok(())
}

impl Part {
    async fn run(
        self,
        bench: &Bench,
        site: &servers::AvailabilityServers,
        table: &mut FigureTable,
    ) -> Result<()> {
        match self {
            Part::Heartbeats => beats::compare(bench, site, table).await,
            Part::Finding => find_available::compare(bench, site, table).await,
            Part::Beacon => beacon::compare(bench, site, table).await,
            Part::Crowd => large_population::measure(bench, site, table).await,
            Part::Statements => statements::compare(bench, site, table).await,
        }
    }
}
