//! Many runs, and what they add up to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::ground::Counts;
use crate::jobs;
use crate::promise::Failure;
use crate::run::{Done, Plan, run};

/// Runs so far.
#[derive(Debug)]
pub struct Campaign {
    began: Instant,
    seeds: u64,
    counts: Counts,
    jobs: u64,
    of_jobs: BTreeMap<&'static str, u64>,
}

impl Campaign {
    /// None so far.
    pub fn new() -> Self {
        Campaign {
            began: Instant::now(),
            seeds: 0,
            counts: Counts::default(),
            jobs: 0,
            of_jobs: BTreeMap::new(),
        }
    }

    /// How long they took.
    pub fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// How many there were.
    pub fn seeds(&self) -> u64 {
        self.seeds
    }

    /// One more.
    pub fn run(&mut self, plan: Plan) -> Result<Done, Box<Failure>> {
        let done = run(plan)?;
        self.seeds += 1;
        self.counts.steps += done.counts.steps;
        self.counts.reclaims += done.counts.reclaims;
        for (kind, count) in &done.counts.faults {
            *self.counts.faults.entry(kind).or_default() += count;
        }
        Ok(done)
    }

    /// A run of jobs, which counts as part of its seed.
    pub fn add_jobs(&mut self, done: &jobs::Done) {
        self.jobs += 1;
        for (kind, count) in &done.counts {
            *self.of_jobs.entry(kind).or_default() += count;
        }
    }

    /// In one line.
    pub fn progress(&self) -> String {
        let rate = self.seeds as f64 / self.took().as_secs_f64().max(1e-9);
        let Counts { steps, reclaims, .. } = self.counts;
        let jobs = match self.jobs {
            0 => String::new(),
            runs => format!(", {runs} runs of jobs"),
        };
        format!("{} seeds, {steps} steps, {reclaims} reclaims, {rate:.1} seeds/s{jobs}", self.seeds)
    }
}

impl Default for Campaign {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; no promise was broken", self.progress())?;
        for (kind, count) in &self.counts.faults {
            write!(f, "\n  {count:>9} {kind}")?;
        }
        if self.jobs > 0 {
            write!(f, "\nof jobs in flight:")?;
        }
        for (kind, count) in &self.of_jobs {
            write!(f, "\n  {count:>9} {kind}")?;
        }
        Ok(())
    }
}

/// Where fresh seeds begin: anywhere, and short enough to be typed.
pub fn fresh_base() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    crate::chance::mix(since.unwrap_or_default().as_nanos() as u64) >> 24
}
