//! What is known about the life of the owners in an adopted system, before anything is reclaimed there.
//!
//! An application writes the keys of an adopted system, and lapsed only knows their names from its
//! configuration. If the name of the heartbeat's key is wrong, every owner looks dead. Adopting therefore
//! begins by observing: until half of the owners that hold something were seen alive under this
//! configuration, or an operator has confirmed it, the brake holds.

use serde::{Deserialize, Serialize};

/// How many owners of an adopted system hold something, and how many of them were seen alive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdoptObservation {
    /// What is counted, in the plural: `owners`, `jobs`.
    pub of: String,
    /// Where signs of life are looked for, for example the name of the heartbeat's key.
    pub signs: String,
    /// What shows life, if it is not a heartbeat: `a hash`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sign: String,
    /// How many hold something now.
    pub total: u64,
    /// How many of those show a sign of life now.
    pub alive: u64,
    /// How many of those were ever seen alive under this configuration.
    pub seen_alive: u64,
    /// When the configuration was confirmed by an operator or, for jobs, by enough signs of life at
    /// once, in milliseconds of the store's clock. Absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_ms: Option<u64>,
}

impl AdoptObservation {
    /// Whether the system only observes. Nothing is reclaimed then.
    pub fn is_observing(&self) -> bool {
        self.confirmed_ms.is_none() && 2 * self.seen_alive < self.total
    }

    /// What half of them must have done or have before anything is reclaimed, with its verb.
    pub fn wanted(&self) -> String {
        match self.sign.as_str() {
            "" => "were seen alive".to_owned(),
            sign => format!("have {sign}"),
        }
    }

    /// The counts as a sentence.
    pub fn describe(&self) -> String {
        let AdoptObservation { of, signs, sign, total, alive, seen_alive, .. } = self;
        if !sign.is_empty() {
            return format!("{alive} of {total} {of} have {sign} ({signs})");
        }
        format!(
            "{alive} of {total} {of} have a heartbeat ({signs}), and {seen_alive} of them were ever \
             seen alive under this configuration"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_owners_or_a_confirmation_end_the_observation() {
        let seen = |seen_alive, total| AdoptObservation { total, seen_alive, ..Default::default() };
        assert!(!seen(0, 0).is_observing(), "nothing is held, so nothing can be lost");
        assert!(seen(0, 1).is_observing());
        assert!(seen(2, 5).is_observing());
        assert!(!seen(3, 5).is_observing());
        assert!(!seen(1, 2).is_observing(), "half is enough");
        let confirmed = AdoptObservation { confirmed_ms: Some(7), ..seen(0, 5) };
        assert!(!confirmed.is_observing());
    }

    #[test]
    fn a_sign_of_life_is_named_where_there_is_no_heartbeat() {
        let owners = AdoptObservation {
            of: "owners".to_owned(),
            signs: "hb:*".to_owned(),
            total: 5,
            alive: 2,
            seen_alive: 3,
            ..Default::default()
        };
        assert_eq!(owners.wanted(), "were seen alive");
        let said = owners.describe();
        assert!(said.contains("2 of 5 owners have a heartbeat (hb:*), and 3 of them"), "{said}");
        let jobs = AdoptObservation { sign: "a lock".to_owned(), ..owners };
        assert_eq!(jobs.wanted(), "have a lock");
        assert_eq!(jobs.describe(), "2 of 5 owners have a lock (hb:*)");
    }
}
