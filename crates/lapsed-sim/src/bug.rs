//! Planted bugs: the simulation must find each of them. None is in production code; they are
//! wrappers around the library's traits, or other implementations of them.
//!
//! [`PlantedBug`] changes what the store answers, `guard` holds wrong death rules, `sweep` wrong
//! sweepers, `clock` clocks that must not be trusted.

pub mod clock;
mod guard;
pub mod sweep;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use lapsed_core::clock::Clock;
use lapsed_core::owner::{Beat, Claim, Incarnation};
use lapsed_core::registry::FoundEntry;
use lapsed_core::registry::rules::{OwnerGuard, StrictOwnerGuard};
use lapsed_core::store::Store;
use lapsed_core::sweep::brake::{BrakeRecord, Overriding};
use lapsed_core::sweep::{Batch, Census};
use lapsed_core::{Error, Result, SystemId};
use lapsed_embedded::Embedded;

use crate::promise::Promise;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// The reclaim trusts the page of suspects; a beat after the page is ignored (A1).
    GuardOutsideTheStep,
    /// The reclaim checks that the suspected incarnation is dead, not that it still holds the key
    /// (A3).
    NoIncarnationCheck,
    /// After a restart of the store there is no grace: owners are judged by beats from before the
    /// restart.
    NoStoreAwayGrace,
    /// Registering under an ended incarnation is accepted (A5).
    DeadMayRegister,
    /// A beat of an ended incarnation is answered as if the incarnation were live (A4, E2).
    BeatRevivesTheDead,
    /// A new start of a known name gets the incarnation that the name already has (A3, E12).
    RestartInherits,
    /// A batch whose answer was lost is counted as done.
    DoubtCountedAsDone,
    /// A batch whose answer was lost is never looked up again.
    DoubtNeverSettled,
    /// A batch whose answer was lost is settled twice, and both results are counted.
    RetryCountedTwice,
    /// Suspects are counted, not outcomes (A2).
    TallyOfIntended,
    /// The cursor moves past what a pass had listed and not worked on (D11).
    CursorJumps,
    /// All suspects go into one batch (B9, X4).
    BatchUnbounded,
    /// The brake does not hold back a mass death.
    NoBrake,
    /// A term is trusted from when its renewal was answered, not from when it was sent.
    TrustFromTheAnswer,
    /// A leader goes on until it is told to stop (B12).
    LeaderNeverStops,
    /// The term does not go along with the batch, so a stalled leader's last call still acts (X5).
    TermNotFenced,
    /// An owner's handle goes by its monotonic clock alone, and its host slept (X8).
    HandleTrustsMonotonicAlone,
    /// The store uses the caller's clock instead of its own (C11).
    CallersClockJudges,
    /// The store acknowledges before its commit is durable: the disk lies about syncs.
    AcknowledgedBeforeDurable,
    /// The log is emptied before the database has what was in it: the disk lies about syncs of the database only.
    CheckpointNotDurable,
    /// A lookup does not look at whether the owner has ended (X4).
    LookupFindsTheEnded,
    /// The census is cached and never updated.
    StaleCensus,
}

impl Bug {
    pub const ALL: &[Bug] = &[
        Bug::GuardOutsideTheStep,
        Bug::NoIncarnationCheck,
        Bug::NoStoreAwayGrace,
        Bug::DeadMayRegister,
        Bug::BeatRevivesTheDead,
        Bug::RestartInherits,
        Bug::DoubtCountedAsDone,
        Bug::DoubtNeverSettled,
        Bug::RetryCountedTwice,
        Bug::TallyOfIntended,
        Bug::CursorJumps,
        Bug::BatchUnbounded,
        Bug::NoBrake,
        Bug::TrustFromTheAnswer,
        Bug::LeaderNeverStops,
        Bug::TermNotFenced,
        Bug::HandleTrustsMonotonicAlone,
        Bug::CallersClockJudges,
        Bug::AcknowledgedBeforeDurable,
        Bug::CheckpointNotDurable,
        Bug::LookupFindsTheEnded,
        Bug::StaleCensus,
    ];

    /// The promise that the bug breaks; the simulation must report this one.
    pub fn breaks(self) -> Promise {
        match self {
            Bug::GuardOutsideTheStep | Bug::NoIncarnationCheck | Bug::CallersClockJudges => {
                Promise::P1
            }
            Bug::CursorJumps => Promise::P2,
            Bug::DoubtCountedAsDone
            | Bug::DoubtNeverSettled
            | Bug::RetryCountedTwice
            | Bug::TallyOfIntended => Promise::P3,
            Bug::AcknowledgedBeforeDurable | Bug::CheckpointNotDurable => Promise::P4,
            Bug::DeadMayRegister
            | Bug::BeatRevivesTheDead
            | Bug::RestartInherits
            | Bug::HandleTrustsMonotonicAlone => Promise::P5,
            Bug::BatchUnbounded => Promise::P6,
            Bug::NoStoreAwayGrace | Bug::NoBrake => Promise::P7,
            Bug::StaleCensus => Promise::P8,
            Bug::TrustFromTheAnswer | Bug::LeaderNeverStops | Bug::TermNotFenced => Promise::Leader,
            Bug::LookupFindsTheEnded => Promise::Lookup,
        }
    }

    /// The scenario that is most likely to find the bug.
    pub fn scenario(self) -> &'static str {
        match self {
            Bug::NoStoreAwayGrace | Bug::AcknowledgedBeforeDurable | Bug::CheckpointNotDurable => {
                "restarts"
            }
            Bug::NoBrake => "mass",
            Bug::TrustFromTheAnswer | Bug::LeaderNeverStops | Bug::TermNotFenced => "leader",
            Bug::GuardOutsideTheStep | Bug::NoIncarnationCheck | Bug::TallyOfIntended => "races",
            _ => "storm",
        }
    }
}

/// The planted bug of a run, if any, and what it changes in the store's answers.
#[derive(Debug, Default)]
pub struct PlantedBug {
    bug: Option<Bug>,
    suspected: Mutex<BTreeSet<u64>>,
    ended: Mutex<BTreeSet<u64>>,
    census: Mutex<Option<Census>>,
    callers_skew_ms: AtomicI64,
}

const LOCK: &str = "nobody panics while holding the lock";

impl PlantedBug {
    /// Plants this bug; with `None`, nothing is changed.
    pub fn new(bug: Option<Bug>) -> Arc<Self> {
        Arc::new(PlantedBug { bug, ..PlantedBug::default() })
    }

    pub fn bug(&self) -> Option<Bug> {
        self.bug
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether the planted bug changes the deadlines in the store.
    pub fn shifts_deadlines(&self) -> bool {
        self.is(Bug::CallersClockJudges) || self.is(Bug::NoStoreAwayGrace)
    }

    /// The death rule that the store is given.
    pub fn guard(self: &Arc<Self>) -> Arc<dyn OwnerGuard> {
        match self.bug {
            Some(Bug::GuardOutsideTheStep) => Arc::new(guard::PageTrustingGuard(self.clone())),
            Some(Bug::NoIncarnationCheck) => Arc::new(guard::IncarnationBlindGuard(self.clone())),
            Some(Bug::DeadMayRegister) => Arc::new(guard::EndedMayActGuard),
            _ => Arc::new(StrictOwnerGuard),
        }
    }

    pub fn clock(self: &Arc<Self>, clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
        match self.bug {
            Some(Bug::CallersClockJudges) => Arc::new(clock::CallerClock::new(clock, self.clone())),
            _ => clock,
        }
    }

    /// Notes by how many milliseconds the clock of the current caller is off.
    pub fn note_caller(&self, skew_ms: i64) {
        self.callers_skew_ms.store(skew_ms, Ordering::Relaxed);
    }

    fn callers_skew_ms(&self) -> i64 {
        self.callers_skew_ms.load(Ordering::Relaxed)
    }

    /// Notes the incarnations that were on a page of suspects.
    pub fn note_suspects(&self, incarnations: impl Iterator<Item = u64>) {
        self.suspected.lock().expect(LOCK).extend(incarnations);
    }

    pub fn note_ended(&self, incarnations: impl Iterator<Item = u64>) {
        if self.is(Bug::NoIncarnationCheck) {
            self.ended.lock().expect(LOCK).extend(incarnations);
        }
    }

    fn was_suspected(&self, incarnation: Incarnation) -> bool {
        self.suspected.lock().expect(LOCK).contains(&incarnation.0)
    }

    fn has_ended(&self, incarnation: Incarnation) -> bool {
        self.ended.lock().expect(LOCK).contains(&incarnation.0)
    }

    /// `NoStoreAwayGrace`: removes the store-away grace by waiving it for ever.
    pub fn waive_grace(&self, store: &Embedded, system: &SystemId) {
        if self.is(Bug::NoStoreAwayGrace)
            && let Some(Ok(record)) = store.brake(system).now_or_never()
        {
            let _ = store.swap_brake(system, &self.keep_waiver(record.next())).now_or_never();
        }
    }

    /// `NoStoreAwayGrace`: keeps the waiver in whatever is stored.
    pub fn keep_waiver(&self, record: BrakeRecord) -> BrakeRecord {
        let waiver = || Overriding {
            sweeper: "bug".to_owned(),
            reason: "planted".to_owned(),
            until_ms: u64::MAX,
        };
        let overriding =
            if self.is(Bug::NoStoreAwayGrace) { Some(waiver()) } else { record.overriding.clone() };
        BrakeRecord { overriding, ..record }
    }

    /// `NoStoreAwayGrace`: hides that waiver from readers of the record.
    pub fn hide_waiver(&self, record: BrakeRecord) -> BrakeRecord {
        match self.is(Bug::NoStoreAwayGrace) {
            true => BrakeRecord { overriding: None, ..record },
            false => record,
        }
    }

    /// Whether a start of a known name is answered with its existing incarnation.
    pub fn inherits(&self) -> bool {
        self.is(Bug::RestartInherits)
    }

    pub fn inherited(&self, incarnation: u64, ttl_ms: u64) -> Beat {
        let incarnation = Incarnation(incarnation);
        Beat { incarnation, deadline_ms: ttl_ms, now_ms: 0, ttl_ms, started: true }
    }

    /// `BeatRevivesTheDead`: turns `Lost` into a successful beat.
    pub fn revive(&self, answer: Result<Beat>, claim: &Claim) -> Result<Beat> {
        match (&answer, claim.incarnation) {
            (Err(Error::Lost(_)), Some(incarnation)) if self.is(Bug::BeatRevivesTheDead) => {
                Ok(Beat { incarnation, deadline_ms: 1, now_ms: 0, ttl_ms: 1, started: false })
            }
            _ => answer,
        }
    }

    /// `LookupFindsTheEnded`: hides that the holder has ended.
    pub fn hide_ends(&self, mut found: Vec<Option<FoundEntry>>) -> Vec<Option<FoundEntry>> {
        if self.is(Bug::LookupFindsTheEnded) {
            found.iter_mut().flatten().for_each(|found| found.ended = None);
        }
        found
    }

    pub fn stale(&self, census: Census) -> Census {
        if self.is(Bug::NoStoreAwayGrace) {
            // Sweepers must not notice the restart either.
            return Census { store: "always the same".to_owned(), ..census };
        }
        if !self.is(Bug::StaleCensus) {
            return census;
        }
        let mut kept = self.census.lock().expect(LOCK);
        let old = kept.get_or_insert(census.clone()).clone();
        Census { now_ms: census.now_ms, store: census.store, ..old }
    }

    /// `TermNotFenced`: removes the term from a batch.
    pub fn unfence(&self, batch: Batch) -> Batch {
        match self.is(Bug::TermNotFenced) {
            true => Batch { term: None, ..batch },
            false => batch,
        }
    }
}
