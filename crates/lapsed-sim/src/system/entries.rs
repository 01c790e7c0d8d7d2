//! Calls about entries: register, unregister, find, restore.

use lapsed_core::owner::Claim;
use lapsed_core::registry::{FoundEntry, RegisterAnswer, Registered, RegistryStore, TakePolicy};
use lapsed_core::sweep::{Suspect, Sweep};
use lapsed_core::system::Restored;
use lapsed_core::{Error, Name, Result};

use crate::model::ExpectedPut;
use crate::promise::{Checked, Promise, holds};
use crate::system::incarnations::{answer_text, claim_text, mismatch};
use crate::system::{SimSystem, at_once};

fn put(registered: &Registered) -> ExpectedPut {
    match registered {
        Registered::New => ExpectedPut::New,
        Registered::Kept => ExpectedPut::Kept,
        Registered::Moved { from } => ExpectedPut::Moved(from.incarnation.0),
        Registered::Taken { by } => ExpectedPut::Taken(by.incarnation.0),
        other => panic!("the model does not predict {other:?}"),
    }
}

impl SimSystem {
    pub fn register(
        &mut self,
        who: &str,
        claim: &Claim,
        keys: &[Name],
        take: TakePolicy,
    ) -> Result<RegisterAnswer> {
        let (now, meant, wanted) = (self.now(), claim.clone(), keys.to_vec());
        let answer = self.act(
            |store| at_once(store.registry.register(claim, keys, take)),
            move |model, answer: Option<&RegisterAnswer>| {
                model.register(&meant, &wanted, take, now, answer.map(|a| a.incarnation.0))
            },
            |sim, answer, predicted| match (answer, predicted) {
                (Ok(answer), Some((incarnation, started, puts))) => {
                    let real: Vec<ExpectedPut> = answer.keys.iter().map(put).collect();
                    let who =
                        answer.incarnation.0 == incarnation && answer.started.is_some() == started;
                    holds(who, Promise::P5, || {
                        format!("{answer:?}; it should be incarnation {incarnation}")
                    })?;
                    holds(real == puts, Promise::P4, || format!("got {real:?}, not {puts:?}"))
                }
                (Err(Error::Lost(lost)), None) => sim.check_lost(claim, lost),
                (answer, predicted) => Err(mismatch("a register", claim, answer, &predicted)),
            },
        );
        let line = answer_text(&answer, |answer| {
            format!("#{} {:?}", answer.incarnation, answer.keys.iter().map(put).collect::<Vec<_>>())
        });
        self.note(who, format_args!("register {} {keys:?} {take:?} -> {line}", claim_text(claim)));
        answer
    }

    /// Unregisters keys and compares the answer with the model.
    pub fn unregister(&mut self, who: &str, claim: &Claim, keys: &[Name]) -> Result<Vec<bool>> {
        let (meant, wanted) = (claim.clone(), keys.to_vec());
        let answer = self.act(
            |store| at_once(store.registry.unregister(claim, keys)),
            move |model, _| model.unregister(&meant, &wanted),
            |sim, answer, predicted| match (answer, predicted) {
                (Ok(real), Some(its)) => {
                    holds(*real == its, Promise::P4, || format!("got {real:?}, not {its:?}"))
                }
                (Err(Error::Lost(lost)), None) => sim.check_lost(claim, lost),
                (answer, predicted) => Err(mismatch("an unregister", claim, answer, &predicted)),
            },
        );
        let line = answer_text(&answer, |its| format!("{its:?}"));
        self.note(who, format_args!("unregister {} {keys:?} -> {line}", claim_text(claim)));
        answer
    }

    /// Looks keys up and compares holders and endings with the model.
    pub fn find(&mut self, who: &str, keys: &[Name]) -> Result<Vec<Option<FoundEntry>>> {
        let planted = self.parts.planted.clone();
        let answer = self.act(
            |store| at_once(store.registry.find(keys)).map(|found| planted.hide_ends(found)),
            |_, _| (),
            |sim, answer, ()| match answer {
                Ok(found) => {
                    keys.iter().zip(found).try_for_each(|(key, found)| sim.check_found(key, found))
                }
                Err(_) => Ok(()),
            },
        );
        let line = answer_text(&answer, |found| {
            let holder =
                |found: &Option<FoundEntry>| found.as_ref().map(|f| f.holder.incarnation.0);
            format!("{:?}", found.iter().map(holder).collect::<Vec<_>>())
        });
        self.note(who, format_args!("find {keys:?} -> {line}"));
        answer
    }

    fn check_found(&self, key: &Name, found: &Option<FoundEntry>) -> Checked {
        let held = self.model.entries.get(key).map(|held| held.incarnation);
        let real = found.as_ref().map(|found| found.holder.incarnation.0);
        holds(real == held, Promise::P4, || {
            format!("`{key}` is found at {real:?}; it is held by {held:?}")
        })?;
        let Some((found, incarnation)) =
            found.as_ref().zip(held.and_then(|n| self.model.incarnations.get(&n)))
        else {
            return Ok(());
        };
        let ended = incarnation.ended.map(|end| end.ending);
        holds(found.ended.map(|end| end.0) == ended, Promise::Lookup, || {
            format!("`{key}` is found with {found:?}; its owner ended: {ended:?}")
        })
    }

    /// Lists what one incarnation holds; the audit compares it with the model.
    pub fn entries(
        &mut self,
        claim: &Claim,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.read(|store| at_once(store.registry.entries(claim, after, limit)))
    }

    /// Lists what one ended incarnation still holds; more than `limit` suspects break P6.
    pub fn held_by(&mut self, claim: &Claim, limit: usize) -> Result<Vec<Suspect>> {
        let answer = self.read(|store| at_once(store.registry.held_by(claim, limit)));
        if let Ok(suspects) = &answer {
            self.check(holds(suspects.len() <= limit, Promise::P6, || {
                format!("{} suspects, and {limit} were asked for", suspects.len())
            }));
        }
        answer
    }

    /// Restores the entry that a receipt removed.
    pub fn restore(&mut self, who: &str, seq: u64) -> Result<Restored> {
        let now = self.now();
        let answer = self.act(
            |store| at_once(store.registry.restore(seq)),
            move |model, _| model.restore(seq, now),
            |_, answer, predicted| {
                let real = match answer {
                    Ok(Restored::Restored { incarnation, .. }) => Some(*incarnation),
                    _ => None,
                };
                holds(real == predicted, Promise::P5, || {
                    format!("restoring receipt {seq} got {answer:?}; predicted {predicted:?}")
                })
            },
        );
        let line = answer_text(&answer, |restored| format!("{restored:?}"));
        self.note(who, format_args!("restore {seq} -> {line}"));
        answer
    }
}
