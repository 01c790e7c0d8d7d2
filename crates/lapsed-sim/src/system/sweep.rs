//! Calls of a sweeper: census, suspects, reclaim, settle, tidy; and the checks of what a sweeper
//! may do.

use std::collections::BTreeSet;

use lapsed_core::Result;
use lapsed_core::owner::OwnerStore;
use lapsed_core::receipt::Receipt;
use lapsed_core::sweep::{
    Batch, BatchAnswer, BatchId, Census, Outcome, PageRequest, PassMode, Refusal, SuspectPage,
    Sweep, Tidied, TidyLimits,
};

use crate::model::{ExpectedOutcome, Model, Reclaimed};
use crate::promise::{Broken, Checked, Promise, holds};
use crate::system::incarnations::answer_text;
use crate::system::{SimSystem, at_once};

/// What a sweeper may do, derived from what it had read before its call.
#[derive(Clone, Copy, Debug)]
pub struct SweeperLimits {
    /// The largest number of suspects in one batch.
    pub batch_max: usize,
    /// If overdue owners may not be declared dead: the reason.
    pub held: Option<&'static str>,
}

/// The answer to a tidy call, and all incarnations that have ended after it.
type Tidy = (Tidied, BTreeSet<u64>);

/// What a tidy call should have done.
struct ExpectedTidy {
    may_end: BTreeSet<u64>,
    ended: BTreeSet<u64>,
    wrongly: BTreeSet<u64>,
    pruned: u64,
    forgotten: u64,
}

impl SimSystem {
    /// Reads the census, which must equal the model's at any time.
    pub fn census(&mut self, who: &str) -> Result<Census> {
        let planted = self.parts.planted.clone();
        let answer = self.act(
            |store| at_once(store.registry.census()).map(|census| planted.stale(census)),
            |_, _| (),
            |sim, answer, ()| match answer {
                Ok(census) => sim.compare_census(census, &sim.model),
                Err(_) => Ok(()),
            },
        );
        let line = answer_text(&answer, |c| {
            let (live, overdue, died) = (c.owners_live, c.owners_overdue, c.owners_died_recently);
            format!("{live} live, {overdue} overdue, {died} died, {} suspects", c.suspects)
        });
        self.note(who, format_args!("census -> {line}"));
        answer
    }

    /// Reads one page of suspects and checks its size, its order and its completeness.
    pub fn suspects(&mut self, who: &str, request: &PageRequest) -> Result<SuspectPage> {
        let asked = request.clone();
        let answer = self.act(
            |store| at_once(store.registry.suspects(asked)),
            |_, _| (),
            |sim, answer, ()| match answer {
                Ok(page) => sim.check_page(request, page),
                Err(_) => Ok(()),
            },
        );
        if let Ok(page) = &answer {
            self.parts.planted.note_suspects(page.suspects.iter().map(|s| s.incarnation.0));
        }
        let line = answer_text(&answer, |page| format!("{} suspects", page.suspects.len()));
        self.note(who, format_args!("suspects at most {} -> {line}", request.limit));
        answer
    }

    fn check_page(&self, request: &PageRequest, page: &SuspectPage) -> Checked {
        let (count, now) = (page.suspects.len(), self.now());
        holds(count <= request.limit, Promise::P6, || {
            format!("a page has {count} suspects, and {} were asked for", request.limit)
        })?;
        let mut undeclared = BTreeSet::new();
        for suspect in &page.suspects {
            let number = suspect.incarnation.0;
            let held =
                self.model.entries.get(&suspect.key).is_some_and(|h| h.incarnation == number);
            holds(held, Promise::P8, || format!("the index lists {suspect:?}, which is not its"))?;
            let Some(incarnation) = self.model.incarnations.get(&number) else { continue };
            let is_dead = incarnation.ended.is_some() || self.model.is_overdue(incarnation, now);
            holds(is_dead || self.parts.planted.shifts_deadlines(), Promise::P1, || {
                format!("{suspect:?} is listed, and its owner is in time: {incarnation:?}")
            })?;
            if incarnation.ended.is_none() {
                undeclared.insert(number);
            }
        }
        let max = request.undeclared_max.unwrap_or(usize::MAX);
        holds(undeclared.len() <= max, Promise::P7, || {
            format!("{} overdue owners are listed, and the brake allows {max}", undeclared.len())
        })?;
        self.check_complete(request, page)
    }

    fn check_complete(&self, request: &PageRequest, page: &SuspectPage) -> Checked {
        let whole = request.after.0.is_none() && request.undeclared_max.is_none() && page.last;
        let there = self.model.expected_census(self.now()).suspects;
        let listed = page.suspects.len() as u64;
        let known = !whole || listed == there || self.parts.planted.shifts_deadlines();
        holds(known, Promise::P2, || format!("{listed} suspects are listed, and {there} there are"))
    }

    pub fn reclaim(&mut self, who: &str, batch: Batch, may: SweeperLimits) -> Result<BatchAnswer> {
        let (now, asked, size) = (self.now(), batch.clone(), batch.suspects.len());
        self.check(holds(size <= may.batch_max, Promise::P6, || {
            format!("a batch carries {size} suspects; at most {} may be", may.batch_max)
        }));
        let sent = self.parts.planted.unfence(batch.clone());
        let answer = self.act(
            |store| at_once(store.registry.reclaim(sent)),
            move |model, answer: Option<&BatchAnswer>| model.reclaim(&asked, now, answer),
            |sim, answer, predicted| match answer {
                Ok(answer) => sim.check_batch(&batch, answer, &predicted, may),
                Err(error) => Err(Broken::new(Promise::P2, format!("a batch got {error}"))),
            },
        );
        self.remember_ends();
        let line = answer_text(&answer, batch_text);
        let (number, act) =
            (batch.id.number, if batch.act == PassMode::DryRun { "dry " } else { "" });
        self.note(who, format_args!("{act}reclaim batch {number} of {size} -> {line}"));
        answer
    }

    fn check_batch(
        &mut self,
        batch: &Batch,
        answer: &BatchAnswer,
        predicted: &Reclaimed,
        may: SweeperLimits,
    ) -> Checked {
        let (real, wanted) = (answer.outcomes.len(), predicted.outcomes.len());
        holds(real == wanted, Promise::P3, || format!("{real} outcomes for {wanted} suspects"))?;
        let suspects = batch.suspects.iter().zip(&answer.outcomes).zip(&predicted.outcomes);
        for ((suspect, outcome), predicted) in suspects {
            check_outcome(&suspect.key.to_string(), outcome, predicted)?;
        }
        let ended = predicted.ended.len();
        holds(answer.owners_ended as usize == ended, Promise::P8, || {
            format!("{} owners were answer_text to end; {ended} did", answer.owners_ended)
        })?;
        if let Some(why) = may.held.filter(|_| ended > 0) {
            let what = format!("{:?} declared dead, although {why}", predicted.ended);
            return Err(Broken::new(Promise::P7, what));
        }
        let id = (batch.id.sweeper.to_string(), batch.id.number);
        let nobody_counts = self.model.settled.contains(&id) && !predicted.receipts.is_empty();
        holds(!nobody_counts, Promise::P3, || {
            format!("batch {id:?} was settled as not done, and then was done: nobody counts it")
        })?;
        self.counts.reclaims += predicted.receipts.len() as u64;
        self.check_receipts(answer, &predicted.receipts)?;
        self.check_handles(&predicted.ended)?;
        self.check_lag(&predicted.ended)
    }

    fn check_receipts(&self, answer: &BatchAnswer, numbers: &[u64]) -> Checked {
        let receipt = |outcome: &Outcome| match outcome {
            Outcome::Reclaimed(Some(receipt)) => Some((**receipt).clone()),
            _ => None,
        };
        let receipts: Vec<Receipt> = answer.outcomes.iter().filter_map(receipt).collect();
        let given: Vec<u64> = receipts.iter().map(|receipt| receipt.id.seq).collect();
        holds(given == numbers, Promise::P3, || {
            format!("receipts {given:?} were written; it should be {numbers:?}")
        })?;
        let fits = |r: &Receipt| {
            let evidence = &r.evidence;
            evidence.judged_ms >= evidence.deadline_ms
                && evidence.late_ms == evidence.judged_ms - evidence.deadline_ms
        };
        let odd = receipts.iter().find(|r| !fits(r));
        holds(odd.is_none() || self.clock_was_set, Promise::P3, || format!("odd evidence: {odd:?}"))
    }

    /// In scenarios without faults, checks that a dead owner is reclaimed within one sweep
    /// interval.
    fn check_lag(&self, ended: &[u64]) -> Checked {
        let Some(max) = self.parts.lag_max_ms else { return Ok(()) };
        for incarnation in ended.iter().filter_map(|number| self.model.incarnations.get(number)) {
            let due = self.model.due(incarnation);
            // The brake has held since then, as it must when most of a fleet falls silent at once.
            if self.held_ms >= due {
                continue;
            }
            let lag = self.now() - due;
            holds(lag <= max, Promise::P2, || {
                format!("{} was reclaimed {lag} ms late; at most {max} may be", incarnation.name)
            })?;
        }
        Ok(())
    }

    /// Reads the receipts of a batch whose answer was lost.
    pub fn settle(&mut self, who: &str, batch: &BatchId) -> Result<Vec<Receipt>> {
        let (asked, number) = (batch.clone(), batch.number);
        self.model.asked.insert((batch.sweeper.to_string(), number));
        let answer = self.act(
            |store| at_once(store.registry.settle(batch)),
            move |model, _| model.settle(&asked),
            |_, answer, there| match answer {
                Ok(receipts) => holds(receipts.len() == there, Promise::P3, || {
                    format!("batch {number} settles with {} of {there} receipts", receipts.len())
                }),
                Err(error) => Err(Broken::new(Promise::P3, format!("settling got {error}"))),
            },
        );
        let line = answer_text(&answer, |receipts| format!("{} receipts", receipts.len()));
        self.note(who, format_args!("settle batch {number} -> {line}"));
        answer
    }

    /// Notes that the sweeper knows the outcome of this batch and will not ask again.
    pub fn note_settled(&mut self, batch: &BatchId) {
        self.model.settled.insert((batch.sweeper.to_string(), batch.number));
    }

    pub fn tidy(&mut self, who: &str, limits: TidyLimits, may: SweeperLimits) -> Result<Tidied> {
        let now = self.now();
        let answer = self.act(
            |store| -> Result<Tidy> {
                let tidied = at_once(store.registry.tidy(limits))?;
                let owners = at_once(store.registry.owners(None, usize::MAX))?;
                let ended = owners.iter().filter(|o| o.ended.is_some());
                Ok((tidied, ended.map(|o| o.incarnation.0).collect()))
            },
            move |model, answer: Option<&Tidy>| model.tidy(&limits, now, answer),
            |sim, answer, swept| match answer {
                Ok((tidied, _)) => sim.check_tidy(&limits, tidied, &swept, may),
                Err(error) => Err(Broken::new(Promise::P4, format!("tidying failed: {error}"))),
            },
        );
        self.remember_ends();
        let line = answer_text(&answer, |(tidied, _)| format!("{tidied:?}"));
        self.note(who, format_args!("tidy -> {line}"));
        answer.map(|(tidied, _)| tidied)
    }

    /// The promise that is broken by declaring these incarnations dead: P7 if all are overdue but
    /// within a grace, otherwise P1.
    fn promise_of(&self, incarnations: &BTreeSet<u64>) -> Promise {
        let overdue = |incarnation: &crate::model::ModelIncarnation| {
            incarnation.beat_at + incarnation.ttl_ms <= self.now()
        };
        let spared = incarnations
            .iter()
            .filter_map(|number| self.model.incarnations.get(number))
            .all(overdue);
        if spared { Promise::P7 } else { Promise::P1 }
    }

    fn check_tidy(
        &self,
        limits: &TidyLimits,
        tidied: &Tidied,
        swept: &ExpectedTidy,
        may: SweeperLimits,
    ) -> Checked {
        let wrongly = &swept.wrongly;
        holds(wrongly.is_empty(), self.promise_of(wrongly), || {
            format!("{wrongly:?} were declared dead in time")
        })?;
        let ended = swept.ended.len();
        let same = tidied.owners_ended == ended as u64
            && tidied.receipts_pruned == swept.pruned
            && tidied.owners_forgotten == swept.forgotten;
        holds(same, Promise::P8, || {
            let (pruned, forgotten) = (swept.pruned, swept.forgotten);
            format!(
                "{tidied:?}; it should be {ended} ended, {pruned} pruned, {forgotten} forgotten"
            )
        })?;
        let max = limits.undeclared_max.unwrap_or(usize::MAX);
        holds(ended <= max, Promise::P7, || format!("{ended} ended; the brake allows {max}"))?;
        if let Some(why) = may.held.filter(|_| ended > 0) {
            let what = format!("{:?} declared dead, although {why}", swept.ended);
            return Err(Broken::new(Promise::P7, what));
        }
        let all = limits.undeclared_max.is_none() && swept.may_end.len() <= limits.rows;
        let fits = !all || swept.ended == swept.may_end || self.parts.planted.shifts_deadlines();
        holds(fits, Promise::P2, || {
            format!("{:?} were to end, and {:?} did", swept.may_end, swept.ended)
        })?;
        let ended: Vec<u64> = swept.ended.iter().copied().collect();
        self.check_handles(&ended)
    }
}

impl Model {
    fn tidy(&mut self, limits: &TidyLimits, now: u64, answer: Option<&Tidy>) -> ExpectedTidy {
        let mut may_end = self.empty_overdue(now);
        let did_nothing = answer.is_some_and(|(tidied, _)| *tidied == Tidied::default());
        let leads = limits.term.is_none_or(|term| {
            self.must_lead(term, now) || (self.may_lead(term, now) && !did_nothing)
        });
        let real = answer.map(|(_, ended)| ended.clone()).unwrap_or_default();
        let newly: BTreeSet<u64> =
            real.iter().filter(|number| self.is_live(**number)).copied().collect();
        if !leads {
            may_end.clear();
            let ended = BTreeSet::new();
            return ExpectedTidy { may_end, ended, wrongly: newly, pruned: 0, forgotten: 0 };
        }
        let ended: BTreeSet<u64> = may_end.intersection(&newly).copied().collect();
        let wrongly: BTreeSet<u64> = newly.difference(&may_end).copied().collect();
        ended.iter().for_each(|number| self.declare_dead(*number, now, true));
        if answer.is_none() {
            for number in &may_end {
                self.incarnations
                    .entry(*number)
                    .and_modify(|incarnation| incarnation.uncertain = true);
            }
        }
        let pruned = self.prune(limits.rows, limits.retention, now);
        let forgotten = self.forget(limits.rows, limits.retention, now);
        ExpectedTidy { may_end, ended, wrongly, pruned, forgotten }
    }
}

fn batch_text(answer: &BatchAnswer) -> String {
    let word = |outcome: &Outcome| match outcome {
        Outcome::Reclaimed(Some(receipt)) => format!("{}!{}", receipt.key, receipt.id.seq),
        Outcome::Reclaimed(None) => "would".to_owned(),
        Outcome::Released => "released".to_owned(),
        Outcome::Refused(why) => why.to_string(),
        Outcome::Gone => "gone".to_owned(),
        Outcome::InDoubt => "in doubt".to_owned(),
        other => format!("{other:?}"),
    };
    answer.outcomes.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Compares one outcome with the predicted one and names the promise that a difference breaks.
fn check_outcome(key: &str, outcome: &Outcome, predicted: &ExpectedOutcome) -> Checked {
    let broken = |promise: Promise, what: String| Err(Broken::new(promise, what));
    match (outcome, predicted) {
        (Outcome::Reclaimed(receipt), ExpectedOutcome::Reclaimed(reason)) => {
            let real = receipt.as_ref().map_or(*reason, |receipt| receipt.reason);
            holds(real == *reason, Promise::P3, || format!("`{key}`: {real}, not {reason}"))
        }
        (
            Outcome::Refused(Refusal::Alive | Refusal::StoreAway),
            ExpectedOutcome::Alive(_) | ExpectedOutcome::Away(_),
        )
        | (Outcome::Refused(Refusal::Moved), ExpectedOutcome::Moved(_))
        | (Outcome::Refused(Refusal::NotLeader), ExpectedOutcome::NotLeader)
        | (Outcome::Gone, ExpectedOutcome::Gone) => Ok(()),
        (Outcome::Reclaimed(_), ExpectedOutcome::Alive(left)) => broken(
            Promise::P1,
            format!("`{key}` was taken from an owner that is live for another {left} ms"),
        ),
        (Outcome::Reclaimed(_), ExpectedOutcome::Away(left)) => broken(
            Promise::P7,
            format!(
                "`{key}` was taken, and its owner had another {left} ms since the store was back"
            ),
        ),
        (Outcome::Reclaimed(_), ExpectedOutcome::Moved(incarnation)) => broken(
            Promise::P1,
            format!("`{key}` was taken from incarnation {incarnation}, which was not suspected"),
        ),
        (Outcome::Reclaimed(_), ExpectedOutcome::Gone) => {
            broken(Promise::P3, format!("`{key}` was reclaimed, and nobody held it"))
        }
        (outcome, ExpectedOutcome::NotLeader) => {
            broken(Promise::Leader, format!("`{key}`: {outcome:?}, by somebody who does not lead"))
        }
        (outcome, predicted) => {
            broken(Promise::P2, format!("`{key}`: {outcome:?}; it should be {predicted:?}"))
        }
    }
}
