//! What the store should say: simple maps on the true time, and nothing of how a store works.
//!
//! Every operation is predicted from the contracts of the seams alone. A prediction changes the
//! model as the operation should change the store; whoever asked compares the two. Times are true
//! milliseconds since the run began, never a store's or a process's clock.

mod entries;
mod reclaim;
mod terms;

use std::collections::{BTreeMap, BTreeSet};

use lapsed_core::Name;
use lapsed_core::owner::{Claim, Ending};

pub use entries::ExpectedPut;
pub use reclaim::{ExpectedCensus, ExpectedOutcome, Reclaimed};
pub use terms::ModelTerm;

#[derive(Clone, Debug)]
pub struct ModelIncarnation {
    pub name: Name,
    /// The TTL of a beat, in milliseconds.
    pub ttl_ms: u64,
    /// When its last beat reached the store.
    pub beat_at: u64,
    /// How and when it ended.
    pub ended: Option<ModelEnd>,
    /// Whether it was ever answered `Lost`.
    pub told: bool,
    /// A write that was undone, or cut off, may or may not have ended it: the store's word decides.
    pub uncertain: bool,
}

/// The end of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelEnd {
    pub ending: Ending,
    pub at: u64,
    /// Whether it must survive a crash.
    pub durable: bool,
}

/// What is under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// The incarnation that holds the key.
    pub incarnation: u64,
    /// The number of the registration, counted over the whole run.
    pub registration: u64,
}

/// A receipt that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelReclaim {
    pub key: Name,
    pub incarnation: u64,
    pub owner: Name,
    pub registration: u64,
    pub sweeper: String,
    /// In which of its batches.
    pub batch: u64,
    pub at: u64,
    /// Whether it was put back.
    pub restored: bool,
}

/// What a claim refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelClaim {
    Incarnation(u64),
    /// A name that never started.
    Nobody,
    /// An incarnation that is not that name's, or is not remembered.
    Stranger,
}

#[derive(Clone, Debug)]
pub struct Model {
    /// The threshold of the store-away grace and of the brake, and the default TTL, in
    /// milliseconds.
    pub threshold_ms: u64,
    /// When the store was last opened.
    pub back_at: u64,
    /// The incarnations that the store has not forgotten.
    pub incarnations: BTreeMap<u64, ModelIncarnation>,
    pub entries: BTreeMap<Name, ModelEntry>,
    /// The receipts that were not pruned, by sequence number.
    pub receipts: BTreeMap<u64, ModelReclaim>,
    /// Every (key, incarnation, registration) ever reclaimed.
    pub taken: BTreeSet<(Name, u64, u64)>,
    /// How many receipts each sweeper ever wrote.
    pub written: BTreeMap<String, u64>,
    /// Batches that were carried out and whose receipts are kept: they are not carried out again.
    pub batches: BTreeSet<(String, u64)>,
    /// Batches that were settled as not carried out: they never will be.
    pub forbidden: BTreeSet<(String, u64)>,
    /// Batches for which `settle` was called, with or without an answer.
    pub asked: BTreeSet<(String, u64)>,
    /// Batches whose outcome their sweeper knows.
    pub settled: BTreeSet<(String, u64)>,
    /// When owners were declared dead.
    pub deaths: Vec<u64>,
    /// What the term may be. More than one while a renewal is in doubt.
    pub terms: Vec<Option<ModelTerm>>,
    last_incarnation: u64,
    last_receipt: u64,
    last_registration: u64,
}

impl Model {
    pub fn new(threshold_ms: u64) -> Self {
        Model {
            threshold_ms,
            back_at: 0,
            incarnations: BTreeMap::new(),
            entries: BTreeMap::new(),
            receipts: BTreeMap::new(),
            taken: BTreeSet::new(),
            written: BTreeMap::new(),
            batches: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            asked: BTreeSet::new(),
            settled: BTreeSet::new(),
            deaths: Vec::new(),
            terms: vec![None],
            last_incarnation: 0,
            last_receipt: 0,
            last_registration: 0,
        }
    }

    /// The largest incarnation so far.
    pub fn last_incarnation(&self) -> u64 {
        self.last_incarnation
    }

    pub fn meant(&self, claim: &Claim) -> ModelClaim {
        let named = |(_, incarnation): &(&u64, &ModelIncarnation)| incarnation.name == claim.owner;
        let newest = self.incarnations.iter().rev().find(named);
        match (claim.incarnation, newest) {
            (None, Some((incarnation, _))) => ModelClaim::Incarnation(*incarnation),
            (None, None) => ModelClaim::Nobody,
            (Some(i), _) if self.incarnations.get(&i.0).is_some_and(|l| l.name == claim.owner) => {
                ModelClaim::Incarnation(i.0)
            }
            (Some(_), _) => ModelClaim::Stranger,
        }
    }

    /// When that incarnation is over: a TTL after its last beat, and never before it had a whole one since
    /// the store was back.
    pub fn due(&self, incarnation: &ModelIncarnation) -> u64 {
        incarnation.beat_at.max(self.back_at) + incarnation.ttl_ms
    }

    /// Whether that incarnation is past its time and has not been declared dead.
    pub fn is_overdue(&self, incarnation: &ModelIncarnation, now: u64) -> bool {
        incarnation.ended.is_none() && self.due(incarnation) <= now
    }

    /// Whether that incarnation has not ended.
    pub fn is_live(&self, incarnation: u64) -> bool {
        self.incarnations.get(&incarnation).is_some_and(|incarnation| incarnation.ended.is_none())
    }

    /// The keys that one incarnation holds.
    pub fn held(&self, incarnation: u64) -> impl Iterator<Item = &Name> {
        self.entries
            .iter()
            .filter(move |(_, held)| held.incarnation == incarnation)
            .map(|(key, _)| key)
    }

    /// A new incarnation. `given` is the number that the store gave it; without one, the next.
    pub fn start(&mut self, name: &Name, ttl_ms: u64, now: u64, given: Option<u64>) -> u64 {
        let number = given.unwrap_or(self.last_incarnation + 1);
        self.last_incarnation = self.last_incarnation.max(number);
        let name = name.clone();
        let incarnation = ModelIncarnation {
            name,
            ttl_ms,
            beat_at: now,
            ended: None,
            told: false,
            uncertain: false,
        };
        self.incarnations.insert(number, incarnation);
        number
    }

    /// Applies a beat: the live incarnation and whether it was just started, or `None` if it is
    /// lost.
    pub fn beat(&mut self, claim: &Claim, now: u64, given: Option<u64>) -> Option<(u64, bool)> {
        match self.meant(claim) {
            ModelClaim::Nobody => {
                Some((self.start(&claim.owner, self.threshold_ms, now, given), true))
            }
            ModelClaim::Stranger => None,
            ModelClaim::Incarnation(number) => {
                let incarnation = self.incarnations.get_mut(&number)?;
                if incarnation.ended.is_some() {
                    incarnation.told = true;
                    return None;
                }
                incarnation.beat_at = now;
                Some((number, false))
            }
        }
    }

    /// A graceful end: which incarnation, unless it is lost.
    pub fn retire(&mut self, claim: &Claim, now: u64) -> Option<u64> {
        let ModelClaim::Incarnation(number) = self.meant(claim) else { return None };
        let incarnation = self.incarnations.get_mut(&number)?;
        match &mut incarnation.ended {
            Some(end) => {
                (end.durable, incarnation.told) = (true, true);
                None
            }
            none => {
                *none = Some(ModelEnd { ending: Ending::Retired, at: now, durable: true });
                Some(number)
            }
        }
    }

    /// Declares an incarnation dead, unless it has already ended.
    pub(crate) fn declare_dead(&mut self, number: u64, now: u64, durable: bool) {
        let Some(incarnation) = self.incarnations.get_mut(&number) else { return };
        incarnation.uncertain = false;
        match &mut incarnation.ended {
            Some(end) => end.durable |= durable,
            none => {
                *none = Some(ModelEnd { ending: Ending::Dead, at: now, durable });
                self.deaths.push(now);
            }
        }
    }

    /// An end that did not survive: that incarnation is live again.
    pub(crate) fn undo_end(&mut self, number: u64) {
        let Some(incarnation) = self.incarnations.get_mut(&number) else { return };
        if let Some(end) = incarnation.ended.take()
            && end.ending == Ending::Dead
            && let Some(i) = self.deaths.iter().position(|at| *at == end.at)
        {
            self.deaths.remove(i);
        }
    }
}
