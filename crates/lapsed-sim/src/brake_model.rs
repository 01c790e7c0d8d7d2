//! A second, simpler implementation of the brake's contract: what a sweeper may do, given what it
//! has read from the store.

use lapsed_core::sweep::Census;
use lapsed_core::sweep::brake::{BrakeRecord, BrakeSetting};
use lapsed_core::sweep::policy::SweepMode;

use crate::system::SweeperLimits;

/// More than this share of at least `OWNERS_MIN` owners dying at once is a mass death; of fewer, but
/// at least `FLEET_MIN`, all but one.
const SHARE: f64 = 0.55;
const OWNERS_MIN: u64 = 10;
const FLEET_MIN: u64 = 3;

/// What follows from one census.
#[derive(Clone, Copy, Debug)]
struct SeenCensus {
    away: bool,
    mass: bool,
}

/// What one sweeper has read, and what follows for its brake.
#[derive(Clone, Debug)]
pub struct BrakeModel {
    /// Whether the sweeper must be the leader to act.
    pub mode: SweepMode,
    /// The operator's setting as the sweeper last read it.
    pub setting: BrakeSetting,
    batch_max: usize,
    threshold_ms: u64,
    store_seen: Option<String>,
    unreachable: bool,
    /// Until when the sweeper must hold back, on the store's clock in milliseconds.
    away_until: u64,
    /// What the census of the pass says, until the record is read by which the pass is judged.
    seen: Option<SeenCensus>,
    held: Option<&'static str>,
    /// Whether the store has given the sweeper a step for the pass under way.
    has_step: bool,
}

impl BrakeModel {
    /// A sweeper that has read nothing yet.
    pub fn new(mode: SweepMode, batch_max: usize, threshold_ms: u64) -> Self {
        BrakeModel {
            mode,
            setting: BrakeSetting::Auto,
            batch_max,
            threshold_ms,
            store_seen: None,
            unreachable: false,
            away_until: 0,
            seen: None,
            held: None,
            has_step: false,
        }
    }

    /// Notes that a call failed: the store may have been away.
    pub fn note_unreachable(&mut self) {
        self.unreachable = true;
    }

    /// Updates the model from the census that the sweeper read at the beginning of a pass.
    pub fn observe_census(&mut self, census: &Census) {
        let now = census.now_ms;
        let another = self.store_seen.as_ref().is_some_and(|seen| *seen != census.store);
        if another || self.unreachable {
            self.away_until = now + self.threshold_ms;
        }
        self.unreachable = false;
        self.store_seen = Some(census.store.clone());
        let back_until_ms = census.back_ms + self.threshold_ms;
        let away = now < self.away_until || (census.back_ms > 0 && now < back_until_ms);
        let dying = census.owners_overdue + census.owners_died_recently;
        let all = census.owners_live + dying;
        let most = match all >= OWNERS_MIN {
            true => dying as f64 > SHARE * all as f64,
            false => all >= FLEET_MIN && dying + 1 >= all,
        };
        self.has_step = false;
        self.seen = Some(SeenCensus { away, mass: census.owners_overdue > 0 && most });
    }

    /// Updates the model from the record that the sweeper has read, after the census of the pass or
    /// in the middle of it.
    pub fn observe_record(&mut self, record: &BrakeRecord) {
        self.setting = record.setting.clone();
        let Some(seen) = self.seen else { return };
        self.held = match record.setting {
            BrakeSetting::Hold => Some("the operator holds the brake"),
            _ if seen.away => Some("this sweeper has just seen the store away"),
            _ if seen.mass && !self.has_step => {
                Some("most owners would be dead at once, and it was given no step")
            }
            _ => None,
        };
    }

    /// Updates the model after the store has accepted a record of this sweeper: a step of the
    /// opening brake is its own.
    pub fn observe_swap(&mut self, next: &BrakeRecord) {
        let is_step = next.hold.is_some_and(|hold| hold.steps > 0);
        if is_step && self.seen.is_some_and(|seen| seen.mass && !seen.away) {
            (self.held, self.has_step) = (None, true);
        }
    }

    /// What the sweeper may do now.
    pub fn limits(&self) -> SweeperLimits {
        SweeperLimits { batch_max: self.batch_max, held: self.held }
    }
}
