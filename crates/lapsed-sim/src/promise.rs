//! What can be broken, and how a run that broke it is told.

use std::fmt;

use crate::scenario::Scenario;

/// The promises of the design, and the two rules beside them that a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The living are never reclaimed.
    P1,
    /// The dead are reclaimed within a bound.
    P2,
    /// Exactly once, and counted exactly once.
    P3,
    /// Nothing is lost: what was acknowledged survives.
    P4,
    /// Zombies are told, and their late writes change nothing; incarnations only grow.
    P5,
    /// No call works on more than a batch.
    P6,
    /// A store that was away, or a mass death, is not reclaimed at once.
    P7,
    /// Index and truth agree.
    P8,
    /// Only one leads, and it stops when its term cannot be trusted (X5).
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

/// A broken promise: which, and what was seen.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: Promise,
    pub what: String,
}

impl Broken {
    /// That promise was broken.
    pub fn new(promise: Promise, what: impl Into<String>) -> Self {
        Broken { promise, what: what.into() }
    }
}

/// What a check says.
pub type Checked = Result<(), Broken>;

pub fn holds(holds: bool, promise: Promise, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Broken::new(promise, what())) }
}

/// A run that failed, with all that is needed to run it again.
#[derive(Clone, Debug)]
pub struct BrokenPromise {
    pub seed: u64,
    pub scenario: &'static str,
    pub at_ms: u64,
    pub broken: Broken,
    /// The last lines of the trace.
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
