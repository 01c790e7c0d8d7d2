//! A campaign: many runs and the sum of their counts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::promise::BrokenPromise;
use crate::run::{RunPlan, RunReport, run};
use crate::system::SimCounts;

#[derive(Debug)]
pub struct SeedCampaign {
    began: Instant,
    seeds: u64,
    counts: SimCounts,
    jobs: Sum,
    leases: Sum,
    availability: Sum,
}

/// The sum over the runs of one of the other simulations.
#[derive(Debug, Default)]
struct Sum {
    runs: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, counts: &BTreeMap<&'static str, u64>) {
        self.runs += 1;
        for (kind, count) in counts {
            *self.counts.entry(kind).or_default() += count;
        }
    }

    fn told(&self, what: &str) -> String {
        match self.runs {
            0 => String::new(),
            runs => format!(", {runs} runs of {what}"),
        }
    }

    fn list(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        if self.runs > 0 {
            write!(f, "\nof {what}:")?;
        }
        self.counts.iter().try_for_each(|(kind, count)| write!(f, "\n  {count:>9} {kind}"))
    }
}

impl SeedCampaign {
    pub fn new() -> Self {
        SeedCampaign {
            began: Instant::now(),
            seeds: 0,
            counts: SimCounts::default(),
            jobs: Sum::default(),
            leases: Sum::default(),
            availability: Sum::default(),
        }
    }

    /// The time since the campaign began.
    pub fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// The number of seeds that were run.
    pub fn seeds(&self) -> u64 {
        self.seeds
    }

    pub fn run(&mut self, plan: RunPlan) -> Result<RunReport, Box<BrokenPromise>> {
        let done = run(plan)?;
        self.seeds += 1;
        self.counts.steps += done.counts.steps;
        self.counts.reclaims += done.counts.reclaims;
        for (kind, count) in &done.counts.faults {
            *self.counts.faults.entry(kind).or_default() += count;
        }
        Ok(done)
    }

    /// Adds the counts of a run of `jobs`.
    pub fn add_jobs(&mut self, counts: &BTreeMap<&'static str, u64>) {
        self.jobs.add(counts);
    }

    /// Adds the counts of a run of `leases`.
    pub fn add_leases(&mut self, counts: &BTreeMap<&'static str, u64>) {
        self.leases.add(counts);
    }

    /// Adds the counts of a run of `availability`.
    pub fn add_availability(&mut self, counts: &BTreeMap<&'static str, u64>) {
        self.availability.add(counts);
    }

    pub fn progress(&self) -> String {
        let rate = self.seeds as f64 / self.took().as_secs_f64().max(1e-9);
        let SimCounts { steps, reclaims, .. } = self.counts;
        let (jobs, leases) = (self.jobs.told("jobs"), self.leases.told("leases"));
        let availability = self.availability.told("availability");
        let seeds = self.seeds;
        format!(
            "{seeds} seeds, {steps} steps, {reclaims} reclaims, {rate:.1} \
             seeds/s{jobs}{leases}{availability}"
        )
    }
}

impl Default for SeedCampaign {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for SeedCampaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; no promise was broken", self.progress())?;
        for (kind, count) in &self.counts.faults {
            write!(f, "\n  {count:>9} {kind}")?;
        }
        self.jobs.list(f, "jobs in flight")?;
        self.leases.list(f, "leases on an object store")?;
        self.availability.list(f, "availability")
    }
}

/// A random first seed, short enough to be typed.
pub fn fresh_base() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    crate::random::mix(since.unwrap_or_default().as_nanos() as u64) >> 24
}
