//! Who can take work now: ours beside the way of seed 002, before it had a mirror and after.
//!
//! A real Redis and a real PostgreSQL, started for the purpose. What PostgreSQL is asked is counted by the
//! server itself, from its log of all statements.

mod beacon;
mod beats;
mod before;
mod crowd;
mod daemons;
mod finding;
mod site;
mod statements;

use anyhow::Result;

use crate::bench::Bench;
use crate::table::Table;

pub const NAME: &str = "availability";

pub fn run(bench: &Bench, table: &mut Table) -> Result<()> {
    bench.runtime.block_on(compare(bench, table))
}

async fn compare(bench: &Bench, table: &mut Table) -> Result<()> {
    let site = site::Site::new().await?;
    beats::compare(bench, &site, table).await?;
    finding::compare(bench, &site, table).await?;
    beacon::compare(bench, &site, table).await?;
    crowd::measure(bench, &site, table).await?;
    statements::compare(bench, &site, table).await
}
