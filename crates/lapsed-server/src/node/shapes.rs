//! What the daemon answers and the commands print, the same over HTTP and straight from the store.

use lapsed_availability::AvailabilitySummary;
use lapsed_availability::rules::AvailabilitySettings;
use lapsed_core::inflight::JobCounts;
use lapsed_core::receipt::Receipt;
use lapsed_core::reconcile::{IndexChange, ReconcileReport};
use lapsed_core::store::StoreInfo;
use lapsed_core::sweep::brake::{BrakeSetting, BrakeVerdict, HeldBy};
use lapsed_core::sweep::{Census, PassReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::schemas;
use crate::print::moment;

/// Everything about one system.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SystemStatus {
    /// Its name.
    pub system: String,
    /// Its kind.
    pub kind: String,
    /// How long silence must last before it means death.
    pub threshold_ms: u64,
    /// Sessions: how long one is kept that nobody is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// How long nobody must have used it before a pass begins, if that matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_grace_ms: Option<u64>,
    /// From the start of one pass to the start of the next.
    pub every_ms: u64,
    /// `idempotent` or `leader`.
    pub mode: String,
    /// In leader mode: whether this process leads.
    pub leads: Option<bool>,
    /// In leader mode: who leads, by the name of its process; none while nobody does, or when the store does not
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The name of its store in the configuration.
    pub store_name: String,
    /// What the store says of itself; none when it does not answer.
    #[schema(value_type = Option<schemas::StoreInfo>)]
    pub store: Option<StoreInfo>,
    /// Who is there; none when the store does not answer.
    #[schema(value_type = Option<schemas::Census>)]
    pub census: Option<Census>,
    /// Jobs in flight: their account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schemas::Counts>)]
    pub jobs: Option<JobCounts>,
    /// Providers: who can take work, and how the mirror stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability: Option<AvailabilityStatus>,
    /// Whether the overdue are spared.
    pub brake: Option<BrakeStatus>,
    /// The last pass of this process.
    #[schema(value_type = Option<schemas::PassReport>)]
    pub last_pass: Option<PassReport>,
    /// How late the newest reclaims of the dead were.
    pub lag: Option<Lag>,
    /// Why something above is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Who can take work, and how the mirror stands.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AvailabilityStatus {
    /// How many are online, as the mirror has it; none when it does not answer.
    pub online: Option<u64>,
    /// How many can take work now.
    pub available: Option<u64>,
    /// Who says so: `mirror`, `truth` or `cache`.
    pub source: Option<String>,
    /// The name of the mirror's store in the configuration; none where it is this process's memory.
    pub mirror_name: Option<String>,
    /// Whether the mirror answers.
    pub mirror_up: bool,
    /// Whether it has been filled from the truth, and has not lost it since.
    pub mirror_seeded: bool,
    /// Providers of whose last change this process could not tell the mirror yet.
    pub mirror_behind: u64,
    /// Who was declared silent, and is not yet set offline in the truth.
    pub doomed: Option<u64>,
    /// `closed`: the mirror is asked; `open`: it is left alone; `half_open`: it is being tried.
    pub breaker: String,
    /// The settings in force.
    #[schema(value_type = Option<schemas::AvailabilitySettings>)]
    pub settings: Option<AvailabilitySettings>,
    /// Why the mirror does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_error: Option<String>,
}

impl AvailabilityStatus {
    /// From what the library says.
    pub fn of(
        glance: AvailabilitySummary,
        mirror_name: Option<String>,
        settings: Option<AvailabilitySettings>,
    ) -> Self {
        let AvailabilitySummary { mirror, available, breaker, behind } = glance;
        let mirror_error = mirror.as_ref().err().map(ToString::to_string);
        let presence = mirror.ok();
        AvailabilityStatus {
            online: presence.as_ref().map(|presence| presence.online),
            available: available.map(|(count, _)| count),
            source: available.map(|(_, source)| source.as_str().to_owned()),
            mirror_name,
            mirror_up: presence.is_some(),
            mirror_seeded: presence.as_ref().is_some_and(|presence| presence.seeded),
            mirror_behind: behind as u64,
            doomed: presence.map(|presence| presence.pending_offline),
            breaker: breaker.as_str().to_owned(),
            settings,
            mirror_error,
        }
    }
}

/// All systems.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Sweeps {
    /// In the order of the configuration.
    pub systems: Vec<SystemStatus>,
}

/// From deadline to reclaim, over the newest receipts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lag {
    /// Half of them were at most so late.
    pub p50_ms: u64,
    /// 99 % of them were at most so late.
    pub p99_ms: u64,
    /// How many receipts were looked at.
    pub samples: u64,
}

impl Lag {
    /// From the lags of some receipts, in any order; none of none.
    pub fn of(mut lags_ms: Vec<u64>) -> Option<Lag> {
        lags_ms.sort_unstable();
        let last = lags_ms.len().checked_sub(1)?;
        let at = |share: f64| lags_ms[(last as f64 * share).round() as usize];
        Some(Lag { p50_ms: at(0.5), p99_ms: at(0.99), samples: lags_ms.len() as u64 })
    }
}

/// What the operator said, and what the brake does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrakeStatus {
    /// The system's name.
    pub system: String,
    /// Its kind.
    pub kind: String,
    /// What the operator said: `auto`, `hold` or `release`.
    pub setting: String,
    /// Until when it is released, on the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_until_ms: Option<u64>,
    /// What it does now: `open`, `opening` or `held`.
    pub state: String,
    /// Why it holds: `operator`, `store_away` or `mass_death`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Until when it holds, if that is known, on the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until_ms: Option<u64>,
    /// The same in words.
    pub words: String,
}

impl BrakeStatus {
    /// What the operator's word has come to, for the audit.
    pub fn told(&self) -> String {
        match (self.setting.as_str(), self.released_until_ms) {
            (_, Some(until)) => format!("released until {}", moment(until)),
            ("hold", _) => "held".to_owned(),
            _ => "decides by itself".to_owned(),
        }
    }

    /// From what the library says.
    pub fn of(
        system: &lapsed_core::SystemId,
        setting: BrakeSetting,
        verdict: &BrakeVerdict,
        now_ms: u64,
    ) -> Self {
        let (word, released_until_ms) = match setting {
            BrakeSetting::Auto => ("auto", None),
            BrakeSetting::Hold => ("hold", None),
            BrakeSetting::Release { until_ms } => ("release", Some(until_ms)),
        };
        let (state, held_by, held_until_ms) = match verdict {
            BrakeVerdict::Open => ("open", None, None),
            BrakeVerdict::Opening { .. } => ("opening", None, None),
            BrakeVerdict::Held { by, until_ms } => ("held", Some(held_word(*by)), *until_ms),
        };
        BrakeStatus {
            system: system.name.to_string(),
            kind: system.kind.to_string(),
            setting: word.to_owned(),
            released_until_ms,
            state: state.to_owned(),
            held_by: held_by.map(str::to_owned),
            held_until_ms,
            words: named(&verdict.describe(now_ms), system),
        }
    }
}

/// The library says `SYSTEM` where the name goes: whoever is paged should be able to paste it.
pub fn named(words: &str, system: &lapsed_core::SystemId) -> String {
    words.replace("lapsed brake SYSTEM", &format!("lapsed brake {system}"))
}

fn held_word(by: HeldBy) -> &'static str {
    match by {
        HeldBy::Operator => "operator",
        HeldBy::StoreAway => "store_away",
        HeldBy::MassDeath => "mass_death",
    }
}

/// The account of one reconciliation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Reconciliation {
    /// How much was looked at and changed.
    #[serde(flatten)]
    #[schema(inline, value_type = schemas::ReconcileReport)]
    pub report: ReconcileReport,
    /// What was changed (or would be), if the caller asked for the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schemas::Change>)]
    pub changes: Vec<IndexChange>,
    /// Whether `changes` was cut off at its limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes_cut: bool,
    /// Why it broke off; what is told above was done all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Reconciliation {
    /// What came of it, for the audit.
    pub fn told(&self) -> String {
        match &self.error {
            Some(error) => format!("broke off: {error}"),
            None => "done".to_owned(),
        }
    }
}

/// What a reconciliation would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Estimate {
    /// About how many requests it takes, where each of them has a price.
    pub requests: Option<u64>,
}

/// One page of receipts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReceiptPage {
    /// Newest first; oldest first when asked for those after a cursor.
    #[schema(value_type = Vec<schemas::Receipt>)]
    pub receipts: Vec<Receipt>,
    /// Where the next page begins: give it as `before` (or as `after`, if that was given).
    pub next: Option<String>,
    /// How many receipts were looked at; one request looks at no more than 20,000 of each system, so a
    /// page can be short, or empty, and go on at `next`.
    #[serde(default)]
    pub examined: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_are_sane() {
        assert_eq!(Lag::of(vec![]), None);
        assert_eq!(Lag::of(vec![7]), Some(Lag { p50_ms: 7, p99_ms: 7, samples: 1 }));
        let lag = Lag::of((1..=100).rev().collect()).unwrap();
        assert_eq!((lag.p50_ms, lag.p99_ms), (51, 99));
    }
}
