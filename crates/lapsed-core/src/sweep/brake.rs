//! The brake decides whether a pass may declare owners dead. When many are overdue, a fault of the
//! store or the network is likelier than their death.
//!
//! It holds for one of three reasons, in this order: the operator said so; the store was away less
//! than a threshold ago; more than a share of the owners would die at once. The last one ends
//! automatically, in steps, because a real scale-down looks the same and must not be held for ever
//! (X3).
//!
//! "At once" means within one threshold. The deaths of a partition are spread over the heartbeat
//! interval, so the share counts the owners declared dead recently together with those that are
//! overdue now. Owners that were already declared dead are not affected: their entries are removed
//! whatever the brake says.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sweep::Census;

/// When the brake begins to hold.
#[derive(Clone, Debug, PartialEq)]
pub struct BrakePolicy {
    /// Hold when more than this share of the owners would be dead at once.
    pub share: f64,
    /// The brake never holds for its share if there are fewer owners than this.
    pub min_owners: u64,
    /// First step when it opens automatically, as a share of the owners; it doubles at each pass.
    pub step: f64,
}

impl Default for BrakePolicy {
    fn default() -> Self {
        BrakePolicy { share: 0.55, min_owners: 10, step: 0.1 }
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

/// The operator's setting, kept in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "setting")]
pub enum BrakeSetting {
    /// No setting: the brake decides automatically.
    #[default]
    Auto,
    /// Declare nobody dead until released.
    Hold,
    /// Declare every overdue owner dead until that time of the store's clock, then decide
    /// automatically again.
    Release { until_ms: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// The operator's setting is `Hold`.
    Operator,
    /// The store was away.
    StoreAway,
    /// Too many owners would die at once.
    MassDeath,
}

/// What a pass may do to owners that are overdue but not yet declared dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum BrakeVerdict {
    /// All of them may be declared dead.
    Open,
    /// The brake is opening automatically: only some may be declared dead.
    Opening {
        /// How many owners may be declared dead, the most overdue first.
        owners: usize,
    },
    Held {
        by: HeldBy,
        /// Until when the brake holds, in milliseconds of the store's clock, if that is known.
        until_ms: Option<u64>,
    },
}

impl BrakeVerdict {
    /// The limit for [`PageRequest::undeclared_max`](crate::sweep::PageRequest).
    pub fn undeclared_max(&self) -> Option<usize> {
        match self {
            BrakeVerdict::Open => None,
            BrakeVerdict::Opening { owners } => Some(*owners),
            BrakeVerdict::Held { .. } => Some(0),
        }
    }

    /// The verdict as a sentence for the operator.
    pub fn describe(&self, now_ms: u64) -> String {
        let left = |until: &Option<u64>| match until {
            Some(until) => {
                format!(" for another {:.1} s", until.saturating_sub(now_ms) as f64 / 1e3)
            }
            None => String::new(),
        };
        match self {
            BrakeVerdict::Open => "open".to_owned(),
            BrakeVerdict::Opening { owners } => {
                format!("opening in steps: up to {owners} owners may be declared dead in this pass")
            }
            BrakeVerdict::Held { by: HeldBy::Operator, .. } => {
                "held by the operator until `lapsed brake SYSTEM release`".to_owned()
            }
            BrakeVerdict::Held { by: HeldBy::StoreAway, until_ms } => format!(
                "held{}: the store was away, and its owners must first have had a whole \
                 threshold to beat again",
                left(until_ms)
            ),
            BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms } => format!(
                "held{}: too many owners would be dead at once, which is likelier a fault of \
                 the network; it opens by itself, or at once with `lapsed brake SYSTEM release`",
                left(until_ms)
            ),
        }
    }
}

/// The brake of one system.
#[derive(Debug)]
pub struct Brake {
    policy: BrakePolicy,
    threshold_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    setting: BrakeSetting,
    store_seen: Option<String>,
    unreachable: bool,
    /// When the store came back after it did not answer this process, in milliseconds of its clock.
    back_ms: u64,
    mass: Option<MassDeath>,
    last: Option<BrakeVerdict>,
}

/// A mass death that the brake is holding for.
#[derive(Debug, Clone, Copy)]
struct MassDeath {
    hold_until_ms: u64,
    steps: u32,
}

impl Brake {
    /// A brake without an operator's setting, which does not hold.
    pub fn new(policy: BrakePolicy, threshold: Duration) -> Self {
        let threshold_ms = AtomicU64::new(threshold.as_millis() as u64);
        Brake { policy, threshold_ms, state: Mutex::default() }
    }

    /// Sets how long an owner must be silent, for systems where that is a setting that can change.
    pub fn set_threshold(&self, threshold: Duration) {
        self.threshold_ms.store(threshold.as_millis() as u64, Ordering::Relaxed);
    }

    /// Applies the operator's setting as read from the store.
    pub fn set(&self, setting: BrakeSetting) {
        self.lock().setting = setting;
    }

    /// The operator's setting that was applied last.
    pub fn setting(&self) -> BrakeSetting {
        self.lock().setting
    }

    /// Records that the store did not answer. When it answers again, every owner gets a whole
    /// threshold.
    pub fn note_unreachable(&self) {
        self.lock().unreachable = true;
    }

    /// The verdict of the last pass, if there was one.
    pub fn last(&self) -> Option<BrakeVerdict> {
        self.lock().last.clone()
    }

    /// Decides for a pass that is about to begin. A step that is granted here is used up.
    pub fn judge(&self, census: &Census) -> BrakeVerdict {
        let mut state = self.lock();
        let verdict = self.step(&mut state, census);
        state.last = Some(verdict.clone());
        verdict
    }

    /// What [`judge`](Self::judge) would decide. Changes nothing.
    pub fn preview(&self, census: &Census) -> BrakeVerdict {
        let mut state = self.lock().clone();
        self.step(&mut state, census)
    }

    /// Whether the brake would spare an overdue owner right now. Changes nothing.
    pub fn would_spare(&self, census: &Census) -> bool {
        let state = self.lock();
        match self.outer(&state, census) {
            Some(verdict) => verdict != BrakeVerdict::Open,
            None => self.is_mass(census),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the brake's lock panics")
    }

    fn step(&self, state: &mut State, census: &Census) -> BrakeVerdict {
        let changed = state.store_seen.as_ref().is_some_and(|seen| *seen != census.store);
        if changed || state.unreachable {
            state.back_ms = census.now_ms;
            state.mass = None;
        }
        state.unreachable = false;
        state.store_seen = Some(census.store.clone());
        if let Some(verdict) = self.outer(state, census) {
            return verdict;
        }
        if !self.is_mass(census) {
            state.mass = None;
            return BrakeVerdict::Open;
        }
        let hold_until_ms = census.now_ms + self.threshold_ms();
        let mass = state.mass.get_or_insert(MassDeath { hold_until_ms, steps: 0 });
        if census.now_ms < mass.hold_until_ms {
            return BrakeVerdict::Held {
                by: HeldBy::MassDeath,
                until_ms: Some(mass.hold_until_ms),
            };
        }
        let share = self.policy.step * f64::from(2u32.saturating_pow(mass.steps));
        mass.steps += 1;
        let owners = (owners_in_all(census) as f64 * share).ceil() as usize;
        BrakeVerdict::Opening { owners: owners.max(1) }
    }

    /// The reasons that come before the share of dead owners: the operator, then the store's
    /// absence.
    fn outer(&self, state: &State, census: &Census) -> Option<BrakeVerdict> {
        match state.setting {
            BrakeSetting::Hold => {
                return Some(BrakeVerdict::Held { by: HeldBy::Operator, until_ms: None });
            }
            BrakeSetting::Release { until_ms } if census.now_ms < until_ms => {
                return Some(BrakeVerdict::Open);
            }
            BrakeSetting::Release { .. } | BrakeSetting::Auto => {}
        }
        let back_ms = state.back_ms.max(census.back_ms);
        let until_ms = back_ms + self.threshold_ms();
        if back_ms > 0 && census.now_ms < until_ms {
            let until_ms = Some(until_ms);
            return Some(BrakeVerdict::Held { by: HeldBy::StoreAway, until_ms });
        }
        None
    }

    fn is_mass(&self, census: &Census) -> bool {
        let all = owners_in_all(census);
        let dying = census.owners_overdue + census.owners_died_recently;
        census.owners_overdue > 0
            && all >= self.policy.min_owners
            && dying as f64 > self.policy.share * all as f64
    }

    fn threshold_ms(&self) -> u64 {
        self.threshold_ms.load(Ordering::Relaxed)
    }
}

fn owners_in_all(census: &Census) -> u64 {
    census.owners_live + census.owners_overdue + census.owners_died_recently
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: u64 = 90_000;

    fn brake() -> Brake {
        Brake::new(BrakePolicy::default(), Duration::from_millis(TTL_MS))
    }

    fn census(now_ms: u64, live: u64, overdue: u64, recently: u64) -> Census {
        Census {
            now_ms,
            store: "s1".into(),
            owners_live: live,
            owners_overdue: overdue,
            owners_died_recently: recently,
            ..Census::default()
        }
    }

    #[test]
    fn one_owner_of_two_dying_is_not_a_mass_death() {
        assert_eq!(brake().judge(&census(1, 1, 1, 0)), BrakeVerdict::Open);
        assert_eq!(brake().judge(&census(1, 0, 9, 0)), BrakeVerdict::Open);
    }

    #[test]
    fn more_than_the_share_at_once_is_held() {
        assert_eq!(brake().judge(&census(1, 9, 11, 0)), BrakeVerdict::Open, "0.55 exactly");
        assert!(matches!(
            brake().judge(&census(1, 8, 12, 0)),
            BrakeVerdict::Held { by: HeldBy::MassDeath, .. }
        ));
    }

    #[test]
    fn deaths_spread_over_a_threshold_count_together() {
        assert!(matches!(
            brake().judge(&census(1, 5, 5, 10)),
            BrakeVerdict::Held { by: HeldBy::MassDeath, .. }
        ));
    }

    #[test]
    fn trap_x3_the_brake_opens_automatically_in_steps() {
        let brake = brake();
        let start = 1_000;
        assert!(matches!(brake.judge(&census(start, 2, 98, 0)), BrakeVerdict::Held { .. }));
        let almost = start + TTL_MS - 1;
        assert!(matches!(brake.judge(&census(almost, 2, 98, 0)), BrakeVerdict::Held { .. }));
        let mut now = start + TTL_MS;
        let mut left = 98;
        let mut granted = Vec::new();
        while left > 0 {
            let BrakeVerdict::Opening { owners } = brake.judge(&census(now, 2, left, 98 - left))
            else {
                panic!("still closed with {left} left");
            };
            granted.push(owners);
            left = left.saturating_sub(owners as u64);
            now += 60_000;
        }
        assert_eq!(granted, [10, 20, 40, 80], "a step at a time, each twice the one before");
        assert_eq!(brake.judge(&census(now, 2, 0, 98)), BrakeVerdict::Open);
    }

    #[test]
    fn an_absence_while_opening_starts_over() {
        let brake = brake();
        brake.judge(&census(0, 2, 98, 0));
        assert!(matches!(brake.judge(&census(TTL_MS, 2, 98, 0)), BrakeVerdict::Opening { .. }));
        brake.note_unreachable();
        let verdict = brake.judge(&census(TTL_MS + 5, 2, 98, 0));
        assert!(matches!(verdict, BrakeVerdict::Held { by: HeldBy::StoreAway, .. }), "{verdict:?}");
    }

    #[test]
    fn after_an_absence_or_a_restart_the_brake_holds_for_a_threshold() {
        let brake = brake();
        assert_eq!(brake.judge(&census(5, 3, 1, 0)), BrakeVerdict::Open);
        let other = Census { store: "s2".into(), ..census(1_000, 3, 1, 0) };
        let held = BrakeVerdict::Held { by: HeldBy::StoreAway, until_ms: Some(1_000 + TTL_MS) };
        assert_eq!(brake.judge(&other), held);
        let later = Census { store: "s2".into(), ..census(1_000 + TTL_MS, 3, 1, 0) };
        assert_eq!(brake.judge(&later), BrakeVerdict::Open);
    }

    #[test]
    fn the_operators_setting_comes_first() {
        let brake = brake();
        brake.set(BrakeSetting::Hold);
        assert!(matches!(
            brake.judge(&census(5, 9, 1, 0)),
            BrakeVerdict::Held { by: HeldBy::Operator, .. }
        ));
        brake.set(BrakeSetting::Release { until_ms: 100 });
        assert_eq!(brake.judge(&census(99, 0, 100, 0)), BrakeVerdict::Open);
        assert!(matches!(brake.judge(&census(100, 0, 100, 0)), BrakeVerdict::Held { .. }));
    }
}
