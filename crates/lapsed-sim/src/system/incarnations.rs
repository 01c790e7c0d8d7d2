//! Calls about incarnations: start, beat, end, list.

use std::collections::BTreeSet;

use lapsed_core::owner::{Beat, Claim, Incarnation, Lost, OwnerInfo, OwnerStore};
use lapsed_core::{Error, Name, Result};

use crate::model::{Model, ModelClaim};
use crate::promise::{Broken, Checked, Promise, holds};
use crate::system::{SimSystem, at_once};

/// Formats a claim for the trace: `name#incarnation`.
pub(super) fn claim_text(claim: &Claim) -> String {
    match claim.incarnation {
        Some(i) => format!("{}#{i}", claim.owner),
        None => format!("{}#newest", claim.owner),
    }
}

/// Formats an answer for the trace.
pub(super) fn answer_text<T>(answer: &Result<T>, ok: impl FnOnce(&T) -> String) -> String {
    match answer {
        Ok(value) => ok(value),
        Err(Error::Lost(lost)) => format!("Lost ({} held)", lost.held_total),
        Err(error) => error.kind().to_owned(),
    }
}

impl SimSystem {
    pub fn start(&mut self, who: &str, name: &Name, ttl_ms: u64) -> Result<Beat> {
        let (now, last) = (self.now(), self.model.last_incarnation());
        let (planted, named) = (self.parts.planted.clone(), name.clone());
        let known = planted.inherits().then(|| self.model.meant(&Claim::newest(name.clone())));
        let answer = self.act(
            |store| match known {
                Some(ModelClaim::Incarnation(incarnation)) => {
                    Ok(planted.inherited(incarnation, ttl_ms))
                }
                _ => at_once(store.registry.start(name, ttl_ms)),
            },
            move |model, answer: Option<&Beat>| {
                model.start(&named, ttl_ms, now, answer.map(|beat| beat.incarnation.0))
            },
            |_, answer, _| match answer {
                Ok(beat) => holds(beat.started && beat.incarnation.0 > last, Promise::P5, || {
                    format!("a new incarnation got {beat:?}, and {last} was given out before")
                }),
                Err(error) => Err(Broken::new(Promise::P4, format!("a start failed: {error}"))),
            },
        );
        let line = answer_text(&answer, |beat| format!("incarnation {}", beat.incarnation));
        self.note(who, format_args!("start {name} ttl={ttl_ms} -> {line}"));
        answer
    }

    pub fn beat(&mut self, who: &str, claim: &Claim) -> Result<Beat> {
        let (now, last) = (self.now(), self.model.last_incarnation());
        let (planted, meant) = (self.parts.planted.clone(), claim.clone());
        let answer = self.act(
            |store| planted.revive(at_once(store.registry.beat(claim)), claim),
            move |model, answer: Option<&Beat>| {
                model.beat(&meant, now, answer.map(|beat| beat.incarnation.0))
            },
            |sim, answer, predicted| match (answer, predicted) {
                (Ok(beat), Some((incarnation, started))) => {
                    let fits = beat.incarnation.0 == incarnation
                        && beat.started == started
                        && (!started || incarnation > last)
                        && beat.deadline_ms >= beat.now_ms + beat.ttl_ms;
                    holds(fits, Promise::P5, || format!("a beat of {incarnation} got {beat:?}"))
                }
                (Err(Error::Lost(lost)), None) => sim.check_lost(claim, lost),
                (answer, predicted) => Err(mismatch("a beat", claim, answer, &predicted)),
            },
        );
        let line = answer_text(&answer, |beat| format!("alive #{}", beat.incarnation));
        self.note(who, format_args!("beat {} -> {line}", claim_text(claim)));
        answer
    }

    pub fn end(&mut self, who: &str, claim: &Claim) -> Result<OwnerInfo> {
        let (now, meant) = (self.now(), claim.clone());
        let answer = self.act(
            |store| at_once(store.registry.end(claim)),
            move |model, _| model.retire(&meant, now),
            |sim, answer, predicted| match (answer, predicted) {
                (Ok(info), Some(incarnation)) => {
                    holds(info.incarnation.0 == incarnation, Promise::P5, || {
                        format!("{} was to end, and {info:?} did", claim_text(claim))
                    })
                }
                (Err(Error::Lost(lost)), None) => sim.check_lost(claim, lost),
                (answer, predicted) => Err(mismatch("an end", claim, answer, &predicted)),
            },
        );
        self.remember_ends();
        let line = answer_text(&answer, |info| format!("retired #{}", info.incarnation));
        self.note(who, format_args!("end {} -> {line}", claim_text(claim)));
        answer
    }

    /// Lists owners; the audit compares them with the model.
    pub fn owners(&mut self, after: Option<Incarnation>, limit: usize) -> Result<Vec<OwnerInfo>> {
        self.read(|store| at_once(store.registry.owners(after, limit)))
    }

    pub fn owner(&mut self, claim: &Claim) -> Result<Option<OwnerInfo>> {
        self.read(|store| at_once(store.registry.owner(claim)))
    }

    /// Checks what `Lost` tells an ended incarnation: the keys that it still holds and those that
    /// were reclaimed from it.
    pub(super) fn check_lost(&self, claim: &Claim, lost: &Lost) -> Checked {
        let ModelClaim::Incarnation(number) = self.model.meant(claim) else {
            return holds(lost.held.is_empty(), Promise::P5, || {
                format!("a stranger is told that it held {:?}", lost.held)
            });
        };
        let held: BTreeSet<&Name> = self.model.held(number).collect();
        let taken = self.model.receipts.values().filter(|taken| taken.incarnation == number);
        let keys: BTreeSet<&Name> = taken.map(|taken| &taken.key).chain(held).collect();
        let told: BTreeSet<&Name> = lost.held.iter().collect();
        holds(keys == told, Promise::P5, || {
            format!("incarnation {number} is told that it held {told:?}; it was {keys:?}")
        })
    }

    /// Checks that no handle of an incarnation that was just declared dead still calls itself live
    /// (X8).
    pub(super) fn check_handles(&self, ended: &[u64]) -> Checked {
        for number in ended {
            let handle = self.handles.get(number).and_then(std::sync::Weak::upgrade);
            holds(handle.is_none_or(|owner| !owner.is_live()), Promise::P5, || {
                format!(
                    "incarnation {number} was declared dead while its handle trusts that it is live"
                )
            })?;
        }
        Ok(())
    }

    /// Tells the planted bug which incarnations have ended.
    pub(super) fn remember_ends(&self) {
        let ended = |(number, incarnation): (&u64, &crate::model::ModelIncarnation)| {
            incarnation.ended.map(|_| *number)
        };
        self.parts.planted.note_ended(self.model.incarnations.iter().filter_map(ended));
    }
}

/// The answer differs from the prediction: an ended incarnation was accepted, or a live one was
/// refused.
pub(super) fn mismatch<T: std::fmt::Debug, P: std::fmt::Debug>(
    what: &str,
    claim: &Claim,
    answer: &Result<T>,
    predicted: &P,
) -> Broken {
    let who = claim_text(claim);
    Broken::new(Promise::P5, format!("{what} of {who} got {answer:?}; predicted {predicted:?}"))
}

impl Model {
    /// Ends an incarnation in the model in the way that the store reports.
    pub(super) fn end(
        &mut self,
        number: u64,
        how: lapsed_core::owner::Ending,
        at: u64,
        durable: bool,
    ) {
        if how == lapsed_core::owner::Ending::Dead {
            self.declare_dead(number, at, durable);
        } else if let Some(incarnation) = self.incarnations.get_mut(&number) {
            incarnation.ended = Some(crate::model::ModelEnd { ending: how, at, durable });
        }
    }
}
