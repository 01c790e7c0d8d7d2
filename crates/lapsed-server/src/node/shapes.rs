//! The JSON that the daemon answers and the commands print. It is the same over HTTP and when a
//! command reads the store directly.

use lapsed_availability::rules::AvailabilitySettings;
use lapsed_availability::{AvailabilitySummary, MassBeats, Presence};
use lapsed_core::inflight::JobCounts;
use lapsed_core::receipt::Receipt;
use lapsed_core::reconcile::{IndexChange, ReconcileReport};
use lapsed_core::store::StoreInfo;
use lapsed_core::sweep::brake::{BrakeRecord, BrakeSetting, BrakeVerdict};
use lapsed_core::sweep::{AdoptObservation, Census, PassReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::missing::MissingSystem;
use crate::print::moment;
use crate::schemas;

/// The complete status of one system.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SystemStatus {
    /// The name of the system.
    pub system: String,
    /// The kind of the system.
    pub kind: String,
    /// How long an owner may be silent before it counts as dead, in milliseconds.
    pub threshold_ms: u64,
    /// Only for sessions: how long a session that nobody is connected to is kept, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// How long the system must have been unused before a pass begins, in milliseconds; absent if
    /// passes do not wait for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_grace_ms: Option<u64>,
    /// The time from the start of one pass to the start of the next, in milliseconds.
    pub every_ms: u64,
    /// Which processes run passes: `idempotent` (every daemon) or `leader` (one at a time).
    pub mode: String,
    /// In leader mode: whether this process leads.
    pub leads: Option<bool>,
    /// In leader mode: the name of the process that leads; absent while there is no leader, or when
    /// the store does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The name of the system's store in the configuration.
    pub store_name: String,
    /// What the store reports about itself; absent when it does not answer.
    #[schema(value_type = Option<schemas::StoreInfo>)]
    pub store: Option<StoreInfo>,
    /// The numbers of owners, entries and suspects; absent when the store does not answer.
    #[schema(value_type = Option<schemas::Census>)]
    pub census: Option<Census>,
    /// Only for jobs in flight: how many jobs are in which state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schemas::Counts>)]
    pub jobs: Option<JobCounts>,
    /// Only for availability: how many providers can take work, and the state of the mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability: Option<AvailabilityStatus>,
    /// The brake: whether overdue entries are currently protected from being reclaimed.
    pub brake: Option<BrakeStatus>,
    /// The report of the last pass of this process.
    #[schema(value_type = Option<schemas::PassReport>)]
    pub last_pass: Option<PassReport>,
    /// How late the newest reclaims of dead owners' entries were.
    pub lag: Option<Lag>,
    /// The error because of which other fields are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How many providers can take work, and the state of the mirror.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AvailabilityStatus {
    /// How many providers are online according to the mirror; absent when the mirror does not
    /// answer.
    pub online: Option<u64>,
    /// How many providers can take work now.
    pub available: Option<u64>,
    /// Where `available` was read: `mirror`, `truth` or `cache`.
    pub source: Option<String>,
    /// The name of the mirror's store in the configuration; absent if the mirror is in this
    /// process's memory.
    pub mirror_name: Option<String>,
    /// Whether the mirror answers.
    pub mirror_up: bool,
    /// Whether the mirror has been filled from the truth and has not lost its contents since.
    pub mirror_seeded: bool,
    /// How many providers have a change that this process could not write to the mirror yet.
    pub mirror_behind: u64,
    /// How many providers were declared silent in the mirror but are not yet set offline in the
    /// truth.
    pub doomed: Option<u64>,
    /// The circuit breaker of the mirror: `closed` (reads use the mirror), `open` (reads bypass it)
    /// or `half_open` (a trial read is under way).
    pub breaker: String,
    /// The settings that are in force.
    #[schema(value_type = Option<schemas::AvailabilitySettings>)]
    pub settings: Option<AvailabilitySettings>,
    /// Why the mirror does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_error: Option<String>,
    /// The last heartbeats of the past hour that an application wrote at once, by no ping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mass_heartbeats: Option<MassHeartbeats>,
}

/// Many heartbeats of the same millisecond that lapsed did not write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MassHeartbeats {
    /// Their time, in milliseconds of the mirror's clock.
    pub at_ms: u64,
    /// How many heartbeats had that time.
    pub heartbeats: u64,
    /// How many providers were looked at.
    pub of: u64,
}

impl MassHeartbeats {
    /// How long they are shown, in milliseconds.
    const SHOWN_MS: u64 = 3_600_000;

    /// Those of the past hour.
    pub fn of(presence: &Presence) -> Option<Self> {
        let MassBeats { at_ms, beats, of } = presence.mass_beats?;
        (presence.now_ms < at_ms + Self::SHOWN_MS).then_some(MassHeartbeats {
            at_ms,
            heartbeats: beats,
            of,
        })
    }

    /// A sentence that says what they mean and what to do.
    pub fn describe(&self) -> String {
        format!(
            "{} of {} heartbeats were written at once, by no ping ({}): an application that fills the \
             mirror itself keeps silent providers online; switch its reseeding off \
             (docs/availability.md)",
            self.heartbeats,
            self.of,
            moment(self.at_ms)
        )
    }
}

impl AvailabilityStatus {
    /// Builds the status from the library's values; `words` is the verdict as a sentence.
    pub fn of(
        summary: AvailabilitySummary,
        mirror_name: Option<String>,
        settings: Option<AvailabilitySettings>,
    ) -> Self {
        let AvailabilitySummary { mirror, available, breaker, behind } = summary;
        let mirror_error = mirror.as_ref().err().map(ToString::to_string);
        let presence = mirror.ok();
        let mass_heartbeats = presence.as_ref().and_then(MassHeartbeats::of);
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
            mass_heartbeats,
        }
    }
}

/// The status of all systems.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Sweeps {
    /// One status for each system, in the order of the configuration.
    pub systems: Vec<SystemStatus>,
}

/// The time from deadline to reclaim, computed over the newest receipts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lag {
    /// The median lag, in milliseconds.
    pub p50_ms: u64,
    /// The 99th percentile of the lag, in milliseconds.
    pub p99_ms: u64,
    /// How many receipts the numbers are computed from.
    pub samples: u64,
}

impl Lag {
    /// Computes the percentiles of lags in any order; `None` if there are none.
    pub fn of(mut lags_ms: Vec<u64>) -> Option<Lag> {
        lags_ms.sort_unstable();
        let last = lags_ms.len().checked_sub(1)?;
        let at = |share: f64| lags_ms[(last as f64 * share).round() as usize];
        Some(Lag { p50_ms: at(0.5), p99_ms: at(0.99), samples: lags_ms.len() as u64 })
    }
}

/// The operator's setting of a brake, and what the brake does now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrakeStatus {
    /// The name of the system.
    pub system: String,
    /// The kind of the system.
    pub kind: String,
    /// The operator's setting: `auto` (the brake decides), `hold`, or `override` (the next pass
    /// goes through; the setting is `auto` from the moment that it begins).
    pub setting: String,
    /// Why the operator has overridden the brake, until the pass that uses the override has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the brake does now: `open` (entries are reclaimed), `opening` (in growing steps) or
    /// `held`.
    pub state: String,
    /// Why the brake holds: `operator`, `other_pass` (another process runs the pass that an override
    /// lets through), `observing` (an adopted system that is not confirmed), `store_away` or
    /// `mass_death`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Until when the brake holds, if that is known, in milliseconds on the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until_ms: Option<u64>,
    /// The state of the brake as a sentence.
    pub words: String,
}

impl BrakeStatus {
    /// The outcome of the operator's order, for the audit log.
    pub fn audit_outcome(&self) -> String {
        match (self.setting.as_str(), &self.reason) {
            // A daemon may have begun the pass before the status was read.
            (_, Some(reason)) => format!("one pass goes through: {reason}"),
            ("hold", _) => "held".to_owned(),
            _ => "decides by itself".to_owned(),
        }
    }

    /// Builds the status from the library's values.
    pub fn of(
        system: &lapsed_core::SystemId,
        record: &BrakeRecord,
        verdict: &BrakeVerdict,
        words: String,
    ) -> Self {
        let in_use = record.overriding.as_ref().map(|overriding| overriding.reason.clone());
        let reason = match &record.setting {
            BrakeSetting::Auto => in_use,
            setting => setting.reason().map(str::to_owned),
        };
        BrakeStatus {
            system: system.name.to_string(),
            kind: system.kind.to_string(),
            setting: record.setting.as_str().to_owned(),
            reason,
            state: verdict.state().to_owned(),
            held_by: verdict.held_by().map(|by| by.as_str().to_owned()),
            held_until_ms: verdict.held_until_ms(),
            words: named(&words, system),
        }
    }
}

/// Replaces the placeholder `SYSTEM` in the library's sentences by the system's name, so that the
/// commands in them can be pasted as they are.
pub fn named(words: &str, system: &lapsed_core::SystemId) -> String {
    ["brake", "adopt", "sweep"].iter().fold(words.to_owned(), |words, command| {
        words.replace(&format!("lapsed {command} SYSTEM"), &format!("lapsed {command} {system}"))
    })
}

/// What is known about the life of the owners in an adopted system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdoptStatus {
    /// The name of the system.
    pub system: String,
    /// The kind of the system.
    pub kind: String,
    /// Whether the system only observes, so that nothing is reclaimed.
    pub observing: bool,
    /// How many hold something, and how many of them were seen alive.
    pub observation: AdoptObservation,
    /// The same as a sentence.
    pub words: String,
}

impl AdoptStatus {
    /// The outcome of a confirmation, for the audit log.
    pub fn audit_outcome(&self) -> String {
        format!("confirmed; {}", self.words)
    }
}

/// The report of one reconciliation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Reconciliation {
    /// How many rows were examined and changed.
    #[serde(flatten)]
    #[schema(inline, value_type = schemas::ReconcileReport)]
    pub report: ReconcileReport,
    /// The changes that were made (or, in a dry run, would be), if the caller asked for the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schemas::Change>)]
    pub changes: Vec<IndexChange>,
    /// Whether `changes` was cut off at its limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes_cut: bool,
    /// Why the reconciliation ended early. The other fields count what was done before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Reconciliation {
    /// The outcome of the reconciliation, for the audit log.
    pub fn audit_outcome(&self) -> String {
        match &self.error {
            Some(error) => format!("broke off: {error}"),
            None => "done".to_owned(),
        }
    }
}

/// The estimated cost of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Estimate {
    /// The estimated number of requests; absent where requests cost nothing.
    pub requests: Option<u64>,
}

/// One page of receipts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReceiptPage {
    /// The receipts, newest first; oldest first if `after` was given.
    #[schema(value_type = Vec<schemas::Receipt>)]
    pub receipts: Vec<Receipt>,
    /// The cursor of the next page: pass it as `before` (or as `after`, if that was given). Absent
    /// on the last page.
    pub next: Option<String>,
    /// How many receipts were examined. One request examines at most 20,000 of each system, so that
    /// a page can be short or empty although `next` leads to more.
    #[serde(default)]
    pub examined: u64,
    /// The systems whose receipts are not on the page, because their stores do not answer. `next`
    /// keeps the place of these systems: a reader that continues from it misses nothing of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingSystem>,
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
