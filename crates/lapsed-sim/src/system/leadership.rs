//! Calls about leadership, the operator's brake setting, and the store's own information.

use lapsed_core::Result;
use lapsed_core::leader::Term;
use lapsed_core::receipt::{Receipt, ReceiptQuery};
use lapsed_core::store::{Store, StoreInfo};
use lapsed_core::sweep::brake::BrakeSetting;

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

    /// Reads the operator's brake setting.
    pub fn brake_setting(&mut self) -> Result<BrakeSetting> {
        let (system, settings) = (self.system.clone(), self.settings.clone());
        let planted = self.parts.planted.clone();
        let answer = self.act(
            |store| at_once(store.embedded.brake_setting(&system)).map(|s| planted.hide_release(s)),
            |_, _| (),
            |_, answer, ()| match answer {
                Ok(setting) => holds(settings.contains(setting), Promise::P4, || {
                    format!("the operator's setting is {setting:?}; it was {settings:?}")
                }),
                Err(_) => Ok(()),
            },
        );
        if let Ok(setting) = &answer {
            self.settings = vec![*setting];
        }
        answer
    }

    pub fn set_brake(&mut self, who: &str, setting: BrakeSetting) -> Result<()> {
        let system = self.system.clone();
        self.settings.push(setting);
        let answer = self.act(
            |store| at_once(store.embedded.set_brake(&system, setting)),
            |_, _| (),
            |_, _, ()| Ok(()),
        );
        if answer.is_ok() {
            self.settings = vec![setting];
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
