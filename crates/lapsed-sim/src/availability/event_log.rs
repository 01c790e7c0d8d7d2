//! What really happened, record where it happened: inside the stores, at the true time.
//!
//! What can be judged on the spot is judged there, with everything known up to then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapsed_availability::rules::PendingOffline;
use lapsed_availability::{Available, Flip, Flipped, MirrorView, ProviderBeat, Source};
use lapsed_core::Name;

use crate::executor::World;
use crate::promise::{Broken, Promise};

/// How long a provider may be silent.
pub const STALE_MS: u64 = 15_000;

/// Clocks that round differ by so much.
const SLACK_MS: u64 = 3;

pub struct AvailabilityLog {
    world: Arc<World>,
    record: Mutex<AvailabilityRecord>,
}

#[derive(Default)]
pub struct AvailabilityRecord {
    /// Signs of life, by who, in the order of their times: when, and in which store.
    signs: BTreeMap<Name, Vec<(u64, ProviderPlace)>>,
    /// When each was declared silent, by epoch.
    decided: BTreeMap<(Name, u64), u64>,
    /// The newest version that the mirror has had of each, in each of its incarnations.
    newest: BTreeMap<(String, Name), u64>,
    /// How often each kind of thing was done.
    pub counts: BTreeMap<&'static str, u64>,
    /// The first promise that was broken.
    pub broken: Option<Broken>,
}

/// Where a sign of life was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderPlace {
    Truth,
    Mirror,
}

impl AvailabilityLog {
    pub fn new(world: &Arc<World>) -> Arc<AvailabilityLog> {
        Arc::new(AvailabilityLog { world: world.clone(), record: Mutex::default() })
    }

    pub fn lock(&self) -> MutexGuard<'_, AvailabilityRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of a kind.
    pub fn count(&self, kind: &'static str) {
        *self.lock().counts.entry(kind).or_default() += 1;
    }

    /// Beats were answered by a store.
    pub fn beats(&self, ids: &[Name], beats: &[ProviderBeat], place: ProviderPlace) {
        for (id, beat) in ids.iter().zip(beats) {
            if *beat == ProviderBeat::Noted {
                self.sign(id, place);
            }
        }
    }

    /// A sign of life.
    pub fn sign(&self, id: &Name, place: ProviderPlace) {
        let now_ms = self.world.now_ms();
        self.world.note("sign", format_args!("{id} in the {place:?}"));
        self.lock().signs.entry(id.clone()).or_default().push((now_ms, place));
    }

    /// The mirror declared somebody silent.
    pub fn decided(&self, id: &Name, doom: &PendingOffline) {
        let now_ms = self.world.now_ms();
        self.world.note("mirror", format_args!("{id} is declared silent in epoch {}", doom.epoch));
        self.lock().decided.entry((id.clone(), doom.epoch)).or_insert(now_ms);
    }

    /// The truth answered a batch of flips.
    pub fn flipped(&self, flips: &[Flip], flipped: &[Flipped]) {
        for (flip, flipped) in flips.iter().zip(flipped) {
            match flipped {
                Flipped::Offline(..) => self.set_offline(flip),
                Flipped::Left(refusal, _) => {
                    self.world.note("truth", format_args!("{} is left: {refusal}", flip.id));
                    self.count("left by the truth");
                }
            }
        }
    }

    /// P1: nobody is set offline who gave a sign of life that counts.
    fn set_offline(&self, flip: &Flip) {
        let now_ms = self.world.now_ms();
        self.world.note("truth", format_args!("{} is set offline", flip.id));
        self.count("reclaimed");
        let mut record = self.lock();
        let Some(decided_ms) = record.decided.get(&(flip.id.clone(), flip.epoch)).copied() else {
            let what = format!("{} was set offline, and nobody had decided that", flip.id);
            return record.fail(Promise::P1, what);
        };
        let since_ms = decided_ms - STALE_MS + SLACK_MS;
        let counts = |(at_ms, place): &&(u64, ProviderPlace)| match place {
            ProviderPlace::Mirror => (since_ms..decided_ms).contains(at_ms),
            ProviderPlace::Truth => {
                (since_ms.max(now_ms - STALE_MS + SLACK_MS)..now_ms).contains(at_ms)
            }
        };
        let signs = record.signs.get(&flip.id);
        let sign = signs.and_then(|signs| signs.iter().rev().find(counts)).copied();
        if let Some((at_ms, place)) = sign {
            let what = format!(
                "{} was set offline at {now_ms} by what was decided at {decided_ms}, and gave a sign \
                 of life in the {place:?} at {at_ms}",
                flip.id
            );
            record.fail(Promise::P1, what);
        }
    }

    /// P5: somebody was told that it is offline, and never was.
    pub fn told_offline(&self, id: &Name, source: Source) {
        let what =
            format!("{id} was told by the {} that it is offline, and is not", source.as_str());
        self.lock().fail(Promise::P5, what);
    }

    /// P8: what the mirror has of a provider never goes back, unless it loses everything.
    pub fn taken_over(&self, incarnation: &str, looked: &MirrorView) {
        let mut record = self.lock();
        for seen in &looked.seen {
            let version = seen.version.unwrap_or(0);
            let newest =
                record.newest.entry((incarnation.to_owned(), seen.id.clone())).or_default();
            let before = std::mem::replace(newest, version.max(*newest));
            if version < before {
                let what = format!("the mirror went from {before} back to {seen:?}");
                record.fail(Promise::P8, what);
            }
        }
    }

    /// A mirror that answers has every provider of the truth.
    pub fn known(&self, looked: &MirrorView) {
        for seen in looked.seen.iter().filter(|seen| seen.version.is_none()) {
            let what = format!("the mirror answers, and does not know {}", seen.id);
            self.lock().fail(Promise::Lookup, what);
        }
    }

    /// C1: nobody is available who has been silent for longer than the threshold.
    pub fn listed(&self, available: &[Available], place: ProviderPlace) {
        let now_ms = self.world.now_ms();
        self.count("listings");
        let mut record = self.lock();
        for one in available {
            let last = record.signs.get(&one.id).and_then(|signs| signs.last()).map(|(at, _)| *at);
            if last.is_none_or(|last_ms| now_ms > last_ms + STALE_MS + SLACK_MS) {
                let what = format!(
                    "the {place:?} lists {} at {now_ms}, whose last sign of life was at {last:?}",
                    one.id
                );
                record.fail(Promise::P2, what);
            }
        }
    }
}

impl AvailabilityRecord {
    pub fn fail(&mut self, promise: Promise, what: String) {
        self.broken.get_or_insert(Broken::new(promise, what));
    }
}
