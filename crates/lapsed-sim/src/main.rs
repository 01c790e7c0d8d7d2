//! `lapsed-sim`: runs seeds, and prints what it takes to run a failing one again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use lapsed_sim::availability::bug::AvailabilityBug;
use lapsed_sim::availability::{self, SCENARIO as AVAILABILITY};
use lapsed_sim::bug::Bug;
use lapsed_sim::campaign::{SeedCampaign, fresh_base};
use lapsed_sim::jobs::bug::JobBug;
use lapsed_sim::jobs::{self, SCENARIO as JOBS};
use lapsed_sim::leases::bug::LeaseBug;
use lapsed_sim::leases::{self, SCENARIO as LEASES};
use lapsed_sim::promise::BrokenPromise;
use lapsed_sim::run::RunPlan;
use lapsed_sim::scenario::{SCENARIOS, Scenario};

/// Owners, sweepers and clients on the embedded store under a virtual clock, from one seed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The number of seeds to run.
    #[arg(long, value_name = "N", default_value_t = 500)]
    seeds: u64,
    /// The seed of the first run.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Run this one seed only.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run new random seeds for this many seconds.
    #[arg(long, value_name = "S", conflicts_with_all = ["seed", "from", "seeds"])]
    seconds: Option<u64>,
    /// Run this scenario; otherwise the seed chooses (`list` lists them).
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Plant this deliberate bug, in its scenario (see the README).
    #[arg(long, value_name = "NAME", value_parser = bug)]
    bug: Option<Planted>,
    /// Print every line of the trace.
    #[arg(long)]
    trace: bool,
}

/// A deliberate bug of one of the worlds. Where a name is in several, that of the registry is meant,
/// unless the scenario is that of another.
#[derive(Clone, Copy)]
struct Planted {
    registry: Option<Bug>,
    jobs: Option<JobBug>,
    leases: Option<LeaseBug>,
    availability: Option<AvailabilityBug>,
}

fn bug(name: &str) -> Result<Planted, String> {
    let registry = named(Bug::ALL, name);
    let jobs = named(JobBug::ALL, name);
    let leases = named(LeaseBug::ALL, name);
    let availability = named(AvailabilityBug::ALL, name);
    if registry.is_none() && jobs.is_none() && leases.is_none() && availability.is_none() {
        let (jobs, leases, availability) = (JobBug::ALL, LeaseBug::ALL, AvailabilityBug::ALL);
        return Err(format!(
            "not one of {:?}, nor of {jobs:?}, nor of {leases:?}, nor of {availability:?}",
            Bug::ALL
        ));
    }
    Ok(Planted { registry, jobs, leases, availability })
}

fn named<B: Copy + std::fmt::Debug>(all: &[B], name: &str) -> Option<B> {
    all.iter().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(name)).copied()
}

/// Which worlds to run: that of the registry, by the scenario or as each seed has it, and the others.
struct Worlds {
    registry: Option<Option<&'static Scenario>>,
    jobs: bool,
    leases: bool,
    availability: bool,
}

impl Worlds {
    const NONE: Worlds = Worlds { registry: None, jobs: false, leases: false, availability: false };
    const JOBS: Worlds = Worlds { jobs: true, ..Worlds::NONE };
    const LEASES: Worlds = Worlds { leases: true, ..Worlds::NONE };
    const AVAILABILITY: Worlds = Worlds { availability: true, ..Worlds::NONE };
}

fn worlds(arguments: &Arguments) -> anyhow::Result<Worlds> {
    let of_registry = |scenario| Worlds { registry: Some(Some(scenario)), ..Worlds::NONE };
    Ok(match (arguments.scenario.as_deref(), arguments.bug) {
        (Some(JOBS), _) => Worlds::JOBS,
        (Some(LEASES), _) => Worlds::LEASES,
        (Some(AVAILABILITY), _) => Worlds::AVAILABILITY,
        (Some(name), _) => of_registry(Scenario::named(name).with_context(|| unknown(name))?),
        (None, None) => {
            Worlds { registry: Some(None), jobs: true, leases: true, availability: true }
        }
        (None, Some(Planted { registry: Some(bug), .. })) => {
            let registry = Some(Scenario::named(bug.scenario()));
            Worlds { registry, ..Worlds::NONE }
        }
        (None, Some(Planted { jobs: Some(_), .. })) => Worlds::JOBS,
        (None, Some(Planted { leases: Some(_), .. })) => Worlds::LEASES,
        (None, Some(_)) => Worlds::AVAILABILITY,
    })
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.scenario.as_deref() == Some("list") {
        SCENARIOS.iter().for_each(|s| println!("{:<11} {}", s.name, s.about));
        println!("{JOBS:<11} jobs in flight: a world of its own");
        println!("{LEASES:<11} leases on an object store: a world of its own");
        println!("{AVAILABILITY:<11} availability on a truth and a mirror: a world of its own");
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.seeds == 0 {
        bail!("--seeds must be above 0");
    }
    run(&arguments, &worlds(&arguments)?)
}

fn unknown(name: &str) -> String {
    let names: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
    format!(
        "there is no scenario `{name}`; there are {}, {JOBS}, {LEASES}, {AVAILABILITY}",
        names.join(", ")
    )
}

fn run(arguments: &Arguments, worlds: &Worlds) -> anyhow::Result<ExitCode> {
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
    let (mut campaign, mut told) = (SeedCampaign::new(), Instant::now());
    for seed in (from..).take(count.min(u64::MAX - from) as usize) {
        if limit.is_some_and(|limit| campaign.took() >= limit) {
            break;
        }
        if let Err(failure) = run_seed(&mut campaign, arguments, worlds, seed) {
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

fn run_seed(
    campaign: &mut SeedCampaign,
    arguments: &Arguments,
    worlds: &Worlds,
    seed: u64,
) -> Result<(), Box<BrokenPromise>> {
    let planted = arguments.bug;
    if let Some(scenario) = worlds.registry {
        let bug = planted.and_then(|bug| bug.registry);
        let plan = RunPlan { printed: arguments.trace, bug, ..RunPlan::of_seed(seed) };
        campaign.run(RunPlan { scenario: scenario.unwrap_or(plan.scenario), ..plan })?;
    }
    if worlds.jobs {
        let bug = planted.and_then(|bug| bug.jobs);
        campaign.add_jobs(&jobs::run(seed, bug, arguments.trace)?.counts);
    }
    if worlds.leases {
        let bug = planted.and_then(|bug| bug.leases);
        campaign.add_leases(&leases::run(seed, bug, arguments.trace)?.counts);
    }
    if worlds.availability {
        let bug = planted.and_then(|bug| bug.availability);
        campaign.add_availability(&availability::run(seed, bug, arguments.trace)?.counts);
    }
    Ok(())
}
