//! `lapsed-sim`: runs seeds, and prints what it takes to run a failing one again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use lapsed_sim::bug::Bug;
use lapsed_sim::campaign::{Campaign, fresh_base};
use lapsed_sim::run::Plan;
use lapsed_sim::scenario::{SCENARIOS, Scenario};

/// Owners, sweepers and clients on the embedded store under a virtual clock, from one seed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Run so many seeds.
    #[arg(long, value_name = "N", default_value_t = 500)]
    seeds: u64,
    /// Begin with this one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Run this one seed only.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run fresh random seeds for so many seconds.
    #[arg(long, value_name = "S", conflicts_with_all = ["seed", "from", "seeds"])]
    seconds: Option<u64>,
    /// Run this scenario; otherwise the seed chooses (`list` lists them).
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Plant this deliberate bug, in its scenario (see the README).
    #[arg(long, value_name = "NAME", value_parser = bug)]
    bug: Option<Bug>,
    /// Print every line of the trace.
    #[arg(long)]
    trace: bool,
}

fn bug(name: &str) -> Result<Bug, String> {
    let known = Bug::ALL.iter().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(name));
    known.copied().ok_or_else(|| format!("not one of {:?}", Bug::ALL))
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.scenario.as_deref() == Some("list") {
        SCENARIOS.iter().for_each(|s| println!("{:<11} {}", s.name, s.about));
        return Ok(ExitCode::SUCCESS);
    }
    let scenario = match &arguments.scenario {
        None => arguments.bug.and_then(|bug| Scenario::named(bug.scenario())),
        Some(name) => Some(Scenario::named(name).with_context(|| unknown(name))?),
    };
    if arguments.seeds == 0 {
        bail!("--seeds must be above 0");
    }
    run(&arguments, scenario)
}

fn unknown(name: &str) -> String {
    let names: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
    format!("there is no scenario `{name}`; there are {}", names.join(", "))
}

fn run(arguments: &Arguments, scenario: Option<&'static Scenario>) -> anyhow::Result<ExitCode> {
    let fresh = arguments.seconds.map(|_| fresh_base());
    if let Some(base) = fresh {
        println!("fresh seeds from {base}");
    }
    let from = fresh.or(arguments.seed).unwrap_or(arguments.from);
    let count = match (arguments.seconds, arguments.seed) {
        (Some(_), _) => u64::MAX,
        (None, Some(_)) => 1,
        (None, None) => arguments.seeds,
    };
    let limit = arguments.seconds.map(Duration::from_secs);
    let (mut campaign, mut told) = (Campaign::new(), Instant::now());
    for seed in (from..).take(count.min(u64::MAX - from) as usize) {
        if limit.is_some_and(|limit| campaign.took() >= limit) {
            break;
        }
        let plan = Plan { printed: arguments.trace, bug: arguments.bug, ..Plan::of_seed(seed) };
        let plan = Plan { scenario: scenario.unwrap_or(plan.scenario), ..plan };
        if let Err(failure) = campaign.run(plan) {
            println!("{failure}");
            return Ok(ExitCode::FAILURE);
        }
        if told.elapsed() >= Duration::from_secs(5) {
            eprintln!("{}", campaign.progress());
            told = Instant::now();
        }
    }
    println!("{campaign}");
    Ok(ExitCode::SUCCESS)
}
