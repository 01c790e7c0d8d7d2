//! The part of the configuration that is about a foreign job system, whose keys its profile knows.

use std::fmt;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::inflight::rules::RecoveryPolicy;
use lapsed_redis::{ProfileInfo, RescueLayout};
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use super::layout::QueueWord;
use crate::config::ConfigError;
use crate::config::common::Section;

/// What `queues` says: how queues are stored, or which queues of a foreign job system are rescued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuesSetting {
    Stored(QueueWord),
    Named(Vec<Name>),
}

impl<'de> Deserialize<'de> for QueuesSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QueuesVisitor)
    }
}

struct QueuesVisitor;

impl<'de> Visitor<'de> for QueuesVisitor {
    type Value = QueuesSetting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`lapsed`, `sidekiq`, `list` or `stream`, or a list of queues")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Self::Value, E> {
        Ok(QueuesSetting::Stored(QueueWord::deserialize(StrDeserializer::new(word))?))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(name) = names.next_element::<String>()? {
            all.push(Name::new(&name).map_err(A::Error::custom)?);
        }
        Ok(QueuesSetting::Named(all))
    }
}

/// A foreign job system, and which part of it is rescued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    pub profile: ProfileInfo,
    /// Only these queues; empty: all.
    queues: Vec<Name>,
    /// The namespace of its keys, if it is not the usual one.
    prefix: Option<String>,
    /// Whether jobs get what the system's own code would give them.
    pub as_system: bool,
}

impl Rescued {
    /// Refuses a word for `queues`, because the profile knows how its system stores them.
    pub fn new(
        section: &Section<'_>,
        profile: ProfileInfo,
        queues: Option<QueuesSetting>,
        prefix: Option<String>,
    ) -> Result<Rescued, ConfigError> {
        let queues = match queues {
            None => Vec::new(),
            Some(QueuesSetting::Named(names)) => names,
            Some(QueuesSetting::Stored(_)) => {
                let what = format!("is a list of queues with preset = \"{}\"", profile.name);
                return Err(section.wrong("queues", &what));
            }
        };
        Ok(Rescued { profile, queues, prefix, as_system: false })
    }

    /// The layout that the Redis store is opened with. `limit`: how long a worker may show no sign of life.
    pub fn layout(&self, limit: Duration, recovery: &RecoveryPolicy) -> RescueLayout {
        RescueLayout {
            queues: self.queues.iter().cloned().collect(),
            prefix: self.prefix.clone(),
            limit: Some(limit),
            as_system: self.as_system,
            ..RescueLayout::new(self.profile.name, recovery.clone())
        }
    }

    /// A sentence about the queues, for `lapsed check`.
    pub fn describe(&self) -> String {
        let which = match &self.queues[..] {
            [] => "all queues".to_owned(),
            names => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                format!("the queues {}", names.join(", "))
            }
        };
        let ProfileInfo { title, own_recovery, .. } = self.profile;
        format!("jobs are {title}'s, {which}. {own_recovery}")
    }
}
