//! What `on_death` says: a word, the queue that jobs of dead workers are moved to, or that a rescued system's own rule decides.

use std::fmt;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::inflight::rules::{Backoff, OnDeath, RecoveryPolicy};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::config::origin::Show;
use crate::config::units::{Span, show_span};

/// The word that leaves the decision to RQ's rule.
pub const AS_RQ: &str = "as-rq";

/// `"front"`, `"back"` and so on, or where to and when: `{ queue = "slow", delay = "30s", max = "10m" }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDeathSetting {
    Word(OnDeath),
    MoveTo(MoveToSetting),
    /// `"as-rq"`: jobs get what RQ's own cleanup would give them.
    AsRq,
}

/// Where jobs of dead workers go, and after how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveToSetting {
    /// They go to the back of this queue and belong to it from then on; `None`: to their own.
    queue: Option<Name>,
    backoff: Option<Backoff>,
}

/// The longest delay of a job whose `on_death` has none.
const DELAY_MAX: Duration = Duration::from_secs(3_600);

impl OnDeathSetting {
    /// How long jobs wait before they may run again, if they do.
    pub fn backoff(&self) -> Option<Backoff> {
        match self {
            OnDeathSetting::MoveTo(place) => place.backoff,
            OnDeathSetting::Word(_) | OnDeathSetting::AsRq => None,
        }
    }

    /// Sets what the policy does with jobs that do not say it themselves.
    pub fn apply(self, recovery: &mut RecoveryPolicy) {
        match self {
            OnDeathSetting::Word(word) => recovery.on_death = word,
            OnDeathSetting::MoveTo(place) => recovery.move_to = place.queue,
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
            OnDeathSetting::MoveTo(MoveToSetting { queue, backoff }) => {
                let span = |ms| show_span(Duration::from_millis(ms));
                let queue = queue.iter().map(|queue| format!("queue = \"{queue}\""));
                let delay = backoff.iter().map(|Backoff { first_ms, max_ms }| {
                    format!("delay = \"{}\", max = \"{}\"", span(*first_ms), span(*max_ms))
                });
                format!("{{ {} }}", queue.chain(delay).collect::<Vec<_>>().join(", "))
            }
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
struct PlaceTable {
    queue: Option<String>,
    delay: Option<Span>,
    max: Option<Span>,
}

struct OnDeathVisitor;

impl<'de> Visitor<'de> for OnDeathVisitor {
    type Value = OnDeathSetting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`front`, `back`, `fail`, `drop` or `dead_letter`, or { queue = \"NAME\" } or { delay = \"30s\" }")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Self::Value, E> {
        if word == AS_RQ {
            return Ok(OnDeathSetting::AsRq);
        }
        Ok(OnDeathSetting::Word(OnDeath::deserialize(StrDeserializer::new(word))?))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let table = PlaceTable::deserialize(MapAccessDeserializer::new(map))?;
        let queue = table.queue.map(|queue| Name::new(&queue)).transpose();
        let queue = queue.map_err(A::Error::custom)?;
        let ms = |span: Span| span.0.as_millis() as u64;
        let backoff = match (table.delay.map(ms), table.max.map(ms)) {
            (None, None) if queue.is_none() => {
                return Err(A::Error::custom("needs `queue` or `delay`"));
            }
            (None, None) => None,
            (None, Some(_)) => return Err(A::Error::custom("`max` goes with `delay`")),
            (Some(first_ms), max_ms) => {
                let first_ms = first_ms.max(1);
                let usual = (DELAY_MAX.as_millis() as u64).max(first_ms);
                let max_ms = max_ms.unwrap_or(usual);
                if max_ms < first_ms {
                    return Err(A::Error::custom("`max` is shorter than `delay`"));
                }
                Some(Backoff { first_ms, max_ms })
            }
        };
        Ok(OnDeathSetting::MoveTo(MoveToSetting { queue, backoff }))
    }
}
