//! What `on_death` says: a word, the queue that jobs of dead workers are moved to, or that a rescued system's own rule decides.

use std::fmt;

use lapsed_core::Name;
use lapsed_core::inflight::rules::{OnDeath, RecoveryPolicy};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::config::origin::Show;

/// The word that leaves the decision to RQ's rule.
pub const AS_RQ: &str = "as-rq";

/// `"front"`, `"back"` and so on, or `{ queue = "slow" }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDeathSetting {
    Word(OnDeath),
    /// Jobs go to the back of this queue and belong to it from then on.
    Queue(Name),
    /// `"as-rq"`: jobs get what RQ's own cleanup would give them.
    AsRq,
}

impl OnDeathSetting {
    /// Sets what the policy does with jobs that do not say it themselves.
    pub fn apply(self, recovery: &mut RecoveryPolicy) {
        match self {
            OnDeathSetting::Word(word) => recovery.on_death = word,
            OnDeathSetting::Queue(queue) => recovery.move_to = Some(queue),
            // The profile decides; what the policy says is not asked.
            OnDeathSetting::AsRq => {}
        }
    }
}

impl Show for OnDeathSetting {
    fn show(&self) -> String {
        match self {
            OnDeathSetting::Word(word) => word.to_string(),
            OnDeathSetting::AsRq => AS_RQ.to_owned(),
            OnDeathSetting::Queue(queue) => format!("{{ queue = \"{queue}\" }}"),
        }
    }
}

impl<'de> Deserialize<'de> for OnDeathSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OnDeathVisitor)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueTable {
    queue: String,
}

struct OnDeathVisitor;

impl<'de> Visitor<'de> for OnDeathVisitor {
    type Value = OnDeathSetting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`front`, `back`, `fail`, `drop` or `dead_letter`, or { queue = \"NAME\" }")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Self::Value, E> {
        if word == AS_RQ {
            return Ok(OnDeathSetting::AsRq);
        }
        Ok(OnDeathSetting::Word(OnDeath::deserialize(StrDeserializer::new(word))?))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let table = QueueTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(OnDeathSetting::Queue(Name::new(&table.queue).map_err(A::Error::custom)?))
    }
}
