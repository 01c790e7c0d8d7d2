//! Sessions: clients that connect and reconnect, servers that crash, stall and come back, two sweepers
//! on the real embedded store, on a disk that loses power, under a virtual clock, from one seed.
//!
//! Read in this order: [`model`] (what the store should say), [`system`] and [`calls`] (where the two
//! are compared, call by call), [`actors`] (who does what), [`bug`] (what all of this must find).
//!
//! Checked at every call: a request that is repeated counts once; a server that was declared dead
//! connects nobody; a reference ends with its server and with nothing else; a session with a reference,
//! or within its grace, is not deleted. Checked regularly and after every failure: references, grace
//! periods, broadcasters and counts are those of the model.

pub mod actors;
pub mod bug;
pub mod calls;
pub mod model;
pub mod system;

use std::collections::BTreeMap;

use crate::disk::Keep;
use crate::promise::{BrokenPromise, Checked, Promise, holds};
use crate::sessions::actors::SessionActors;
use crate::sessions::bug::SessionBug;
use crate::sessions::system::{GRACE_MS, SessionSimSystem, TTL_MS};

/// The name of this simulation for `--scenario`.
pub const SCENARIO: &str = "sessions";

/// The number of steps of one run.
const STEPS: u64 = 700;

/// Long enough for every stopped server to be overdue, and then for every session to be an orphan, also
/// after an absence of the store.
const SETTLE_MS: u64 = 3 * TTL_MS + 2 * GRACE_MS;

/// A run in which no promise was broken.
#[derive(Clone, Debug)]
pub struct SessionRunReport {
    /// How often each kind of event happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// A hash of its trace, and how many lines it has.
    pub digest: (u64, u64),
}

pub fn run(
    seed: u64,
    bug: Option<SessionBug>,
    printed: bool,
) -> Result<SessionRunReport, Box<BrokenPromise>> {
    let mut sim = SessionSimSystem::new(seed, bug, printed);
    let broken = match run_phases(&mut sim) {
        Ok(()) => {
            return Ok(SessionRunReport { counts: sim.counts.clone(), digest: sim.trace.digest() });
        }
        Err(broken) => broken,
    };
    let (at_ms, tail) = (sim.at_ms(), sim.trace.tail());
    Err(Box::new(BrokenPromise { seed, scenario: SCENARIO, at_ms, broken, tail }))
}

fn run_phases(sim: &mut SessionSimSystem) -> Checked {
    let mut actors = SessionActors::new();
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
    sim.compare()?;
    let left: Vec<_> = sim.model.sessions.keys().collect();
    holds(left.is_empty(), Promise::P2, || format!("nobody is connected, and {left:?} are there"))
}
