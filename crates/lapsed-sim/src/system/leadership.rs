//! Calls about leadership, the operator's brake setting, and the store's own information.

use lapsed_core::Result;
use lapsed_core::leader::Term;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::{BrakeRecord, BrakeSetting};

use crate::promise::{Broken, Checked, Promise, holds};
use crate::system::incarnations::answer_text;
use crate::system::{SimSystem, at_once};

impl SimSystem {
    /// Takes or renews the term for the candidate `who`.
    pub fn campaign(&mut self, who: &str, ttl_ms: u64) -> Result<Option<Term>> {
        let (now, candidate, system) = (self.now(), who.to_owned(), self.system.clone());
        let answer = self.act(
            |store| at_once(store.embedded.campaign(&system, who, ttl_ms)),
            move |model, answer: Option<&Option<Term>>| {
                let mut could_be = model.campaign(&candidate, ttl_ms, now);
                if let Some(answer) = answer {
                    let number = answer.as_ref().map(|term| term.number);
                    could_be.retain(|(_, answered)| *answered == number);
                }
                let possible = !could_be.is_empty();
                if possible {
                    model.terms = could_be.into_iter().map(|(term, _)| term).collect();
                    model.terms.dedup();
                }
                possible
            },
            |sim, answer, possible| {
                holds(possible, Promise::Leader, || {
                    format!("{who} campaigned and got {answer:?}; terms: {:?}", sim.model.terms)
                })
            },
        );
        let line =
            answer_text(&answer, |term| format!("{:?}", term.as_ref().map(|term| term.number)));
        self.note(who, format_args!("campaign -> {line}"));
        answer
    }

    /// Resigns the term with this number.
    pub fn resign(&mut self, who: &str, number: u64) -> Result<()> {
        let system = self.system.clone();
        let answer = self.act(
            |store| at_once(store.embedded.resign(&system, number)),
            move |model, _| model.resign(number),
            |_, answer, ()| match answer {
                Ok(()) => Ok(()),
                Err(error) => Err(Broken::new(Promise::P4, format!("resigning failed: {error}"))),
            },
        );
        self.note(
            who,
            format_args!("resign {number} -> {}", answer_text(&answer, |()| "done".into())),
        );
        answer
    }

    /// Checks that a sweeper that acts as leader holds the term at the instant of its decision
    /// (X5).
    pub fn check_leads(&mut self, who: &str, term: Option<u64>) -> Checked {
        let now = self.now();
        holds(term.is_some_and(|term| self.model.may_lead(term, now)), Promise::Leader, || {
            format!("{who} acts on term {term:?}; the term is {:?}", self.model.terms)
        })
    }

    /// Reads the record of the brake.
    pub fn brake(&mut self) -> Result<BrakeRecord> {
        let (system, settings) = (self.system.clone(), self.settings.clone());
        let planted = self.parts.planted.clone();
        let answer = self.act(
            |store| at_once(store.embedded.brake(&system)).map(|r| planted.hide_waiver(r)),
            |_, _| (),
            |_, answer, ()| match answer {
                Ok(record) => holds(settings.contains(&record.setting), Promise::P4, || {
                    format!("the operator's setting is {:?}; it was {settings:?}", record.setting)
                }),
                Err(_) => Ok(()),
            },
        );
        if let Ok(record) = &answer {
            self.settings = vec![record.setting.clone()];
        }
        answer
    }

    /// Replaces the record of the brake, for a sweeper. Checks that the store accepts it only in
    /// place of the record before, and a step only after a whole threshold of the hold.
    pub fn swap_brake(&mut self, who: &str, next: &BrakeRecord) -> Result<bool> {
        let (system, threshold_ms) = (self.system.clone(), self.parts.threshold_ms);
        let before = self.brake()?;
        let written = self.parts.planted.keep_waiver(next.clone());
        if before.hold.is_some() || next.hold.is_some() {
            self.held_ms = self.now();
        }
        let answer = self.act(
            |store| at_once(store.embedded.swap_brake(&system, &written)),
            |_, _| (),
            |_, answer, ()| {
                let Ok(true) = answer else { return Ok(()) };
                holds(before.version + 1 == next.version, Promise::P7, || {
                    format!("{next:?} replaced {before:?}")
                })?;
                let (was, is) = (before.hold, next.hold);
                let stepped = is.is_some_and(|is| is.steps > was.map_or(0, |was| was.steps));
                // By the store's clock, in which the record is kept.
                let is_due = was.zip(is).is_some_and(|(was, is)| {
                    was.until_ms >= was.since_ms + threshold_ms && is.stepped_ms >= was.until_ms
                });
                holds(!stepped || is_due, Promise::P7, || {
                    format!("{who} was granted a step too early: {before:?} -> {next:?}")
                })
            },
        );
        let line = answer_text(&answer, |accepted| accepted.to_string());
        self.note(who, format_args!("swap brake {:?} -> {line}", next.hold));
        answer
    }

    pub fn set_brake(&mut self, who: &str, setting: BrakeSetting) -> Result<()> {
        let (system, ordered) = (self.system.clone(), setting.clone());
        self.settings.push(setting.clone());
        let answer = self.act(
            |store| at_once(store.embedded.set_brake(&system, ordered)),
            |_, _| (),
            |_, _, ()| Ok(()),
        );
        if answer.is_ok() {
            self.settings = vec![setting.clone()];
        }
        self.note(
            who,
            format_args!("brake {setting:?} -> {}", answer_text(&answer, |()| "done".into())),
        );
        answer
    }

    /// Reads the store's information about itself.
    pub fn info(&mut self) -> Result<StoreInfo> {
        self.read(|store| at_once(store.embedded.info()))
    }

    /// Reads receipts; the audit compares them with the model.
    pub fn receipts(&mut self, query: ReceiptQuery) -> Result<Vec<Receipt>> {
        let system = self.system.clone();
        self.read(|store| at_once(store.embedded.receipts(&system, query)))
    }

    pub fn receipt(&mut self, seq: u64) -> Result<Option<Receipt>> {
        let system = self.system.clone();
        self.read(|store| at_once(store.embedded.receipt(&system, seq)))
    }
}
