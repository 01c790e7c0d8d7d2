//! One history: a seed in one scenario of any of the simulations. Campaigns and the command line run
//! all simulations through it.

use std::collections::BTreeMap;

use crate::availability::bug::AvailabilityBug;
use crate::bug::Bug;
use crate::jobs::bug::JobBug;
use crate::leases::bug::LeaseBug;
use crate::promise::BrokenPromise;
use crate::run::{RunPlan, run};
use crate::scenario::Scenario;
use crate::sessions::bug::SessionBug;
use crate::{availability, jobs, leases, sessions};

/// The simulation and the scenario of a history, with the bug that is planted in it.
#[derive(Clone, Copy, Debug)]
pub enum HistoryKind {
    Registry { scenario: &'static Scenario, bug: Option<Bug> },
    Jobs(Option<JobBug>),
    Sessions(Option<SessionBug>),
    Leases(Option<LeaseBug>),
    Availability(Option<AvailabilityBug>),
}

/// A history in which no promise was broken.
#[derive(Clone, Debug)]
pub struct HistoryReport {
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

impl HistoryKind {
    /// The five histories of a seed: the scenario of the registry that the seed chooses, so that
    /// consecutive seeds go through all of them, and each other simulation.
    pub fn of_seed(seed: u64) -> Vec<HistoryKind> {
        vec![
            HistoryKind::Registry { scenario: Scenario::of_seed(seed), bug: None },
            HistoryKind::Jobs(None),
            HistoryKind::Sessions(None),
            HistoryKind::Leases(None),
            HistoryKind::Availability(None),
        ]
    }

    /// The name that `--scenario` takes.
    pub fn scenario(self) -> &'static str {
        match self {
            HistoryKind::Registry { scenario, .. } => scenario.name,
            HistoryKind::Jobs(_) => jobs::SCENARIO,
            HistoryKind::Sessions(_) => sessions::SCENARIO,
            HistoryKind::Leases(_) => leases::SCENARIO,
            HistoryKind::Availability(_) => availability::SCENARIO,
        }
    }

    /// Runs the history of this seed; with `printed`, every line of the trace goes to stdout.
    pub fn run(self, seed: u64, printed: bool) -> Result<HistoryReport, Box<BrokenPromise>> {
        let (counts, digest) = match self {
            HistoryKind::Registry { scenario, bug } => {
                let done = run(RunPlan { seed, scenario, bug, printed })?;
                let mut counts = done.counts.faults;
                counts.insert("steps", done.counts.steps);
                counts.insert("reclaims", done.counts.reclaims);
                (counts, done.digest)
            }
            HistoryKind::Jobs(bug) => {
                let done = jobs::run(seed, bug, printed)?;
                (done.counts, done.digest)
            }
            HistoryKind::Sessions(bug) => {
                let done = sessions::run(seed, bug, printed)?;
                (done.counts, done.digest)
            }
            HistoryKind::Leases(bug) => {
                let done = leases::run(seed, bug, printed)?;
                (done.counts, done.digest)
            }
            HistoryKind::Availability(bug) => {
                let done = availability::run(seed, bug, printed)?;
                (done.counts, done.digest)
            }
        };
        Ok(HistoryReport { counts, digest })
    }
}
