//! The decisive step, as it should go; the housekeeping; the counts that follow from them.

use std::collections::BTreeSet;

use lapsed_core::owner::Ending;
use lapsed_core::receipt::{Reason, Retention};
use lapsed_core::sweep::{Batch, BatchAnswer, BatchId, Outcome, PassMode, Refusal, Suspect};

use crate::model::{Model, ModelIncarnation, ModelReclaim};

/// The outcome that one suspect should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// It is dead, for that reason.
    Reclaimed(Reason),
    /// The owner is live for this many more milliseconds.
    Alive(u64),
    /// The owner is within the store-away grace for this many more milliseconds.
    Away(u64),
    /// Another incarnation holds it.
    Moved(u64),
    Gone,
    /// The sweeper does not lead.
    NotLeader,
}

/// The outcome that a batch should have.
#[derive(Clone, Debug, Default)]
pub struct Reclaimed {
    pub outcomes: Vec<ExpectedOutcome>,
    /// The incarnations that the batch ends.
    pub ended: Vec<u64>,
    /// The receipts that it writes.
    pub receipts: Vec<u64>,
}

/// The census that the store should report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedCensus {
    /// Owners that are live and not overdue.
    pub live: u64,
    /// Owners that are overdue and not declared dead.
    pub overdue: u64,
    /// Declared dead within the last threshold.
    pub died: u64,
    /// Entries of overdue or ended owners.
    pub suspects: u64,
}

impl Model {
    fn judge(&self, suspect: &Suspect, now: u64) -> ExpectedOutcome {
        let Some(held) = self.entries.get(&suspect.key) else { return ExpectedOutcome::Gone };
        let Some(incarnation) = self.incarnations.get(&held.incarnation) else {
            return ExpectedOutcome::Gone;
        };
        if held.incarnation != suspect.incarnation.0 {
            return ExpectedOutcome::Moved(held.incarnation);
        }
        let deadline = incarnation.beat_at + incarnation.ttl_ms;
        match incarnation.ended {
            Some(end) if end.ending == Ending::Retired => {
                ExpectedOutcome::Reclaimed(Reason::OwnerRetired)
            }
            Some(_) => ExpectedOutcome::Reclaimed(Reason::OwnerDead),
            None if now < deadline => ExpectedOutcome::Alive(deadline - now),
            None if now < self.due(incarnation) => {
                ExpectedOutcome::Away(self.due(incarnation) - now)
            }
            None => ExpectedOutcome::Reclaimed(Reason::OwnerDead),
        }
    }

    /// A batch of suspects, one after the other. What was answered decides what is in doubt here.
    pub fn reclaim(&mut self, batch: &Batch, now: u64, answer: Option<&BatchAnswer>) -> Reclaimed {
        let all = |outcome: ExpectedOutcome| {
            let outcomes = vec![outcome; batch.suspects.len()];
            Reclaimed { outcomes, ..Reclaimed::default() }
        };
        if batch.act == PassMode::DryRun {
            let outcomes = batch.suspects.iter().map(|s| self.judge(s, now)).collect();
            return Reclaimed { outcomes, ..Reclaimed::default() };
        }
        let every_outcome_is = |outcome: Outcome| {
            answer.is_some_and(|answer| answer.outcomes.iter().all(|real| *real == outcome))
        };
        let leads = |term| {
            let refused = every_outcome_is(Outcome::Refused(Refusal::NotLeader));
            self.must_lead(term, now) || (self.may_lead(term, now) && !refused)
        };
        if !batch.term.is_none_or(leads) {
            return all(ExpectedOutcome::NotLeader);
        }
        let id = (batch.id.sweeper.to_string(), batch.id.number);
        let perhaps_late = self.asked.contains(&id) && every_outcome_is(Outcome::Gone);
        if self.batches.contains(&id) || self.forbidden.contains(&id) || perhaps_late {
            return all(ExpectedOutcome::Gone);
        }
        let mut reclaimed = Reclaimed::default();
        for suspect in &batch.suspects {
            let outcome = self.judge(suspect, now);
            if let ExpectedOutcome::Reclaimed(_) = outcome {
                let incarnation = suspect.incarnation.0;
                if self.is_live(incarnation) {
                    reclaimed.ended.push(incarnation);
                }
                self.declare_dead(incarnation, now, true);
                reclaimed.receipts.push(self.take(suspect, batch, now));
            }
            reclaimed.outcomes.push(outcome);
        }
        if !reclaimed.receipts.is_empty() {
            self.batches.insert(id);
        }
        reclaimed
    }

    fn take(&mut self, suspect: &Suspect, batch: &Batch, now: u64) -> u64 {
        let registration = self.entries.remove(&suspect.key).map_or(0, |held| held.registration);
        self.last_receipt += 1;
        let (incarnation, sweeper) = (suspect.incarnation.0, batch.id.sweeper.to_string());
        self.taken.insert((suspect.key.clone(), incarnation, registration));
        *self.written.entry(sweeper.clone()).or_default() += 1;
        let taken = ModelReclaim {
            key: suspect.key.clone(),
            incarnation,
            owner: suspect.owner.clone(),
            registration,
            sweeper,
            batch: batch.id.number,
            at: now,
            restored: false,
        };
        self.receipts.insert(self.last_receipt, taken);
        self.last_receipt
    }

    /// What a batch wrote: how many receipts. One that was not carried out never will be.
    pub fn settle(&mut self, batch: &BatchId) -> usize {
        let id = (batch.sweeper.to_string(), batch.number);
        if !self.batches.contains(&id) {
            self.forbidden.insert(id);
            return 0;
        }
        let its = |taken: &&ModelReclaim| taken.sweeper == id.0 && taken.batch == id.1;
        self.receipts.values().filter(its).count()
    }

    /// Lives that housekeeping may end: past their time, with nothing that a pass would find.
    pub fn empty_overdue(&self, now: u64) -> BTreeSet<u64> {
        let holders: BTreeSet<u64> = self.entries.values().map(|held| held.incarnation).collect();
        let ends = |(number, incarnation): &(&u64, &ModelIncarnation)| {
            self.is_overdue(incarnation, now) && !holders.contains(number)
        };
        self.incarnations.iter().filter(ends).map(|(number, _)| *number).collect()
    }

    /// Removes receipts past their retention: how many.
    pub fn prune(&mut self, rows: usize, retention: Retention, now: u64) -> u64 {
        let keep_from = (self.last_receipt + 1).saturating_sub(retention.count);
        let old = |(seq, taken): &(&u64, &ModelReclaim)| {
            **seq < keep_from || now.saturating_sub(taken.at) > retention.age_ms
        };
        let old: Vec<u64> =
            self.receipts.iter().take(rows).take_while(old).map(|(seq, _)| *seq).collect();
        for taken in old.iter().filter_map(|seq| self.receipts.remove(seq)) {
            self.batches.remove(&(taken.sweeper, taken.batch));
        }
        old.len() as u64
    }

    /// Forgets incarnations that hold nothing and ended long ago, or are more than are kept, those that
    /// ended first before the others: how many.
    pub fn forget(&mut self, rows: usize, retention: Retention, now: u64) -> u64 {
        let holders: BTreeSet<u64> = self.entries.values().map(|held| held.incarnation).collect();
        let all = self.incarnations.iter().filter(|(number, _)| !holders.contains(number));
        let mut gone: Vec<(u64, u64)> =
            all.filter_map(|(number, one)| Some((one.ended?.at, *number))).collect();
        gone.sort_unstable();
        let excess = gone.len().saturating_sub(retention.owners as usize);
        let is_over = |(index, (at, _)): &(usize, (u64, u64))| {
            let age_ms = now.saturating_sub(*at);
            age_ms > retention.age_ms || (*index < excess && age_ms > retention.owners_age_ms)
        };
        let over = gone.into_iter().enumerate().take(rows).take_while(is_over);
        let over: Vec<u64> = over.map(|(_, (_, number))| number).collect();
        over.iter().for_each(|number| drop(self.incarnations.remove(number)));
        over.len() as u64
    }

    pub fn expected_census(&self, now: u64) -> ExpectedCensus {
        let recent = |at: &&u64| **at + self.threshold_ms > now;
        let mut expected_census = ExpectedCensus {
            died: self.deaths.iter().filter(recent).count() as u64,
            ..ExpectedCensus::default()
        };
        for incarnation in
            self.incarnations.values().filter(|incarnation| incarnation.ended.is_none())
        {
            match self.due(incarnation) <= now {
                true => expected_census.overdue += 1,
                false => expected_census.live += 1,
            }
        }
        let is_dead = |incarnation: &ModelIncarnation| {
            incarnation.ended.is_some() || self.due(incarnation) <= now
        };
        let suspect = |incarnation: &u64| self.incarnations.get(incarnation).is_some_and(is_dead);
        expected_census.suspects =
            self.entries.values().filter(|held| suspect(&held.incarnation)).count() as u64;
        expected_census
    }
}
