//! The part of the configuration that is about a foreign job system, whose keys its profile knows.

use std::fmt;
use std::time::Duration;

use lapsed_core::Name;
use lapsed_core::inflight::rules::{Backoff, RecoveryPolicy};
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
    /// How many heartbeats must have shown a job; `None`: one.
    seen: Option<u8>,
    /// How often a job may stall before it is failed; `None`: as BullMQ has it.
    max_stalled: Option<u32>,
    /// The priorities that have a list of their own; empty: as kombu has them.
    priority_steps: Vec<u8>,
    /// How long jobs wait before they may run again; `None`: not at all.
    pub backoff: Option<Backoff>,
    /// Classes whose jobs are not put back.
    quarantine: Vec<String>,
    /// The key that each consumer of a stream renews.
    heartbeat_key: Option<String>,
}

/// The preset of the system whose keys show what a worker ran as of its last heartbeat only.
const SHOWN_BY_HEARTBEATS: &str = "sidekiq";

/// Where `quarantine` has an effect.
pub const QUARANTINE_IS_FOR: &str = "goes with the preset of a job system, such as preset = \"sidekiq\": without it, the class of a job is not known";

/// Where `seen` has an effect.
pub const SEEN_IS_FOR: &str =
    "says how many heartbeats must have shown a job: it goes with preset = \"sidekiq\"";

/// Where `max_stalled_count` has an effect.
pub const MAX_STALLED_IS_FOR: &str =
    "is `maxStalledCount` of the application's workers: it goes with preset = \"bullmq\"";

/// Where `priority_steps` has an effect.
pub const PRIORITY_STEPS_ARE_FOR: &str =
    "are those of the application's broker_transport_options: they go with preset = \"celery\"";

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
        Ok(Rescued {
            profile,
            queues,
            prefix,
            as_system: false,
            seen: None,
            max_stalled: None,
            priority_steps: Vec::new(),
            backoff: None,
            quarantine: Vec::new(),
            heartbeat_key: None,
        })
    }

    /// With the number of heartbeats that must have shown a job: 1 or 2.
    pub fn seen(self, section: &Section<'_>, seen: Option<u8>) -> Result<Rescued, ConfigError> {
        match seen {
            Some(_) if self.profile.name != SHOWN_BY_HEARTBEATS => {
                Err(section.wrong("seen", SEEN_IS_FOR))
            }
            Some(0 | 3..) => Err(section.wrong("seen", "is 1 or 2")),
            _ => Ok(Rescued { seen, ..self }),
        }
    }

    /// With how often a job may stall before it is failed.
    pub fn max_stalled(
        self,
        section: &Section<'_>,
        max_stalled: Option<u32>,
    ) -> Result<Rescued, ConfigError> {
        match max_stalled {
            Some(_) if self.profile.name != "bullmq" => {
                Err(section.wrong("max_stalled_count", MAX_STALLED_IS_FOR))
            }
            _ => Ok(Rescued { max_stalled, ..self }),
        }
    }

    /// With the priorities that have a list of their own.
    pub fn priority_steps(
        self,
        section: &Section<'_>,
        steps: Option<Vec<u8>>,
    ) -> Result<Rescued, ConfigError> {
        match steps {
            Some(_) if self.profile.name != "celery" => {
                Err(section.wrong("priority_steps", PRIORITY_STEPS_ARE_FOR))
            }
            Some(steps) if steps.is_empty() || steps.iter().any(|step| *step > 9) => {
                Err(section.wrong("priority_steps", "is a list of numbers from 0 to 9"))
            }
            steps => Ok(Rescued { priority_steps: steps.unwrap_or_default(), ..self }),
        }
    }

    /// Refuses the list for systems whose jobs have no class.
    pub fn with_quarantine(
        self,
        section: &Section<'_>,
        classes: Option<Vec<String>>,
    ) -> Result<Rescued, ConfigError> {
        let quarantine = classes.unwrap_or_default();
        match self.profile.no_class {
            Some(why) if !quarantine.is_empty() => Err(section.wrong("quarantine", why)),
            _ if quarantine.iter().any(String::is_empty) => {
                Err(section.wrong("quarantine", "has an empty name of a class"))
            }
            _ => Ok(Rescued { quarantine, ..self }),
        }
    }

    /// Refuses the key for systems that have a sign of life of their own.
    pub fn with_heartbeat_key(
        mut self,
        section: &Section<'_>,
        key: Option<String>,
    ) -> Result<Rescued, ConfigError> {
        match &key {
            Some(_) if self.profile.name != "streams" => {
                let what = format!(
                    "has no effect with preset = \"{}\", which knows the sign of life",
                    self.profile.name
                );
                return Err(section.wrong("heartbeat_key", &what));
            }
            Some(key) if !key.contains("{consumer}") => {
                return Err(section.wrong("heartbeat_key", "must contain `{consumer}`"));
            }
            _ => {}
        }
        self.heartbeat_key = key;
        Ok(self)
    }

    /// The layout that the Redis store is opened with. `limit`: how long a worker may show no sign of life.
    pub fn layout(&self, limit: Duration, recovery: &RecoveryPolicy) -> RescueLayout {
        RescueLayout {
            queues: self.queues.iter().cloned().collect(),
            prefix: self.prefix.clone(),
            heartbeat_key: self.heartbeat_key.clone(),
            limit: Some(limit),
            as_system: self.as_system,
            seen: self.seen,
            max_stalled: self.max_stalled,
            priority_steps: self.priority_steps.clone(),
            quarantine: self.quarantine.clone(),
            backoff: self.backoff,
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
        let seen = match self.seen {
            Some(2) => ". Only what two heartbeats have shown is put back",
            _ => "",
        };
        let quarantine = match &self.quarantine[..] {
            [] => String::new(),
            classes => format!(". Jobs of these classes are not put back: {}", classes.join(", ")),
        };
        format!("jobs are {title}'s, {which}. {own_recovery}{seen}{quarantine}")
    }
}
