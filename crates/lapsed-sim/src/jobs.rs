//! Jobs in flight: producers, workers, zombies and sweepers on the real embedded store, on a disk that
//! loses power, under a virtual clock, from one seed.
//!
//! Read in this order: [`model`] (what the store should say), [`ground`] and [`calls`] (where the two
//! are compared, call by call), [`actors`] (who does what), [`bug`] (what all of this must find).
//!
//! Checked at every call: what is taken is what is next; a claim that is over ends nothing; nobody in
//! time loses a job; a crash is counted with the putting back; tokens only grow. And now and then, and
//! after every failure: each job is in one place, and the account balances.

pub mod actors;
pub mod bug;
pub mod calls;
pub mod ground;
pub mod model;

use std::collections::BTreeMap;

use crate::disk::Keep;
use crate::jobs::actors::Cast;
use crate::jobs::bug::JobBug;
use crate::jobs::ground::{JobSimSystem, TTL_MS};
use crate::jobs::model::ModelPlace;
use crate::promise::{BrokenPromise, Checked, Promise, holds};

/// What a run of jobs is called.
pub const SCENARIO: &str = "jobs";

/// How many things happen in one run.
const STEPS: u64 = 700;

/// A run in which no promise was broken.
#[derive(Clone, Debug)]
pub struct JobRunReport {
    /// How often each kind of thing was done.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

pub fn run(
    seed: u64,
    bug: Option<JobBug>,
    printed: bool,
) -> Result<JobRunReport, Box<BrokenPromise>> {
    let mut ground = JobSimSystem::new(seed, bug, printed);
    let broken = match perform(&mut ground) {
        Ok(()) => {
            return Ok(JobRunReport {
                counts: ground.counts.clone(),
                digest: ground.trace.digest(),
            });
        }
        Err(broken) => broken,
    };
    let (at_ms, tail) = (ground.at_ms(), ground.trace.tail());
    Err(Box::new(BrokenPromise { seed, scenario: SCENARIO, at_ms, broken, tail }))
}

fn perform(ground: &mut JobSimSystem) -> Checked {
    let mut cast = Cast::new();
    for step in 0..STEPS {
        let span_ms = ground.chance.between(1, 600);
        ground.pass(span_ms);
        cast.deliver(ground)?;
        cast.act(ground)?;
        if step % 10 == 0 {
            ground.compare()?;
        }
    }
    ground.note("chaos", format_args!("nothing goes wrong any more"));
    ground.disk.set_fuse(None);
    cast.settle(ground)?;
    ground.crash(Keep::Nothing)?;
    all_came_right(ground)
}

/// Every job was completed, is a dead letter, or was dropped as it asked.
fn all_came_right(ground: &mut JobSimSystem) -> Checked {
    ground.compare()?;
    for (id, job) in &ground.model.jobs {
        let left = matches!(job.place, ModelPlace::Queued | ModelPlace::InFlight { .. });
        holds(!left, Promise::P2, || format!("{id} is still {:?}", job.place))?;
    }
    holds(ground.model.left.completed > 0, Promise::P2, || "nothing was done".to_owned())
}

/// Long enough for everybody who stopped to be due, also after an absence of the store.
const SETTLE_MS: u64 = 3 * TTL_MS;
