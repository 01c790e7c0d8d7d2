//! The promises that a run can break, and the report of a broken one.

use std::fmt;

use crate::scenario::Scenario;

/// The promises P1 to P8 of docs/guarantees.md, and three more rules that a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// Nothing is reclaimed from a live owner.
    P1,
    /// What dead owners held is reclaimed within a stated bound.
    P2,
    /// Everything is reclaimed exactly once, and counted exactly once.
    P3,
    /// Nothing is lost: every acknowledged write survives.
    P4,
    /// An ended incarnation is answered `Lost`, and its late writes change nothing. Incarnations
    /// only grow.
    P5,
    /// No call works on more than one batch.
    P6,
    /// After an absence of the store, and in a mass death, nothing is reclaimed at once.
    P7,
    /// Indexes and counts agree with the entries.
    P8,
    /// Only one sweeper leads, and it stops as soon as its term may have ended (X5).
    Leader,
    /// A lookup never finds an owner that ended (X4).
    Lookup,
    Panic,
}

impl Promise {
    pub fn words(self) -> &'static str {
        match self {
            Promise::P1 => "the living are never reclaimed",
            Promise::P2 => "the dead are reclaimed within a stated bound",
            Promise::P3 => "exactly once",
            Promise::P4 => "nothing is lost",
            Promise::P5 => "zombies are told",
            Promise::P6 => "bounded",
            Promise::P7 => "a store that was away is not a mass death",
            Promise::P8 => "index and truth agree",
            Promise::Leader => "a leader whose term cannot be trusted does nothing",
            Promise::Lookup => "a lookup never finds an owner that ended",
            Promise::Panic => "nothing panics",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", self.words())
    }
}

/// A promise that was broken, and what was observed.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: Promise,
    pub what: String,
}

impl Broken {
    /// Reports this promise as broken.
    pub fn new(promise: Promise, what: impl Into<String>) -> Self {
        Broken { promise, what: what.into() }
    }
}

/// The result of a check.
pub type Checked = Result<(), Broken>;

pub fn holds(holds: bool, promise: Promise, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Broken::new(promise, what())) }
}

/// A failed run, with all that is needed to repeat it.
#[derive(Clone, Debug)]
pub struct BrokenPromise {
    pub seed: u64,
    pub scenario: &'static str,
    pub at_ms: u64,
    pub broken: Broken,
    /// The last lines of the trace, oldest first.
    pub tail: Vec<String>,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BrokenPromise { seed, scenario, at_ms, broken, tail } = self;
        for line in tail {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {seed} ({scenario}) broke {} at {at_ms} ms:", broken.promise)?;
        writeln!(f, "  {}", broken.what)?;
        write!(f, "again: lapsed-sim --scenario {scenario} --seed {seed} --trace")?;
        match Scenario::of_seed(*seed).name == *scenario {
            true => write!(f, ", or make sim SEED={seed}"),
            false => Ok(()),
        }
    }
}
