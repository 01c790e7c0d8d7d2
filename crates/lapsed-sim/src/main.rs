//! `lapsed-sim`: runs seeds, and prints what it takes to run a failing one again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use lapsed_sim::availability::SCENARIO as AVAILABILITY;
use lapsed_sim::availability::bug::AvailabilityBug;
use lapsed_sim::bug::Bug;
use lapsed_sim::campaign::{CampaignPlan, SeedCampaign, fresh_base};
use lapsed_sim::history::HistoryKind;
use lapsed_sim::jobs::SCENARIO as JOBS;
use lapsed_sim::jobs::bug::JobBug;
use lapsed_sim::leases::SCENARIO as LEASES;
use lapsed_sim::leases::bug::LeaseBug;
use lapsed_sim::scenario::{SCENARIOS, Scenario};
use lapsed_sim::sessions::SCENARIO as SESSIONS;
use lapsed_sim::sessions::bug::SessionBug;

/// Owners, sweepers and clients on the embedded store under a virtual clock, from one seed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The number of seeds to run. A seed is five histories: one of the registry, in the scenarios in
    /// turn, and one each of jobs, sessions, leases and availability.
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
    /// The number of seeds that are run at the same time; the number of cores if it is not given.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print every line of the trace, on one thread.
    #[arg(long)]
    trace: bool,
}

/// A deliberate bug of one of the worlds. Where a name is in several, that of the registry is meant,
/// unless the scenario is that of another.
#[derive(Clone, Copy)]
struct Planted {
    registry: Option<Bug>,
    jobs: Option<JobBug>,
    sessions: Option<SessionBug>,
    leases: Option<LeaseBug>,
    availability: Option<AvailabilityBug>,
}

impl Planted {
    const NONE: Planted =
        Planted { registry: None, jobs: None, sessions: None, leases: None, availability: None };

    fn is_none(&self) -> bool {
        let owners = self.registry.is_none() && self.jobs.is_none() && self.sessions.is_none();
        owners && self.leases.is_none() && self.availability.is_none()
    }
}

fn bug(name: &str) -> Result<Planted, String> {
    let planted = Planted {
        registry: named(Bug::ALL, name),
        jobs: named(JobBug::ALL, name),
        sessions: named(SessionBug::ALL, name),
        leases: named(LeaseBug::ALL, name),
        availability: named(AvailabilityBug::ALL, name),
    };
    if planted.is_none() {
        return Err(format!(
            "not one of {:?}, nor of {:?}, nor of {:?}, nor of {:?}, nor of {:?}",
            Bug::ALL,
            JobBug::ALL,
            SessionBug::ALL,
            LeaseBug::ALL,
            AvailabilityBug::ALL
        ));
    }
    Ok(planted)
}

fn named<B: Copy + std::fmt::Debug>(all: &[B], name: &str) -> Option<B> {
    all.iter().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(name)).copied()
}

/// The histories of a seed, as the arguments choose them.
fn histories(
    arguments: &Arguments,
) -> anyhow::Result<Box<dyn Fn(u64) -> Vec<HistoryKind> + Sync + Send>> {
    let planted = arguments.bug.unwrap_or(Planted::NONE);
    let (jobs, leases) = (HistoryKind::Jobs(planted.jobs), HistoryKind::Leases(planted.leases));
    let sessions = HistoryKind::Sessions(planted.sessions);
    let availability = HistoryKind::Availability(planted.availability);
    let registry = |scenario| HistoryKind::Registry { scenario, bug: planted.registry };
    let chosen = match (arguments.scenario.as_deref(), arguments.bug) {
        (Some(JOBS), _) => jobs,
        (Some(SESSIONS), _) => sessions,
        (Some(LEASES), _) => leases,
        (Some(AVAILABILITY), _) => availability,
        (Some(name), _) => registry(Scenario::named(name).with_context(|| unknown(name))?),
        (None, None) => return Ok(Box::new(HistoryKind::of_seed)),
        (None, Some(Planted { registry: Some(bug), .. })) => {
            registry(Scenario::named(bug.scenario()).context("a bug names a scenario")?)
        }
        (None, Some(Planted { jobs: Some(_), .. })) => jobs,
        (None, Some(Planted { sessions: Some(_), .. })) => sessions,
        (None, Some(Planted { leases: Some(_), .. })) => leases,
        (None, Some(_)) => availability,
    };
    Ok(Box::new(move |_| vec![chosen]))
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.scenario.as_deref() == Some("list") {
        SCENARIOS.iter().for_each(|s| println!("{:<11} {}", s.name, s.about));
        println!("{JOBS:<11} jobs in flight: a world of its own");
        println!("{SESSIONS:<11} sessions: a world of its own");
        println!("{LEASES:<11} leases on an object store: a world of its own");
        println!("{AVAILABILITY:<11} availability on a truth and a mirror: a world of its own");
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.seeds == 0 {
        bail!("--seeds must be above 0");
    }
    run(&arguments)
}

fn unknown(name: &str) -> String {
    let names: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
    format!(
        "there is no scenario `{name}`; there are {}, {JOBS}, {SESSIONS}, {LEASES}, {AVAILABILITY}",
        names.join(", ")
    )
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let fresh = arguments.seconds.map(|_| fresh_base());
    if let Some(base) = fresh {
        println!("fresh seeds from {base}");
    }
    let plan = CampaignPlan {
        from: fresh.or(arguments.seed).unwrap_or(arguments.from),
        seeds: match (arguments.seconds, arguments.seed) {
            (Some(_), _) => u64::MAX,
            (None, Some(_)) => 1,
            (None, None) => arguments.seeds,
        },
        limit: arguments.seconds.map(Duration::from_secs),
        threads: if arguments.trace { 1 } else { threads(arguments) },
        histories: &histories(arguments)?,
        printed: arguments.trace,
    };
    match SeedCampaign::run(&plan, |campaign| eprintln!("{}", campaign.progress())) {
        Ok(campaign) => {
            println!("{campaign}");
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            println!("{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn threads(arguments: &Arguments) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    arguments.threads.unwrap_or_else(cores)
}
