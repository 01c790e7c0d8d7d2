//! The part of the configuration that is about a foreign job system, whose keys its profile knows.

use std::collections::BTreeSet;
use std::fmt;

use lapsed_core::Name;
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

/// What the section says about a foreign job system, checked by what is known of that system.
#[derive(Clone, Copy)]
pub struct RescueCheck<'a> {
    pub section: &'a Section<'a>,
    pub profile: ProfileInfo,
}

impl RescueCheck<'_> {
    fn wrong<T>(&self, key: &str, what: &str) -> Result<T, ConfigError> {
        Err(self.section.wrong(key, what))
    }

    /// Refuses a word for `queues`, because the profile knows how its system stores them.
    pub fn queues(&self, given: Option<QueuesSetting>) -> Result<BTreeSet<Name>, ConfigError> {
        match given {
            None => Ok(BTreeSet::new()),
            Some(QueuesSetting::Named(names)) => Ok(names.into_iter().collect()),
            Some(QueuesSetting::Stored(_)) => {
                let name = self.profile.name;
                self.wrong("queues", &format!("is a list of queues with preset = \"{name}\""))
            }
        }
    }

    /// The number of heartbeats that must have shown a job: 1 or 2.
    pub fn seen(&self, seen: Option<u8>) -> Result<Option<u8>, ConfigError> {
        match seen {
            Some(_) if self.profile.name != SHOWN_BY_HEARTBEATS => self.wrong("seen", SEEN_IS_FOR),
            Some(0 | 3..) => self.wrong("seen", "is 1 or 2"),
            _ => Ok(seen),
        }
    }

    /// How often a job may stall before it is failed.
    pub fn max_stalled(&self, max_stalled: Option<u32>) -> Result<Option<u32>, ConfigError> {
        match max_stalled {
            Some(_) if self.profile.name != "bullmq" => {
                self.wrong("max_stalled_count", MAX_STALLED_IS_FOR)
            }
            _ => Ok(max_stalled),
        }
    }

    /// The priorities that have a list of their own.
    pub fn priority_steps(&self, steps: Option<Vec<u8>>) -> Result<Vec<u8>, ConfigError> {
        match steps {
            Some(_) if self.profile.name != "celery" => {
                self.wrong("priority_steps", PRIORITY_STEPS_ARE_FOR)
            }
            Some(steps) if steps.is_empty() || steps.iter().any(|step| *step > 9) => {
                self.wrong("priority_steps", "is a list of numbers from 0 to 9")
            }
            steps => Ok(steps.unwrap_or_default()),
        }
    }

    /// Refuses the list for systems whose jobs have no class.
    pub fn quarantine(&self, classes: Option<Vec<String>>) -> Result<Vec<String>, ConfigError> {
        let quarantine = classes.unwrap_or_default();
        match self.profile.no_class {
            Some(why) if !quarantine.is_empty() => self.wrong("quarantine", why),
            _ if quarantine.iter().any(String::is_empty) => {
                self.wrong("quarantine", "has an empty name of a class")
            }
            _ => Ok(quarantine),
        }
    }

    /// Refuses the key for systems that have a sign of life of their own.
    pub fn heartbeat_key(&self, key: Option<String>) -> Result<Option<String>, ConfigError> {
        match &key {
            Some(_) if self.profile.name != "streams" => {
                let what = format!(
                    "has no effect with preset = \"{}\", which knows the sign of life",
                    self.profile.name
                );
                self.wrong("heartbeat_key", &what)
            }
            Some(key) if !key.contains("{consumer}") => {
                self.wrong("heartbeat_key", "must contain `{consumer}`")
            }
            _ => Ok(key),
        }
    }
}

/// A sentence about the queues, for `lapsed check`.
pub fn describe(profile: &ProfileInfo, layout: &RescueLayout) -> String {
    let queues: Vec<String> = layout.queues.iter().map(|name| format!("`{name}`")).collect();
    let which = match &queues[..] {
        [] => "all queues".to_owned(),
        names => format!("the queues {}", names.join(", ")),
    };
    let ProfileInfo { title, own_recovery, .. } = profile;
    let seen = match layout.seen {
        Some(2) => ". Only what two heartbeats have shown is put back",
        _ => "",
    };
    let quarantine = match &layout.quarantine[..] {
        [] => String::new(),
        classes => format!(". Jobs of these classes are not put back: {}", classes.join(", ")),
    };
    format!("jobs are {title}'s, {which}. {own_recovery}{seen}{quarantine}")
}
