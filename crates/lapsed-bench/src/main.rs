//! Prints how lapsed compares with what one would write without it, as ratios from one run.
//!
//! Absolute figures depend on the machine and on who else uses it; a ratio of two sides that took
//! turns in one process much less so. What a benchmark compares, and how, stands on top of its file.

mod availability;
mod beat_cost;
mod beats;
mod bench;
mod bench_store;
mod deaths;
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

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
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
    /// Runs only this part of `availability` (may be given several times).
    #[arg(long, value_name = "PART")]
    part: Vec<availability::Part>,
    /// Uses smaller sizes and fewer rounds: for trying it out; the figures are not meaningful.
    #[arg(long)]
    quick: bool,
    /// Writes the figures as one JSON object to FILE, beside the table; without FILE to stdout, instead
    /// of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Fails when a target is missed.
    #[arg(long)]
    strict: bool,
    /// Opens the store in this folder, prints what that cost, and waits for commands or a kill. The
    /// benchmark `size` starts itself with it.
    #[arg(long, hide = true, value_name = "DIR")]
    open: Option<PathBuf>,
    /// With `--open`: the size of the store's cache in bytes.
    #[arg(long, hide = true, default_value_t = 256 << 20)]
    cache_bytes: usize,
    /// Competes for one lease with other processes, prints what that cost, and ends. The benchmark
    /// `leases-object` starts itself with it.
    #[arg(long, hide = true, value_name = "TASK")]
    contend: Option<String>,
}

/// The benchmarks, by the names that `--only` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    Beats,
    Flat,
    Register,
    Pass,
    Deaths,
    Http,
    Events,
    Size,
    RedisRegistry,
    RedisSessions,
    RedisExpiry,
    RedisPrice,
    RedisInflight,
    RedisJobs,
    RedisRescue,
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
            Name::Deaths => deaths::NAME,
            Name::Http => http::NAME,
            Name::Events => events::NAME,
            Name::Size => size::NAME,
            Name::RedisRegistry => redis::registry::NAME,
            Name::RedisSessions => redis::sessions::NAME,
            Name::RedisExpiry => redis::expiry::NAME,
            Name::RedisPrice => redis::call_cost::NAME,
            Name::RedisInflight => redis::inflight::NAME,
            Name::RedisJobs => redis::jobs::NAME,
            Name::RedisRescue => redis::rescue::NAME,
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
            Name::Deaths => deaths::run(bench, table),
            Name::Http => http::run(bench, table),
            Name::Events => events::run(bench, table),
            Name::Size => size::run(bench, table),
            Name::RedisRegistry => redis::registry::run(bench, table),
            Name::RedisSessions => redis::sessions::run(bench, table),
            Name::RedisExpiry => redis::expiry::run(bench, table),
            Name::RedisPrice => redis::call_cost::run(bench, table),
            Name::RedisInflight => redis::inflight::run(bench, table),
            Name::RedisJobs => redis::jobs::run(bench, table),
            Name::RedisRescue => redis::rescue::run(bench, table),
            Name::LeasesEmbedded => leases::embedded::run(bench, table),
            Name::LeasesObject => leases::object::run(bench, table),
            Name::Availability => availability::run(bench, table),
        }
    }
}

/// Prints the table, or with `--json` its JSON; with `--json FILE` both, the JSON to that file.
fn print(table: &FigureTable, json: Option<&Path>) -> Result<()> {
    match json {
        None => print!("{table}"),
        Some(file) if file == Path::new("-") => println!("{}", serde_json::to_string(table)?),
        Some(file) => {
            print!("{table}");
            let text = serde_json::to_string_pretty(table)? + "\n";
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    Ok(())
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
            // A benchmark that fails becomes a row of the table: the figures of the others are kept.
            name.run(&bench, &mut table).unwrap_or_else(|error| table.fail(name.as_str(), &error));
        }
    }
    print(&table, args.json.as_deref())?;
    anyhow::ensure!(table.failed() == 0, "{} benchmarks failed", table.failed());
    anyhow::ensure!(!args.strict || table.missed() == 0, "{} targets missed", table.missed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_of(args: &[&str]) -> Option<PathBuf> {
        Args::try_parse_from(args).expect("the arguments are valid").json
    }

    #[test]
    fn json_takes_a_file_or_none() {
        assert_eq!(json_of(&["lapsed-bench"]), None);
        assert_eq!(json_of(&["lapsed-bench", "--json"]), Some("-".into()));
        assert_eq!(json_of(&["lapsed-bench", "--json", "--quick"]), Some("-".into()));
        assert_eq!(json_of(&["lapsed-bench", "--json", "run.json"]), Some("run.json".into()));
    }

    #[test]
    fn json_file_holds_the_figures() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let file = folder.path().join("run.json");
        let mut table = FigureTable::new(true);
        table.measure("size", "the binary", table::Figure::bytes(34e6));
        print(&table, Some(&file)).expect("the folder is there");
        let text = std::fs::read_to_string(&file).expect("the file was written");
        let json: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(json["rows"][0]["figure"]["value"], 34e6);
    }
}
