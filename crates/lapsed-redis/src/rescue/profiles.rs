//! The list of profiles.

use lapsed_core::{Error, Result};

use super::profile::{Profile, ProfileFacts};
use super::{RescueLayout, asynq, bullmq, celery, dramatiq, resque, rq, sidekiq, streams};

/// A profile, and how it is made for a layout.
struct Registered {
    facts: &'static ProfileFacts,
    open: fn(&RescueLayout) -> Box<dyn Profile>,
}

/// Every foreign job system that can be rescued, in the order of the documentation.
static PROFILES: &[Registered] = &[
    Registered { facts: &rq::FACTS, open: rq::open },
    Registered { facts: &dramatiq::FACTS, open: dramatiq::open },
    Registered { facts: &bullmq::FACTS, open: bullmq::open },
    Registered { facts: &celery::FACTS, open: celery::open },
    Registered { facts: &sidekiq::FACTS, open: sidekiq::open },
    Registered { facts: &asynq::FACTS, open: asynq::open },
    Registered { facts: &resque::FACTS, open: resque::open },
    Registered { facts: &streams::FACTS, open: streams::open },
];

/// What people are told about a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileInfo {
    /// The word in the configuration.
    pub name: &'static str,
    /// The system's own name.
    pub title: &'static str,
    /// What the system itself does about jobs of a killed worker.
    pub own_recovery: &'static str,
    /// How long a worker may show no sign of life, in milliseconds.
    pub limit_ms: u64,
    /// How long everybody is spared after the server was away, in milliseconds.
    pub grace_ms: u64,
    /// Whether its keys show workers that live.
    pub shows_workers: bool,
}

/// What people are told about every profile, in the order of the documentation.
pub fn profiles() -> Vec<ProfileInfo> {
    let info = |one: &Registered| ProfileInfo {
        name: one.facts.name,
        title: one.facts.title,
        own_recovery: one.facts.own_recovery,
        limit_ms: one.facts.limit.as_millis() as u64,
        grace_ms: one.facts.grace.as_millis() as u64,
        shows_workers: one.facts.shows_workers,
    };
    PROFILES.iter().map(info).collect()
}

/// The words that `preset` accepts.
pub fn profile_names() -> Vec<&'static str> {
    PROFILES.iter().map(|one| one.facts.name).collect()
}

/// The profile of a layout.
pub(super) fn open(layout: &RescueLayout) -> Result<Box<dyn Profile>> {
    match PROFILES.iter().find(|one| one.facts.name == layout.profile) {
        Some(found) => Ok((found.open)(layout)),
        None => Err(Error::Invalid(format!(
            "there is no preset `{}`; these are: {}",
            layout.profile,
            profile_names().join(", ")
        ))),
    }
}
