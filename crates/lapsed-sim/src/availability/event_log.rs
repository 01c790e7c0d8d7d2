//! The log of what really happened, written inside the stores at the true time.
//!
//! Promises that depend only on earlier events are checked as soon as an event is logged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapsed_availability::rules::PendingOffline;
use lapsed_availability::{Available, Flip, Flipped, MirrorView, ProviderBeat, Source};
use lapsed_core::Name;

use crate::executor::World;
use crate::promise::{Broken, Promise};

/// How long a provider may be silent.
pub const STALE_MS: u64 = 15_000;

/// The tolerance for rounding to milliseconds.
const SLACK_MS: u64 = 3;

pub struct AvailabilityLog {
    world: Arc<World>,
    record: Mutex<AvailabilityRecord>,
}

#[derive(Default)]
pub struct AvailabilityRecord {
    /// Beats and toggles of each provider in the order of time: when, and in which store.
    signs: BTreeMap<Name, Vec<(u64, ProviderPlace)>>,
    /// When each was declared silent, by epoch.
    decided: BTreeMap<(Name, u64), u64>,
    /// The newest version of each provider in the mirror, for each incarnation of the mirror.
    newest: BTreeMap<(String, Name), u64>,
    /// How often each kind of event happened.
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

    /// Counts one event of this kind.
    pub fn count(&self, kind: &'static str) {
        *self.lock().counts.entry(kind).or_default() += 1;
    }

    /// Logs the beats that a store accepted.
    pub fn beats(&self, ids: &[Name], beats: &[ProviderBeat], place: ProviderPlace) {
        for (id, beat) in ids.iter().zip(beats) {
            if *beat == ProviderBeat::Noted {
                self.sign(id, place);
            }
        }
    }

    /// Logs a beat or a toggle of a provider.
    pub fn sign(&self, id: &Name, place: ProviderPlace) {
        let now_ms = self.world.now_ms();
        self.world.note("sign", format_args!("{id} in the {place:?}"));
        self.lock().signs.entry(id.clone()).or_default().push((now_ms, place));
    }

    /// Logs that the mirror declared a provider silent.
    pub fn decided(&self, id: &Name, doom: &PendingOffline) {
        let now_ms = self.world.now_ms();
        self.world.note("mirror", format_args!("{id} is declared silent in epoch {}", doom.epoch));
        self.lock().decided.entry((id.clone(), doom.epoch)).or_insert(now_ms);
    }

    /// Logs the truth's answer to a batch of flips, and checks each that set a provider offline.
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

    /// P1: a provider may not be set offline if it gave a sign of life within the threshold.
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

    /// P5: a provider was answered that it is offline, and never was.
    pub fn told_offline(&self, id: &Name, source: Source) {
        let what =
            format!("{id} was told by the {} that it is offline, and is not", source.as_str());
        self.lock().fail(Promise::P5, what);
    }

    /// P8: a provider's version in the mirror never decreases, unless the mirror loses its data.
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

    /// A mirror that answers must know every provider of the truth.
    pub fn known(&self, looked: &MirrorView) {
        for seen in looked.seen.iter().filter(|seen| seen.version.is_none()) {
            let what = format!("the mirror answers, and does not know {}", seen.id);
            self.lock().fail(Promise::Lookup, what);
        }
    }

    /// C1: a provider that has been silent for longer than the threshold is not listed as
    /// available.
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
