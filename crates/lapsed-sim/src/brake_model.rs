//! A second, simpler implementation of the brake's contract: what a sweeper may do, given what it
//! has read from the store.

use lapsed_core::sweep::Census;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::SweepMode;

use crate::system::SweeperLimits;

/// More than this share of at least `OWNERS_MIN` owners dying at once is a mass death.
const SHARE: f64 = 0.55;
const OWNERS_MIN: u64 = 10;

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
    /// Since when every census showed a mass death, on the store's clock in milliseconds.
    mass_since: Option<u64>,
    held: Option<&'static str>,
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
            mass_since: None,
            held: None,
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
            self.mass_since = None;
        }
        self.unreachable = false;
        self.store_seen = Some(census.store.clone());
        let back_until_ms = census.back_ms + self.threshold_ms;
        let away = now < self.away_until || (census.back_ms > 0 && now < back_until_ms);
        let dying = census.owners_overdue + census.owners_died_recently;
        let all = census.owners_live + dying;
        let mass =
            census.owners_overdue > 0 && all >= OWNERS_MIN && dying as f64 > SHARE * all as f64;
        if !away && self.setting != BrakeSetting::Hold {
            self.mass_since = mass.then(|| self.mass_since.unwrap_or(now));
        }
        let fresh = self.mass_since.is_some_and(|since| now < since + self.threshold_ms);
        self.held = match self.setting {
            BrakeSetting::Hold => Some("the operator holds the brake"),
            _ if away => Some("this sweeper has just seen the store away"),
            _ if fresh => Some("more than half of the owners would be dead at once"),
            _ => None,
        };
    }

    /// What the sweeper may do now.
    pub fn limits(&self) -> SweeperLimits {
        SweeperLimits { batch_max: self.batch_max, held: self.held }
    }
}
