//! What a sweeper was told, and what it may therefore do: the brake's contract, written down a
//! second time and more simply than the brake itself.

use lapsed_core::sweep::Census;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_core::sweep::policy::SweepMode;

use crate::system::SweeperLimits;

/// The share of owners that may die at once, and among how many it counts.
const SHARE: f64 = 0.55;
const OWNERS_MIN: u64 = 10;

/// What one sweeper was told.
#[derive(Clone, Debug)]
pub struct BrakeModel {
    /// Whether it must lead to act.
    pub mode: SweepMode,
    /// What the operator said, as it last read.
    pub setting: BrakeSetting,
    batch_max: usize,
    threshold_ms: u64,
    store_seen: Option<String>,
    unreachable: bool,
    /// On the store's clock, like the next.
    away_until: u64,
    /// Since when it has seen a mass death without a break.
    mass_since: Option<u64>,
    held: Option<&'static str>,
}

impl BrakeModel {
    /// Was told nothing yet.
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

    /// A call of its failed: the store may have been away.
    pub fn note_unreachable(&mut self) {
        self.unreachable = true;
    }

    /// It was told the counts, at the beginning of a pass.
    pub fn see(&mut self, census: &Census) {
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

    /// What follows from it.
    pub fn limits(&self) -> SweeperLimits {
        SweeperLimits { batch_max: self.batch_max, held: self.held }
    }
}
