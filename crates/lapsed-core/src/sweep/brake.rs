//! The brake decides whether a pass may declare owners dead. When many are overdue, a fault of the
//! store or the network is likelier than their death.
//!
//! It holds for one of these reasons, in this order: the operator said so; the system is adopted and
//! too few of its owners were ever seen alive; the store was away less than a threshold ago; more
//! than a share of the owners would die at once. The last one ends
//! automatically, in steps, because a real scale-down looks the same and must not be held for ever
//! (X3).
//!
//! "At once" means within one threshold. The deaths of a partition are spread over the heartbeat
//! interval, so the share counts the owners declared dead recently together with those that are
//! overdue now. Where the application's keys show no owners, the share of the entries that became
//! due within one threshold is counted instead, those that were already reclaimed included: otherwise
//! frequent passes would each find a small share of what is left. Owners that were already declared dead are not
//! affected: their entries are removed whatever the brake says.
//!
//! The operator's setting and the hold of a mass death are kept in the store ([`BrakeRecord`]), so
//! that several daemons and single passes share them. Two processes may want the same step at the
//! same moment: both read version *n* of the record and both try to write version *n + 1*. The store
//! accepts one. The other one reads the record again, sees that a step was granted just now, and
//! holds until the next step is due. What this process alone saw (the store did not answer it) stays
//! in this process.

mod record;
#[cfg(test)]
mod tests;
mod verdict;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::name::SystemId;
use crate::sweep::Census;

pub use record::{BrakeRecord, BrakeSetting, MassHold, Overriding};
pub use verdict::{BrakeVerdict, Counted, HeldBy};

/// How long the store-away grace is waived for a pass under an override, unless the pass renews it.
pub const WAIVER_MS: u64 = 30_000;

/// In a fleet below [`BrakePolicy::min_owners`], from this size on, all owners but one silent at
/// once is a mass death.
const SMALL_FLEET_MIN: u64 = 3;

/// When the brake begins to hold.
#[derive(Clone, Debug, PartialEq)]
pub struct BrakePolicy {
    /// Hold when more than this share of the owners would be dead at once.
    pub share: f64,
    /// Below this number of owners the share does not count. The brake then holds when all owners
    /// but one, or all of them, are silent at once, in a fleet of at least three.
    pub min_owners: u64,
    /// First step when it opens automatically, as a share of the owners; it doubles at each step.
    pub step: f64,
    /// Keep the hold of a mass death until the operator sets the brake to `auto`, which opens it in
    /// steps, or to `override`, which lets one pass through.
    pub stay: bool,
}

impl Default for BrakePolicy {
    fn default() -> Self {
        BrakePolicy { share: 0.55, min_owners: 10, step: 0.1, stay: false }
    }
}

impl BrakePolicy {
    /// Refuses values that cannot work.
    pub fn check(&self) -> Result<()> {
        for (key, share) in [("share", self.share), ("step", self.step)] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(Error::Invalid(format!("brake.{key} must be above 0 and at most 1")));
            }
        }
        Ok(())
    }
}

/// What the brake decides for a pass, and what must be stored for the decision to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrakeDecision {
    pub verdict: BrakeVerdict,
    /// The record that must replace the one that was read; `None` if nothing changes.
    pub next: Option<BrakeRecord>,
}

impl BrakeDecision {
    fn unchanged(verdict: BrakeVerdict) -> Self {
        BrakeDecision { verdict, next: None }
    }
}

/// The brake of one system.
#[derive(Debug)]
pub struct Brake {
    policy: BrakePolicy,
    threshold_ms: AtomicU64,
    every_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    /// What the store kept when it was last read.
    record: BrakeRecord,
    store_seen: Option<String>,
    /// The last call that failed because the store did not answer or refused it; `None`: it has answered since.
    unreachable: Option<String>,
    /// The call that failed before `back_ms`, if that is why everybody is spared.
    failure: Option<String>,
    /// Whether the store was seen to be another one in the last census.
    changed: bool,
    /// When the store came back after it did not answer this process, in milliseconds of its clock.
    back_ms: u64,
    last: Option<BrakeVerdict>,
}

impl State {
    /// Learns from a census whether the store was away or is another one than before.
    fn observe(&mut self, census: &Census) {
        self.changed = self.store_seen.as_ref().is_some_and(|seen| *seen != census.store);
        let failure = self.unreachable.take();
        if self.changed || failure.is_some() {
            self.back_ms = census.now_ms;
            self.failure = failure;
        }
        self.store_seen = Some(census.store.clone());
    }
}

impl Brake {
    /// A brake without an operator's setting, which does not hold.
    pub fn new(policy: BrakePolicy, threshold: Duration) -> Self {
        Brake {
            policy,
            threshold_ms: AtomicU64::new(threshold.as_millis() as u64),
            every_ms: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Sets how long an owner must be silent, for systems where that is a setting that can change.
    pub fn set_threshold(&self, threshold: Duration) {
        self.threshold_ms.store(threshold.as_millis() as u64, Ordering::Relaxed);
    }

    /// Sets how often passes run. Steps are granted no more often than every half of it, or every
    /// half threshold if that is shorter, so that several processes do not open the brake faster
    /// than one.
    pub fn set_interval(&self, every: Duration) {
        self.every_ms.store(every.as_millis() as u64, Ordering::Relaxed);
    }

    /// Applies the record as read from the store.
    pub fn set(&self, record: BrakeRecord) {
        self.lock().record = record;
    }

    /// The record that was applied last.
    pub fn record(&self) -> BrakeRecord {
        self.lock().record.clone()
    }

    /// The operator's setting that was applied last.
    pub fn setting(&self) -> BrakeSetting {
        self.lock().record.setting.clone()
    }

    /// Whether the operator holds the brake, by the record that was applied last.
    pub fn is_held_by_operator(&self) -> bool {
        self.lock().record.setting == BrakeSetting::Hold
    }

    /// Records that the store did not answer, or refused a call. When it answers again, every owner gets a
    /// whole threshold.
    pub fn note_unreachable(&self, failure: &str) {
        self.lock().unreachable = Some(failure.to_owned());
    }

    /// A verdict of this brake as a sentence for the operator. If it holds because the store was away, the sentence
    /// names the call that failed, which may be one that the store refused.
    pub fn describe(&self, verdict: &BrakeVerdict, now_ms: u64) -> String {
        let words = verdict.describe(now_ms);
        match &self.lock().failure {
            Some(failure) if verdict.held_by() == Some(HeldBy::StoreAway) => {
                format!("{words}. The call that failed: {failure}")
            }
            _ => words,
        }
    }

    /// The verdict of the last pass, if there was one.
    pub fn last(&self) -> Option<BrakeVerdict> {
        self.lock().last.clone()
    }

    /// Learns from the census of a pass that is about to begin whether the store was away.
    pub fn observe(&self, census: &Census) {
        self.lock().observe(census);
    }

    /// Decides for a pass of `sweeper`, whose census was [observed](Self::observe). A step or an
    /// override counts only once the store has accepted `next`.
    pub fn decide(&self, census: &Census, sweeper: &str) -> BrakeDecision {
        self.judge(&self.lock(), census, sweeper)
    }

    /// Takes note of the verdict by which a pass begins, and logs when a hold begins or ends.
    pub fn conclude(&self, system: &SystemId, verdict: &BrakeVerdict, now_ms: u64) {
        let last = self.lock().last.replace(verdict.clone());
        let (was, is) = (last.as_ref().and_then(BrakeVerdict::held_by), verdict.held_by());
        let words = self.describe(verdict, now_ms).replace("SYSTEM", &system.to_string());
        match (was, is) {
            (was, Some(by)) if was != Some(by) => {
                tracing::warn!(%system, by = by.as_str(), "the brake is {words}");
            }
            (Some(_), None) => tracing::warn!(%system, "the brake holds no longer; it is {words}"),
            _ => {}
        }
        if let BrakeVerdict::Overridden { reason } = verdict {
            tracing::warn!(%system, %reason, "this pass runs under the operator's override, which it uses up");
        }
    }

    /// What [`decide`](Self::decide) would decide. Changes nothing.
    pub fn preview(&self, census: &Census) -> BrakeVerdict {
        let mut state = self.lock().clone();
        state.observe(census);
        self.judge(&state, census, "").verdict
    }

    /// Whether a pass has seen the mass death that this census shows, so that its hold has begun.
    pub fn has_begun_hold(&self, census: &Census) -> bool {
        hold_of(&self.lock().record, census).is_some()
    }

    /// Whether the brake would spare an overdue owner right now. Changes nothing.
    pub fn would_spare(&self, census: &Census) -> bool {
        !self.judge(&self.lock(), census, "").verdict.is_open()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the brake's lock panics")
    }

    fn judge(&self, state: &State, census: &Census, sweeper: &str) -> BrakeDecision {
        if let Some(decision) = self.ordered(&state.record, census, sweeper) {
            return decision;
        }
        if let Some(until_ms) = self.away_until(state.back_ms.max(census.back_ms), census) {
            let verdict = BrakeVerdict::Held { by: HeldBy::StoreAway, until_ms: Some(until_ms) };
            // Only what the store itself reports, or its new identity, starts a hold over: that it
            // did not answer one process says nothing to the others.
            let is_shared = state.changed || self.away_until(census.back_ms, census).is_some();
            let over = is_shared.then(|| without_hold(&state.record)).flatten();
            return BrakeDecision { verdict, next: over };
        }
        let hold = hold_of(&state.record, census);
        match self.mass(census, hold.is_some()) {
            None => {
                let next = without_hold(&state.record);
                BrakeDecision { verdict: BrakeVerdict::Open, next }
            }
            Some((all, of)) => {
                let record = BrakeRecord { hold, ..state.record.clone() };
                self.hold_or_step(&record, census.now_ms, all, of)
            }
        }
    }

    /// What the operator's setting decides, if it decides.
    fn ordered(
        &self,
        record: &BrakeRecord,
        census: &Census,
        sweeper: &str,
    ) -> Option<BrakeDecision> {
        // An override is an answer to a mass death. It says nothing about the names of the keys, and
        // it is not used up.
        if census.is_observing() && record.setting != BrakeSetting::Hold {
            let verdict = BrakeVerdict::Held { by: HeldBy::Observing, until_ms: None };
            return Some(BrakeDecision::unchanged(verdict));
        }
        match &record.setting {
            BrakeSetting::Hold => {
                let verdict = BrakeVerdict::Held { by: HeldBy::Operator, until_ms: None };
                return Some(BrakeDecision::unchanged(verdict));
            }
            BrakeSetting::Override { reason } => {
                let verdict = BrakeVerdict::Overridden { reason: reason.clone() };
                let next = record.taken_by(sweeper, census.now_ms + WAIVER_MS);
                return Some(BrakeDecision { verdict, next });
            }
            BrakeSetting::Auto => {}
        }
        // The store-away grace is waived for that pass, not for this one.
        let other = record.overriding.as_ref().filter(|_| !record.is_overridden_by(sweeper))?;
        let until_ms = Some(other.until_ms).filter(|until_ms| census.now_ms < *until_ms)?;
        let verdict = BrakeVerdict::Held { by: HeldBy::OtherPass, until_ms: Some(until_ms) };
        Some(BrakeDecision::unchanged(verdict))
    }

    /// Until when the owners of a store that came back at `back_ms` are spared, if they are.
    fn away_until(&self, back_ms: u64, census: &Census) -> Option<u64> {
        let until_ms = back_ms + self.threshold_ms();
        (back_ms > 0 && census.now_ms < until_ms).then_some(until_ms)
    }

    /// Holds for the mass death of some of `all`, or grants the next step.
    fn hold_or_step(
        &self,
        record: &BrakeRecord,
        now_ms: u64,
        all: u64,
        of: Counted,
    ) -> BrakeDecision {
        let held = |until_ms| BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms };
        let store = |hold| Some(BrakeRecord { hold: Some(hold), ..record.next() });
        let Some(hold) = record.hold else {
            let hold = MassHold::begin(now_ms, self.threshold_ms());
            let verdict = held(self.opens_at(&hold));
            return BrakeDecision { verdict, next: store(hold) };
        };
        match self.opens_at(&hold) {
            Some(until_ms) if until_ms <= now_ms => {}
            until_ms => return BrakeDecision::unchanged(held(until_ms)),
        }
        let share = self.policy.step * f64::from(2u32.saturating_pow(hold.steps));
        let max = ((all as f64 * share).ceil() as usize).max(1);
        let next = store(MassHold { steps: hold.steps + 1, stepped_ms: now_ms, ..hold });
        BrakeDecision { verdict: BrakeVerdict::Opening { max, of }, next }
    }

    /// When the next step of `hold` may be granted; `None`: not before a person decides.
    fn opens_at(&self, hold: &MassHold) -> Option<u64> {
        match hold.steps {
            0 if self.policy.stay => hold.decided.then_some(hold.since_ms),
            0 => Some(hold.until_ms),
            _ => Some(hold.stepped_ms + self.step_gap_ms()),
        }
    }

    /// Whether a mass death is under way: of how many, and what is counted.
    fn mass(&self, census: &Census, is_held: bool) -> Option<(u64, Counted)> {
        if self.is_mass_of_owners(census) {
            return Some((owners_in_all(census), Counted::Owners));
        }
        self.is_mass_of_entries(census, is_held)
            .then_some((census.entries_tracked, Counted::Entries))
    }

    fn is_mass_of_owners(&self, census: &Census) -> bool {
        let all = owners_in_all(census);
        let dying = census.owners_overdue + census.owners_died_recently;
        let is_most = match all >= self.policy.min_owners {
            true => dying as f64 > self.policy.share * all as f64,
            false => all >= SMALL_FLEET_MIN && dying + 1 >= all,
        };
        census.owners_overdue > 0 && is_most
    }

    /// While the brake holds, all entries that are due count, because those that caused the hold
    /// became due more than a threshold ago by the time that it opens. If all entries run out by
    /// themselves and passes are rare, most are due at every pass, which says nothing.
    ///
    /// What was already reclaimed counts by when it became due. Of entries that run out by themselves,
    /// as many become due in a threshold as are tracked, always: of those that were reclaimed, only
    /// those of the last half of the threshold count as dying, which is about a quarter of all.
    fn is_mass_of_entries(&self, census: &Census, is_held: bool) -> bool {
        let all = census.entries_tracked + census.entries_died_recently;
        let due = match is_held {
            true => census.orphans,
            false if census.entries_run_out && self.every_ms() > self.threshold_ms() / 2 => 0,
            false => census.entries_due_recently,
        };
        let died = match census.entries_run_out {
            true => census.entries_died_last_half,
            false => census.entries_died_recently,
        };
        let is_most = (due + died) as f64 > self.policy.share * all as f64;
        due > 0 && all >= self.policy.min_owners && is_most
    }

    fn threshold_ms(&self) -> u64 {
        self.threshold_ms.load(Ordering::Relaxed)
    }

    fn every_ms(&self) -> u64 {
        self.every_ms.load(Ordering::Relaxed)
    }

    fn step_gap_ms(&self) -> u64 {
        (self.every_ms().min(self.threshold_ms()) / 2).max(1)
    }
}

/// The hold of the mass death that is under way, if there is one. A hold that no pass has ended, because
/// none ran, does not open for other owners.
fn hold_of(record: &BrakeRecord, census: &Census) -> Option<MassHold> {
    let overdue_ms = census.now_ms.saturating_sub(census.oldest_late_ms);
    // Without a suspect it is not known since when somebody is overdue.
    record.hold.filter(|hold| census.oldest_late_ms == 0 || !hold.is_of_others(overdue_ms))
}

/// The record after the hold of a mass death has ended; `None` if there is no hold.
fn without_hold(record: &BrakeRecord) -> Option<BrakeRecord> {
    record.hold.is_some().then(|| BrakeRecord { hold: None, ..record.next() })
}

fn owners_in_all(census: &Census) -> u64 {
    census.owners_live + census.owners_overdue + census.owners_died_recently
}
