//! What the brake decides for one pass, and how it is told to the operator.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub enum HeldBy {
    /// The operator's setting is `Hold`.
    Operator,
    /// Another process runs the pass that the operator's override lets through.
    OtherPass,
    /// The store was away.
    StoreAway,
    /// Too many owners would die at once.
    MassDeath,
    /// The system is adopted, and fewer than half of its owners were ever seen alive.
    Observing,
}

impl HeldBy {
    /// All causes, in the order in which metrics list them.
    pub const ALL: [HeldBy; 5] = [
        HeldBy::Operator,
        HeldBy::OtherPass,
        HeldBy::StoreAway,
        HeldBy::MassDeath,
        HeldBy::Observing,
    ];

    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            HeldBy::Operator => "operator",
            HeldBy::OtherPass => "other_pass",
            HeldBy::StoreAway => "store_away",
            HeldBy::MassDeath => "mass_death",
            HeldBy::Observing => "observing",
        }
    }
}

/// What the share of a mass death is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Counted {
    /// Owners that are overdue or were declared dead recently.
    Owners,
    /// Entries that are due, where the application's keys show no owners.
    Entries,
}

/// What a pass may do to owners that are overdue but not yet declared dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
#[non_exhaustive]
pub enum BrakeVerdict {
    /// All of them may be declared dead.
    Open,
    /// All of them may be declared dead in this one pass, by order of the operator.
    Overridden {
        /// Why the operator decided so.
        reason: String,
    },
    /// The brake is opening automatically: only some may be declared dead.
    Opening {
        /// How many may be declared dead or reclaimed, the most overdue first.
        max: usize,
        /// Whether `max` counts owners or entries.
        of: Counted,
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
            BrakeVerdict::Open | BrakeVerdict::Overridden { .. } => None,
            BrakeVerdict::Opening { of: Counted::Entries, .. } => None,
            BrakeVerdict::Opening { max, of: Counted::Owners } => Some(*max),
            BrakeVerdict::Held { .. } => Some(0),
        }
    }

    /// The most entries that the pass may work on. `None`: no limit.
    pub fn entries_max(&self) -> Option<usize> {
        match self {
            BrakeVerdict::Opening { max, of: Counted::Entries } => Some(*max),
            _ => None,
        }
    }

    /// Whether every suspect may be reclaimed.
    pub fn is_open(&self) -> bool {
        matches!(self, BrakeVerdict::Open | BrakeVerdict::Overridden { .. })
    }

    /// The word used in JSON: `open`, `opening` or `held`.
    pub fn state(&self) -> &'static str {
        match self {
            BrakeVerdict::Open | BrakeVerdict::Overridden { .. } => "open",
            BrakeVerdict::Opening { .. } => "opening",
            BrakeVerdict::Held { .. } => "held",
        }
    }

    /// Why the brake holds.
    pub fn held_by(&self) -> Option<HeldBy> {
        match self {
            BrakeVerdict::Held { by, .. } => Some(*by),
            _ => None,
        }
    }

    /// Until when the brake holds, in milliseconds of the store's clock, if that is known.
    pub fn held_until_ms(&self) -> Option<u64> {
        match self {
            BrakeVerdict::Held { until_ms, .. } => *until_ms,
            _ => None,
        }
    }

    /// Whether the brake holds only because the system observes.
    pub fn is_observing(&self) -> bool {
        self.held_by() == Some(HeldBy::Observing)
    }

    /// The verdict as a sentence for the operator.
    pub fn describe(&self, now_ms: u64) -> String {
        match self {
            BrakeVerdict::Open => "open".to_owned(),
            BrakeVerdict::Overridden { reason } => {
                format!("open for one pass by the operator's override ({reason})")
            }
            BrakeVerdict::Opening { max, of: Counted::Owners } => {
                format!("opening in steps: up to {max} owners may be declared dead in this pass")
            }
            BrakeVerdict::Opening { max, of: Counted::Entries } => {
                format!("opening in steps: up to {max} entries may be reclaimed in this pass")
            }
            BrakeVerdict::Held { by, until_ms } => describe_held(*by, *until_ms, now_ms),
        }
    }
}

fn describe_held(by: HeldBy, until_ms: Option<u64>, now_ms: u64) -> String {
    let left = until_ms.map_or(String::new(), |until| {
        format!(" for another {:.1} s", until.saturating_sub(now_ms) as f64 / 1e3)
    });
    match (by, until_ms) {
        (HeldBy::Operator, _) => {
            "held by the operator until `lapsed brake SYSTEM auto`; `lapsed brake SYSTEM override` \
             lets one pass through"
                .to_owned()
        }
        (HeldBy::Observing, _) => {
            "held, because lapsed only observes: fewer than half of the owners were ever seen alive \
             under this configuration; look at `lapsed sweep SYSTEM --dry-run`, and if the key names \
             are right, confirm once with `lapsed adopt SYSTEM`"
                .to_owned()
        }
        (HeldBy::OtherPass, _) => {
            "held: another process runs the pass that the operator's override lets through"
                .to_owned()
        }
        (HeldBy::StoreAway, _) => format!(
            "held{left}: the store was away, and its owners must first have had a whole threshold \
             to send a heartbeat"
        ),
        (HeldBy::MassDeath, Some(_)) => format!(
            "held{left}: too many owners, or their entries, would be dead at once, which is likelier a fault of the network; \
             it opens by itself in steps. If they are really dead, `lapsed brake SYSTEM override` \
             lets one pass through"
        ),
        (HeldBy::MassDeath, None) => {
            "held until a person decides (brake.stay): too many owners, or their entries, would be dead at once, which is \
             likelier a fault of the network; `lapsed brake SYSTEM auto` opens it in steps, `lapsed \
             brake SYSTEM override` lets one pass through"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_verdict_says_what_it_allows() {
        let held = BrakeVerdict::Held { by: HeldBy::MassDeath, until_ms: Some(7) };
        assert_eq!((held.state(), held.is_open(), held.held_until_ms()), ("held", false, Some(7)));
        assert_eq!((held.undeclared_max(), held.is_observing()), (Some(0), false));
        let owners = BrakeVerdict::Opening { max: 3, of: Counted::Owners };
        assert_eq!(
            (owners.state(), owners.is_open(), owners.held_until_ms()),
            ("opening", false, None)
        );
        assert_eq!((owners.undeclared_max(), owners.entries_max()), (Some(3), None));
        let entries = BrakeVerdict::Opening { max: 3, of: Counted::Entries };
        assert_eq!((entries.undeclared_max(), entries.entries_max()), (None, Some(3)));
        assert!(
            entries.describe(0).contains("3 entries") && owners.describe(0).contains("3 owners")
        );
        let open = BrakeVerdict::Overridden { reason: "a drill".to_owned() };
        assert_eq!((open.state(), open.is_open(), open.entries_max()), ("open", true, None));
        let observing = BrakeVerdict::Held { by: HeldBy::Observing, until_ms: None };
        assert!(observing.is_observing() && observing.held_until_ms().is_none());
        let words: BTreeSet<&str> = HeldBy::ALL.map(HeldBy::as_str).into();
        assert!(words.len() == HeldBy::ALL.len() && !words.contains(""), "{words:?}");
    }
}
