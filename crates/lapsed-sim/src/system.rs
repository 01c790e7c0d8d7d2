//! Where calls are carried out: the real store, the model beside it, and the comparison of the two.
//!
//! The in-memory store does each call at once in the caller, so a call, its prediction and its check
//! are one step here: nothing comes between them. When the power failed in the middle of a write, or
//! its commit failed, the write may have happened or not: both are candidates, and the store must be
//! exactly one of them.

mod audit;
mod entries;
mod incarnations;
mod leadership;
mod sweep;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use lapsed_core::clock::Clock;
use lapsed_core::name::{Kind, SystemId};
use lapsed_core::owner::Owner;
use lapsed_core::{Error, Result};
use lapsed_embedded::{Embedded, EmbeddedRegistry, Options};

use crate::bug::{Bug, PlantedBug};
use crate::clock::Time;
use crate::disk::{CHECKPOINT_BYTES, Disk, Keep, Lies, SyncFault};
use crate::model::Model;
use crate::promise::{Broken, Checked, Promise};
use crate::trace::Trace;

pub use audit::ReceiptAudit;
pub use sweep::SweeperLimits;

pub struct SimStore {
    embedded: Embedded,
    registry: Arc<EmbeddedRegistry>,
}

/// A write whose commit was cut off: it may or may not have happened. `redo` applies it to a model.
struct UncertainWrite {
    at: u64,
    redo: Box<dyn FnOnce(&mut Model) + Send>,
}

/// How much a run did: store calls, reclaims, and faults by kind.
#[derive(Clone, Debug, Default)]
pub struct SimCounts {
    pub steps: u64,
    pub reclaims: u64,
    pub faults: BTreeMap<&'static str, u64>,
}

/// What a simulated system is built from.
pub struct SimSystemOptions {
    pub time: Time,
    /// The clock that the store reads.
    pub clock: Arc<dyn Clock>,
    /// The planted bug, if the run has one.
    pub planted: Arc<PlantedBug>,
    /// How long an owner must be silent before it may be declared dead, in milliseconds.
    pub threshold_ms: u64,
    /// The longest that a dead owner's entries may stay, in scenarios that allow a strict bound.
    pub lag_max_ms: Option<u64>,
    /// Whether every line of the trace is printed as it is written.
    pub printed: bool,
}

pub struct SimSystem {
    pub model: Model,
    pub trace: Trace,
    pub counts: SimCounts,
    /// The disk under the store.
    pub disk: Disk,
    /// Handles of live owners, by incarnation. A handle must stop trusting itself before its owner
    /// is declared dead.
    pub handles: BTreeMap<u64, Weak<Owner>>,
    parts: SimSystemOptions,
    system: SystemId,
    store: Option<SimStore>,
    doubt: Option<UncertainWrite>,
    broken: Option<(u64, Broken)>,
    /// Whether the store's wall clock was set while it was away: ages across it mean nothing.
    clock_was_set: bool,
    /// When the brake last held for a mass death.
    held_ms: u64,
    settings: Vec<lapsed_core::sweep::brake::BrakeSetting>,
}

/// The id of the one registry that every run uses.
pub fn system_id() -> SystemId {
    SystemId::new(Kind::Registry, "sim").expect("it is a valid name")
}

impl SimSystem {
    /// Creates an empty store and opens it.
    pub fn new(parts: SimSystemOptions) -> Self {
        let mut sim = SimSystem {
            model: Model::new(parts.threshold_ms),
            trace: Trace::new(parts.printed),
            counts: SimCounts::default(),
            disk: Disk::new(match parts.planted.bug() {
                Some(Bug::AcknowledgedBeforeDurable) => Lies::Always,
                Some(Bug::CheckpointNotDurable) => Lies::InTheDatabase,
                _ => Lies::Never,
            }),
            handles: BTreeMap::new(),
            parts,
            system: system_id(),
            store: None,
            doubt: None,
            broken: None,
            clock_was_set: false,
            held_ms: 0,
            settings: vec![lapsed_core::sweep::brake::BrakeSetting::Auto],
        };
        sim.open();
        sim
    }

    pub fn now(&self) -> u64 {
        self.parts.time.now_ms()
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, who: &str, what: fmt::Arguments<'_>) {
        self.trace.note(self.parts.time.now_ms(), who, what);
    }

    pub fn count_fault(&mut self, kind: &'static str) {
        *self.counts.faults.entry(kind).or_default() += 1;
    }

    /// The first promise that was broken, and when.
    pub fn broken(&self) -> Option<&(u64, Broken)> {
        self.broken.as_ref()
    }

    /// Records the result of a check. Only the first broken promise of a run is kept.
    pub fn check(&mut self, checked: Checked) {
        if let Err(broken) = checked
            && self.broken.is_none()
        {
            let now = self.now();
            self.note("CHECK", format_args!("{}: {}", broken.promise, broken.what));
            self.broken = Some((now, broken));
        }
    }

    /// Whether the store is open.
    pub fn is_up(&self) -> bool {
        self.store.is_some()
    }

    /// Notes that the store's wall clock was set while it was closed.
    pub fn note_clock_set(&mut self) {
        self.clock_was_set = true;
    }

    /// Cuts the power: the store is gone without closing.
    pub fn crash(&mut self, keep: Keep) {
        self.disk.cut_power(keep);
        self.store = None;
        self.count_fault("store crash");
        self.note("store", format_args!("crashes"));
    }

    /// Closes the store in order; a failure to close breaks P4.
    pub fn close(&mut self) {
        self.disk.set_sync_fault(None);
        let Some(store) = self.store.take() else { return };
        drop(store.registry);
        let closed = store.embedded.close();
        self.count_fault("store closed");
        self.note("store", format_args!("closes"));
        if let Err(error) = closed {
            self.check(Err(Broken::new(Promise::P4, format!("closing failed: {error}"))));
        }
    }

    /// Opens the store from its disk and compares it with the model. It must hold everything that
    /// was acknowledged, and beyond that at most the one write that was cut off.
    pub fn open(&mut self) {
        if self.store.is_some() {
            return;
        }
        self.disk.set_sync_fault(None);
        match self.open_store() {
            Ok(store) => {
                self.note("store", format_args!("opens"));
                let resolved = self.resolve(&store, true);
                self.store = Some(store);
                self.check(resolved);
            }
            Err(error) => {
                let what = format!("the store does not open: {error}");
                self.check(Err(Broken::new(Promise::P4, what)));
            }
        }
    }

    fn open_store(&self) -> Result<SimStore> {
        let disk = self.disk.clone();
        let options = Options {
            cache_bytes: 1 << 20,
            checkpoint_bytes: CHECKPOINT_BYTES,
            clock: self.parts.clock.clone(),
            guard: self.parts.planted.guard(),
        };
        let embedded = Embedded::with_backend(options, move |file| disk.handle(file))?;
        let threshold = Duration::from_millis(self.parts.threshold_ms);
        let registry = embedded.registry(self.system.clone(), threshold)?;
        let store = SimStore { embedded, registry };
        self.parts.planted.waive_grace(&store.embedded, &self.system);
        Ok(store)
    }

    /// Carries out one call on the store, then on the model, and compares the answers. `predict` is
    /// given the store's answer for what only the store can know: the numbers that it assigned.
    fn act<T, P>(
        &mut self,
        real: impl FnOnce(&SimStore) -> Result<T>,
        predict: impl FnOnce(&mut Model, Option<&T>) -> P + Send + 'static,
        check: impl FnOnce(&mut SimSystem, &Result<T>, P) -> Checked,
    ) -> Result<T> {
        let Some(store) = self.store.take() else { return Err(away()) };
        self.counts.steps += 1;
        let answer = real(&store);
        let at = self.now();
        match self.disk.take_fired() {
            Some(SyncFault::Power(_)) => {
                let redo = Box::new(move |model: &mut Model| drop(predict(model, None)));
                self.doubt = Some(UncertainWrite { at, redo });
                self.count_fault("store crash in a commit");
                self.note("store", format_args!("crashes in the middle of a commit"));
                return Err(away());
            }
            Some(SyncFault::Error(_)) if matches!(answer, Err(Error::Unavailable { .. })) => {
                let redo = Box::new(move |model: &mut Model| drop(predict(model, None)));
                self.doubt = Some(UncertainWrite { at, redo });
                self.count_fault("disk error");
                self.note("store", format_args!("its disk answers an error"));
                let resolved = self.resolve(&store, false);
                self.store = Some(store);
                self.check(resolved);
                return answer;
            }
            _ => {}
        }
        self.store = Some(store);
        let checked = match &answer {
            Err(error @ (Error::Unavailable { .. } | Error::Corrupt { .. })) => {
                Err(Broken::new(Promise::P4, format!("the store is up and says: {error}")))
            }
            _ => {
                let predicted = predict(&mut self.model, answer.as_ref().ok());
                check(self, &answer, predicted)
            }
        };
        self.check(checked);
        answer
    }

    /// Carries out a call that changes nothing and needs no prediction.
    fn read<T>(&mut self, real: impl FnOnce(&SimStore) -> Result<T>) -> Result<T> {
        self.act(real, |_, _| (), |_, _, ()| Ok(()))
    }

    /// Compares the whole store with the model, on request including all receipts.
    pub fn audit(&mut self, receipts: ReceiptAudit) {
        let Some(store) = self.store.take() else { return };
        let checked = self.compare_state(&store, &self.model).and_then(|()| match receipts {
            ReceiptAudit::Compared => self.compare_receipts(&store, &self.model),
            ReceiptAudit::Skipped => Ok(()),
        });
        self.store = Some(store);
        self.check(checked);
    }

    /// Finds out whether the write that was cut off has happened: the store must equal one of the
    /// two candidate models.
    fn resolve(&mut self, store: &SimStore, reopened: bool) -> Checked {
        let Some(doubt) = self.doubt.take() else {
            let mut model = self.model.clone();
            model.back_at = if reopened { self.now() } else { model.back_at };
            let same = self
                .adopt(store, &mut model, self.now(), reopened)
                .and_then(|()| self.compare(store, &model));
            self.model = model;
            return same;
        };
        let mut undone = self.model.clone();
        let mut done = self.model.clone();
        (doubt.redo)(&mut done);
        if reopened {
            (undone.back_at, done.back_at) = (self.now(), self.now());
        } else {
            // The store ends an incarnation in memory first, and does not undo that when the disk
            // fails.
            undone.expect_ends_of(&done);
        }
        let same = |model: &mut Model| {
            self.adopt(store, model, doubt.at, reopened)?;
            self.compare(store, model)
        };
        match (same(&mut undone), same(&mut done)) {
            (Ok(()), Ok(())) => {
                undone.terms.append(&mut done.terms);
                self.model = undone;
            }
            (Ok(()), Err(_)) => self.model = undone,
            (Err(_), Ok(())) => self.model = done,
            (Err(without), Err(with)) => {
                let what = format!("{}; or, had it been done, {}", without.what, with.what);
                return Err(Broken::new(without.promise, what));
            }
        }
        Ok(())
    }
}

fn away() -> Error {
    Error::Unavailable { store: "the simulated store".to_owned(), what: "it is away".to_owned() }
}

/// Runs a call to its end. The in-memory store never waits, so the future is ready at once.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("the in-memory store answers at once")
}
