//! What the store keeps of one system's brake, so that all processes share it: the operator's
//! setting, the hold of a mass death, and the pass that uses an override.
//!
//! The record is only ever replaced as a whole, by compare-and-set on its version
//! ([`Store::swap_brake`](crate::store::Store::swap_brake)). Two processes that both want the same
//! step, or the same override, read the same version; the store accepts one of them, and the other
//! one reads the record again and decides anew.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::request::RequestId;

/// What the operator has ordered, as the store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "setting", from = "StoredSetting")]
#[non_exhaustive]
pub enum BrakeSetting {
    /// The brake decides automatically.
    #[default]
    Auto,
    /// Declare nobody dead until the setting is changed.
    Hold,
    /// The next pass declares every overdue owner dead, whatever the automatic brake says. The pass
    /// that begins first, in whichever process, uses it up; the setting is `Auto` from then on.
    Override {
        /// Why the operator decided so.
        reason: String,
    },
}

impl BrakeSetting {
    /// The word used in JSON and on the command line.
    pub fn as_str(&self) -> &'static str {
        match self {
            BrakeSetting::Auto => "auto",
            BrakeSetting::Hold => "hold",
            BrakeSetting::Override { .. } => "override",
        }
    }

    /// Why the operator overrides the brake.
    pub fn reason(&self) -> Option<&str> {
        match self {
            BrakeSetting::Override { reason } => Some(reason),
            _ => None,
        }
    }
}

/// The settings as they may be stored. `release` was written by versions before 0.2 and expires by
/// itself, so it is read as `auto`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "setting")]
enum StoredSetting {
    Auto,
    Hold,
    Override { reason: String },
    Release {},
}

impl From<StoredSetting> for BrakeSetting {
    fn from(stored: StoredSetting) -> Self {
        match stored {
            StoredSetting::Auto | StoredSetting::Release {} => BrakeSetting::Auto,
            StoredSetting::Hold => BrakeSetting::Hold,
            StoredSetting::Override { reason } => BrakeSetting::Override { reason },
        }
    }
}

/// The hold of a mass death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MassHold {
    /// When a pass first saw the mass death, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// When the first step may be granted.
    pub until_ms: u64,
    /// How many steps have been granted.
    pub steps: u32,
    /// When the last step was granted; 0 if none was.
    pub stepped_ms: u64,
    /// Whether the operator has set the brake to `auto` since the hold began. With
    /// [`stay`](super::BrakePolicy::stay) no step is granted before that.
    pub decided: bool,
}

impl MassHold {
    /// Whether those who are overdue now, the first of them since `overdue_ms`, are not the ones that
    /// the hold began for, nor any of those who fell silent with them within a threshold.
    pub(super) fn is_of_others(&self, overdue_ms: u64) -> bool {
        overdue_ms > self.until_ms
    }

    pub(super) fn begin(now_ms: u64, threshold_ms: u64) -> Self {
        let until_ms = now_ms + threshold_ms;
        MassHold { since_ms: now_ms, until_ms, steps: 0, stepped_ms: 0, decided: false }
    }
}

/// A pass that runs under an override.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overriding {
    /// Name of the sweeper whose pass it is.
    pub sweeper: String,
    /// Why the operator decided so.
    pub reason: String,
    /// Until when the store-away grace is waived for it, in milliseconds of the store's clock. The
    /// pass renews it while it runs and ends it when it stops. If its process is killed, the waiver
    /// runs out at this time.
    pub until_ms: u64,
}

/// The brake of one system as the store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrakeRecord {
    /// Grows by one with every change; 0 if nothing was ever stored.
    #[serde(default)]
    pub version: u64,
    #[serde(flatten)]
    pub setting: BrakeSetting,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<MassHold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overriding: Option<Overriding>,
    /// The requests of the latest orders, the newest last, as `KEY FINGERPRINT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
}

/// The requests of how many orders a record remembers.
const ORDERS_MAX: usize = 8;

impl BrakeRecord {
    /// Whether this request was carried out. `KeyReused` if its key came before with other content.
    pub fn was_ordered_by(&self, request: &RequestId) -> Result<bool> {
        let of_key = |noted: &&String| {
            noted.rsplit_once(' ').is_some_and(|(key, _)| key == request.key.as_str())
        };
        match self.requests.iter().rev().find(of_key) {
            None => Ok(false),
            Some(noted) if noted.ends_with(&format!(" {}", request.fingerprint)) => Ok(true),
            Some(_) => Err(request.reused()),
        }
    }

    pub(crate) fn note_request(&mut self, request: &RequestId) {
        self.requests.push(format!("{} {}", request.key, request.fingerprint));
        let over = self.requests.len().saturating_sub(ORDERS_MAX);
        self.requests.drain(..over);
    }

    /// The record after this one, with the same content.
    pub fn next(&self) -> Self {
        BrakeRecord { version: self.version + 1, ..self.clone() }
    }

    /// The record after an order of the operator, which also ends an override that is in use.
    pub fn ordered(&self, setting: BrakeSetting) -> Self {
        let decides = setting == BrakeSetting::Auto;
        let hold = self.hold.map(|hold| MassHold { decided: hold.decided || decides, ..hold });
        BrakeRecord { setting, hold, overriding: None, ..self.next() }
    }

    /// The record once `sweeper` has taken the override; `None` if there is none to take.
    pub fn taken_by(&self, sweeper: &str, until_ms: u64) -> Option<Self> {
        let BrakeSetting::Override { reason } = &self.setting else { return None };
        let reason = reason.clone();
        let overriding = Some(Overriding { sweeper: sweeper.to_owned(), reason, until_ms });
        // What that pass leaves is held anew, if it is still a mass death.
        Some(BrakeRecord { setting: BrakeSetting::Auto, hold: None, overriding, ..self.next() })
    }

    /// The record after the pass of `sweeper` under an override has ended; `None` if it had ended
    /// before.
    pub fn ended_by(&self, sweeper: &str) -> Option<Self> {
        self.is_overridden_by(sweeper).then(|| BrakeRecord { overriding: None, ..self.next() })
    }

    /// Whether the pass of `sweeper` runs under an override.
    pub fn is_overridden_by(&self, sweeper: &str) -> bool {
        self.overriding.as_ref().is_some_and(|overriding| overriding.sweeper == sweeper)
    }

    /// Until when the store-away grace is waived, in milliseconds of the store's clock; 0 if it is
    /// not. It is also waived while an override waits for its pass, so that a dry run shows what that
    /// pass would reclaim.
    pub fn waived_until_ms(&self) -> u64 {
        match self.setting {
            BrakeSetting::Override { .. } => u64::MAX,
            _ => self.overriding.as_ref().map_or(0, |overriding| overriding.until_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> BrakeRecord {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_record_survives_being_stored() {
        let hold = Some(MassHold { steps: 2, decided: true, ..MassHold::begin(5, 90) });
        let setting = BrakeSetting::Override { reason: "we scaled down".into() };
        let record = BrakeRecord { version: 7, setting, hold, ..BrakeRecord::default() };
        assert_eq!(read(&serde_json::to_string(&record).unwrap()), record);
        let taken = record.taken_by("s", 40).unwrap();
        assert_eq!(read(&serde_json::to_string(&taken).unwrap()), taken);
    }

    #[test]
    fn settings_of_older_versions_are_read_and_a_release_counts_as_auto() {
        assert_eq!(read(r#"{"setting":"hold"}"#).setting, BrakeSetting::Hold);
        let released = read(r#"{"setting":"release","until_ms":99}"#);
        assert_eq!(released, BrakeRecord::default());
    }

    #[test]
    fn a_record_knows_the_requests_of_the_latest_orders() {
        let request = |key: &str, print: &str| RequestId::new(key, print, "a").unwrap();
        let mut record = BrakeRecord::default();
        assert!(!record.was_ordered_by(&request("k", "f")).unwrap());
        record.note_request(&request("k", "f"));
        let taken = record
            .ordered(BrakeSetting::Override { reason: "drill".into() })
            .taken_by("s", 40)
            .unwrap();
        assert!(taken.was_ordered_by(&request("k", "f")).unwrap(), "also after its pass");
        assert!(taken.was_ordered_by(&request("k", "other")).is_err());
        (0..ORDERS_MAX).for_each(|n| record.note_request(&request(&format!("k{n}"), "f")));
        assert_eq!(record.requests.len(), ORDERS_MAX);
        assert!(!record.was_ordered_by(&request("k", "f")).unwrap());
    }

    #[test]
    fn an_override_can_be_taken_once() {
        let record =
            BrakeRecord::default().ordered(BrakeSetting::Override { reason: "drill".into() });
        assert_eq!(record.waived_until_ms(), u64::MAX);
        let taken = record.taken_by("a", 30).unwrap();
        assert_eq!((taken.version, &taken.setting), (2, &BrakeSetting::Auto));
        assert_eq!(taken.taken_by("b", 30), None);
        assert!(taken.is_overridden_by("a") && !taken.is_overridden_by("b"));
        assert_eq!(taken.waived_until_ms(), 30);
        let ended = taken.ended_by("a").unwrap();
        assert_eq!((ended.waived_until_ms(), ended.ended_by("a")), (0, None));
    }

    #[test]
    fn an_order_ends_an_override_in_use_and_auto_decides_a_hold() {
        let hold = Some(MassHold::begin(0, 90));
        let record = BrakeRecord { hold, ..BrakeRecord::default() };
        let held = record.ordered(BrakeSetting::Hold);
        assert!(!held.hold.unwrap().decided);
        assert!(held.ordered(BrakeSetting::Auto).hold.unwrap().decided);
        let overridden = record.ordered(BrakeSetting::Override { reason: "drill".into() });
        let taken = overridden.taken_by("a", 30).unwrap();
        assert_eq!(taken.ordered(BrakeSetting::Hold).overriding, None);
    }
}
