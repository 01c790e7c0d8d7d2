//! Jobs in flight: producers, workers, zombies and sweepers on the real embedded store, on a disk that
//! loses power, under a virtual clock, from one seed.
//!
//! Read in this order: [`model`] (what the store should say), [`system`] and [`calls`] (where the two
//! are compared, call by call), [`actors`] (who does what), [`bug`] (what all of this must find).
//!
//! Checked at every call: the job taken is the next of the queue; a superseded claim finishes
//! nothing; a live worker loses no job; a crash is recorded when a job is put back; tokens only
//! grow. Checked regularly and after every failure: each job is in one place, and the counts
//! balance.

pub mod actors;
pub mod bug;
pub mod calls;
pub mod model;
pub mod system;

use std::collections::BTreeMap;

use crate::disk::Keep;
use crate::jobs::actors::JobActors;
use crate::jobs::bug::JobBug;
use crate::jobs::model::ModelPlace;
use crate::jobs::system::{JobSimSystem, TTL_MS};
use crate::promise::{BrokenPromise, Checked, Promise, holds};

/// The name of this simulation for `--scenario`.
pub const SCENARIO: &str = "jobs";

/// The number of steps of one run.
const STEPS: u64 = 700;

/// A run in which no promise was broken.
#[derive(Clone, Debug)]
pub struct JobRunReport {
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

pub fn run(
    seed: u64,
    bug: Option<JobBug>,
    printed: bool,
) -> Result<JobRunReport, Box<BrokenPromise>> {
    let mut sim = JobSimSystem::new(seed, bug, printed);
    let broken = match run_phases(&mut sim) {
        Ok(()) => {
            return Ok(JobRunReport { counts: sim.counts.clone(), digest: sim.trace.digest() });
        }
        Err(broken) => broken,
    };
    let (at_ms, tail) = (sim.at_ms(), sim.trace.tail());
    Err(Box::new(BrokenPromise { seed, scenario: SCENARIO, at_ms, broken, tail }))
}

fn run_phases(sim: &mut JobSimSystem) -> Checked {
    let mut actors = JobActors::new();
    for step in 0..STEPS {
        let span_ms = sim.random.between(1, 600);
        sim.pass(span_ms);
        actors.deliver(sim)?;
        actors.act(sim)?;
        if step % 10 == 0 {
            sim.compare()?;
        }
    }
    sim.note("chaos", format_args!("nothing goes wrong any more"));
    sim.disk.set_sync_fault(None);
    actors.settle(sim)?;
    sim.crash(Keep::Nothing)?;
    all_came_right(sim)
}

/// P2: at the end every job is completed, a dead letter, or dropped by its own policy.
fn all_came_right(sim: &mut JobSimSystem) -> Checked {
    sim.compare()?;
    for (id, job) in &sim.model.jobs {
        let left = matches!(job.place, ModelPlace::Queued | ModelPlace::InFlight { .. });
        holds(!left, Promise::P2, || format!("{id} is still {:?}", job.place))?;
    }
    holds(sim.model.left.completed > 0, Promise::P2, || "nothing was done".to_owned())
}

/// Long enough for every stopped worker to be overdue, also after an absence of the store.
const SETTLE_MS: u64 = 3 * TTL_MS;
