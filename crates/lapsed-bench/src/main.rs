//! Prints how lapsed compares with what one would write without it, as ratios from one run.
//!
//! Absolute figures depend on the machine and on who else uses it; a ratio of two sides that took
//! turns in one process much less so. What a benchmark compares, and how, stands on top of its file.

mod availability;
mod beat_cost;
mod beats;
mod bench;
mod bench_store;
mod events;
mod http;
mod http_load;
mod leases;
mod naive_registry;
mod pass;
mod redis;
mod register;
mod rounds;
mod size;
mod table;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::bench::Bench;
use crate::table::FigureTable;

/// The side-by-side benchmark of lapsed.
#[derive(Debug, Parser)]
#[command(name = "lapsed-bench", version)]
struct Args {
    /// Runs only this benchmark (may be given several times).
    #[arg(long, value_name = "NAME")]
    only: Vec<Name>,
    /// Of `availability` runs only this part (may be given several times).
    #[arg(long, value_name = "PART")]
    part: Vec<availability::Part>,
    /// Smaller sizes and fewer rounds: to try it out, not to quote.
    #[arg(long)]
    quick: bool,
    /// Prints one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Fails when a target is missed.
    #[arg(long)]
    strict: bool,
    /// Opens the store in this folder, says what it cost, and waits to be killed.
    #[arg(long, hide = true, value_name = "DIR")]
    open: Option<std::path::PathBuf>,
    /// With `--open`: how much of the file it may keep in memory.
    #[arg(long, hide = true, default_value_t = 256 << 20)]
    cache_bytes: usize,
    /// Wants the same lease as others, says what that cost, and ends.
    #[arg(long, hide = true, value_name = "TASK")]
    contend: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    Beats,
    Flat,
    Register,
    Pass,
    Http,
    Events,
    Size,
    RedisRegistry,
    RedisSessions,
    RedisExpiry,
    RedisPrice,
    RedisInflight,
    LeasesEmbedded,
    LeasesObject,
    Availability,
}

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Name::Beats => beats::NAME,
            Name::Flat => beat_cost::NAME,
            Name::Register => register::NAME,
            Name::Pass => pass::NAME,
            Name::Http => http::NAME,
            Name::Events => events::NAME,
            Name::Size => size::NAME,
            Name::RedisRegistry => redis::registry::NAME,
            Name::RedisSessions => redis::sessions::NAME,
            Name::RedisExpiry => redis::expiry::NAME,
            Name::RedisPrice => redis::call_cost::NAME,
            Name::RedisInflight => redis::inflight::NAME,
            Name::LeasesEmbedded => leases::embedded::NAME,
            Name::LeasesObject => leases::object::NAME,
            Name::Availability => availability::NAME,
        }
    }

    fn run(self, bench: &Bench, table: &mut FigureTable) -> Result<()> {
        match self {
            Name::Beats => beats::run(bench, table),
            Name::Flat => beat_cost::run(bench, table),
            Name::Register => register::run(bench, table),
            Name::Pass => pass::run(bench, table),
            Name::Http => http::run(bench, table),
            Name::Events => events::run(bench, table),
            Name::Size => size::run(bench, table),
            Name::RedisRegistry => redis::registry::run(bench, table),
            Name::RedisSessions => redis::sessions::run(bench, table),
            Name::RedisExpiry => redis::expiry::run(bench, table),
            Name::RedisPrice => redis::call_cost::run(bench, table),
            Name::RedisInflight => redis::inflight::run(bench, table),
            Name::LeasesEmbedded => leases::embedded::run(bench, table),
            Name::LeasesObject => leases::object::run(bench, table),
            Name::Availability => availability::run(bench, table),
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(dir) = &args.open {
        return size::open_and_wait(dir, args.cache_bytes);
    }
    if let Some(task) = &args.contend {
        return leases::object::contend(task);
    }
    let bench = Bench::new(args.quick, args.part)?;
    let mut table = FigureTable::new(args.quick);
    for name in Name::value_variants() {
        if args.only.is_empty() || args.only.contains(name) {
            // One that cannot be run does not take the figures of the others with it.
            name.run(&bench, &mut table).unwrap_or_else(|error| table.fail(name.as_str(), &error));
        }
    }
    match args.json {
        true => println!("{}", serde_json::to_string(&table)?),
        false => print!("{table}"),
    }
    anyhow::ensure!(table.failed() == 0, "{} benchmarks failed", table.failed());
    anyhow::ensure!(!args.strict || table.missed() == 0, "{} targets missed", table.missed());
    Ok(())
}
